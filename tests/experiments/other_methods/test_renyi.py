"""From Renyi divergences to (epsilon, delta)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.other_methods.renyi import epsilon_of_rho, require_budget, rho_for, smallest_over_orders

epsilons = st.floats(1e-3, 50.0)
deltas = st.floats(1e-12, 0.5)


def test_closed_form() -> None:
    """With delta = 1/e and rho = 1 it is 1 + 2; three back again is 1."""
    assert epsilon_of_rho(1.0, math.exp(-1.0)) == pytest.approx(3.0, rel=1e-12)
    assert rho_for(3.0, math.exp(-1.0)) == pytest.approx(1.0, rel=1e-8)


@pytest.mark.parametrize("rho", [1e-4, 0.03, 1.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-2])
def test_the_best_order_of_many(rho: float, delta: float) -> None:
    orders = 1.0 + np.exp(np.linspace(-8.0, 12.0, 200_001))
    naive = (orders * rho + math.log(1.0 / delta) / (orders - 1.0)).min()
    assert epsilon_of_rho(rho, delta) == pytest.approx(naive, rel=1e-6)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(epsilons, deltas)
def test_the_rho_of_an_epsilon_is_within_it_and_hardly_less(epsilon: float, delta: float) -> None:
    found = epsilon_of_rho(rho_for(epsilon, delta), delta)
    assert found <= epsilon * (1.0 + 1e-12)
    assert found >= epsilon * (1.0 - 1e-8)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.floats(0.01, 100.0), st.floats(1.5, 50.0))
def test_the_search_finds_the_smallest(scale: float, lowest: float) -> None:
    """Of `scale (x + 1/x)` with x above `lowest` by as much as it pleases: at x - lowest = 1."""
    found = smallest_over_orders(lambda order: scale * ((order - lowest) + 1.0 / (order - lowest)), lowest)
    assert found == pytest.approx(2.0 * scale, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (math.inf, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.0)])
def test_what_no_formula_is_for_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        require_budget(epsilon, delta)
    with pytest.raises(ValueError, match="delta"):
        rho_for(epsilon, delta)
