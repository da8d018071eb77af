"""Tails of deviations: closed forms, naive forms in 50 digits, and simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.bounds.sampling import Tail, hilbert_tail, klein_rio_tail, more_than, raised_moment, unlike_rows

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=100)
sizes = st.floats(min_value=1e-6, max_value=1e3)


def at(function, x: float, *given: float) -> float:
    return float(function(np.array([x]), *given)[0])


# Closed forms
# -----------------------------------------------------------------------------------------------------------


def test_klein_and_rio_in_closed_form() -> None:
    # E = 1, variance 0.5, b = 0.25: v = 0.5 + 2 * 0.25 * 1 = 1; at x = 3, t = 2: exp(-4 / (2 + 1.5))
    assert at(klein_rio_tail, 3.0, 1.0, 0.5, 0.25) == pytest.approx(math.exp(-4.0 / 3.5), rel=1e-14)
    assert at(klein_rio_tail, 1.0, 1.0, 0.5, 0.25) == at(klein_rio_tail, 0.2, 1.0, 0.5, 0.25) == 1.0
    assert at(klein_rio_tail, 1.5, 1.0, 0.0, 0.0) == 0.0
    assert at(klein_rio_tail, 1.0, 1.0, 0.0, 0.0) == at(klein_rio_tail, 0.5, 1.0, 0.0, 0.0) == 1.0


def test_hilbert_in_closed_form() -> None:
    # V = 2, b = 1, x = 2: t = 1, h = 2 ln 2 - 1, so 2 exp(-2 (2 ln 2 - 1))
    assert at(hilbert_tail, 2.0, 2.0, 1.0) == pytest.approx(
        2.0 * math.exp(-2.0 * (2.0 * math.log(2.0) - 1.0)), rel=1e-8
    )
    assert at(hilbert_tail, 0.0, 2.0, 1.0) == 1.0
    assert at(hilbert_tail, 1.0, 0.0, 1.0) == 0.0
    assert at(hilbert_tail, 0.0, 0.0, 1.0) == at(hilbert_tail, -1.0, 0.0, 1.0) == 1.0
    assert at(hilbert_tail, 3.0, 1.0, 0.0) == pytest.approx(2.0 * math.exp(-4.5), rel=1e-14)


def test_the_number_of_new_rows_beyond_the_largest_seen() -> None:
    """Exchangeable rows: the k+1 largest of all are new ones with probability prod (n-i)/(n+s-i), at most
    (n/(n+s))^(k+1).
    """
    for n, s in ((1, 1), (5, 3), (40, 100)):
        for k in range(min(n, 6)):
            exact = math.prod((n - i) / (n + s - i) for i in range(k + 1))
            bound = at(lambda count, n=n, s=s: more_than(n, s, count), float(k))
            assert exact <= bound * (1 + 1e-12)
            assert bound == pytest.approx((n / (n + s)) ** (k + 1), rel=1e-12)
    assert at(lambda count: more_than(3, 4, count), -1.0) == 1.0
    assert [at(lambda count: more_than(3, 4, count), k) for k in (2.0, 3.0, 1e6)] == [(3 / 7) ** 3, 0.0, 0.0]


def test_moments_raised_in_closed_form() -> None:
    # r = 3, s = 18, ln(1/f) = 4: c = 3 sqrt(4/36) = 1; L = 3: (sqrt(4) + 1)^2
    assert raised_moment(3.0, 3.0, 18.0, 4.0) == pytest.approx(9.0, rel=1e-14)
    assert raised_moment(2.5, 0.0, 10.0, 5.0) == pytest.approx(2.5, rel=1e-14)


def test_unlike_rows_in_closed_form() -> None:
    # n q = 2, L = 4: 2 + sqrt(16) + 4/3
    assert unlike_rows(100, 0.02, 4.0) == pytest.approx(2.0 + 4.0 + 4.0 / 3.0, rel=1e-14)
    assert unlike_rows(3, 0.9, 4.0) == 3.0


# Against naive forms
# ------------------------------------------------------------------------------------------------------


@REPRODUCIBLE
@given(x=sizes, expected=sizes, variance=sizes, step=sizes)
def test_tails_in_fifty_digits(x: float, expected: float, variance: float, step: float) -> None:
    with mpmath.workdps(50):
        t = max(mpmath.mpf(x) - expected, mpmath.mpf(0))
        exact = mpmath.exp(-(t**2) / (2 * (variance + 2 * mpmath.mpf(step) * expected) + 3 * step * t))
        assert at(klein_rio_tail, x, expected, variance, step) == pytest.approx(float(exact), rel=1e-9, abs=1e-300)
        ratio = mpmath.mpf(step) * x / variance
        h = (1 + ratio) * mpmath.log(1 + ratio) - ratio
        bennett = min(mpmath.mpf(1), 2 * mpmath.exp(-(variance / mpmath.mpf(step) ** 2) * h))
        computed = at(hilbert_tail, x, variance, step)
        assert computed >= float(bennett) * (1 - 1e-12)  # never below: h is only ever made smaller
        assert computed == pytest.approx(float(bennett), rel=0.2, abs=1e-250) or float(bennett) < 1e-12


def naive_above(tail: Tail, x: float) -> float:
    return min(
        at(lambda count: more_than(tail.n_new, tail.n_seen, count), float(k))
        + float(tail._sum(np.array([x - k * tail.charge]))[0])
        for k in range(tail.n_new + 1)
    )


def test_unlike_rows_are_minimised_over() -> None:
    tail = Tail(1.0, 0.1, 0.05, charge=0.3, n_new=40, n_seen=60)
    for x in np.linspace(0.5, 12.0, 30):
        naive = min(1.0, naive_above(tail, float(x)))
        computed = float(tail.above(np.array([x]))[0])
        assert naive * (1 - 1e-12) <= computed <= 1.05 * naive + 1e-290
    assert float(replace(tail, n_seen=0).above(np.array([4.0]))[0]) == float(tail._sum(np.array([4.0]))[0])


# Properties
# -----------------------------------------------------------------------------------------------------------------


@REPRODUCIBLE
@given(
    expected=sizes, variance=sizes, step=sizes, charge=st.sampled_from([0.0, 0.01, 1.0]), factor=st.floats(0.01, 100.0)
)
def test_tails_fall_and_scale(expected: float, variance: float, step: float, charge: float, factor: float) -> None:
    tail = Tail(expected, min(variance, expected**2), step, charge, 30, 50)
    x = np.linspace(0.0, 20.0 * (expected + step + charge), 60)
    above = tail.above(x)
    assert above[0] == 1.0
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(above.tolist()))
    np.testing.assert_allclose(tail.scaled(factor).above(factor * x), above, rtol=1e-6, atol=1e-12)
    larger = [
        replace(tail, expected=1.1 * expected),
        replace(tail, variance=1.1 * tail.variance),
        replace(tail, step=1.1 * step),
    ]
    for other in larger:
        assert np.all(other.above(x) >= above * (1 - 1e-9))


@REPRODUCIBLE
@given(failure=st.floats(1e-12, 0.5), charge=st.sampled_from([0.0, 0.2]))
def test_a_quantile_is_exceeded_that_often_at_most_and_hardly_less(failure: float, charge: float) -> None:
    tail = Tail(1.0, 0.3, 0.02, charge, 100, 100)
    x = tail.quantile(failure)
    assert float(tail.above(np.array([x]))[0]) <= failure
    assert float(tail.above(np.array([x * (1 - 1e-9)]))[0]) > failure * (1 - 1e-3) or charge > 0.0
    assert Tail(0.0, 0.0, 0.0).quantile(failure) == 0.0


@pytest.mark.parametrize(
    "tail", [Tail(0.0, 0.0, 1e-40), Tail(0.0, 0.0, 2.0), Tail(0.0, 0.0, 0.0, 1e-89, 290, 300), Tail(1e-320, 0.0, 0.0)]
)
def test_the_search_for_a_quantile_ends_where_the_sum_cannot_deviate(
    tail: Tail, within: Callable[[float], Any]
) -> None:
    """Rows so short that no change of theirs is left in float64, and yet a supremum above 0."""
    with within(5):
        found = tail.quantile(1e-6)
    assert tail.above(np.array([found]))[0] <= 1e-6
    assert found <= 290 * tail.charge + 1e-19 * tail.step + 1e-249


@pytest.mark.parametrize("unit", [1e-280, 1e-170, 1e-40, 1e170, 1e280])
def test_lengths_whose_squares_are_no_numbers(unit: float) -> None:
    """A sum without a preferred direction, of variance E^2: the same tail in every unit."""
    here, there = Tail(1.0, 0.0, 0.5, 0.1, 30, 50), Tail(unit, 0.0, 0.5 * unit, 0.1 * unit, 30, 50)
    x = np.linspace(0.0, 40.0, 80)
    np.testing.assert_allclose(there.above(x * unit), here.above(x), rtol=1e-9)
    assert there.quantile(1e-9) == pytest.approx(here.quantile(1e-9) * unit, rel=1e-9)


def test_the_smallest_probabilities_have_quantiles() -> None:
    """All new rows beyond those seen are as many as there can be, however small the probability."""
    found = Tail(1.0, 0.3, 0.02, 0.2, 40, 60).quantile(1e-306)
    assert 40 * 0.2 < found < 100.0
    assert np.all(hilbert_tail(np.array([1e200, 1e307]), 1.0, 1e-3) == 0.0)
    assert np.all(hilbert_tail(np.array([1e200, 1e307]), 1.0, 0.0) == 0.0)


@pytest.mark.parametrize("dimension", [1, 2, 30])
def test_sums_of_vectors_stay_below_their_tails(dimension: int) -> None:
    """Means of 50 vectors of length 1, either sign along an axis: 20,000 draws against the tail at every size."""
    rng = np.random.default_rng(dimension)
    axes = rng.integers(0, dimension, (20_000, 50))
    signs = rng.choice([-1.0, 1.0], (20_000, 50))
    sums = np.zeros((20_000, dimension))
    for column in range(50):
        sums[np.arange(20_000), axes[:, column]] += signs[:, column]
    norms = np.linalg.norm(sums / 50, axis=1)
    tail = Tail(math.sqrt(1 / 50), 1 / dimension / 50, 1 / 50)
    for x in np.linspace(0.05, 0.6, 12):
        share = float(np.mean(norms > x))
        assert share <= float(tail.above(np.array([x]))[0]) + 4 * math.sqrt(max(share, 1e-4) / 20_000)


def test_a_raised_moment_is_rarely_below_the_truth() -> None:
    """Values in {0, r^2} with a small chance of the latter: the hardest for a lower tail."""
    rng = np.random.default_rng(0)
    chance, rows, failure = 0.01, 200, 0.1
    means = rng.binomial(rows, chance, 20_000) / rows
    below = np.mean([raised_moment(mean, 1.0, rows, -math.log(failure)) < chance for mean in means])
    assert below <= failure
    plain = np.mean(means < chance)
    assert plain > failure, "without raising it would fail"


def test_unlike_rows_are_rarely_more() -> None:
    rng = np.random.default_rng(1)
    counts = rng.binomial(500, 0.01, 20_000)
    assert np.mean(counts > unlike_rows(500, 0.01, -math.log(0.05))) <= 0.05


def test_a_small_ratio_in_closed_form() -> None:
    """Below a thousandth `t^2 / (2 (1 + t/3))` stands in for h(t), to the last digits; above, h less a billionth."""
    total, step = 8e7, 1.0
    for ratio in (5e-4, 9.99e-4):
        due = 2.0 * math.exp(-total * ratio**2 / (2.0 * (1.0 + ratio / 3.0)))
        assert at(hilbert_tail, ratio * total / step, total, step) == pytest.approx(due, rel=1e-9, abs=0.0)
    with mpmath.workdps(50):
        ratio = mpmath.mpf("0.0015")
        h = (1 + ratio) * mpmath.log(1 + ratio) - ratio
        due = 2 * mpmath.exp(-total * h * (1 - mpmath.mpf("1e-9")))
    assert at(hilbert_tail, 0.0015 * total, total, step) == pytest.approx(float(due), rel=1e-8, abs=0.0)
    assert at(hilbert_tail, 0.0015 * total, total, step) > float(2 * mpmath.exp(-total * h))


@pytest.mark.parametrize("tail", [Tail(2.0, 4.0, 0.0), Tail(1.0, 1.0, 2.0), Tail(3.0, 0.1, 0.5), Tail(1.0, 0.9, 0.3)])
def test_the_sum_has_the_smaller_of_both_tails(tail: Tail) -> None:
    x = np.linspace(0.1, 60.0, 400)
    one = klein_rio_tail(x, tail.expected, tail.variance, tail.step)
    other = hilbert_tail(x, tail.expected**2, tail.step)
    np.testing.assert_allclose(tail.above(x), np.minimum(one, other), rtol=1e-9, atol=1e-300)
    assert np.any(other < one)


def test_the_smaller_tail_by_hand() -> None:
    """E = 2, no steps: at 6 `exp(-16/8)` of the one, `2 exp(-36/8)` of the other."""
    assert float(Tail(2.0, 4.0, 0.0).above(np.array([6.0]))[0]) == pytest.approx(2.0 * math.exp(-4.5), rel=1e-12)
    assert float(Tail(2.0, 1.0, 0.0).above(np.array([6.0]))[0]) == pytest.approx(math.exp(-8.0), rel=1e-12)


def test_unlike_rows_are_charged_where_they_add_something() -> None:
    x = np.array([4.0])
    plain = Tail(1.0, 0.1, 0.05, n_new=40, n_seen=60)
    assert plain.above(x) == plain._sum(x), "what adds nothing is not counted"
    assert replace(plain, charge=0.6).above(x)[0] > plain.above(x)[0]
    for name in ("expected", "variance", "step", "charge"):
        assert not replace(Tail(0.0, 0.0, 0.0), **{name: 1.0}).nothing
    assert Tail(0.0, 0.0, 0.0).nothing


def test_the_numbers_of_unlike_rows_that_are_tried() -> None:
    """All there can be where these are few; else up to 31, then 48 steps of one ratio until no chance is left."""

    def tried(n_new: int, n_seen: int) -> list[float]:
        return Tail(1.0, 0.1, 0.05, 0.3, n_new, n_seen)._counts().tolist()

    assert tried(1, 10) == [0.0, 1.0]
    assert tried(3, 10) == [0.0, 1.0, 2.0, 3.0]
    assert tried(31, 1) == [float(count) for count in range(32)]
    last = math.ceil(307.0 * math.log(10.0) / math.log(2.0))  # halves: 2^-1020 is below 10^-307
    assert last == 1020
    ratios = {float(round(1020 ** (step / 47))) for step in range(48)}
    assert tried(10**6, 10**6) == sorted(ratios | {float(count) for count in range(32)})
    assert 32.0 not in ratios
    assert max(tried(500, 1)) == 500.0, "no more than there are"


@pytest.mark.parametrize("beyond", [1.0, 1.25, 1.7, 1.999])
def test_a_quantile_is_rounded_up_by_one_part_in_a_trillion_at_most(
    beyond: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step in the place of the tail, a hair above every size that halving comes by."""
    step = math.floor(beyond * 2.0**39) * 2.0**-39 + 2.0**-46
    monkeypatch.setattr(Tail, "above", lambda self, x: np.where(x >= step, 1e-6, 1.0))
    assert step <= Tail(1.0, 0.5, 0.01).quantile(1e-6) <= step * (1.0 + 1e-12)


# Edges ----------------------------------------------------------------------------------------------------------


def exact_h(ratio: float) -> Any:
    with mpmath.workdps(50):
        return (1 + mpmath.mpf(ratio)) * mpmath.log(1 + mpmath.mpf(ratio)) - mpmath.mpf(ratio)


@pytest.mark.parametrize("ratio", [1e-3, 1.05e-3])
def test_from_a_thousandth_on_h_itself_is_taken(ratio: float) -> None:
    """An exponent of some 500, of which the other form is 5e-8 less."""
    total = 2.0**30
    x = ratio * total
    assert x / total == ratio
    due = 2.0 * math.exp(-total * float(exact_h(ratio)) * (1.0 - 1e-9))
    assert at(hilbert_tail, x, total, 1.0) == pytest.approx(due, rel=1e-8, abs=0.0)


@pytest.mark.parametrize("ratio", [1.0, 7.0, 300.0])
def test_the_exponent_is_a_billionth_less_than_it_is(ratio: float) -> None:
    with mpmath.workdps(50):
        total = float(500 / exact_h(ratio))
        less = mpmath.log(mpmath.mpf(at(hilbert_tail, ratio * total, total, 1.0)) / 2) + total * exact_h(ratio)
    assert float(less) == pytest.approx(500e-9, rel=1e-3)


def test_no_tail_is_above_one_with_steps_or_without() -> None:
    for step in (0.0, 0.1):
        assert [at(hilbert_tail, x, 1.0, step) for x in (-1.0, 0.0, 0.5, 1.0)] == [1.0] * 4


def test_a_step_far_beyond_the_variance_counts_as_one_of_the_largest_ratio() -> None:
    """V = 10^-300 and b = 1: from x = 1 on the tail is what it is there, `2 exp(-(ln 10^300 - 1))`."""
    due = 2.0 * math.exp(1.0 - 300.0 * math.log(10.0))
    for x in (1.0, 2.0, 1e9):
        assert at(hilbert_tail, x, 1e-300, 1.0) == pytest.approx(due, rel=1e-5, abs=0.0)


@pytest.mark.parametrize(("expected", "step"), [(1.0, 1e-200), (1e-200, 1.0)])
def test_lengths_whose_ratio_is_next_to_no_number(expected: float, step: float) -> None:
    """As if the smaller were nothing."""
    x = np.array([0.5, 1.5, 3.0, 20.0])
    found = Tail(expected, 0.25, step).above(x)
    plain = Tail(expected if expected == 1.0 else 0.0, 0.25, step if step == 1.0 else 0.0).above(x)
    assert found.tolist() == pytest.approx(plain.tolist(), rel=1e-9, abs=0.0)


def test_unlike_rows_are_tried_until_their_chance_is_below_ten_to_the_minus_307() -> None:
    """At a chance of one in a thousand that it ends, each count is as good as its neighbour but for that."""
    n_new, n_seen = 10**7, 10**4
    last = Tail(1.0, 0.1, 0.05, 0.3, n_new, n_seen)._counts()[-1]
    with mpmath.workdps(50):
        share = mpmath.mpf(n_new) / (n_new + n_seen)
        assert share**last <= mpmath.mpf("1e-307") < share ** (last - 1)
