"""Requests: there when acknowledged, one however often they are asked, refused at once where no run could use them."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest
import torch

from desk_use import Rows, ask
from expunge import heads
from expunge.desk import (
    Desk,
    accept,
    history,
    models,
    open_desk,
    requests,
    run,
    verify_desk,
    withdraw,
)
from expunge.desk.digests import fingerprint, row_digests
from expunge.desk.entries import RequestAccepted
from expunge.errors import DataError, OptionError


def test_a_request_is_there_when_it_is_acknowledged(desk: Desk, source: Rows) -> None:
    number = ask(desk, source, 0, 2, "case 1")
    (request,) = requests(open_desk(desk.layout.folder))
    assert (request.id, request.reference, request.n_rows, request.state) == (number, "case 1", 2, "pending")
    due = datetime.date.fromisoformat(request.accepted[:10]) + datetime.timedelta(days=30)
    assert request.due == due.isoformat()
    assert accept(desk, source[0][3:4], source[1][3:4], "case 2", "2031-02-03").request.due == "2031-02-03"


def test_asking_twice_is_one_request(desk: Desk, source: Rows) -> None:
    X, y = source
    first = accept(desk, X[:3], y[:3], "case 1")
    assert first.new
    again = accept(desk, X[:3], y[:3], "case 1")
    other = accept(desk, X[2::-1], y[2::-1], "another reference")
    minus = accept(desk, np.where(X[:3] == 0.0, -0.0, X[:3]), y[:3], "case 1")
    assert [again.request, other.request, minus.request] == [first.request] * 3
    assert not any(found.new for found in (again, other, minus))
    run(desk)
    assert accept(desk, X[:3], y[:3], "case 1").request.state == "done"
    assert len(requests(desk)) == 1
    assert len(models(desk)) == 1


def test_a_row_can_be_forgotten_once(desk: Desk, source: Rows) -> None:
    ask(desk, source, 0, 3)
    with pytest.raises(DataError, match="1 of 2 rows are already in request 1"):
        ask(desk, source, 2, 4)
    with pytest.raises(OptionError, match="stands for request 1, which is pending"):
        ask(desk, source, 7, 8, "rows 0 to 3")


def test_a_withdrawn_request_is_not_done_and_may_be_asked_again(desk: Desk, source: Rows) -> None:
    ask(desk, source, 0, 1, "case 1")
    assert withdraw(desk, 1, "a mistake").state == "withdrawn"
    assert not list(desk.layout.rows.iterdir())
    assert run(desk).published == ()
    assert ask(desk, source, 0, 1, "case 1 again") == 2
    with pytest.raises(OptionError, match="withdrawn"):
        withdraw(desk, 1, "again")
    with pytest.raises(OptionError, match="unknown"):
        withdraw(desk, 9, "no such")
    verify_desk(desk)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda X, y: (X[:, :3], y), DataError),
        (lambda X, y: (X * np.nan, y), DataError),
        (lambda X, y: (X, y + 7), DataError),
        (lambda X, y: (X[:0], y[:0]), DataError),
    ],
)
def test_rows_a_run_could_not_use_are_refused_at_once(change: Any, error: type, desk: Desk, source: Rows) -> None:
    before = [entry.number for entry in history(desk)]
    with pytest.raises(error):
        accept(desk, *change(source[0][:2], source[1][:2]), "case")
    assert [entry.number for entry in history(desk)] == before
    assert not list(desk.layout.rows.iterdir())


@pytest.mark.parametrize("reference", ["", "x" * 201, "a\nb", "a\x00b", "\ud800", "a\u202eb"])
def test_odd_references(reference: str, desk: Desk, source: Rows) -> None:
    with pytest.raises(OptionError, match="reference"):
        ask(desk, source, 0, 1, reference or "\n")


def test_more_rows_than_the_source_has(desk: Desk, source: Rows) -> None:
    ask(desk, source, 0, 150)
    with pytest.raises(DataError, match="300 rows are to be forgotten"):
        ask(desk, source, 150, 300)
    with pytest.raises(OptionError, match="due date"):
        accept(desk, source[0][200:201], source[1][200:201], "late", "tomorrow")


def six_decimals(X: np.ndarray) -> np.ndarray:
    return np.array([[float(f"{value:.6f}") for value in row] for row in X])


@pytest.mark.parametrize("copied", [lambda X: X.astype(np.float32), six_decimals], ids=["float32", "six decimals"])
def test_a_copy_in_another_precision_is_the_row_itself(copied: Any, desk: Desk, source: Rows) -> None:
    X, y = source
    assert not np.array_equal(copied(X[:4]), X[:4])
    first = accept(desk, X[[0, 1, 1]], y[[0, 1, 1]], "case 1")
    again = accept(desk, copied(X[[1, 0, 1]]), y[[1, 0, 1]], "case 2")
    assert (again.request, again.new) == (first.request, False)
    for rows, held in (([0, 1], "2 of 2"), ([0, 1, 0], "3 of 3"), ([0, 1, 1, 1], "4 of 4"), ([3, 1], "1 of 2")):
        with pytest.raises(DataError, match=f"{held} rows are already in request 1"):
            accept(desk, copied(X[rows]), y[rows], "case 3")
    assert accept(desk, copied(X[3:4]), y[3:4], "case 4").new
    with pytest.raises(DataError, match="1 of 2 rows are already in request 2"):
        accept(desk, X[3:5], y[3:5], "case 5")
    run(desk)
    assert accept(desk, copied(X[[0, 1, 1]]), y[[0, 1, 1]], "case 6").request.state == "done"
    withdrawn = accept(desk, X[7:8], y[7:8], "case 7").request.id
    withdraw(desk, withdrawn, "a mistake")
    assert accept(desk, copied(X[7:8]), y[7:8], "case 8").new


def test_rows_that_differ_in_the_fourth_decimal_are_two(desk: Desk, source: Rows) -> None:
    X, y = source
    ask(desk, source, 0, 1)
    near = X[:1].copy()
    near[0, 0] -= 1e-4
    assert accept(desk, near, y[:1], "somebody else").new


def test_requests_of_a_ledger_from_before_are_recognised_value_for_value(desk: Desk, source: Rows) -> None:
    """Entries of earlier versions hold one digest a row, over the row as it was trained on."""
    X, y = source
    digests = row_digests(desk.key, heads.Rows(torch.tensor(X[:2]), torch.tensor(y[:2])))  # as trained on: of length 1
    with desk.writing() as ledger:
        ledger.append(
            RequestAccepted(1, "old", "2030-01-01", 2, tuple(digests), fingerprint(desk.key, digests), "not there")
        )
    verify_desk(desk)
    assert not accept(desk, X[1::-1], y[1::-1], "new").new
    with pytest.raises(DataError, match="1 of 2 rows are already in request 1"):
        ask(desk, source, 1, 3)
