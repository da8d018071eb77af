"""A surrogate's curvature in the place of l2: the formulas in closed form, against naive forms, and their properties."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigvalsh

from expunge.bounds.calibration import AveragedDelta, averaged_sigma
from expunge.bounds.curvature import (
    DISPLACED,
    CurvatureFacts,
    curvature_bound,
    declared_by,
    gradient_bound,
    ratio_of_halves,
)
from expunge.bounds.retained import RetainedFacts, retained_bound
from expunge.bounds.sampling import Tail
from expunge.distance import Distance

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=60)
ROWS = RetainedFacts(
    n_source=1000,
    n_forget=20,
    n_surrogate=500,
    l2=0.001,
    training_residual=1e-4,
    solver_residual=0.02,
    rounding=1e-3,
    change_mean=0.02,
    change_eigenvalue=1e-5,
    change_trace=1e-4,
    change_fourth=1e-7,
    change_fourth_eigenvalue=1e-8,
    change_largest=0.05,
    change_longest=0.05,
    change_supremum=0.4,
    longest_row=1.0,
    row_bound=1.0,
    directions=2,
    sampling_failure=1e-6,
)
SAME, CHI2 = Distance("same", 0.0), Distance("chi2", 0.1)
FACTS = CurvatureFacts(ROWS, least=0.04, reach=10.0, shape_ratio=9.0, shape_largest=4.0, weights=3.0)


def test_every_term_in_closed_form() -> None:
    """Gradients are five times as long in M^-1 at most, the loss curves by 1 there; lengths by the shape are thrice those in M."""
    region = curvature_bound(FACTS, CHI2, averaged=False)
    plain = retained_bound(replace(ROWS, l2=1.0), CHI2, averaged=False).terms
    five = 1.0 / math.sqrt(0.04)
    assert region.terms == pytest.approx(
        {
            "training": 3.0 * five * 1000 / 980 * 1e-4,
            "solver": 3.0 * five * 0.02 / 980,
            "surrogate": 3.0 * plain["surrogate"],
            "sampling": 3.0 * plain["sampling"],
            "rounding": 3.0 * five * 1e-3 / 980 + 2.0 * DISPLACED * 3.0,
        },
        rel=1e-12,
    )
    assert region.kind == "curvature"
    inner = gradient_bound(FACTS, CHI2, averaged=False)
    assert inner.terms["training"] == pytest.approx(five * 1000 / 980 * 1e-4, rel=1e-12)
    assert FACTS.whitened.l2 == 1.0
    assert FACTS.whitened.change_trace == ROWS.change_trace, "the changes are measured in M^-1 as they are"


def test_a_gradient_beyond_the_reach_has_no_region() -> None:
    rho = gradient_bound(FACTS, CHI2, averaged=False).radius
    assert math.isfinite(curvature_bound(replace(FACTS, reach=rho), CHI2, averaged=False).radius)
    less = replace(FACTS, reach=math.nextafter(rho, 0.0))
    assert set(curvature_bound(less, CHI2, averaged=False).terms.values()) == {math.inf}
    none = replace(FACTS, reach=math.nan)
    assert curvature_bound(none, CHI2, averaged=False).radius == math.inf


def test_a_deviation_beyond_the_reach_is_a_failure() -> None:
    region = curvature_bound(FACTS, SAME, averaged=True)
    assert region.tail is not None
    fixed = gradient_bound(FACTS, SAME, averaged=True).radius
    assert region.tail.limit == pytest.approx(3.0 * (10.0 - fixed), rel=1e-12)
    assert region.held(1e-6).radius < math.inf
    short = curvature_bound(replace(FACTS, reach=fixed + region.tail.expected / 3.0), SAME, averaged=True)
    assert short.tail is not None
    assert short.held(1e-6).radius == math.inf, "what may deviate by more than the reach allows is not held"
    assert averaged_sigma(short.radius, short.tail, 1.0, 1e-3) == math.inf


@given(limit=st.floats(0.5, 30.0), sigma=st.floats(0.1, 100.0))
@REPRODUCIBLE
def test_the_average_counts_every_deviation_beyond_the_limit_as_lost(limit: float, sigma: float) -> None:
    tail = Tail(1.0, 0.5, 0.1)
    ended = replace(tail, limit=limit)
    found, without = (AveragedDelta.of(0.5, each, 1e-3).at(1.0, sigma) for each in (ended, tail))
    lost = float(tail.above(np.array([limit]))[0])
    assert found >= without * (1.0 - 1e-2), "but for the grid, which differs"
    assert found >= lost * (1.0 - 1e-6) or found == 1.0
    assert replace(tail, limit=limit).scaled(2.0).limit == 2.0 * limit


@given(
    field=st.sampled_from([each.name for each in fields(CurvatureFacts) if each.name != "rows"]),
    factor=st.floats(1.0, 4.0),
    averaged=st.booleans(),
)
@REPRODUCIBLE
def test_larger_numbers_never_give_a_smaller_region(field: str, factor: float, averaged: bool) -> None:
    """Less curvature and less reach do not either."""
    grows = field not in ("least", "reach")
    changed = replace(FACTS, **{field: getattr(FACTS, field) * (factor if grows else 1.0 / factor)})
    before, after = (curvature_bound(each, SAME, averaged=averaged).held(1e-6).radius for each in (FACTS, changed))
    assert after >= before * (1.0 - 1e-12)


@given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 6))
@REPRODUCIBLE
def test_the_ratio_of_halves_is_that_of_their_matrices(seed: int, width: int) -> None:
    """Against a generalised eigenvalue problem, both ways round."""
    rng = np.random.default_rng(seed)
    one, other = (np.cov(rng.normal(size=(width, 40))).reshape(width, width) + 0.1 * np.eye(width) for _ in range(2))
    both = (one + other) / 2
    spread = np.abs(eigvalsh(one - both, both)).max()
    least = min(eigvalsh(one, other)[0], eigvalsh(other, one)[0])
    assert ratio_of_halves(float(spread)) <= least * (1.0 + 1e-9), "exactly so where both ends are as far"


@pytest.mark.parametrize(("spread", "ratio"), [(0.0, 1.0), (0.25, 0.6), (1 / 3, 0.5), (1.0, 0.0), (1.5, 0.0)])
def test_the_ratio_of_halves_in_closed_form(spread: float, ratio: float) -> None:
    assert ratio_of_halves(spread) == pytest.approx(ratio, abs=1e-15)


@given(ratio=st.floats(0.0, 1.0))
@REPRODUCIBLE
def test_auto_declares_at_most_half_of_the_ratio_in_hundredths(ratio: float) -> None:
    declared = declared_by(ratio)
    assert 0.5 * ratio - 0.01 - 1e-9 < declared <= 0.5 * ratio + 1e-15
    assert round(100 * declared) / 100 == declared


def test_what_auto_declares() -> None:
    assert [declared_by(each) for each in (0.0, 0.0199, 0.02, 0.53, 0.77, 1.0)] == [0.0, 0.0, 0.01, 0.26, 0.38, 0.5]
