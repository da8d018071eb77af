"""From a distance to a difference of means: by hand, on random discrete distributions, and where the bounds are attained."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.distance import (
    bretagnolle_huber,
    shift_chi_square,
    shift_kullback_leibler,
    shift_total_variation,
    tv_upper_from_chi_square,
    tv_upper_from_kl,
)

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=100)
nonnegative = st.floats(min_value=0.0, max_value=1e6)


class Pair:
    """A source rho and a surrogate nu on finitely many points, with f's value at each."""

    def __init__(self, rho, nu, f):
        self.rho, self.nu = np.asarray(rho), np.asarray(nu)
        self.f = np.asarray(f, dtype=np.float64).reshape(len(rho), -1)

    @property
    def tv(self):
        return 0.5 * float(np.abs(self.rho - self.nu).sum())

    @property
    def chi2(self):
        return float(((self.rho - self.nu) ** 2 / self.nu).sum())

    @property
    def kl(self):
        held = self.rho > 0
        return max(0.0, float((self.rho[held] * np.log(self.rho[held] / self.nu[held])).sum()))

    @property
    def moved(self):
        return float(np.linalg.norm((self.rho - self.nu) @ self.f))

    @property
    def centred(self):
        return self.f - self.nu @ self.f

    @property
    def deviation(self):
        covariance = (self.centred.T * self.nu) @ self.centred
        return math.sqrt(max(0.0, float(np.linalg.eigvalsh(covariance)[-1])))

    @property
    def supremum(self):
        return float(np.linalg.norm(self.f, axis=1).max())

    @property
    def centred_supremum(self):
        return float(np.linalg.norm(self.centred, axis=1).max())

    def bounds(self):
        return {
            "tv": shift_total_variation(self.tv, self.supremum),
            "chi2": shift_chi_square(self.chi2, self.deviation),
            "kl": shift_kullback_leibler(self.kl, self.deviation, self.centred_supremum),
        }


def random_pairs(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        points, dimension = int(rng.integers(2, 9)), int(rng.integers(1, 5))
        nu = rng.dirichlet(np.full(points, 10.0 ** rng.uniform(-0.5, 1.0))) + 1e-6
        nu /= nu.sum()
        f = rng.standard_t(2.5, size=(points, dimension)) + rng.normal(size=dimension) * rng.integers(0, 2)
        if rng.integers(0, 2):
            tilt = np.exp(rng.uniform(0.01, 2.0) * (f @ rng.normal(size=dimension)).clip(-20, 20))
            rho = nu * tilt
        else:
            rho = rng.dirichlet(np.full(points, 10.0 ** rng.uniform(-1.0, 1.0)))
        yield Pair(rho / rho.sum(), nu, f)


def bernoulli(source, surrogate):
    """f is the indicator of one point, of probability `source` and `surrogate`."""
    return Pair([source, 1.0 - source], [surrogate, 1.0 - surrogate], [1.0, 0.0])


# By hand -------------------------------------------------------------------------------------------------------


def test_shifts_in_closed_form():
    assert shift_total_variation(0.3, 5.0) == pytest.approx(3.0, rel=1e-15)
    assert shift_chi_square(0.09, 7.0) == pytest.approx(2.1, rel=1e-15)
    assert shift_kullback_leibler(0.02, 5.0, 0.0) == pytest.approx(1.0, rel=1e-15)  # 5 sqrt(0.04)
    assert shift_kullback_leibler(0.6, 0.0, 5.0) == pytest.approx(1.0, rel=1e-15)  # 5 * 0.6 / 3
    assert shift_kullback_leibler(2.0, 3.0, 1.5) == pytest.approx(7.0, rel=1e-15)  # 3 * 2 + 1


def test_bretagnolle_huber_in_closed_form():
    assert bretagnolle_huber(0.0) == 0.0
    assert bretagnolle_huber(math.log(4.0 / 3.0)) == pytest.approx(0.5, rel=1e-15)  # sqrt(1 - 3/4)
    assert bretagnolle_huber(math.log(25.0 / 9.0)) == pytest.approx(0.8, rel=1e-15)
    assert bretagnolle_huber(math.inf) == 1.0


# Against the definitions ---------------------------------------------------------------------------------------


def test_no_random_pair_of_distributions_moves_a_mean_further():
    worst = {"tv": 0.0, "chi2": 0.0, "kl": 0.0}
    for pair in random_pairs(3000, seed=31):
        for kind, bound in pair.bounds().items():
            assert pair.moved <= bound * (1 + 1e-9) + 1e-14
            worst[kind] = max(worst[kind], pair.moved / bound if bound > 1e-9 else 0.0)
    assert min(worst.values()) > 0.9  # none of the three is loose everywhere


def test_no_random_pair_is_further_apart_than_bretagnolle_and_huber_say():
    for pair in random_pairs(2000, seed=32):
        assert pair.tv <= bretagnolle_huber(pair.kl) + 1e-12
        assert Pair(pair.nu, pair.rho, pair.f).tv <= bretagnolle_huber(pair.kl) + 1e-12  # TV has no direction


@pytest.mark.parametrize("kl", [1e-300, 1e-12, 1e-6, 0.1, 1.0, 30.0])
def test_formulas_against_fifty_digits(kl):
    with mpmath.workdps(50):
        exact = mpmath.mpf(kl)
        huber = mpmath.sqrt(1 - mpmath.exp(-exact)) if kl > 1e-20 else mpmath.sqrt(exact)
        bernstein = mpmath.mpf(0.7) * mpmath.sqrt(2 * exact) + mpmath.mpf(1.3) * exact / 3
        assert abs(bretagnolle_huber(kl) / huber - 1) < 1e-14
        assert abs(shift_kullback_leibler(kl, 0.7, 1.3) / bernstein - 1) < 1e-14
        assert abs(shift_chi_square(kl, 0.7) / (mpmath.mpf(0.7) * mpmath.sqrt(exact)) - 1) < 1e-14
        assert abs(shift_total_variation(kl, 0.7) / (2 * exact * mpmath.mpf(0.7)) - 1) < 1e-14


# Where they are attained ---------------------------------------------------------------------------------------


def test_total_variation_is_attained_by_the_sign_of_the_difference():
    for pair in random_pairs(50, seed=33):
        signs = Pair(pair.rho, pair.nu, 4.0 * np.sign(pair.rho - pair.nu))
        assert signs.moved == pytest.approx(shift_total_variation(signs.tv, signs.supremum), rel=1e-12)


def test_chi_square_is_attained_by_the_density_ratio():
    for pair in random_pairs(50, seed=34):
        ratio = Pair(pair.rho, pair.nu, pair.rho / pair.nu)
        assert ratio.moved == pytest.approx(shift_chi_square(ratio.chi2, ratio.deviation), rel=1e-9)


def test_chi_square_is_of_the_source_relative_to_the_surrogate():
    pair = bernoulli(0.5, 0.01)
    reverse = Pair(pair.nu, pair.rho, pair.f)
    assert pair.moved <= shift_chi_square(pair.chi2, pair.deviation) * (1 + 1e-12)
    assert pair.moved > 2 * shift_chi_square(reverse.chi2, pair.deviation)


def test_kullback_leibler_is_nearly_attained_by_a_small_tilt():
    tilted = bernoulli(0.51, 0.5)
    assert 0.99 < tilted.moved / shift_kullback_leibler(tilted.kl, tilted.deviation, tilted.centred_supremum) <= 1.0


def test_kullback_leiblers_third_is_the_smallest_that_holds():
    rare = bernoulli(1e-6 * 1.05, 1e-6)  # a Poisson tail: the second-order term matters
    assert rare.moved <= shift_kullback_leibler(rare.kl, rare.deviation, rare.centred_supremum)
    assert rare.moved > rare.deviation * math.sqrt(2.0 * rare.kl) + rare.centred_supremum * rare.kl / 3.1


def test_bretagnolle_huber_is_nearly_attained_far_apart_where_pinsker_says_nothing():
    point = Pair([1.0, 0.0], [math.exp(-5.0), 1.0 - math.exp(-5.0)], [0.0, 0.0])
    assert point.kl == pytest.approx(5.0)
    assert 0.99 < point.tv / bretagnolle_huber(point.kl) <= 1.0
    assert math.sqrt(point.kl / 2.0) > 1.0


# Properties ----------------------------------------------------------------------------------------------------


@REPRODUCIBLE
@given(distance=nonnegative, scale=nonnegative, factor=st.floats(min_value=1.0, max_value=10.0))
def test_shifts_grow_with_the_distance_and_are_linear_in_the_function(distance, scale, factor):
    for shift in (shift_total_variation, shift_chi_square, lambda d, s: shift_kullback_leibler(d, s, 2.0 * s)):
        assert shift(distance * factor, scale) >= shift(distance, scale) >= shift(0.0, scale) == 0.0
        assert shift(distance, scale * factor) == pytest.approx(factor * shift(distance, scale), rel=1e-12)
    assert bretagnolle_huber(distance) <= bretagnolle_huber(distance * factor) <= 1.0


def test_from_kl_the_smaller_bound_is_taken() -> None:
    assert tv_upper_from_kl(0.08) == pytest.approx(0.2, rel=1e-14)  # Pinsker's: sqrt(0.04)
    assert tv_upper_from_kl(0.08) < bretagnolle_huber(0.08)
    assert tv_upper_from_kl(3.0) == bretagnolle_huber(3.0) < math.sqrt(1.5)
    assert tv_upper_from_chi_square(0.25) == 0.25
    assert tv_upper_from_chi_square(15.0) == pytest.approx(math.sqrt(15 / 16), rel=1e-14)
    assert tv_upper_from_chi_square(math.inf) == tv_upper_from_kl(math.inf) == 1.0
