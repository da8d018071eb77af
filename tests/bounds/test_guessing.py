"""How often anybody can be right: against closed forms, a brute force over two-outcome tests, and its own order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from expunge.bounds.calibration import mu_for, right_at_most

EPSILONS = st.floats(0.0, 50.0)
DELTAS = st.floats(0.0, 1.0)


@pytest.mark.parametrize(
    ("epsilon", "delta", "right"),
    [
        (0.0, 0.0, 0.5),
        (math.log(3.0), 0.0, 0.75),  # three to one
        (math.log(3.0), 0.2, 0.8),  # one in five is given away: 0.2 + 0.8 * 0.75
        (1.0, 1e-5, (math.e + 1e-5) / (math.e + 1.0)),
        (0.0, 0.3, 0.65),  # a total variation of delta
        (7.0, 1.0, 1.0),
        (5000.0, 0.0, 1.0),
    ],
)
def test_closed_forms(epsilon: float, delta: float, right: float) -> None:
    assert right_at_most(epsilon, delta) == pytest.approx(right, rel=1e-14)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.2])
def test_no_test_does_better_and_one_does_as_well(epsilon: float, delta: float) -> None:
    """Every pair of errors on a fine grid that the definition allows; the best of them is the answer."""
    errors = np.linspace(0.0, 1.0, 1001)
    one, other = np.meshgrid(errors, errors)
    grown = math.exp(epsilon)
    allowed = (one + grown * other >= 1.0 - delta) & (other + grown * one >= 1.0 - delta)
    best = float(np.max(np.where(allowed, 1.0 - (one + other) / 2.0, 0.0)))
    assert best <= right_at_most(epsilon, delta) + 1e-12
    assert best == pytest.approx(right_at_most(epsilon, delta), abs=2e-3)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_a_gaussian_mechanism_stays_below(epsilon: float, delta: float) -> None:
    """Its best test is right with probability Phi(mu/2)."""
    assert norm.cdf(mu_for(epsilon, delta) / 2.0) < right_at_most(epsilon, delta)


@given(EPSILONS, EPSILONS, DELTAS, DELTAS)
def test_more_epsilon_and_more_delta_never_protect_more(e: float, f: float, d: float, g: float) -> None:
    least, most = right_at_most(min(e, f), min(d, g)), right_at_most(max(e, f), max(d, g))
    assert 0.5 <= least <= most + 1e-15
    assert most <= 1.0


@pytest.mark.parametrize(("epsilon", "delta"), [(-0.1, 0.1), (math.inf, 0.1), (math.nan, 0.1), (1.0, -0.1), (1.0, 1.1), (1.0, math.nan)])  # fmt: skip
def test_what_is_no_guarantee_raises(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        right_at_most(epsilon, delta)
