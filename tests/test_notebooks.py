"""The notebooks that need nothing but Expunge and its test environment, run from top to bottom."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge.certificate.wording import ENCODERS
from notebooks import FOLDER, run

BOOKS = sorted(FOLDER.glob("*.ipynb"))
WORDS = ("status: ", "The published weights are ")  # what has to come out the same at every run


def names_of(name: str) -> dict[str, Any]:
    """What a notebook's cells leave, after comparing what they printed of the certificate with what is in the file."""
    path = FOLDER / f"{name}.ipynb"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names, made = run(path)
    assert told(made) == told(json.loads(path.read_text(encoding="utf8"))), "run it again: python -m notebooks"
    return names


def told(book: dict[str, Any]) -> list[str]:
    """The lines about the certificate; timings, accuracies and draws of noise may differ."""
    lines = [line for cell in book["cells"] for output in cell.get("outputs", []) for line in output["text"]]
    found = [line for line in lines if line.startswith(WORDS)]
    assert len(found) > 1
    return found


def test_three_people_leave_a_pipeline() -> None:
    names = names_of("table")
    result, later, features = names["result"], names["later"], names["features"]
    assert (result.certificate.status, result.deposit.numbers.forgotten) == ("proven", 3)
    assert type(result.estimator) is type(names["pipeline"])
    majority = later["default"].value_counts(normalize=True).max()
    assert result.estimator.score(later[features], later["default"]) > majority + 0.08
    assert names["same"] > 0.97
    assert not np.array_equal(result.estimator[-1].coef_, names["pipeline"][-1].coef_)


def test_five_images_leave_a_torch_classifier() -> None:
    names = names_of("image_head")
    result = names["result"]
    assert (result.certificate.status, result.deposit.numbers.forgotten) == ("proven", 5)
    assert ENCODERS["no"] in result.statement.content["limits"]
    assert names["same"] == 1.0
    assert np.mean(names["found"] == names["labels"][names["later"]]) > 0.85
    assert not np.array_equal(names["after"].fc.weight.numpy(force=True), names["before"].fc.weight.numpy(force=True))


def test_an_auditor_reads_checks_and_finds_two_forgeries() -> None:
    names = names_of("auditor")
    assert names["refused"] == ["statement", "model"]
    assert names["statement"].status == "conditional"
    assert names["dossier"].total == names["issued"].certificate.total


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_it_was_run_from_top_to_bottom_as_it_stands(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text(encoding="utf8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells)
