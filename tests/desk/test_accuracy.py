"""Accuracy is that of models that were published; a bad test set is refused before anything is done."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from desk_use import ask
from expunge.desk import Desk, history, models, run
from expunge.desk.handover import desk_report
from expunge.desk.layout import MODEL
from expunge.desk.run import check_test_rows
from expunge.desk.state import load_state
from expunge.errors import DataError, FileError
from expunge.model import LinearModel, read_model

Rows = tuple[np.ndarray, np.ndarray]


def correct(model: LinearModel, rows: Rows) -> float:
    return float(np.mean(model.predict(rows[0]) == rows[1]))


def noisy(source: Rows) -> Rows:
    """Rows on which trained and noised weights differ."""
    X, y = source
    return X + 1.2 * np.random.default_rng(3).normal(size=X.shape), y


def test_before_a_later_model_is_the_last_published_one(desk: Desk, source: Rows, trained: LinearModel) -> None:
    test = noisy(source)
    for number in range(3):
        ask(desk, source, number, number + 1)
        run(desk, test=test)
    made = [facts["accuracy"] for facts in models(desk)]
    published = [read_model(desk.layout.published_model(number) / MODEL)[0] for number in (1, 2, 3)]
    assert [each["after"] for each in made] == [correct(model, test) for model in published]
    assert made[0]["before"] == correct(trained, test), "the model that the desk was opened with"
    assert [each["before"] for each in made[1:]] == [each["after"] for each in made[:-1]]
    with desk.reading() as ledger:
        private = correct(load_state(desk, ledger).model, test)
    assert private not in [each["before"] for each in made[1:]], "the weights without noise"


def test_a_model_that_was_taken_away_is_not_measured(desk: Desk, source: Rows) -> None:
    ask(desk, source, 0, 1)
    run(desk)
    shutil.rmtree(desk.layout.published_model(1))
    ask(desk, source, 1, 2)
    run(desk, test=source)
    assert models(desk)[1]["accuracy"]["before"] is None
    assert b"not measured: its folder was taken away" in desk_report(desk)["model-0002.html"]


def test_a_model_that_was_changed_is_refused(desk: Desk, source: Rows) -> None:
    ask(desk, source, 0, 1)
    run(desk)
    path = desk.layout.published_model(1) / MODEL
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    ask(desk, source, 1, 2)
    outcome = run(desk, test=source)
    assert isinstance(outcome.refused, FileError)
    assert "not the file that was published" in str(outcome.refused)


BAD = {
    "too few columns": (lambda rows: (rows[0][:, :2], rows[1]), "columns"),
    "labels that do not belong": (lambda rows: (rows[0], rows[1][:-1]), "labels for"),
    "no class of the model": (lambda rows: (rows[0], np.array(["x"] * len(rows[1]))), "no row of a class"),
    "one number": (lambda rows: (np.float64(1.0), rows[1]), "the test set"),
    "not finite": (lambda rows: (np.full_like(rows[0], np.nan), rows[1]), "the test set"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_test_set_is_refused_before_anything_is_done(kind: str, desk: Desk, source: Rows) -> None:
    """And is no refusal of the requests: the ledger says nothing of it."""
    ask(desk, source, 0, 1)
    change, words = BAD[kind]
    before = len(history(desk))
    with pytest.raises(DataError, match=words):
        run(desk, test=change(source))
    assert len(history(desk)) == before
    assert run(desk, test=source).refused is None


def test_labels_may_be_whole_floats(trained: LinearModel, source: Rows) -> None:
    checked = check_test_rows(trained, (source[0], source[1].astype(float)))
    assert checked.share_correct(trained) == correct(trained, source)


def test_no_private_weight_is_in_a_report(desk: Desk, source: Rows, tmp_path: Path) -> None:
    test = noisy(source)
    for number in range(2):
        ask(desk, source, number, number + 1)
        run(desk, test=test)
    with desk.reading() as ledger:
        private = f"{100 * correct(load_state(desk, ledger).model, test):.2f} %".encode()
    assert private not in desk_report(desk)["model-0002.html"]
