"""Requests: there when acknowledged, one however often they are asked, refused at once where no run could use them."""

from __future__ import annotations

import datetime
import re
import sys
from typing import Any

import numpy as np
import pytest

from desk_use import Rows, ask
from expunge.desk import Desk, accept, history, models, open_desk, requests, run, verify_desk, withdraw
from expunge.errors import DataError, OptionError


def test_a_request_is_there_when_it_is_acknowledged(desk: Desk, source: Rows) -> None:
    number = ask(desk, source, 0, 2, "case 1")
    (request,) = requests(open_desk(desk.layout.folder))
    assert (request.id, request.reference, request.n_rows, request.state) == (number, "case 1", 2, "pending")
    due = datetime.date.fromisoformat(request.accepted[:10]) + datetime.timedelta(days=30)
    assert request.due == due.isoformat()
    assert accept(desk, source[0][3:4], source[1][3:4], "case 2", "2031-02-03").request.due == "2031-02-03"


def test_the_same_reference_with_the_same_content_is_one_request(desk: Desk, source: Rows) -> None:
    X, y = source
    first = accept(desk, X[:3], y[:3], "case 1")
    assert first.new
    again = accept(desk, X[:3], y[:3], "case 1")
    turned = accept(desk, X[2::-1], y[2::-1], "case 1")
    minus = accept(desk, np.where(X[:3] == 0.0, -0.0, X[:3]), y[:3], "case 1")
    copied = accept(desk, X[:3].astype(np.float32), y[:3], "case 1")
    assert [again.request, turned.request, minus.request, copied.request] == [first.request] * 4
    assert not any(found.new for found in (again, turned, minus, copied))
    run(desk)
    assert accept(desk, X[:3], y[:3], "case 1").request.state == "done"
    assert len(requests(desk)) == 1
    assert len(models(desk)) == 1
    assert accept(desk, X[7:8], y[7:8], "case 1").new, "with other rows it is another request"
    assert not accept(desk, X[7:8], y[7:8], "case 1").new
    assert not accept(desk, X[:3], y[:3], "case 1").new
    assert withdraw(desk, "case 1", "of the two the one that waits").id == 2
    assert accept(desk, X[7:8], y[7:8], "case 1").new, "a withdrawn one may be asked again"
    accept(desk, X[8:9], y[8:9], "case 1")
    with pytest.raises(OptionError, match="reference 'case 1' is that of requests 3, 4; one is needed"):
        withdraw(desk, "case 1", "which?")


def test_a_reference_that_the_desk_makes_cannot_be_guessed(desk: Desk, source: Rows) -> None:
    X, y = source
    made = [accept(desk, X[at : at + 1], y[at : at + 1]) for at in range(3)]
    references = {each.request.reference for each in made}
    assert len(references) == 3
    assert all(re.fullmatch("[0-9a-f]{32}", reference) for reference in references)
    assert [each.answer.reference for each in made] == [each.request.reference for each in made]


def test_too_many_rows_are_refused_before_they_are_looked_at(
    desk: Desk, source: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[accept.__module__], "prepare_request", lambda *_: pytest.fail("looked at"))
    X, y = (np.repeat(part[:1], 100_001, axis=0) for part in source)
    with pytest.raises(DataError, match="100,001 rows in one request; at most 100,000"):
        accept(desk, X, y, "all of them")


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
    X, y = source
    with pytest.raises(DataError, match="the model was trained on 300"):
        ask(desk, source, 0, 300)
    with pytest.raises(DataError, match="101 rows of class 0 are to be forgotten; the model was trained on 100"):
        accept(desk, np.vstack([X[y == 0], X[y == 1][:1]]), np.zeros(101, int), "wrong labels")
    assert requests(desk) == []
    with pytest.raises(OptionError, match="due date"):
        accept(desk, X[200:201], y[200:201], "late", "tomorrow")
