"""Which requests are served together: one bad request keeps nobody waiting."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from desk_use import Rows, ask, opened
from expunge.desk import Desk, accept, history, requests, resume, run, status, verify_desk
from expunge.desk.ledger import RequestRow, RequestSetAside
from expunge.desk.run import divide_group
from expunge.errors import BeyondPolicy, DataError, RetrainNow, VacuousClaim
from expunge.model import LinearModel

pytestmark = pytest.mark.usefixtures("one_thread")


def asked(count: int) -> list[RequestRow]:
    return [RequestRow(number, f"case {number}", "", "", 1, "pending", None) for number in range(count)]


def numbers(part: Sequence[RequestRow]) -> list[int]:
    return [request.id for request in part]


def test_which_of_several_fit_together() -> None:
    """Regions of 1, 2, 4, 8, ... that add up, and a reach of 20: the smallest that fit."""
    sizes, tried = [4.0, 32.0, 1.0, 16.0, 2.0, 8.0], []

    def trial(chosen: Sequence[RequestRow]) -> float:
        tried.append(numbers(chosen))
        total = sum(sizes[request.id] for request in chosen)
        if total > 20.0:
            raise (BeyondPolicy if total > 25.0 else VacuousClaim)("too much", "less", "Less.")
        return total

    apart = divide_group(asked(6), trial)
    assert apart is not None
    assert (numbers(apart.within), numbers(apart.later)) == ([0, 2, 4, 5], [3])
    assert [(request.id, str(why)) for request, why in apart.beyond] == [(1, "too much; less. Less.")]
    assert len(tried) <= 6 + 3
    only = divide_group(asked(2)[1:], trial)
    assert only is not None
    assert (only.within, only.later, numbers([request for request, _ in only.beyond])) == ([], [], [1])
    sizes[:] = [4.0] * 6
    apart = divide_group(asked(6), trial)
    assert apart is not None
    assert (len(apart.within), len(apart.later), apart.beyond) == (5, 1, [])
    sizes[:] = [1.0] * 6
    assert divide_group(asked(6), trial) is None, "all fit: the refusal was not about their rows"


def test_a_request_that_needs_more_noise_than_was_set_keeps_nobody_waiting(
    source: Rows, surrogate: Rows, trained: LinearModel, tmp_path: Path
) -> None:
    rehearsed = opened(source, surrogate, trained, tmp_path / "rehearsed", noise="request")
    X, y = (part[source[1] == 0] for part in source)
    accept(rehearsed, X[:5], y[:5], "five of a class")
    (made,) = run(rehearsed).published
    desk = opened(source, surrogate, trained, tmp_path, noise=1.05 * made.certificate.content["noise"]["required"])
    accept(desk, X[:1], y[:1], "one")
    accept(desk, X[20:90], y[20:90], "seventy")
    accept(desk, X[2:3], y[2:3], "another")
    outcome = run(desk)
    assert [made.requests for made in outcome.published] == [(1, 3)]
    assert isinstance(outcome.refused, RetrainNow)
    assert (outcome.pending, outcome.aside) == (0, 1)
    (aside,) = [entry.body for entry in history(desk) if isinstance(entry.body, RequestSetAside)]
    assert (aside.request, aside.aside.kind) == (2, "BeyondPolicy")
    assert "more noise than was set" in aside.aside.reason
    assert "desk resume" in aside.aside.remedy
    assert status(desk).retrain == str(outcome.refused)
    accept(desk, X[4:5], y[4:5], "one more")
    later = run(desk)
    assert (later.refused, later.aside) == (None, 1), "what is set aside is not tried again by itself"
    resume(desk, 2)
    assert run(desk).aside == 1
    assert [request.state for request in requests(desk)] == ["done", "aside", "done", "done"]
    verify_desk(desk)


def test_copies_of_a_desk_choose_the_same_requests(desk: Desk, source: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials start as the run itself would: another start could choose others, and publish a second model of one state."""
    started: list[tuple[int, int | None]] = []
    real = sys.modules["expunge.desk.run"].measure

    def measured(request: Any, *, seed: int | None = None) -> Any:
        started.append((len(request.forget), seed))
        if len(request.forget) == 2 and len(started) == 1:
            raise BeyondPolicy("too much", "less", "Less.")
        return real(request, seed=seed)

    monkeypatch.setattr(sys.modules["expunge.desk.run"], "measure", measured)
    for at in range(2):
        ask(desk, source, at, at + 1)
    run(desk)
    assert [size for size, _ in started] == [2, 1, 1, 2], "the run, each alone, and all once more"
    assert None not in {seed for _, seed in started}
    assert started[0] == started[-1]


def test_a_refusal_that_is_not_about_rows_sets_nobody_aside(
    desk: Desk, source: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise DataError("the test set lacks a column", "all are needed", "Give them.")

    ask(desk, source, 0, 1)
    ask(desk, source, 1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules["expunge.desk.run"], "_measure_accuracy", refuse)
        outcome = run(desk, test=source)
    assert isinstance(outcome.refused, DataError)
    assert (outcome.pending, outcome.aside) == (2, 0)
    assert run(desk).pending == 0


def test_columns_of_other_names_are_served_apart(
    source: Rows, surrogate: Rows, trained: LinearModel, tmp_path: Path
) -> None:
    """Where neither record nor surrogate names columns nobody can say which order is right: two models."""
    desk = opened(source, surrogate, trained, tmp_path)
    X, y = source
    names = ("a", "b", "c", "d")
    for number, given in enumerate((names, names[::-1], None)):
        accept(desk, X[[number]], y[[number]], f"case {number}", feature_names=given)
    assert [made.requests for made in run(desk).published] == [(1, 3), (2,)]
    assert np.isfinite(status(desk).epsilon)
