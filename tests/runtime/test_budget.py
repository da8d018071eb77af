"""Time that work may take."""

from __future__ import annotations

import math

from expunge.runtime.budget import NO_LIMIT, Budget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_runs_out_and_parts_are_of_what_is_left() -> None:
    clock = Clock()
    budget = Budget(60.0, clock)
    assert (budget.left, budget.spent) == (60.0, False)
    clock.now += 20.0
    half = budget.part(0.5)
    assert half.left == 20.0
    clock.now += 20.0
    assert half.spent
    assert budget.left == 20.0
    clock.now += 50.0
    assert budget.spent
    assert budget.part(0.5).spent, "a part of nothing"


def test_what_fits_is_reckoned_at_the_speed_so_far() -> None:
    clock = Clock()
    budget = Budget(10.0, clock)
    assert budget.fitting(0, 500) == 500, "nothing is known yet"
    clock.now += 1.0
    assert budget.fitting(30, 500) == 300
    assert budget.fitting(90, 500) == 500, "never more than there is to do"
    clock.now += 19.0
    assert budget.fitting(30, 500) == 30, "never fewer than were done"


def test_without_a_limit_everything_fits() -> None:
    assert NO_LIMIT.left == math.inf
    assert not NO_LIMIT.spent
    assert not NO_LIMIT.limited
    assert NO_LIMIT.part(0.1) is NO_LIMIT
    assert NO_LIMIT.fitting(1, 10**9) == 10**9


def test_time_that_has_passed_before_counts() -> None:
    assert Budget(60.0, clock=lambda: 100.0, begun=70.0).left == 30.0
