"""Closed forms between Gaussians and between discrete distributions: by hand, by integration, and as properties."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from expunge.distance.discrete import discrete_chi_square, discrete_kl, discrete_tv
from expunge.distance.gaussian import gaussian_chi_square, gaussian_kl
from expunge.distance.inequalities import tv_upper_from_chi_square, tv_upper_from_kl
from expunge.errors import OptionError


def random_gaussian(rng: np.random.Generator, d: int) -> tuple[np.ndarray, np.ndarray]:
    root = rng.normal(size=(d, d)) / math.sqrt(d)
    return rng.normal(size=d) * 0.5, root @ root.T + 0.5 * np.eye(d)


def test_gaussians_by_hand():
    assert gaussian_kl([0.0], [[4.0]], [0.0], [[1.0]]) == pytest.approx(0.5 * (4 - 1 - math.log(4)), rel=1e-14)
    assert gaussian_kl([3.0, 0.0], np.eye(2), [0.0, 4.0], np.eye(2)) == pytest.approx(12.5, rel=1e-14)
    # equal covariances: exp(d^T S^-1 d) - 1; scaled: s = 1, t = 2 gives 2/sqrt(3)
    assert gaussian_chi_square([1.0], [[2.0]], [0.0], [[2.0]]) == pytest.approx(math.exp(0.5) - 1, rel=1e-13)
    assert gaussian_chi_square([0.0], [[1.0]], [0.0], [[2.0]]) == pytest.approx(2 / math.sqrt(3) - 1, rel=1e-13)
    assert gaussian_chi_square([0.0], [[2.0]], [0.0], [[1.0]]) == math.inf
    assert gaussian_chi_square([0.0], [[1.999]], [0.0], [[1.0]]) < math.inf


def test_the_papers_synthetic_family():
    d = 50
    for zeta in (0.02, 0.1):
        surrogate = (1 - zeta) * np.eye(d) + zeta * np.ones((d, d))
        exact = 0.5 * -(49 * math.log(1 - zeta) + math.log(1 + 49 * zeta))
        assert gaussian_kl(np.zeros(d), surrogate, np.zeros(d), np.eye(d)) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("m", "s", "k", "t"), [(0.0, 1.0, 0.5, 1.5), (1.0, 0.7, -0.3, 1.0), (0.2, 1.8, 0.0, 1.0)])
def test_one_dimension_against_integration(m: float, s: float, k: float, t: float) -> None:
    p, q = stats.norm(m, math.sqrt(s)), stats.norm(k, math.sqrt(t))
    kl = quad(lambda x: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), -30, 30, limit=400)[0]
    chi2 = quad(lambda x: (p.pdf(x) - q.pdf(x)) ** 2 / q.pdf(x), -30, 30, limit=400)[0]
    tv = quad(lambda x: 0.5 * abs(p.pdf(x) - q.pdf(x)), -30, 30, limit=400)[0]
    assert gaussian_kl([m], [[s]], [k], [[t]]) == pytest.approx(kl, rel=1e-7)
    assert gaussian_chi_square([m], [[s]], [k], [[t]]) == pytest.approx(chi2, rel=1e-7)
    assert tv <= min(tv_upper_from_kl(kl), tv_upper_from_chi_square(chi2)) + 1e-9


def test_several_dimensions_against_sampling() -> None:
    rng = np.random.default_rng(0)
    for d in (2, 4):
        (m, s), (k, t) = random_gaussian(rng, d), random_gaussian(rng, d)
        t = t + s  # so that the chi-square is finite and its sample mean well behaved
        p, q = stats.multivariate_normal(m, s), stats.multivariate_normal(k, t)
        x = p.rvs(size=400_000, random_state=np.random.default_rng(d))
        logs = p.logpdf(x) - q.logpdf(x)
        assert abs(logs.mean() - gaussian_kl(m, s, k, t)) < 6 * logs.std() / math.sqrt(len(x))
        ratios = np.exp(logs)
        assert abs(ratios.mean() - 1 - gaussian_chi_square(m, s, k, t)) < 6 * ratios.std() / math.sqrt(len(x))


def test_gaussian_properties() -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        d = int(rng.integers(1, 6))
        p, q = random_gaussian(rng, d), random_gaussian(rng, d)
        shift, turn = rng.normal(size=d), rng.normal(size=(d, d)) + 2 * np.eye(d)

        def moved(
            g: tuple[np.ndarray, np.ndarray], a: np.ndarray = turn, b: np.ndarray = shift
        ) -> tuple[np.ndarray, np.ndarray]:
            return a @ g[0] + b, a @ g[1] @ a.T

        assert gaussian_kl(*p, *p) == pytest.approx(0.0, abs=1e-12)
        assert gaussian_chi_square(*p, *p) == pytest.approx(0.0, abs=1e-9)
        assert gaussian_kl(*p, *q) == pytest.approx(
            gaussian_kl(*moved(p), *moved(q)), rel=1e-6
        )  # an invertible map loses nothing
        assert gaussian_kl(*p, *q) <= math.log1p(gaussian_chi_square(*p, *q)) + 1e-12


@pytest.mark.parametrize(
    "bad",
    [
        lambda: gaussian_kl([0.0, 0.0], [[1.0]], [0.0], [[1.0]]),
        lambda: gaussian_kl([0.0], [[0.0]], [0.0], [[1.0]]),
        lambda: gaussian_kl([0.0], [[-1.0]], [0.0], [[1.0]]),
        lambda: gaussian_kl([math.nan], [[1.0]], [0.0], [[1.0]]),
        lambda: gaussian_chi_square([0.0], [[1.0]], [0.0, 1.0], np.eye(2)),
        lambda: gaussian_kl([0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]], [0.0, 0.0], np.eye(2)),
        lambda: discrete_tv([0.5, 0.6], [0.5, 0.5]),
        lambda: discrete_kl([0.5, 0.5], [1.0]),
        lambda: discrete_chi_square([1.5, -0.5], [0.5, 0.5]),
    ],
)
def test_what_is_no_distribution_is_refused(bad) -> None:
    with pytest.raises(OptionError):
        bad()


def test_gaussians_that_are_one_and_gaussians_beyond_all_numbers() -> None:
    eye = np.eye(3)
    assert (
        gaussian_kl(np.zeros(3), eye, np.zeros(3), eye) == gaussian_chi_square(np.zeros(3), eye, np.zeros(3), eye) == 0
    )
    # the smallest eigenvalue of 2 T - S decides, whatever the others are
    assert gaussian_chi_square(np.zeros(2), np.diag([1.0, 3.0]), np.zeros(2), np.eye(2)) == math.inf
    assert gaussian_chi_square([26.0], [[1.0]], [0.0], [[1.0]]) == pytest.approx(math.expm1(676.0), rel=1e-12)
    assert gaussian_chi_square([27.0], [[1.0]], [0.0], [[1.0]]) == math.inf


def test_the_largest_chi_square_that_is_a_number() -> None:
    """`26^2 + 4^2 + 2^2 + 2^2 = 700` is the square of the distance, and 4 less; 1 + chi2 is e to that."""
    here, eye = np.zeros(4), np.eye(4)
    assert gaussian_chi_square([26.0, 4.0, 2.0, 2.0], eye, here, eye) == math.inf
    due = pytest.approx(math.exp(696.0), rel=1e-12, abs=0.0)
    assert gaussian_chi_square([26.0, 4.0, 2.0, 0.0], eye, here, eye) == due


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_one_number_that_is_none_is_refused_as_such(odd: float) -> None:
    for mean, covariance in (([0.0, odd], np.eye(2)), ([0.0, 0.0], np.diag([1.0, odd]))):
        for distance in (gaussian_kl, gaussian_chi_square):
            with pytest.raises(OptionError, match="finite vectors of length d"):
                distance(mean, covariance, [0.0, 0.0], np.eye(2))


@pytest.mark.parametrize(("off", "fine"), [(0.95e-9, True), (1.05e-9, False)])
def test_a_covariance_is_symmetric_to_nine_digits(off: float, fine: bool) -> None:
    covariance = np.array([[1.0, 0.5 * (1.0 + off)], [0.5, 1.0]])
    if fine:
        assert gaussian_kl([0.0, 0.0], covariance, [0.0, 0.0], covariance.T) < 1e-8
    else:
        with pytest.raises(OptionError, match="not symmetric"):
            gaussian_kl([0.0, 0.0], covariance, [0.0, 0.0], np.eye(2))
