"""Exact distances on finitely many points."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.distance.discrete import discrete_chi_square, discrete_kl, discrete_tv
from expunge.distance.inequalities import tv_upper_from_chi_square, tv_upper_from_kl
from expunge.errors import OptionError

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=100)


def test_discrete_by_hand() -> None:
    assert discrete_tv([0.2, 0.8], [0.5, 0.5]) == pytest.approx(0.3, rel=1e-14)
    assert discrete_kl([0.25, 0.75], [0.5, 0.5]) == pytest.approx(
        0.25 * math.log(0.5) + 0.75 * math.log(1.5), rel=1e-14
    )
    assert discrete_chi_square([0.2, 0.8], [0.5, 0.5]) == pytest.approx(0.36, rel=1e-14)
    assert discrete_kl([1.0, 0.0], [0.5, 0.5]) == pytest.approx(math.log(2), rel=1e-14)
    assert discrete_chi_square([0.5, 0.5], [1.0, 0.0]) == math.inf


probabilities = st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=8)


@REPRODUCIBLE
@given(p=probabilities, seed=st.integers(0, 10**6))
def test_discrete_distances_obey_the_inequalities(p: list[float], seed: int) -> None:
    a = np.array(p) / sum(p)
    b = np.random.default_rng(seed).dirichlet(np.ones(len(p)))
    tv, kl, chi2 = discrete_tv(a, b), discrete_kl(a, b), discrete_chi_square(a, b)
    assert tv == pytest.approx(max(float((a - b)[np.array(mask)].sum()) for mask in masks(len(p))), abs=1e-12)
    assert tv <= tv_upper_from_kl(kl) + 1e-12
    assert tv <= tv_upper_from_chi_square(chi2) + 1e-12
    assert kl <= math.log1p(chi2) + 1e-12


def masks(count: int) -> list[list[bool]]:
    return [[bool(code >> bit & 1) for bit in range(count)] for code in range(2**count)]


def test_where_either_has_no_mass() -> None:
    assert discrete_kl([1.0, 0.0], [1.0, 0.0]) == discrete_chi_square([1.0, 0.0], [1.0, 0.0]) == 0.0
    assert discrete_kl([0.5, 0.5, 0.0], [0.5, 0.0, 0.5]) == math.inf
    assert discrete_chi_square([0.5, 0.5, 0.0], [0.5, 0.0, 0.5]) == math.inf
    assert discrete_kl([0.5, 0.0, 0.5], [0.25, 0.25, 0.5]) == pytest.approx(0.5 * math.log(2.0), rel=1e-14)
    assert discrete_chi_square([0.5, 0.0, 0.5], [0.25, 0.25, 0.5]) == pytest.approx(0.5, rel=1e-14)
    assert discrete_tv([1.0, 0.0], [0.0, 1.0]) == 1.0


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([0.5, 0.5], [1.0]),
        ([], []),
        ([0.5, 0.5 + 1.05e-9], [0.5, 0.5]),
        ([0.5, 0.5], [0.5, 0.5 - 1.05e-9]),
        ([1.5, -0.5], [0.5, 0.5]),
        ([math.nan, 0.5], [0.5, 0.5]),
        ([[0.5, 0.5]], [[0.5, 0.5]]),
    ],
)
def test_what_are_no_probabilities_over_the_same_points_is_refused(p: list[float], q: list[float]) -> None:
    for distance in (discrete_tv, discrete_kl, discrete_chi_square):
        with pytest.raises(OptionError, match="two lists of probabilities"):
            distance(p, q)
    assert discrete_tv([0.5, 0.5 + 0.95e-9], [0.5, 0.5]) < 1e-9


def test_no_variation_is_above_one_though_sums_are_off_by_a_billionth() -> None:
    much = 1.0 + 0.9e-9
    assert discrete_tv([much, 0.0], [0.0, much]) == 1.0


def test_mass_that_the_other_lacks_is_seen_before_it_is_divided_by() -> None:
    with np.errstate(all="raise"):
        for distance in (discrete_kl, discrete_chi_square):
            assert distance([0.5, 0.5, 0.0], [0.5, 0.0, 0.5]) == math.inf


def test_on_one_point_there_is_one_distribution() -> None:
    assert discrete_tv([1.0], [1.0]) == discrete_kl([1.0], [1.0]) == discrete_chi_square([1.0], [1.0]) == 0.0
