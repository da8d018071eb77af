"""Calibration against 50-digit arithmetic, and noise whose delta is an average over the drawing of the sets: upper sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exact_delta import relative, true_delta
from expunge.bounds import calibration
from expunge.bounds.calibration import (
    AveragedDelta,
    averaged_sigma,
    delta_of,
    epsilon_for,
    log_delta,
    log_deltas,
    mu_for,
    sigma_classical,
    sigma_for,
)
from expunge.bounds.sampling import Tail

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=40)
MORE = settings(derandomize=True, deadline=None, max_examples=100)
EPSILONS = [float(value) for value in np.geomspace(1e-3, 100.0, 16)]
DELTAS = [float(value) for value in np.geomspace(1e-20, 1e-3, 18)]
epsilons = st.floats(min_value=1e-3, max_value=100.0)
deltas = st.floats(min_value=-20.0, max_value=-0.05).map(lambda exponent: 10.0**exponent)


def test_no_distance_and_all_distance() -> None:
    for epsilon in (0.0, 1.0):
        assert log_deltas(epsilon, np.array([0.0, math.inf])).tolist() == [-math.inf, 0.0]


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


# The upper sum and its search -----------------------------------------------------------------------------------


def test_the_upper_sum_by_hand() -> None:
    """`d(0) + P(S > 0) (d(1) - d(0)) + P(S > 1) (d(3) - d(1)) + P(S > 3) (1 - d(3))`, a billionth more."""
    averaged = AveragedDelta(0.5, np.array([0.0, 1.0, 3.0]), np.array([0.9, 0.4, 0.2]))
    with mpmath.workdps(50):
        at = [true_delta(1.0, mpmath.mpf(size) / 2) for size in ("0.5", "1.5", "3.5")]
        above = [mpmath.mpf(value) for value in (0.9, 0.4, 0.2)]
        due = at[0] + above[0] * (at[1] - at[0]) + above[1] * (at[2] - at[1]) + above[2] * (1 - at[2])
    assert relative(averaged.at(1.0, 2.0), due * (1 + mpmath.mpf("1e-9"))) < 1e-12
    assert averaged.at(1.0, 1e-6) == 1.0, "no probability is more than 1"


def test_what_the_tail_goes_beyond_counts_in_full() -> None:
    for radius, last in ((math.inf, 1.0), (1.0, math.inf)):
        assert AveragedDelta(radius, np.array([0.0, last]), np.array([0.5, 0.0])).at(1.0, 1e9) == 1.0
    assert AveragedDelta(1.0, np.array([0.0, 1.0, math.inf]), np.array([0.5, 0.3, 0.0])).at(1.0, 1e9) == 1.0


def test_the_grid_starts_at_nothing_goes_on_at_the_mean_and_ends_where_no_chance_is_left() -> None:
    tail, delta = Tail(1.0, 0.5, 0.01), 1e-5
    averaged = AveragedDelta.of(0.1, tail, delta)
    assert len(averaged.points) == 1 + 768
    assert averaged.points[:2].tolist() == [0.0, 1.0]
    assert averaged.points[-1] == tail.quantile(1e-10)
    assert np.diff(averaged.points[1:]) == pytest.approx((averaged.points[-1] - 1.0) / 767, rel=1e-9)
    assert averaged.above.tolist() == tail.above(averaged.points).tolist()
    assert AveragedDelta.of(0.1, tail, 1e-304).points[-1] == tail.quantile(1e-306)


def test_more_points_would_make_sigma_smaller_by_a_thousandth_or_so(monkeypatch: pytest.MonkeyPatch) -> None:
    tail = Tail(1.0, 0.5, 0.01, 0.1, 200, 300)
    found = averaged_sigma(0.1, tail, 1.0, 1e-5)
    monkeypatch.setattr(calibration, "AVERAGED_POINTS", 20_000)
    assert 0.998 * found < averaged_sigma(0.1, tail, 1.0, 1e-5) < found


def tried(monkeypatch: pytest.MonkeyPatch, reached: Callable[[float], float]) -> list[float]:
    """Every sigma whose averaged delta is asked for; the delta is given."""
    asked: list[float] = []

    def at(self: AveragedDelta, epsilon: float, sigma: float) -> float:
        asked.append(sigma)
        assert len(asked) < 5000
        return reached(sigma)

    monkeypatch.setattr(AveragedDelta, "at", at)
    return asked


@pytest.mark.parametrize("threshold", [1e-3, 2.0, 9.0, 1e4])
def test_an_average_of_exactly_delta_is_enough(monkeypatch: pytest.MonkeyPatch, threshold: float) -> None:
    tried(monkeypatch, lambda sigma: 1e-5 if sigma >= threshold else math.nextafter(1e-5, 1.0))
    found = averaged_sigma(0.1, Tail(1.0, 0.5, 0.01), 1.0, 1e-5)
    assert threshold < found == pytest.approx(threshold * (1 + 1e-9), rel=2e-11)


def test_the_search_begins_beside_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the mean deviation alone sigma would be `(radius + mean)/mu`; some 40 halvings to eleven digits."""
    tail, true = Tail(1.0, 0.01, 0.001), AveragedDelta.at
    averaged = AveragedDelta.of(0.1, tail, 1e-5)
    asked = tried(monkeypatch, lambda sigma: true(averaged, 1.0, sigma))
    found = averaged_sigma(0.1, tail, 1.0, 1e-5)
    assert asked[1] == pytest.approx(0.55 / mu_for(1.0, 1e-5), rel=1e-12)
    assert 2.0 * asked[1] < found < 4.0 * asked[1]
    assert len(asked) < 50


def test_the_search_ends_where_next_to_no_noise_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    tried(monkeypatch, lambda sigma: 0.0)
    assert averaged_sigma(0.0, Tail(0.0, 0.0, 1.0), 1.0, 1e-5) == pytest.approx(0.5e-300, rel=1e-8, abs=0.0)
    mu = mu_for(1.0, 1e-5)
    radius = next(x for x in (2e-300 * mu * (1.0 + k * 2.0**-52) for k in range(-4, 5)) if x / mu == 2e-300)
    assert averaged_sigma(radius, Tail(0.0, 0.0, 1.0), 1.0, 1e-5) == pytest.approx(1e-300, rel=1e-8, abs=0.0)


@pytest.mark.parametrize("threshold", [0.3, 1.0, 3.0, 100.0])
def test_what_reaches_delta_exactly_is_allowed(monkeypatch: pytest.MonkeyPatch, threshold: float) -> None:
    """A step in the place of delta: mu up to it, and epsilon from it, reach the target exactly."""
    target = math.log(1e-5)
    monkeypatch.setattr(calibration, "log_delta", lambda epsilon, mu: target if mu <= threshold else target + 1e-9)
    assert mu_for(1.0, 1e-5) == pytest.approx(threshold / (1 + 1e-9), rel=1e-12)
    monkeypatch.setattr(calibration, "log_delta", lambda epsilon, mu: target + 1e-9 * (epsilon < threshold))
    assert epsilon_for(1e-5, 1.0) == pytest.approx(threshold * (1 + 1e-9), rel=1e-12)


# delta at mu ---------------------------------------------------------------------------------------------------


def test_delta_at_epsilon_zero_is_the_total_variation_of_two_gaussians():
    assert delta_of(0.0, 2.0) == pytest.approx(0.6826894921370859, rel=1e-14)  # 2 Phi(1) - 1
    assert log_delta(0.0, 2.0) == pytest.approx(-0.3817151, abs=1e-7)


def test_delta_where_the_first_argument_vanishes_is_a_half_minus_one_mills_term():
    # epsilon = mu^2/2: Phi(0) - e^(1/2) Phi(-1) = 0.5 - 1.6487212707001282 * 0.15865525393145707
    assert delta_of(0.5, 1.0) == pytest.approx(0.2384217082, rel=1e-9)


def test_delta_agrees_with_fifty_digits_over_the_grid():
    for epsilon in EPSILONS:
        for delta in DELTAS:
            mu = mu_for(epsilon, delta)
            truth = true_delta(epsilon, mu)
            assert relative(delta_of(epsilon, mu), truth) < 1e-9
            assert abs(log_delta(epsilon, mu) - mpmath.log(truth)) < 1e-9


@pytest.mark.parametrize("mu", [10.27, 10.54, 10.72, 10.98, 12.0, 20.0, 60.0])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1])
def test_delta_near_one_keeps_the_digits_of_what_is_missing(epsilon, mu):
    # Here delta itself rounds to 1 however the second term is handled; its logarithm shows the difference.
    with mpmath.workdps(1200):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        truth = mpmath.log(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))
    assert relative(log_delta(epsilon, mu), truth) < 1e-12


def test_delta_near_one_at_large_epsilon():
    for epsilon, mu in [(20.0, 15.0), (50.0, 18.0), (100.0, 22.0), (1000.0, 60.0)]:
        with mpmath.workdps(100):
            e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
            truth = mpmath.log(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))
        assert e / m - m / 2 < -5
        assert relative(log_delta(epsilon, mu), truth) < 1e-9


def test_delta_between_a_half_and_one_agrees_with_fifty_digits():
    for epsilon, mu in [(1.0, 2.0), (1.0, 5.0), (3.0, 9.9), (10.0, 11.0), (80.0, 18.0)]:
        assert relative(delta_of(epsilon, mu), true_delta(epsilon, mu)) < 1e-12


def test_delta_of_a_small_epsilon_loses_few_digits_to_the_difference():
    # Both terms agree to a part in a million here; the logarithms of two probabilities would lose ten times more.
    for ratio in np.linspace(3.0, 4.9, 20):
        mu = 1e-5 / float(ratio)
        assert relative(delta_of(1e-5, mu), true_delta(1e-5, mu)) < 4e-9


def test_delta_at_the_ends_of_mu():
    for mu, log, delta in ((0.0, -math.inf, 0.0), (1e-18, -math.inf, 0.0), (math.inf, 0.0, 1.0)):
        assert (log_delta(1.0, mu), delta_of(1.0, mu)) == (log, delta)


def test_delta_survives_where_the_naive_form_gives_zero_or_overflows():
    assert delta_of(1.0, 0.1) == pytest.approx(1.2e-25, rel=0.05)
    assert relative(delta_of(50.0, 10.0), true_delta(50.0, 10.0)) < 1e-9
    assert relative(delta_of(800.0, 40.0), true_delta(800.0, 40.0)) < 1e-9


@pytest.mark.parametrize(("epsilon", "mu"), [(0.1, 0.5), (1.0, 1.0), (3.0, 2.0)])
def test_delta_equals_the_hockey_stick_integral_of_the_two_densities(epsilon, mu):
    def gap(x):
        return mpmath.npdf(x - mu) - mpmath.exp(epsilon) * mpmath.npdf(x)

    with mpmath.workdps(30):
        start = mpmath.mpf(epsilon) / mu + mpmath.mpf(mu) / 2  # where the densities are e^epsilon apart
        integral = mpmath.quad(gap, [start, start + 5, mpmath.inf])
    assert relative(delta_of(epsilon, mu), integral) < 1e-12


@MORE
@given(epsilon=epsilons, mu=st.floats(min_value=1e-2, max_value=50.0), factor=st.floats(min_value=1.001, max_value=3.0))
def test_delta_grows_with_mu_and_falls_with_epsilon(epsilon, mu, factor):
    here = log_delta(epsilon, mu)
    assert here <= 0.0
    assert log_delta(epsilon, mu * factor) >= here
    assert log_delta(epsilon * factor, mu) <= here


# sigma for delta -----------------------------------------------------------------------------------------------


def test_mu_is_rounded_down_by_one_part_in_a_billion_over_the_grid():
    for epsilon in EPSILONS:
        for delta in DELTAS:
            mu = mu_for(epsilon, delta)
            with mpmath.workdps(50):
                assert true_delta(epsilon, mpmath.mpf(mu) * (1 + mpmath.mpf("0.9e-9"))) < delta
                assert true_delta(epsilon, mpmath.mpf(mu) * (1 + mpmath.mpf("1.1e-9"))) > delta


def test_mu_of_values_known_in_closed_form():
    assert mu_for(0.0, 0.6826894921370859) == pytest.approx(2.0, rel=2e-9)
    assert mu_for(0.5, 0.2384217081) == pytest.approx(1.0, rel=2e-9)
    assert mu_for(0.0, 0.9999994266968563) == pytest.approx(10.0, rel=1e-8)  # 2 Phi(5) - 1: the search goes up
    assert mu_for(0.0, 0.0797877) == pytest.approx(
        0.2003, rel=1e-3
    )  # 2 Phi(mu/2) - 1 = mu/sqrt(2 pi): the search goes down


@pytest.mark.parametrize("error", [1.0, 3.7e-4, 812.5])
def test_the_true_delta_at_sigma_never_exceeds_the_target(error):
    for epsilon in EPSILONS:
        for delta in DELTAS:
            sigma = sigma_for(error, epsilon, delta)
            with mpmath.workdps(50):
                assert true_delta(epsilon, mpmath.mpf(error) / mpmath.mpf(sigma)) < delta
                assert true_delta(epsilon, mpmath.mpf(error) / mpmath.mpf(sigma) * (1 + mpmath.mpf("1.1e-9"))) > delta


@pytest.mark.parametrize("epsilon", [1e-6, 1e-4, 1e3, 1e6])
def test_sigma_stays_on_the_safe_side_far_outside_the_usual_budgets(epsilon):
    for delta in [1e-300, 1e-100, 1e-30, 1e-10, 0.5, 0.999]:
        with mpmath.workdps(50):
            truth = true_delta(epsilon, 1 / mpmath.mpf(sigma_for(1.0, epsilon, delta)))
            assert mpmath.mpf("0.999") * delta < truth < delta


def test_sigma_of_a_value_known_in_closed_form():
    assert sigma_for(6.0, 0.0, 0.6826894921370859) == pytest.approx(3.0, rel=2e-9)  # mu = 2
    assert sigma_for(1.0, 1.0, 1e-5) == pytest.approx(3.730632, abs=1e-6)


@MORE
@given(error=st.floats(min_value=1e-8, max_value=1e8), epsilon=epsilons, delta=deltas)
def test_sigma_is_never_below_the_exact_quotient(error, epsilon, delta):
    sigma, mu = sigma_for(error, epsilon, delta), mu_for(epsilon, delta)
    assert Fraction(sigma) * Fraction(mu) > Fraction(error)
    assert sigma <= error / mu * (1 + 1e-15)
    assert true_delta(epsilon, mpmath.mpf(error) / mpmath.mpf(sigma)) < delta


@MORE
@given(epsilon=epsilons, delta=deltas, factor=st.floats(min_value=1.01, max_value=10.0))
def test_a_stricter_budget_needs_more_noise(epsilon, delta, factor):
    sigma = sigma_for(1.0, epsilon, delta)
    assert sigma_for(1.0, epsilon / factor, delta) > sigma
    assert sigma_for(1.0, epsilon, delta / factor) > sigma
    assert sigma_for(factor, epsilon, delta) == pytest.approx(factor * sigma, rel=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(-1e-9, 0.1), (math.inf, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.0), (1.0, -0.1), (1.0, 1.5), (1.0, math.nan)],
)
def test_a_budget_that_means_nothing_is_refused_and_not_searched_for(epsilon, delta):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        mu_for(epsilon, delta)
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        sigma_for(1.0, epsilon, delta)
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        epsilon_for(delta, epsilon)


# The classical formula -----------------------------------------------------------------------------------------


def test_classical_sigma_in_closed_form():
    assert sigma_classical(3.0, 0.5, 1.25 / math.exp(2.0)) == pytest.approx(12.0, rel=1e-14)  # 3 * sqrt(2 * 2) / 0.5


@MORE
@given(error=st.floats(min_value=1e-6, max_value=1e6), epsilon=epsilons, delta=deltas)
def test_classical_sigma_against_fifty_digits(error, epsilon, delta):
    with mpmath.workdps(50):
        truth = (
            mpmath.mpf(error) / mpmath.mpf(epsilon) * mpmath.sqrt(2 * mpmath.log(mpmath.mpf(5) / 4 / mpmath.mpf(delta)))
        )
    assert relative(sigma_classical(error, epsilon, delta), truth) < 1e-12


def test_classical_sigma_is_enough_below_its_limit_and_too_little_from_8_42_on():
    for epsilon in np.linspace(0.01, 1.0, 12):
        for delta in [1e-12, 1e-5, 1e-3]:
            assert true_delta(epsilon, 1 / sigma_classical(1.0, epsilon, delta)) < delta
    assert true_delta(8.41, 1 / sigma_classical(1.0, 8.41, 1e-5)) < 1e-5
    assert true_delta(8.43, 1 / sigma_classical(1.0, 8.43, 1e-5)) > 1e-5


# epsilon for mu ------------------------------------------------------------------------------------------------


def test_epsilon_in_closed_form():
    assert epsilon_for(0.2384217081, 1.0) == pytest.approx(0.5, rel=1e-8)
    assert epsilon_for(0.6826894922, 2.0) == 0.0  # 2 Phi(1) - 1 and a little: no epsilon is needed
    assert 0.0 < epsilon_for(0.68268949, 2.0) < 1e-7
    assert epsilon_for(0.5, 0.0) == 0.0


def test_epsilon_is_rounded_up_by_one_part_in_a_billion():
    for delta in [1e-20, 1e-12, 1e-5, 1e-3, 0.1]:
        for mu in [0.02, 0.3, 1.0, 4.0, 12.0]:
            epsilon = epsilon_for(delta, mu)
            if epsilon == 0.0:
                assert true_delta(0.0, mu) < delta
                continue
            with mpmath.workdps(50):
                assert true_delta(mpmath.mpf(epsilon) / (1 + mpmath.mpf("0.9e-9")), mu) < delta
                assert true_delta(mpmath.mpf(epsilon) / (1 + mpmath.mpf("1.1e-9")), mu) > delta


@MORE
@given(epsilon=epsilons, delta=deltas)
def test_epsilon_and_mu_are_inverse_to_each_other(epsilon, delta):
    back = epsilon_for(delta, mu_for(epsilon, delta))
    assert abs(back - epsilon) < 1e-7 * max(epsilon, delta)
    assert delta_of(back, mu_for(epsilon, delta)) <= delta
