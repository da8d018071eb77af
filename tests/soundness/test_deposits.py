"""Deposits beside exact retraining: no violation on any family, and faults that would be seen."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from soundness.deposits import BEGIN, END, FAMILIES, PAGE, Family, Outcome, drawn, outcomes_of, row, table, written

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = 14


@cache
def some(family: Family, problems: int = QUICK) -> tuple[Outcome, ...]:
    return tuple(outcome for seed in range(problems) for outcome in outcomes_of(family, seed))


def require_none_violated(outcomes: tuple[Outcome, ...]) -> None:
    violations = [outcome for outcome in outcomes if outcome.violated]
    assert not violations, violations[:3]
    assert any(outcome.finite for outcome in outcomes)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_retrained_weights_are_never_outside(family: Family) -> None:
    require_none_violated(some(family))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_retrained_weights_are_never_outside_on_all_problems(family: Family) -> None:
    require_none_violated(some(family, family.problems))


def test_there_are_ten_thousand_problems_and_they_are_of_every_kind() -> None:
    assert sum(family.problems for family in FAMILIES) >= 10_000
    problems = [drawn(seed, steps=1) for seed in range(150)]
    assert {problem.loss for problem in problems} == {"softmax", "logistic", "one-vs-rest", "ridge"}
    assert {problem.classes for problem in problems} == set(range(2, 11))
    assert {(problem.free, problem.fixed_c) for problem in problems} == {
        (a, b) for a in (False, True) for b in (False, True)
    }
    assert min(problem.l2 for problem in problems) < 1e-6
    assert max(np.abs(problem.X).max() for problem in problems) > 100.0


def test_the_reference_is_exact_enough_to_tell() -> None:
    finite = [outcome for family in FAMILIES for outcome in some(family) if outcome.finite and outcome.route != "exact"]
    assert sum(outcome.ratio is not None for outcome in finite) > 0.8 * len(finite)
    assert min(outcome.ratio or math.inf for outcome in finite) < 4.0


# The suite can fail -------------------------------------------------------------------------------------------------------------


def weakened(share: float) -> int:
    """How many problems a radius of this share of what was claimed would violate."""
    finite = [outcome for family in FAMILIES for outcome in some(family) if outcome.finite]
    return sum(outcome.truth - outcome.uncertain > share * outcome.radius for outcome in finite)


def test_a_radius_of_a_third_would_be_seen() -> None:
    assert weakened(1.0) == 0
    assert weakened(0.33) > 0


def test_a_radius_that_is_not_scaled_to_the_frozen_shape_would_be_seen() -> None:
    """The planted fault: the root of the shape's ratio left out."""
    finite = [outcome for family in FAMILIES[:6] for outcome in some(family, 10) if outcome.finite]
    unscaled = [outcome.radius / math.sqrt(outcome.shape_ratio) for outcome in finite]
    pairs = zip(finite, unscaled, strict=True)
    assert sum(outcome.truth - outcome.uncertain > radius for outcome, radius in pairs) > 0


# The table ----------------------------------------------------------------------------------------------------------------------


def test_a_line_of_the_table_by_hand() -> None:
    outcomes = [
        Outcome("f", 0, "softmax", "range", 2.0, 1.0, 1e-9),
        Outcome("f", 1, "softmax", "range", 6.0, 1.0, 1e-9),
        Outcome("f", 1, "softmax", None, math.inf, math.nan, math.nan),
        Outcome("f", 2, "ridge", "exact", 1e-9, 1e-12, 1e-15),
        Outcome("f", 3, "softmax", "plain", 1.0, 2.0, 1e-9),
    ]
    assert row("f", outcomes) == "| f | 4 | 4 of 5 | 1 | 0.5 | 2 | 1 exact, 1 plain, 2 range |"
    assert [outcome.violated for outcome in outcomes] == [False, False, False, False, True]
    assert "4 finite regions, 1 violations" in table(outcomes, 60.0)


def test_the_page_has_a_place_for_the_table() -> None:
    page = PAGE.read_text()
    assert written(page, "a table").split(BEGIN)[1].split(END)[0].strip() == "a table"
