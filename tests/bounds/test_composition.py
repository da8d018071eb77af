"""What all published models say together, against dp-accounting itself and the closed form."""

from __future__ import annotations

import math
from collections import Counter

import dp_accounting
import pytest
from dp_accounting import pld

from expunge.bounds.calibration import (
    closed_form,
    compose,
    delta_of,
    epsilon_for,
    models_left,
    mu_for,
)


def said(mus: list[float], delta: float, *, grouped: bool) -> float:
    accountant = pld.PLDAccountant()
    counts = Counter(mus).items() if grouped else [(mu, 1) for mu in mus]
    for mu, count in counts:
        accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier=1.0 / mu), count)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize("mus", [[0.3], [0.3] * 7, [0.05, 0.2, 0.2, 0.4], [1e-3, 1e-3]])
def test_it_is_what_dp_accounting_says(mus: list[float]) -> None:
    found = compose(mus, 1e-4, 4e-5)
    # dp-accounting rounds losses up to a grid of 1e-4, which shows where epsilon is small, and may be 1e-9 below
    assert found.epsilon <= said(mus, 6e-5, grouped=True) * (1 + 1e-8)
    assert found.epsilon == pytest.approx(said(mus, 6e-5, grouped=True), rel=1e-8 if max(mus) > 0.01 else 1e-3)
    # one after the other dp-accounting rounds up once more a mechanism
    assert found.epsilon == pytest.approx(said(mus, 6e-5, grouped=False), rel=1e-3)
    exact = epsilon_for(6e-5, math.sqrt(sum(mu * mu for mu in mus)))
    assert exact <= found.epsilon <= exact * (1 + 1e-9)
    assert compose(Counter(mus), 1e-4, 4e-5) == found
    assert (found.models, found.delta, found.failures) == (len(mus), 1e-4, 4e-5)


def test_the_true_delta_is_not_exceeded() -> None:
    for count in (1, 5, 20):
        found = compose([0.25] * count, 1e-5, 4e-6)
        assert delta_of(found.epsilon, 0.25 * math.sqrt(count)) <= 6e-6 * (1 + 1e-9)


def test_ends() -> None:
    tiny = compose([0.2, 0.2], 1e-30, 0.0)
    assert tiny.epsilon >= epsilon_for(1e-30, 0.2 * math.sqrt(2))
    assert math.isfinite(tiny.epsilon)
    assert compose([], 1e-4, 4e-5).epsilon == 0.0
    assert compose([0.1], 1e-4, 1e-4).epsilon == math.inf


def test_models_left_is_the_most_that_fit() -> None:
    mu = mu_for(1.0, 6e-5)
    left = models_left(3 * mu * mu, mu, 6e-5, 5.0)
    assert closed_form([mu] * (3 + left), 6e-5) <= 5.0 < closed_form([mu] * (4 + left), 6e-5)
    assert models_left(100.0, mu, 6e-5, 5.0) == 0
    assert models_left(0.0, mu, 0.0, 5.0) == 0
