"""Requests: taken in once, recognised in any precision, and answered alike whatever others asked for."""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from desk_use import Rows, ask
from expunge.certificate.sign import verify_file
from expunge.desk import (
    Answer,
    Desk,
    accept,
    history,
    models,
    open_desk,
    requests,
    resume,
    run,
    verify_desk,
    withdraw,
)
from expunge.desk.ledger import RequestAccepted, RequestResumed
from expunge.errors import DataError, OptionError
from expunge.rows.hashes import hash_rows

# Requests: there when acknowledged, one however often they are asked, refused at once where no run could use them.


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


def test_rows_a_run_could_not_use_are_refused_at_once(desk: Desk, source: Rows) -> None:
    X, y = source[0][:2], source[1][:2]
    before = [entry.number for entry in history(desk)]
    for bad in ((X[:, :3], y), (X * np.nan, y), (X, y + 7), (X[:0], y[:0])):
        with pytest.raises(DataError):
            accept(desk, *bad, "case")
    for reference in ("\n", "x" * 201, "a\nb", "a\x00b", "\ud800", "a\u202eb"):
        with pytest.raises(OptionError, match="reference"):
            accept(desk, X, y, reference)
    with pytest.raises(OptionError, match="due date"):
        accept(desk, X, y, "late", "tomorrow")
    assert [entry.number for entry in history(desk)] == before
    assert not list(desk.layout.rows.iterdir())


def test_more_rows_than_the_source_has(desk: Desk, source: Rows) -> None:
    X, y = source
    with pytest.raises(DataError, match=r"300 rows would be forgotten.*the source has 300 left"):
        ask(desk, source, 0, 300)
    with pytest.raises(DataError, match=r"101 rows of class 0 would be forgotten.*the source has 100 left"):
        accept(desk, np.vstack([X[y == 0], X[y == 1][:1]]), np.zeros(101, int), "wrong labels")
    assert requests(desk) == []


# One rule for recognising rows: in any precision, by whoever asks; and for how many of them can leave.


pytestmark = pytest.mark.usefixtures("one_thread")


def six_decimals(X: np.ndarray) -> np.ndarray:
    return np.array([[float(f"{value:.6f}") for value in row] for row in X])


COPIES = {
    "the same": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "six decimals": six_decimals,
    "one unit up": lambda X: np.nextafter(X, np.inf),
    "one unit down": lambda X: np.nextafter(X, -np.inf),
}


def reason(desk: Desk, number: int) -> str:
    (found,) = [request for request in requests(desk) if request.id == number]
    assert found.state == "aside"
    assert found.aside is not None
    return found.aside.reason


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_row_that_was_asked_for_before_is_set_aside_in_any_precision(copied: Any, desk: Desk, source: Rows) -> None:
    X, y = source
    accept(desk, X[:2], y[:2], "first")
    second = accept(desk, copied(X[1:3]), y[1:3], "second")
    assert second.new
    assert reason(desk, 2).startswith("1 of 2 rows was asked for before (in request 1)")
    assert run(desk).published[0].requests == (1,)
    accept(desk, copied(X[:1]), y[:1], "after it was forgotten")
    assert reason(desk, 3).startswith("1 of 1 rows was asked for before (in request 1)")
    assert run(desk).published == (), "it is forgotten once"
    verify_desk(desk)


def test_a_row_twice_in_one_request_is_set_aside(desk: Desk, source: Rows) -> None:
    X, y = source
    for number, (name, copied) in enumerate(COPIES.items(), start=1):
        rows = slice(number, number + 1)
        accept(desk, np.vstack([X[rows], *[copied(X[rows])] * 49]), np.repeat(y[rows], 50), name)
        assert reason(desk, number).startswith("49 of 50 rows were asked for before (twice in this one)")
    assert run(desk).published == ()


def test_rows_that_differ_in_the_fourth_decimal_are_two(desk: Desk, source: Rows) -> None:
    X, y = source
    near = X[:1].copy()
    near[0, 0] -= 1e-4
    ask(desk, source, 0, 1)
    assert accept(desk, near, y[:1], "somebody else").request.state == "pending"


def test_another_person_with_equal_values_is_declared_and_certified_so(desk: Desk, source: Rows) -> None:
    X, y = source
    accept(desk, X[:1], y[:1], "one")
    other = accept(desk, X[[0, 3]], y[[0, 3]], "another", another_person=True).request
    assert (other.state, other.others) == ("pending", 1)
    (entry,) = [e.body for e in history(desk) if isinstance(e.body, RequestAccepted) and e.body.reference == "another"]
    assert entry.others == 1
    (made,) = run(desk).published
    assert made.requests == (1, 2)
    content = made.certificate.content
    assert content["data"]["sequence"]["another_person"] == 1
    assert content["sizes"]["n_forget"] == 3
    (said,) = [line for line in content["assumptions"] if "another person" in line]
    assert said.startswith("Declared: 1 of the forgotten rows equal rows that were asked for before")
    assert "another" not in made.statement.to_json(), "it depends on who left"
    assert models(desk)[0]["others"] == 1
    accept(desk, X[5:6], y[5:6], "later")
    (later,) = run(desk).published
    assert later.certificate.content["data"]["sequence"]["another_person"] == 1, "of all forgotten so far"
    for number in (1, 2):
        folder = desk.layout.published_model(number)
        verify_file(folder / "statement.json", None, folder / "model.safetensors", desk.layout.dossier_of(number))
    verify_desk(desk)


def test_nothing_is_declared_where_nothing_is_equal(desk: Desk, source: Rows) -> None:
    assert accept(desk, source[0][:1], source[1][:1], "one", another_person=True).request.others == 0
    (made,) = run(desk).published
    assert "another_person" not in made.certificate.content["data"]["sequence"]
    assert not any("person" in line for line in made.certificate.content["assumptions"])


@pytest.mark.parametrize("how", ["resume", "ask again"])
def test_a_repeat_is_taken_up_with_the_word_and_not_without(how: str, desk: Desk, source: Rows) -> None:
    X, y = source
    ask(desk, source, 0, 1, "one")
    accept(desk, X[:1], y[:1], "two")
    with pytest.raises(OptionError, match="asked for before"):
        resume(desk, 2)
    assert accept(desk, X[:1], y[:1], "two").request.state == "aside"
    if how == "resume":
        assert resume(desk, 2, another_person=True).others == 1
    else:
        assert accept(desk, X[:1], y[:1], "two", another_person=True).request.others == 1
    assert [e.body.others for e in history(desk) if isinstance(e.body, RequestResumed)] == [1]
    assert run(desk).published[0].requests == (1, 2)
    with pytest.raises(OptionError, match="is done"):
        resume(desk, 2)
    verify_desk(desk)


def test_the_rows_that_leave_are_judged_not_the_copy_that_the_word_comes_with(desk: Desk, source: Rows) -> None:
    """The second row is the first one in float32 alone; the copy with six decimals is not, and takes it up."""
    X, y = source[0][:1].copy(), source[1][:1]
    X[0, 3] = 0.1234565  # on the edge of two six-decimal values, and not of two float32 ones
    near = np.nextafter(X, np.where(six_decimals(X) > X, -np.inf, np.inf))
    for _ in range(200):
        if not np.array_equal(six_decimals(near), six_decimals(X)):
            break
        near = np.nextafter(near, np.where(six_decimals(X) > X, -np.inf, np.inf))
    assert np.array_equal(near.astype(np.float32), X.astype(np.float32))
    accept(desk, X, y, "first")
    accept(desk, near, y, "second")
    assert reason(desk, 2).startswith("1 of 1 rows was asked for before")
    taken = accept(desk, six_decimals(near), y, "second", another_person=True)
    assert (taken.request.state, taken.request.others) == ("pending", 1)


@pytest.mark.parametrize("how", ["a column of labels", "a sparse table"])
def test_what_holds_the_rows_keeps_nobody_else_waiting(how: str, desk: Desk, source: Rows) -> None:
    X, y = source
    if how == "a sparse table":
        accept(desk, csr_matrix(X[:1]), y[:1], "one")
    else:
        accept(desk, X[:1], y[:1, None], "one")
    ask(desk, source, 3, 4, "another")
    assert [made.requests for made in run(desk).published] == [(1, 2)]


def test_rows_that_wait_are_counted_when_more_are_asked_for(desk: Desk, source: Rows, tmp_path: Path) -> None:
    """Two requests use up a class: a third of it is set aside at once, and nobody is kept waiting."""
    X, y = source
    first, second, third = np.flatnonzero(y == 0)[:60], np.flatnonzero(y == 0)[60:], np.flatnonzero(y == 1)[:1]
    accept(desk, X[first], y[first], "sixty")
    accept(desk, X[second], y[second], "forty")
    accept(desk, X[third] + 1e-3, np.zeros(1, int), "a fake one")
    assert reason(desk, 3).startswith(
        "101 rows of class 0 would be forgotten, pending ones included; the source has 100"
    )
    with pytest.raises(OptionError, match="101 rows of class 0"):
        resume(desk, 3)
    withdraw(desk, 2, "a mistake")
    assert resume(desk, 3).state == "pending"
    withdraw(desk, 3, "a fake")
    most = np.flatnonzero(y != 0)
    accept(desk, X[most], y[most], "two hundred")
    assert accept(desk, X[second], y[second], "forty again").request.aside is not None
    assert reason(desk, 5).startswith("300 rows would be forgotten, pending ones included; the source has 300 left")


def test_answers_are_the_same_whatever_others_asked_for(desk: Desk, source: Rows) -> None:
    X, y = source
    accept(desk, X[:1], y[:1], "secret-case-of-somebody")
    known, unknown = (accept(desk, X[at], y[at], name) for at, name in (([0], "asks"), ([1], "asks too")))
    assert (known.request.state, unknown.request.state) == ("aside", "pending")
    assert replace(known.answer, reference="") == replace(unknown.answer, reference="")
    assert {field.name for field in fields(Answer)} == {"reference", "n_rows", "due"}, "nothing that changes later"


@pytest.mark.parametrize("when", ["it waits", "it is done", "it was withdrawn"])
def test_a_guessed_reference_tells_nothing(when: str, desk: Desk, source: Rows) -> None:
    """Neither with the row of whoever it belongs to nor with any other one, on whatever day that was asked for."""
    X, y = source
    accept(desk, X[:1], y[:1], "case-17", "2031-01-01")
    if when == "it is done":
        run(desk)
    elif when == "it was withdrawn":
        withdraw(desk, "case-17", "a mistake")
    told = [accept(desk, X[at], y[at], name).answer for at in ([0], [1]) for name in ("case-17", "case-18")]
    assert {replace(each, reference="") for each in told} == {replace(told[0], reference="")}


# Row digests are keyed, and nothing else of a row is kept.


def test_the_ledger_holds_keyed_digests_only(desk: Desk, source: Rows, copy: Callable[[Path], Desk]) -> None:
    import hashlib
    import hmac

    X, y = source
    ask(desk, source, 0, 1)
    (entry,) = [entry for entry in history(desk) if entry.kind == "accepted"]
    raw = np.ascontiguousarray(X[0], dtype="<f8").tobytes()
    label = np.int64(y[0]).tobytes()
    expected = hmac.new(desk.key, b"row\x00" + raw + label, hashlib.sha256).hexdigest()
    marks = hash_rows(desk.key, X[:1], y[:1]).digests
    assert entry.body.to_json()["rows"] == [expected, *(mark[0].tobytes().hex() for mark in marks)]
    text = json.dumps([entry.to_json() for entry in history(desk)])
    for bare in (raw, raw + label, desk.layout.rows_of(1).read_bytes()):
        assert hashlib.sha256(bare).hexdigest() not in text
