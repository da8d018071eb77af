"""Descent-to-delete: its noise beside hand-computed values, real distances and the exact Gaussian mechanism."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.other_methods.constants import Descent, constants_of
from experiments.other_methods.descent_to_delete import (
    DescentToDelete,
    distance_upper,
    rate,
    sequence_upper,
    sigma_published,
    sigma_tight,
)
from expunge.bounds.calibration import delta_of
from expunge.evaluate.case import Case

LOGISTIC = Descent(0.012, 0.262, 1.0, 0.1)


def test_closed_form() -> None:
    """m = 1 and beta = 3 halve the distance each step; at delta 1/e and epsilon 3 the gap of roots is 2 - 1."""
    constants = Descent(1.0, 3.0, 1.0, 0.0)
    assert rate(constants) == 0.5
    assert distance_upper(constants, 100, 1, 2) == pytest.approx(0.02 / 4)
    assert distance_upper(constants, 100, 1, 2, 0.01) == pytest.approx(0.03 / 4 + 0.01)
    expected = 4.0 * math.sqrt(2.0) * 0.25 / (100 * 0.75 * 1.0)
    assert sigma_published(constants, 100, 1, 2, 3.0, math.exp(-1.0)) == pytest.approx(expected, rel=1e-8)
    assert sigma_published(constants, 100, 5, 2, 3.0, math.exp(-1.0)) == pytest.approx(5 * expected, rel=1e-8)


@pytest.mark.parametrize("steps", [1, 3, 10, 500])  # after the last, what training left is all there is
def test_real_weights_are_within_the_distance(unit: Case, steps: int) -> None:
    updated = DescentToDelete(1.0, 1e-3, steps).run(unit).updated
    distance = float((updated - unit.retrained).norm())
    assert unit.record.residual is not None
    bound = distance_upper(constants_of(unit.objective), 300, 6, steps, unit.record.residual)
    assert distance <= bound
    assert distance > 0.0 or steps > 10


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.floats(1e-4, 0.2), st.integers(1, 60), st.integers(1, 50), st.floats(0.01, 10.0), st.floats(1e-8, 0.1))
def test_the_tight_noise_keeps_the_promise_and_is_no_more_than_the_papers(
    strong: float, steps: int, count: int, epsilon: float, delta: float
) -> None:
    constants = Descent(strong, 0.25 + strong, 1.0, 0.1)
    sigma = sigma_tight(constants, 1000, count, steps, epsilon, delta)
    distance = distance_upper(constants, 1000, count, steps)
    assert delta_of(epsilon, distance / sigma) <= delta * (1.0 + 1e-9)
    assert delta_of(epsilon, 1.01 * distance / sigma) > delta
    assert sigma <= sigma_published(constants, 1000, count, steps, epsilon, delta)
    assert sigma_tight(constants, 1000, count, steps + 1, epsilon, delta) < sigma


def test_what_it_hands_back(unit: Case) -> None:
    tight, published = (DescentToDelete(1.0, 1e-3, 4, published=own).run(unit) for own in (False, True))
    constants = constants_of(unit.objective)
    assert tight.sigma == pytest.approx(sigma_tight(constants, 300, 6, 4, 1.0, 1e-3, unit.record.residual))
    assert published.sigma == pytest.approx(sigma_published(constants, 300, 6, 4, 1.0, 1e-3))
    assert (tight.steps, tight.needs) == (4, "retained rows")
    assert tight.seconds > 0.0
    drawn = tight.ensemble(200, np.random.default_rng(0)) - tight.updated
    assert float(drawn.std()) == pytest.approx(tight.sigma, rel=0.1)


@pytest.mark.parametrize("steps", [1, 4])
def test_rows_that_leave_one_by_one_stay_within_the_distance(unit: Case, steps: int) -> None:
    found = DescentToDelete(1.0, 1e-3, steps, sequence=True).run(unit)
    constants, residual = constants_of(unit.objective), unit.record.residual
    assert residual is not None
    bound = sequence_upper(constants, 300, 6, steps, residual)
    assert 0.0 < float((found.updated - unit.retrained).norm()) <= bound
    assert found.sigma == sigma_tight(constants, 300, 6, steps, 1.0, 1e-3, residual, sequence=True)
    assert sequence_upper(constants, 300, 1, steps, 0.01) == pytest.approx(
        distance_upper(constants, 300, 1, steps, 0.01)
    )


def test_what_earlier_requests_left_goes_on() -> None:
    """Halved at each step: two rows of 100 and of 99 that could move the optimum by 0.02 and 2/99."""
    assert sequence_upper(Descent(1.0, 3.0, 1.0, 0.0), 100, 2, 1) == pytest.approx((0.02 / 2 + 2 / 99) / 2)


def test_ends_that_runs_share_change_nothing(unit: Case) -> None:
    first = DescentToDelete(1.0, 1e-3, 3)
    later = replace(first, epsilon=0.1, ends=first.ends)
    assert torch.equal(first.run(unit).updated, later.run(unit).updated)
    assert list(first.ends) == [(unit.objective.l2, 3)]
    alone = replace(later, ends={}).run(unit)
    assert torch.equal(alone.updated, later.run(unit).updated)
    assert alone.noise.scale == later.run(unit).noise.scale > first.run(unit).noise.scale  # type: ignore[union-attr]
