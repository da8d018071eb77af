"""A surrogate beside a deposit, against exact retraining: violations no more often than is said, and faults that would be seen."""

from __future__ import annotations

import math
from functools import cache

import pytest

from soundness.beside import (
    BEGIN,
    CERTAIN,
    END,
    FAILURE,
    FAMILIES,
    PAGE,
    PROBLEMS,
    Outcome,
    most,
    outcome_of,
    row,
    table,
    written,
)

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = 12


@cache
def some(family: str, problems: int) -> tuple[Outcome, ...]:
    made = (outcome_of(family, 50_000 + seed) for seed in range(problems))
    return tuple(outcome for outcome in made if outcome is not None)


def require_few(family: str, problems: int) -> None:
    finite = [outcome for outcome in some(family, problems) if outcome.finite]
    allowed = 0 if family in CERTAIN else most(len(finite))
    assert len(finite) >= problems // 4
    assert sum(outcome.outside for outcome in finite) <= allowed
    assert sum(outcome.exceeded for outcome in finite) <= allowed


@pytest.mark.parametrize("family", FAMILIES)
def test_the_retrained_weights_are_outside_no_more_often_than_is_said(family: str) -> None:
    require_few(family, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_retrained_weights_are_outside_no_more_often_than_is_said_on_all_problems(family: str) -> None:
    require_few(family, PROBLEMS)


def test_a_charge_that_is_far_too_small_would_be_seen() -> None:
    """The planted fault: a fortieth of what is charged."""
    finite = [outcome for family in FAMILIES for outcome in some(family, QUICK) if outcome.finite]
    faulty = sum(outcome.deviation > outcome.charged / 40.0 for outcome in finite)
    assert faulty > most(len(finite))


def test_the_surrogate_is_what_makes_regions_smaller() -> None:
    for family in ("gaussian", "one-hot", "samples"):
        finite = [outcome for outcome in some(family, QUICK) if outcome.finite]
        assert sum(outcome.radius < outcome.alone for outcome in finite) > len(finite) / 3


def test_how_many_violations_are_allowed() -> None:
    assert most(0) == 0
    assert FAILURE * 400 < most(400) < 2 * FAILURE * 400


def test_a_line_of_the_table_by_hand() -> None:
    outcomes = [
        Outcome("gaussian", 0, 2.0, 6.0, 1.0, 3.0, 1.0),
        Outcome("gaussian", 1, 4.0, math.inf, 1.0, 3.0, 4.0),
        Outcome("gaussian", 2, 1.0, 0.5, 2.0, 3.0, 1.0),
        Outcome("gaussian", 3, math.inf, 1.0, math.nan, math.nan, math.nan),
    ]
    assert row("gaussian", outcomes) == "| gaussian | 3 of 4 | 1 | 1 | 0.5 | 2 | 2 | 3 | 1 |"
    assert "4 problems, 3 finite regions" in table(outcomes, 60.0)


def test_the_page_has_a_place_for_the_table() -> None:
    assert written(PAGE.read_text(), "a table").split(BEGIN)[1].split(END)[0].strip() == "a table"
