"""Closed forms on finitely many points and between Gaussians: by hand, by integration, and as properties."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from experiments.shared.closed_forms import (
    discrete_chi_square,
    discrete_kl,
    discrete_tv,
    gaussian_chi_square,
    gaussian_kl,
)
from expunge.distance import tv_upper_from_chi_square, tv_upper_from_kl
from expunge.errors import OptionError


def test_by_hand() -> None:
    assert discrete_tv([0.2, 0.8], [0.5, 0.5]) == pytest.approx(0.3, rel=1e-14)
    assert discrete_kl([0.5, 0.0, 0.5], [0.25, 0.25, 0.5]) == pytest.approx(0.5 * math.log(2.0), rel=1e-14)
    assert discrete_chi_square([0.2, 0.8], [0.5, 0.5]) == pytest.approx(0.36, rel=1e-14)
    assert gaussian_kl([3.0, 0.0], np.eye(2), [0.0, 4.0], np.eye(2)) == pytest.approx(12.5, rel=1e-14)
    assert gaussian_chi_square([1.0], [[2.0]], [0.0], [[2.0]]) == pytest.approx(math.exp(0.5) - 1, rel=1e-13)
    assert gaussian_chi_square([0.0], [[1.0]], [0.0], [[2.0]]) == pytest.approx(2 / math.sqrt(3) - 1, rel=1e-13)


def test_what_is_infinite() -> None:
    with np.errstate(all="raise"):
        for distance in (discrete_kl, discrete_chi_square):
            assert distance([0.5, 0.5, 0.0], [0.5, 0.0, 0.5]) == math.inf
    assert gaussian_chi_square([0.0], [[2.0]], [0.0], [[1.0]]) == math.inf
    assert gaussian_chi_square([0.0], [[1.999]], [0.0], [[1.0]]) < math.inf
    assert gaussian_chi_square([27.0], [[1.0]], [0.0], [[1.0]]) == math.inf, "beyond all numbers"


@settings(derandomize=True, deadline=None, max_examples=100)
@given(p=st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=8), seed=st.integers(0, 10**6))
def test_discrete_distances_obey_the_inequalities(p: list[float], seed: int) -> None:
    a = np.array(p) / sum(p)
    b = np.random.default_rng(seed).dirichlet(np.ones(len(p)))
    tv, kl, chi2 = discrete_tv(a, b), discrete_kl(a, b), discrete_chi_square(a, b)
    assert tv == pytest.approx(float((a - b)[a > b].sum()), abs=1e-12)
    assert tv <= min(tv_upper_from_kl(kl), tv_upper_from_chi_square(chi2)) + 1e-12
    assert kl <= math.log1p(chi2) + 1e-12


@pytest.mark.parametrize(("m", "s", "k", "t"), [(0.0, 1.0, 0.5, 1.5), (1.0, 0.7, -0.3, 1.0), (0.2, 1.8, 0.0, 1.0)])
def test_gaussians_against_integration(m: float, s: float, k: float, t: float) -> None:
    p, q = stats.norm(m, math.sqrt(s)), stats.norm(k, math.sqrt(t))
    kl = quad(lambda x: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), -30, 30, limit=400)[0]
    chi2 = quad(lambda x: (p.pdf(x) - q.pdf(x)) ** 2 / q.pdf(x), -30, 30, limit=400)[0]
    assert gaussian_kl([m], [[s]], [k], [[t]]) == pytest.approx(kl, rel=1e-7)
    assert gaussian_chi_square([m], [[s]], [k], [[t]]) == pytest.approx(chi2, rel=1e-7)


@pytest.mark.parametrize(
    ("distance", "given"),
    [
        (discrete_tv, ([0.5, 0.5], [1.0])),
        (discrete_kl, ([], [])),
        (discrete_kl, ([0.5, 0.6], [0.5, 0.5])),
        (discrete_chi_square, ([1.5, -0.5], [0.5, 0.5])),
        (gaussian_kl, ([0.0, 0.0], [[1.0]], [0.0], [[1.0]])),
        (gaussian_kl, ([0.0], [[0.0]], [0.0], [[1.0]])),
        (gaussian_kl, ([math.nan], [[1.0]], [0.0], [[1.0]])),
        (gaussian_chi_square, ([0.0], [[1.0]], [0.0, 1.0], np.eye(2))),
        (gaussian_kl, ([0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]], [0.0, 0.0], np.eye(2))),
    ],
)
def test_what_is_no_distribution_is_refused(distance: Any, given: tuple[Any, ...]) -> None:
    with pytest.raises(OptionError):
        distance(*given)
