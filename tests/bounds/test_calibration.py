"""Noise whose delta is an average over the drawing of the sets: upper sums against 50 digits and against simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.bounds import Ball, Region
from expunge.bounds.calibration import (
    AveragedDelta,
    averaged_sigma,
    delta_of,
    epsilon_for,
    log_delta,
    log_deltas,
    mu_for,
    sigma_for,
)
from expunge.bounds.sampling import Tail
from expunge.noise import calibrated, delta_at, effective, epsilon_hiding, needed

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=40)


@REPRODUCIBLE
@given(epsilon=st.floats(1e-3, 50.0), mu=st.floats(1e-4, 60.0))
def test_many_deltas_are_those_of_one(epsilon: float, mu: float) -> None:
    together = float(log_deltas(epsilon, np.array([mu]))[0])
    assert together == pytest.approx(log_delta(epsilon, mu), rel=1e-9, abs=1e-9) or log_delta(epsilon, mu) < -600


def test_no_distance_and_all_distance() -> None:
    assert log_deltas(1.0, np.array([0.0, math.inf])).tolist() == [-math.inf, 0.0]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_the_upper_sum_is_above_the_integral_and_close(epsilon: float) -> None:
    """Against a quadrature in 50 digits of `d(0) + integral of P(S > s) dd(s)`."""
    tail, radius, delta = Tail(1.0, 0.5, 0.01), 0.1, 1e-5
    sigma = averaged_sigma(radius, tail, epsilon, delta)
    upper = AveragedDelta.of(radius, tail, delta).at(epsilon, sigma)
    assert upper <= delta

    def gaussian(mu):
        a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        return mpmath.erfc(a / mpmath.sqrt(2)) / 2 - mpmath.e**epsilon * mpmath.erfc(b / mpmath.sqrt(2)) / 2

    with mpmath.workdps(50):
        points = [mpmath.mpf(k) / 20 for k in range(241)]
        deltas = [gaussian((radius + s) / sigma) for s in points]
        above = [mpmath.mpf(float(tail.above(np.array([float(s)]))[0])) for s in points]
        lower = deltas[0] + sum(above[k + 1] * (deltas[k + 1] - deltas[k]) for k in range(240))
        over = deltas[0] + sum(above[k] * (deltas[k + 1] - deltas[k]) for k in range(240)) + above[-1]
    assert float(lower) <= upper
    assert upper <= float(over) * 1.001


def test_the_average_over_draws_is_what_is_claimed() -> None:
    """Deviations drawn with exactly the tail of Klein and Rio: the mean of their deltas is at most the claimed one."""
    tail, radius, epsilon, delta = Tail(10.0, 1.0, 0.0), 0.5, 1.0, 0.05
    sigma = averaged_sigma(radius, tail, epsilon, delta)
    rng = np.random.default_rng(0)
    draws = tail.expected + np.sqrt(2.0 * tail.variance * rng.exponential(size=200_000))
    mean = float(np.exp(log_deltas(epsilon, (radius + draws) / sigma)).mean())
    assert 0.7 * delta < mean <= delta
    halved = float(np.exp(log_deltas(epsilon, (radius + draws) / (0.5 * sigma))).mean())
    assert halved > delta, "half the noise would not do"


@REPRODUCIBLE
@given(
    epsilon=st.floats(0.05, 10.0),
    exponent=st.floats(2.0, 12.0),
    radius=st.floats(0.0, 3.0),
    spread=st.floats(0.01, 1.0),
    charge=st.sampled_from([0.0, 0.1]),
)
def test_between_the_mean_and_the_quantile(
    epsilon: float, exponent: float, radius: float, spread: float, charge: float
) -> None:
    """Never less than for the mean deviation alone, never more than splitting delta costs."""
    delta, tail = 10.0**-exponent, Tail(1.0, spread**2, 0.01, charge, 200, 300)
    sigma = averaged_sigma(radius, tail, epsilon, delta)
    assert sigma >= sigma_for(radius + tail.expected, epsilon, delta) * (1 - 1e-6)
    assert sigma <= sigma_for(radius + tail.quantile(0.4 * delta), epsilon, 0.6 * delta) * (1 + 1e-6)
    averaged = AveragedDelta.of(radius, tail, delta)
    assert averaged.at(epsilon, sigma) <= delta < averaged.at(epsilon, sigma * (1 - 1e-6))


def test_what_cannot_be_hidden_has_no_noise() -> None:
    assert averaged_sigma(math.inf, Tail(1.0, 1.0, 0.0), 1.0, 1e-5) == math.inf


@pytest.mark.parametrize("delta", [1e-3, 1e-300])
def test_the_search_for_noise_ends(delta: float, within: Callable[[float], Any]) -> None:
    """Next to nothing to hide, and next to no probability that it may fail."""
    for radius, tail in ((0.0, Tail(0.0, 0.0, 1e-40)), (1e-36, Tail(1e-90, 0.0, 1e-92)), (0.1, Tail(1.0, 0.5, 0.01))):
        with within(5):
            sigma = averaged_sigma(radius, tail, 1.0, delta)
        assert AveragedDelta.of(radius, tail, delta).at(1.0, sigma) <= delta
        assert 0.0 < sigma < 2000.0 * (radius + tail.expected) + 1e-50


def test_a_region_with_a_tail() -> None:
    terms = {"training": 0.1, "sampling": 0.2}
    region = Region("residual", terms, shape=Ball(9), tail=Tail(1.0, 0.5, 0.01))
    rounded, noise = calibrated(region, 1.0, 1e-5)
    assert delta_at(rounded, 1.0, 1e-5, noise.scale) <= 1e-5
    stood_for = effective(rounded, 1.0, 1e-5, noise.scale)
    assert stood_for.tail is None
    assert stood_for.radius == pytest.approx(noise.scale * mu_for(1.0, 1e-5), rel=1e-12)
    assert stood_for.terms["training"] == 0.1
    assert stood_for.terms["sampling"] > 0.2 + 1.0
    plain = Region("residual", terms, shape=Ball(9))
    assert effective(plain, 1.0, 1e-5, 1.0) is plain
    assert delta_at(plain, 1.0, 1e-5, 0.5) == delta_of(1.0, plain.radius / 0.5)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 200.0])
def test_the_epsilon_of_a_scale_is_the_one_that_needs_it(epsilon: float) -> None:
    terms, tail, delta = {"solver": 0.3, "sampling": 0.0}, Tail(1.0, 0.5, 0.01, 0.1, 200, 300), 1e-4
    region = Region("residual", terms, tail=tail)
    scale = needed(region, epsilon, delta)
    found = epsilon_hiding(region, delta, scale)
    assert found == pytest.approx(epsilon, rel=1e-6)
    assert delta_at(region, found, delta, scale) <= delta < delta_at(region, found * (1 - 1e-6), delta, scale)
    # what the tail amounts to at one epsilon is not what it amounts to at another
    elsewhere = effective(region, 0.01, delta, needed(region, 0.01, delta))
    assert epsilon_hiding(elsewhere, delta, scale) == epsilon_for(delta, elsewhere.radius / scale)
    assert epsilon_for(delta, elsewhere.radius / scale) < 0.99 * epsilon


def test_the_ends_of_that_epsilon() -> None:
    tail = Tail(1.0, 0.5, 0.01)
    assert epsilon_hiding(Region("residual", {"solver": 0.3}, tail=tail), 1e-4, 1e9) == 0.0
    assert epsilon_hiding(Region("residual", {"solver": math.inf}, tail=tail), 1e-4, 1.0) == math.inf
