"""The residual bound of old certificates: each term by hand, against exact problems and discrete populations, and the sampling step by simulation."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from expunge.bounds import Ball, Region, ResidualFacts, residual_bound
from expunge.bounds.residual import (
    amplification,
    klein_rio_excess,
    rounding_term,
    sampling_term,
    solver_term,
    source_moments,
    source_reach,
    strict_moments,
    surrogate_shift,
    surrogate_term,
    training_term,
    unseen_rows,
)
from expunge.distance import Distance
from expunge.errors import DataError
from expunge.request.rows import require_enough

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=100)


def declared(kind: str, value: float = 0.0, between: str = "populations", **more: Any) -> Distance:
    """A distance as certificates of this bound declared it: what was seen stood for the population, unless asked."""
    return Distance(kind, value, between, **{"sampling": "seen", **more})


SAME, SOURCE = declared("same"), declared("source")

# n/(n-m) = 1.25, 1/l2 = 2: amplification 2.5. ||f - c||^2 has variance 5 - 1 = 4 and is at most 6.25.
FACTS = ResidualFacts(
    n_source=100,
    n_forget=20,
    n_surrogate=25,
    l2=0.5,
    training_residual=0.04,
    solver_residual=8.0,
    rounding=2.0,
    change_mean=0.5,
    change_eigenvalue=0.64,
    change_trace=1.0,
    change_fourth=5.0,
    change_fourth_eigenvalue=2.25,
    change_largest=2.5,
    change_supremum=7.0,
    longest_row=1.0,
    row_bound=1.0,
    sampling_failure=math.exp(-2.0),
)
moderate = st.floats(min_value=1e-6, max_value=1e3)
facts_of = st.builds(
    ResidualFacts,
    n_source=st.integers(min_value=1001, max_value=10**6),
    n_forget=st.integers(min_value=1, max_value=1000),
    n_surrogate=st.integers(min_value=1, max_value=10**6),
    l2=moderate,
    training_residual=moderate,
    solver_residual=moderate,
    rounding=moderate,
    change_mean=moderate,
    change_eigenvalue=moderate,
    change_trace=moderate,
    change_fourth=moderate,
    change_fourth_eigenvalue=moderate,
    change_largest=moderate,
    change_supremum=moderate,
    longest_row=st.sampled_from([0.5, 1.0]),
    row_bound=st.just(1.0),
    sampling_failure=st.floats(min_value=1e-12, max_value=0.5),
)
distance_of = st.one_of(
    st.builds(
        Distance,
        st.sampled_from(["tv", "chi2", "kl"]),
        st.floats(min_value=0.0, max_value=1.0),
        st.sampled_from(["populations", "samples"]),
        st.just("declared"),
        st.sampled_from(["seen", "strict"]),
    ),
    st.sampled_from([SAME, SOURCE, declared("same", sampling="strict")]),
)


def divergences(rho, nu):
    held = rho > 0
    return {
        "tv": 0.5 * float(np.abs(rho - nu).sum()),
        "chi2": float(((rho - nu) ** 2 / nu).sum()),
        "kl": max(0.0, float((rho[held] * np.log(rho[held] / nu[held])).sum())),
    }


def moments(values, weights):
    """What the facts say of f under a discrete distribution: exact, not from a sample."""
    mean = weights @ values
    centred = values - mean
    squares = (centred**2).sum(axis=1)
    return {
        "change_mean": float(np.linalg.norm(mean)),
        "change_eigenvalue": top((centred.T * weights) @ centred),
        "change_trace": float(weights @ squares),
        "change_fourth": float(weights @ squares**2),
        "change_fourth_eigenvalue": top((centred.T * (weights * squares)) @ centred),
        "change_largest": math.sqrt(float(squares.max())),
        "change_supremum": float(np.linalg.norm(values, axis=1).max()),
        "longest_row": 1.0,
        "row_bound": 1.0,
    }


def top(matrix):
    return max(0.0, float(np.linalg.eigvalsh(matrix)[-1]))


# Term by term --------------------------------------------------------------------------------------------------


def test_plain_terms_in_closed_form():
    assert amplification(FACTS) == pytest.approx(2.5, rel=1e-15)
    assert training_term(FACTS) == pytest.approx(0.1, rel=1e-15)
    assert solver_term(FACTS) == pytest.approx(0.2, rel=1e-15)  # 8 / 80 / 0.5
    assert rounding_term(FACTS) == pytest.approx(0.05, rel=1e-15)  # 2 / 80 / 0.5


def test_surrogate_term_in_closed_form():
    for distance, shift in [
        (declared("tv", 0.1), 1.4),  # 2 * 0.1 * 7
        (declared("chi2", 0.25), 0.4),  # 0.5 * 0.8
        (declared("kl", 0.5), 2.05),  # 0.8 + (7 + 0.5) * 0.5 / 3
        (SAME, 0.0),
        (SOURCE, 0.0),
    ]:
        assert surrogate_shift(FACTS, distance) == pytest.approx(shift, rel=1e-14)
        assert surrogate_term(FACTS, distance) == pytest.approx(2.5 * shift, rel=1e-14)


def test_between_samples_the_largest_deviation_seen_stands_for_the_supremum_of_kl_only():
    # 0.8 sqrt(1.2) + 2.5 * 0.6 / 3
    assert surrogate_shift(FACTS, declared("kl", 0.6, "samples")) == pytest.approx(
        0.8 * math.sqrt(1.2) + 0.5, rel=1e-14
    )
    for kind in ("tv", "chi2"):
        assert surrogate_shift(FACTS, declared(kind, 0.1, "samples")) == surrogate_shift(FACTS, declared(kind, 0.1))


def test_source_moments_in_closed_form():
    # of ||f - c||^2: deviation 2, range 6.25; of (v.(f - c))^2: deviation at most 1.5, the same range
    # total variation lets source rows be unlike any seen: range (7 + 0.5)^2
    assert source_moments(FACTS, declared("tv", 0.2)) == pytest.approx((1.0 + 11.25, 0.64 + 11.25), rel=1e-14)
    assert source_moments(FACTS, declared("chi2", 0.25)) == pytest.approx((1.0 + 1.0, 0.64 + 0.75), rel=1e-14)
    assert source_moments(FACTS, declared("kl", 0.5)) == pytest.approx((3.0 + 6.25 / 6, 2.14 + 6.25 / 6), rel=1e-14)
    assert source_moments(FACTS, SAME) == (1.0, 0.64)


def test_source_eigenvalue_is_at_most_the_source_trace():
    heavy = replace(FACTS, change_fourth_eigenvalue=100.0)
    assert source_moments(heavy, declared("chi2", 0.25)) == pytest.approx((2.0, 2.0), rel=1e-14)
    assert source_moments(replace(FACTS, change_eigenvalue=1.5), SAME) == (1.0, 1.0)


def test_a_constant_length_has_no_spread_even_if_rounding_says_less():
    for fourth in (1.0, 1.0 - 1e-12):
        level = replace(FACTS, change_fourth=fourth)
        assert source_moments(level, declared("chi2", 0.25))[0] == 1.0


def test_klein_rio_in_closed_form():
    # without steps sqrt(2 v ln(1/failure)); without variance 3 b ln(1/failure)
    assert klein_rio_excess(7.0, 2.0, 0.0, math.exp(-9.0)) == pytest.approx(6.0, rel=1e-14)
    assert klein_rio_excess(0.0, 0.0, 0.5, math.exp(-4.0)) == pytest.approx(6.0, rel=1e-14)
    # v = 1.5 + 2 * 0.5 * 1.5 = 3, and x = 6 solves 36 = 2.4 * (2 * 3 + 3 * 0.5 * 6)
    assert klein_rio_excess(1.5, 1.5, 0.5, math.exp(-2.4)) == pytest.approx(6.0, rel=1e-14)


def test_sampling_term_in_closed_form():
    # expected sqrt(1/100 + 1/25), variance 0.64/100 + 0.64/25, step 2.5/25, ln(1/failure) = 2
    excess = 0.5 * (0.6 + math.sqrt(0.36 + 16.0 * (0.032 + 0.2 * math.sqrt(0.05))))
    assert sampling_term(FACTS, SAME) == pytest.approx(2.5 * (math.sqrt(0.05) + excess), rel=1e-14)
    # with chi2 = 0.25 the source's trace is 2 and its eigenvalue 1.39
    excess = 0.5 * (0.6 + math.sqrt(0.36 + 16.0 * (0.0395 + 0.2 * math.sqrt(0.06))))
    assert sampling_term(FACTS, declared("chi2", 0.25)) == pytest.approx(2.5 * (math.sqrt(0.06) + excess), rel=1e-14)


def test_sampling_step_follows_the_set_whose_rows_weigh_more():
    still = replace(FACTS, change_trace=0.0, change_eigenvalue=0.0, change_fourth=0.0, change_fourth_eigenvalue=0.0)
    # no variance: 3 * step * ln(1/failure)
    assert sampling_term(still, SAME) == pytest.approx(2.5 * 6.0 * 2.5 / 25, rel=1e-14)
    assert sampling_term(replace(still, n_surrogate=1000), SAME) == pytest.approx(2.5 * 6.0 * 2.5 / 100, rel=1e-14)


def test_a_source_row_lies_further_from_its_own_mean_by_the_shift_of_the_mean():
    wide = replace(FACTS, n_surrogate=1000)
    # chi2 = 0.25 moves the mean by 0.4, so a source row is at most 2.9 from it; expected sqrt(2/100 + 1/1000)
    step, expected, variance = 0.029, math.sqrt(0.021), 0.0139 + 0.00064
    excess = 0.5 * (6.0 * step + math.sqrt(36.0 * step**2 + 16.0 * (variance + 2.0 * step * expected)))
    assert sampling_term(wide, declared("chi2", 0.25)) == pytest.approx(2.5 * (expected + excess), rel=1e-14)


def test_unseen_rows_in_closed_form():
    # ln(3/f) = 2 + ln 3 =: t; mass t/25, expected count 4 t, count 4 t + sqrt(8 t^2) + t/3
    t = 2.0 + math.log(3.0)
    short = replace(FACTS, longest_row=0.9)
    assert unseen_rows(FACTS, SAME) == 0.0
    assert unseen_rows(replace(FACTS, longest_row=1.0 - 0.95e-6), SAME) == 0.0
    assert unseen_rows(replace(FACTS, longest_row=1.0 - 1.05e-6), SAME) > 0.0
    assert unseen_rows(short, SAME) == pytest.approx((4.0 + math.sqrt(8.0) + 1.0 / 3.0) * t, rel=1e-14)
    # total variation adds its value to the mass; never more than all rows
    mass = t / 25 + 0.1
    count = 100 * mass + math.sqrt(200 * mass * t) + t / 3
    assert unseen_rows(short, declared("tv", 0.1)) == pytest.approx(count, rel=1e-14)
    assert unseen_rows(short, declared("tv", 1.0)) == 100.0
    assert unseen_rows(replace(short, n_surrogate=1), SAME) == 100.0
    strict = declared("same", sampling="strict")
    t = 2.0 + math.log(5.0)
    assert unseen_rows(FACTS, strict) == pytest.approx((4.0 + math.sqrt(8.0) + 1.0 / 3.0) * t, rel=1e-14)


def test_unseen_rows_are_charged_the_supremum():
    short = replace(FACTS, longest_row=0.5)
    third = replace(FACTS, sampling_failure=FACTS.sampling_failure / 3)
    charge = 2.5 * 7.5 * unseen_rows(short, SAME) / 100
    assert sampling_term(short, SAME) == pytest.approx(sampling_term(third, SAME) + charge, rel=1e-14)


def test_strict_moments_in_closed_form():
    # reach 3, ln(1/f) = 8, s = 25: c = 3 * 0.4 = 1.2; value + mean^2 + c^2 under the root
    raised = strict_moments(FACTS, 8.0)
    assert raised.change_trace == pytest.approx((math.sqrt(1.0 + 0.25 + 1.44) + 1.2) ** 2, rel=1e-14)
    assert raised.change_eigenvalue == pytest.approx((math.sqrt(0.64 + 0.25 + 1.44) + 1.2) ** 2, rel=1e-14)
    assert raised.change_fourth == pytest.approx(9.0 * raised.change_trace + raised.change_trace**2, rel=1e-14)
    assert raised.change_fourth_eigenvalue == pytest.approx(9.0 * raised.change_eigenvalue, rel=1e-14)


def test_source_reach_is_what_was_seen_unless_total_variation_allows_more():
    assert source_reach(FACTS, SAME) == source_reach(FACTS, declared("chi2", 0.3)) == 2.5
    assert source_reach(FACTS, declared("tv", 0.3)) == 7.5


def test_strict_sampling_is_never_below_the_other():
    for kind in ("tv", "chi2", "kl"):
        seen, strict = (declared(kind, 0.2, sampling=sampling) for sampling in ("seen", "strict"))
        assert sampling_term(FACTS, strict) > sampling_term(FACTS, seen)
        assert surrogate_term(FACTS, strict) >= surrogate_term(FACTS, seen)
        assert surrogate_term(FACTS, declared(kind, 0.2, "samples", sampling="strict")) == surrogate_term(
            FACTS, declared(kind, 0.2, "samples")
        )


def test_raised_moments_fall_below_the_population_less_often_than_they_say():
    rng, failure, below = np.random.default_rng(11), 0.05, 0
    for _ in range(2000):
        # a rare large value, easily missed by 30 draws
        sample = np.where(rng.random(30) < 0.03, 1.0, 0.1)
        facts = replace(FACTS, change_mean=0.0, change_trace=float(sample.mean()), change_largest=1.0, n_surrogate=30)
        below += strict_moments(facts, -math.log(failure)).change_trace < 0.03 * 1.0 + 0.97 * 0.1
    assert below <= failure * 2000


def test_more_rows_than_allowed_exceed_the_longest_seen_less_often_than_it_says():
    rng, exceeded, trials = np.random.default_rng(12), 0, 4000
    facts = replace(FACTS, n_source=400, n_surrogate=60, sampling_failure=0.3, longest_row=0.5)
    allowed = unseen_rows(facts, SAME)
    for _ in range(trials):
        exceeded += int((rng.random(400) > rng.random(60).max()).sum() > allowed)
    assert exceeded <= 0.2 * trials  # two of the three thirds
    assert unseen_rows(replace(facts, sampling_failure=0.9999), SAME) < allowed


def test_unseen_rows_follow_the_shift_of_the_mass_beyond_what_was_seen():
    # ln(3/f) = 2: mass 0.08, moved by sqrt(0.5 * 0.08) = 0.2 and by sqrt(2 * 0.0625 * 0.08) + 0.0625/3
    short = replace(FACTS, longest_row=0.5, sampling_failure=3.0 * math.exp(-2.0))
    for distance, mass in [(declared("chi2", 0.5), 0.28), (declared("kl", 0.0625), 0.18 + 0.0625 / 3)]:
        count = 100 * mass + math.sqrt(400.0 * mass) + 2.0 / 3.0
        assert unseen_rows(short, distance) == pytest.approx(count, rel=1e-14)
    assert unseen_rows(replace(short, longest_row=3.0, row_bound=3.0), SAME) == 0.0
    assert unseen_rows(replace(short, longest_row=2.9, row_bound=3.0), SAME) == unseen_rows(short, SAME)
    assert unseen_rows(replace(short, longest_row=1.0 - 1e-6, row_bound=1.0), SAME) == 0.0
    # two thirds of a hundred, and sqrt(2 * 66.7 * 2) + 2/3 more
    assert unseen_rows(replace(short, n_surrogate=3), SAME) == pytest.approx(83.66326495, rel=1e-9)


def test_total_variation_steps_as_far_as_a_row_can():
    # tv = 0.01: reach 7.5, shift 0.14, source trace 1 + 0.5625, source eigenvalue 0.64 + 0.5625
    wide, step, expected = replace(FACTS, n_surrogate=1000), 0.0764, math.sqrt(0.015625 + 0.001)
    excess = 0.5 * (6.0 * step + math.sqrt(36.0 * step**2 + 16.0 * (0.012025 + 0.00064 + 2.0 * step * expected)))
    assert sampling_term(wide, declared("tv", 0.01)) == pytest.approx(2.5 * (expected + excess), rel=1e-14)


def test_strict_terms_in_closed_form():
    # reach 3, ln(5/f) = 2, s = 25: slack 0.6; 1.64 + 0.25 + 0.36 = 1.5^2 and 0.39 + 0.25 + 0.36 = 1
    facts = replace(FACTS, change_trace=1.64, change_eigenvalue=0.39, sampling_failure=5.0 * math.exp(-2.0))
    strict = declared("chi2", 0.25, sampling="strict")
    raised = strict_moments(facts, 2.0)
    assert (raised.change_trace, raised.change_eigenvalue) == pytest.approx((4.41, 2.56), rel=1e-14)
    # chi2 = 0.25 on the raised moments: shift 0.5 * 1.6; source trace 4.41 + 0.5 * 6.3, eigenvalue 2.56 + 0.5 * 4.8
    assert surrogate_term(facts, strict) == pytest.approx(2.5 * 0.8, rel=1e-14)
    expected, variance = math.sqrt(7.56 / 100 + 4.41 / 25), 4.96 / 100 + 2.56 / 25
    excess = 0.5 * (0.6 + math.sqrt(0.36 + 16.0 * (variance + 0.2 * expected)))
    mass = 0.08 + 0.5 * math.sqrt(0.08)
    unseen = 100 * mass + math.sqrt(400.0 * mass) + 2.0 / 3.0
    assert sampling_term(facts, strict) == pytest.approx(2.5 * (expected + excess + 0.075 * unseen), rel=1e-14)


def test_certificates_of_schema_1_took_the_reach_about_the_mean():
    """With a KL and strict sampling: `change_largest^2` where the reach about 0 is due."""
    facts = replace(FACTS, change_trace=1.64, change_eigenvalue=0.39, sampling_failure=5.0 * math.exp(-2.0))
    distance = declared("kl", 0.5, sampling="strict")
    raised = strict_moments(facts, 2.0)
    # log 2: x^2 = 2 (2 proxy + 3 step x); raised trace 4.41 and eigenvalue 2.56, fourth moments from the reach of 3
    for revision, square in ((1, 6.25), (2, 9.0)):
        trace = 4.41 + math.sqrt(max(0.0, raised.change_fourth - 4.41**2)) + square * 0.5 / 3.0
        eigenvalue = min(trace, 2.56 + math.sqrt(raised.change_fourth_eigenvalue) + square * 0.5 / 3.0)
        expected = math.sqrt(trace / 100 + 4.41 / 25)
        shift = 1.6 + 7.5 * 0.5 / 3.0
        step = max((2.5 + shift) / 100, 2.5 / 25)
        proxy = eigenvalue / 100 + 2.56 / 25 + 2.0 * step * expected
        excess = 0.5 * (6.0 * step + math.sqrt(36.0 * step**2 + 16.0 * proxy))
        due = 2.5 * (expected + excess + 7.5 * unseen_rows(facts, distance) / 100)
        assert sampling_term(facts, distance, revision) == pytest.approx(due, rel=1e-12), revision
        assert residual_bound(facts, distance, revision).terms["sampling"] == sampling_term(facts, distance, revision)
    assert sampling_term(facts, distance) == sampling_term(facts, distance, 2)


def test_strict_eigenvalue_is_at_most_the_strict_trace():
    raised = strict_moments(replace(FACTS, change_trace=1.64, change_eigenvalue=5.0), 2.0)
    assert raised.change_eigenvalue == raised.change_trace == pytest.approx(4.41, rel=1e-14)
    assert raised.change_fourth_eigenvalue == pytest.approx(9.0 * 4.41, rel=1e-14)


def test_nothing_sampled_costs_nothing():
    for distance in (SOURCE, *(declared(kind, 0.3, "samples") for kind in ("tv", "chi2", "kl"))):
        assert sampling_term(FACTS, distance) == 0.0
        assert sampling_term(replace(FACTS, sampling_failure=0.0), distance) == 0.0
        strict = replace(distance, sampling="strict")
        assert sampling_term(replace(FACTS, sampling_failure=0.0), strict) == 0.0
        assert surrogate_term(replace(FACTS, sampling_failure=0.0), strict) == surrogate_term(FACTS, distance)


def test_grid_term_in_closed_form():
    assert Ball(9).grid_term(2.0**-20) == 3 * 2.0**-20
    assert Ball(1).grid_term(1.0) == 1.0


def test_bound_is_the_sum_of_its_terms():
    distance = declared("chi2", 0.25)
    bound = residual_bound(FACTS, distance)
    assert bound == Region(
        "residual",
        {
            "training": training_term(FACTS),
            "solver": solver_term(FACTS),
            "surrogate": surrogate_term(FACTS, distance),
            "sampling": sampling_term(FACTS, distance),
            "rounding": rounding_term(FACTS),
        },
    )
    assert bound.radius == pytest.approx(0.1 + 0.2 + 1.0 + sampling_term(FACTS, distance) + 0.05, rel=1e-8)
    assert residual_bound(FACTS, SOURCE).radius == pytest.approx(0.35, rel=1e-8)


# Against longer arithmetic -------------------------------------------------------------------------------------


def naive(facts, distance):
    """The formulas of the page of theory, at 50 digits."""
    n, m, s = facts.n_source, facts.n_forget, facts.n_surrogate
    l2, mean, top, trace, fourth, narrow, largest, supremum, failure, d = (
        mpmath.mpf(value)
        for value in (
            facts.l2,
            facts.change_mean,
            facts.change_eigenvalue,
            facts.change_trace,
            facts.change_fourth,
            facts.change_fourth_eigenvalue,
            facts.change_largest,
            facts.change_supremum,
            facts.sampling_failure,
            distance.value,
        )
    )

    def shift(deviation, bound, centred):
        return {
            "tv": 2 * d * bound,
            "chi2": mpmath.sqrt(d) * deviation,
            "kl": deviation * mpmath.sqrt(2 * d) + centred * d / 3,
        }.get(distance.kind, 0)

    populations = distance.between == "populations" and distance.kind != "source"
    surrogate = shift(mpmath.sqrt(top), supremum, supremum + mean if distance.between == "populations" else largest)
    sampling = mpmath.mpf(0)
    if populations:
        strict = distance.sampling == "strict"
        short = facts.longest_row < (1 - 1e-6) * facts.row_bound
        log = mpmath.log((5 if strict else 3 if short else 1) / failure)
        if strict:
            far = largest + mean
            slack = far * mpmath.sqrt(log / (2 * s))
            trace, top = ((mpmath.sqrt(value + mean**2 + slack**2) + slack) ** 2 for value in (trace, top))
            top = min(trace, top)
            fourth, narrow = far**2 * trace + trace**2, far**2 * top
            surrogate = shift(mpmath.sqrt(top), supremum, supremum + mean)
        unseen = mpmath.mpf(0)
        if strict or short:
            mass = min(1, log / s)
            mass = min(1, mass + shift(mpmath.sqrt(mass), mpmath.mpf(1) / 2, 1))
            unseen = min(n, n * mass + mpmath.sqrt(2 * n * mass * log) + log / 3)
        reach = supremum + mean if distance.kind == "tv" else largest
        square = (far if strict and distance.kind != "tv" else reach) ** 2
        source_trace = trace + shift(mpmath.sqrt(max(0, fourth - trace**2)), square / 2, square)
        source_top = min(source_trace, top + shift(mpmath.sqrt(narrow), square / 2, square))
        expected = mpmath.sqrt(source_trace / n + trace / s)
        step = max((reach + surrogate) / n, largest / s)
        proxy = source_top / n + top / s + 2 * step * expected
        # the positive root of x^2 = log (2 proxy + 3 step x)
        sampling = expected + max(
            mpmath.polyroots([1, -3 * step * log, -2 * proxy * log], extraprec=200), key=mpmath.re
        )
        sampling += (supremum + mean) * unseen / n
    outer = mpmath.mpf(n) / (n - m) / l2
    return {
        "training": outer * mpmath.mpf(facts.training_residual),
        "solver": mpmath.mpf(facts.solver_residual) / (n - m) / l2,
        "surrogate": outer * surrogate,
        "sampling": outer * mpmath.re(sampling),
        "rounding": mpmath.mpf(facts.rounding) / (n - m) / l2,
    }


@REPRODUCIBLE
@given(facts=facts_of, distance=distance_of)
def test_every_term_agrees_with_fifty_digits(facts, distance):
    with mpmath.workdps(50):
        terms = naive(facts, distance)
        for name, value in residual_bound(facts, distance).terms.items():
            assert abs(value - terms[name]) <= 1e-12 * terms[name] + 1e-300  # below that float64 has fewer digits
        assert residual_bound(facts, distance).radius > sum(terms.values())


@REPRODUCIBLE
@given(expected=moderate, variance=moderate, step=moderate, failure=st.floats(min_value=1e-300, max_value=0.99))
def test_klein_rio_excess_turns_the_inequality_back_into_the_failure(expected, variance, step, failure):
    with mpmath.workdps(50):
        x, b = mpmath.mpf(klein_rio_excess(expected, variance, step, failure)), mpmath.mpf(step)
        exponent = x**2 / (2 * (mpmath.mpf(variance) + 2 * b * mpmath.mpf(expected)) + 3 * b * x)
        assert abs(exponent / -mpmath.log(mpmath.mpf(failure)) - 1) < 1e-11


@REPRODUCIBLE
@given(grid=moderate, parameters=st.integers(min_value=1, max_value=10**7))
def test_grid_term_covers_two_vectors_rounded_to_the_grid(grid, parameters):
    with mpmath.workdps(50):
        assert abs(Ball(parameters).grid_term(grid) / (mpmath.sqrt(parameters) * mpmath.mpf(grid)) - 1) < 1e-15


def test_rounding_two_vectors_moves_them_apart_by_at_most_the_grid_term():
    rng = np.random.default_rng(51)
    for parameters in (1, 3, 50):
        for _ in range(200):
            one, other = rng.normal(size=(2, parameters))
            grid = float(2.0 ** rng.integers(-6, 2))
            moved = np.linalg.norm(np.rint(one / grid) * grid - np.rint(other / grid) * grid) - np.linalg.norm(
                one - other
            )
            assert moved <= Ball(parameters).grid_term(grid)
    # just to either side of half a step in every coordinate: nothing smaller would do
    one, other = np.full(50, 0.5 + 1e-9), np.full(50, 0.5 - 1e-9)
    assert np.linalg.norm(np.rint(one) - np.rint(other)) - np.linalg.norm(one - other) > 0.999 * Ball(50).grid_term(1.0)


# Properties ----------------------------------------------------------------------------------------------------

WORSE = [
    "training_residual",
    "solver_residual",
    "rounding",
    "change_mean",
    "change_eigenvalue",
    "change_fourth",
    "change_fourth_eigenvalue",
    "change_largest",
    "change_supremum",
]


@REPRODUCIBLE
@given(
    facts=facts_of, distance=distance_of, name=st.sampled_from(WORSE), factor=st.floats(min_value=1.0, max_value=100.0)
)
def test_no_fact_that_gets_worse_makes_the_bound_smaller(facts, distance, name, factor):
    here = residual_bound(facts, distance).radius
    slack = 1 - 1e-12
    assert residual_bound(replace(facts, **{name: factor * getattr(facts, name)}), distance).radius >= here * slack
    assert residual_bound(replace(facts, l2=facts.l2 * factor), distance).radius <= here / slack
    assert (
        residual_bound(replace(facts, sampling_failure=facts.sampling_failure / factor), distance).radius
        >= here * slack
    )
    assert residual_bound(replace(facts, n_surrogate=facts.n_surrogate * 2), distance).radius <= here / slack
    if facts.n_forget > 1:
        assert residual_bound(replace(facts, n_forget=facts.n_forget - 1), distance).radius < here


@REPRODUCIBLE
@given(
    facts=facts_of,
    kind=st.sampled_from(["tv", "chi2", "kl"]),
    values=st.lists(st.floats(min_value=0.0, max_value=1.0), min_size=2, max_size=5),
)
def test_bound_grows_with_the_distance_from_the_same_distribution_on(facts, kind, values):
    totals = [residual_bound(facts, declared(kind, value)).radius for value in sorted([0.0, *values])]
    assert all(one <= other * (1 + 1e-12) for one, other in pairwise(totals))
    impossible = facts.change_eigenvalue > facts.change_trace
    impossible |= facts.change_largest > facts.change_supremum + facts.change_mean
    assert totals[0] >= residual_bound(facts, SAME).radius * (1 - 1e-12) or impossible


# Against exact problems ----------------------------------------------------------------------------------------


def sigmoid(values):
    return 1.0 / (1.0 + np.exp(-values))


class Logistic:
    """Regularised logistic regression on weighted rows."""

    def __init__(self, rows, counts, positives, l2):
        self.rows, self.counts, self.positives, self.l2 = rows, counts, positives, l2

    def gradient(self, w):
        total = self.rows.T @ (self.counts * sigmoid(self.rows @ w) - self.positives)
        return total / self.counts.sum() + self.l2 * w

    def hessian(self, w):
        p = sigmoid(self.rows @ w)
        return (self.rows.T * (self.counts * p * (1 - p))) @ self.rows / self.counts.sum() + self.l2 * np.eye(
            self.rows.shape[1]
        )

    def minimiser(self, steps):
        w = np.zeros(self.rows.shape[1])
        for _ in range(steps):
            w = w - np.linalg.solve(self.hessian(w), self.gradient(w))
        return w


def random_problem(rng):
    """Source and surrogate on the same twelve rows, counted differently; rows that are forgotten; sloppy training and solving."""
    rows = rng.standard_t(4, size=(12, 3))
    source, surrogate = rng.integers(1, 30, size=12), rng.integers(1, 30, size=12)
    positives = rng.binomial(source, 0.5)
    forget_positives = rng.binomial(positives, 0.2)
    forget = forget_positives + rng.binomial(source - positives, 0.2)
    forget[0] += forget.sum() == 0
    l2 = float(10.0 ** rng.uniform(-2.0, 0.0))
    return rows, source, surrogate, positives, forget, np.minimum(forget_positives, forget), l2


def test_bound_holds_for_exactly_solved_problems_with_exactly_known_distances():
    rng = np.random.default_rng(52)
    tightest = dict.fromkeys(("source", "tv", "chi2", "kl"), math.inf)
    for trial in range(150):
        rows, counts, surrogate, positives, forget, forget_positives, l2 = random_problem(rng)
        n, m = int(counts.sum()), int(forget.sum())
        everything = Logistic(rows, counts, positives, l2)
        w = everything.minimiser(int(rng.integers(2, 12)))
        forgotten = Logistic(rows, forget, forget_positives, l2)
        retrained = Logistic(rows, counts - forget, positives - forget_positives, l2).minimiser(40)
        for kind in tightest:
            held = counts if kind == "source" else surrogate
            stand_in = Logistic(rows, held, np.zeros(12), l2)
            u = m * np.linalg.solve(n * stand_in.hessian(w) - m * forgotten.hessian(w), forgotten.gradient(w))
            v = w + u * (1.0 if trial % 3 else rng.uniform(0.0, 2.0))
            change = (sigmoid(rows @ v) - sigmoid(rows @ w))[:, None] * rows
            rho, nu = counts / n, held / held.sum()
            facts = ResidualFacts(
                n_source=n,
                n_forget=m,
                n_surrogate=int(held.sum()),
                l2=l2,
                training_residual=float(np.linalg.norm(everything.gradient(w))),
                solver_residual=float(
                    np.linalg.norm(n * (stand_in.gradient(v) - stand_in.gradient(w)) - m * forgotten.gradient(v))
                ),
                rounding=1e-12,
                sampling_failure=0.0,
                **moments(change, nu),
            )
            distance = SOURCE if kind == "source" else declared(kind, divergences(rho, nu)[kind], "samples")
            bound, truth = residual_bound(facts, distance).radius, float(np.linalg.norm(v - retrained))
            assert truth <= bound
            tightest[kind] = min(tightest[kind], bound / truth if truth > 1e-9 else math.inf)
    assert tightest["source"] < 1.5


def test_bound_is_attained_where_the_retained_rows_have_no_curvature():
    # Retained rows of zeros: g_R(v) = l2 v and the retrained weights are 0, so ||w_R - v|| = ||v||.
    l2, n, m = 0.25, 10, 4
    rows = np.vstack([np.zeros((n - m, 2)), np.array([[1.0, 0.5], [0.3, -1.0], [0.7, 0.2], [-0.4, 0.9]])])
    counts, positives = np.ones(n), np.array([0] * 6 + [1, 0, 1, 1])
    everything = Logistic(rows, counts, positives, l2)
    forgotten = Logistic(rows[6:], counts[6:], positives[6:], l2)
    w = everything.minimiser(50)
    v = w + np.array([0.3, -0.2])
    a = n * (everything.gradient(v) - everything.gradient(w)) - m * forgotten.gradient(v)
    change = (sigmoid(rows @ v) - sigmoid(rows @ w))[:, None] * rows
    facts = replace(
        FACTS,
        n_source=n,
        n_forget=m,
        n_surrogate=n,
        l2=l2,
        training_residual=float(np.linalg.norm(everything.gradient(w))),
        solver_residual=float(np.linalg.norm(a)),
        rounding=0.0,
        **moments(change, counts / n),
    )
    assert residual_bound(facts, SOURCE).radius == pytest.approx(float(np.linalg.norm(v)), rel=1e-8)


def random_populations(count, seed):
    """Values of f, the surrogate's probabilities, the source's, heavy-ish tails."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        points, dimension = int(rng.integers(3, 40)), int(rng.integers(1, 7))
        values = rng.standard_t(2.5, size=(points, dimension)) + rng.normal(size=dimension)
        nu = rng.dirichlet(np.full(points, 2.0)) + 1e-4
        nu /= nu.sum()
        rho = (
            nu * np.exp(rng.uniform(0.0, 1.0) * rng.normal(size=points))
            if rng.integers(0, 2)
            else rng.dirichlet(np.ones(points))
        )
        yield values, nu, rho / rho.sum()


def test_source_moments_are_never_below_those_of_the_source():
    for values, nu, rho in random_populations(500, seed=53):
        facts = replace(FACTS, **moments(values, nu))
        truth = moments(values, rho)
        for kind, value in divergences(rho, nu).items():
            trace, eigenvalue = source_moments(facts, declared(kind, min(value, 1.0) if kind == "tv" else value))
            assert truth["change_trace"] <= trace * (1 + 1e-12)
            assert truth["change_eigenvalue"] <= eigenvalue * (1 + 1e-12)
        assert source_moments(facts, SAME) == pytest.approx((facts.change_trace, facts.change_eigenvalue), rel=1e-12)


def test_source_trace_is_attained_where_the_density_ratio_follows_the_length():
    # f symmetric with lengths 1, 2 and 3; chi-square is Cauchy-Schwarz, attained where rho/nu is affine in ||f - c||^2
    values = np.array([[1.0], [-1.0], [2.0], [-2.0], [3.0], [-3.0]])
    nu = np.full(6, 1.0 / 6.0)
    squares = values[:, 0] ** 2
    rho = nu * (1.0 + 0.1 * (squares - squares.mean()))
    facts = replace(FACTS, **moments(values, nu))
    trace, _ = source_moments(facts, declared("chi2", divergences(rho, nu)["chi2"]))
    assert trace == pytest.approx(moments(values, rho)["change_trace"], rel=1e-12)
    # and total variation, where mass moves from the shortest f to the longest
    values, nu, rho = np.array([[0.0], [2.0], [-2.0]]), np.array([0.5, 0.25, 0.25]), np.array([0.2, 0.4, 0.4])
    trace, _ = source_moments(replace(FACTS, **moments(values, nu)), declared("tv", 0.3))
    assert trace == pytest.approx(moments(values, rho)["change_trace"], rel=1e-12)


# The sampling step ---------------------------------------------------------------------------------------------

REPETITIONS = 10_000


def sampled_deviation(values, nu, rho, n, s, rng):
    """`||(E_D - E_rho) f - (E_S - E_nu) f||` for many draws of D from rho and S from nu."""
    source = rng.multinomial(n, rho, size=REPETITIONS) / n - rho
    surrogate = rng.multinomial(s, nu, size=REPETITIONS) / s - nu
    return np.linalg.norm((source - surrogate) @ values, axis=1)


@pytest.mark.parametrize(("n", "s"), [(60, 60), (400, 40), (30, 500)])
def test_sampled_means_exceed_the_sampling_term_less_often_than_it_says(n, s):
    rng = np.random.default_rng(54)
    for values, nu, rho in random_populations(4, seed=55):
        known = replace(FACTS, n_source=n, n_forget=10, n_surrogate=s, **moments(values, nu))
        simulated = {SAME: sampled_deviation(values, nu, nu, n, s, rng)}
        shifted = sampled_deviation(values, nu, rho, n, s, rng)
        simulated |= {declared(kind, value): shifted for kind, value in divergences(rho, nu).items()}
        for failure in (0.05, 0.01):
            facts = replace(known, sampling_failure=failure)
            for distance, deviation in simulated.items():
                assert np.mean(deviation > sampling_term(facts, distance) / amplification(facts)) < failure
            # without the excess the same simulation would fail
            assert np.mean(simulated[SAME] > math.sqrt(facts.change_trace * (1 / n + 1 / s))) > failure


def test_strict_terms_hold_from_the_sample_alone_where_what_was_seen_does_not():
    # A row that changes two hundred times as much as the others, of which every other surrogate holds none.
    rng, n, s, failure = np.random.default_rng(57), 400, 100, 0.05
    values = np.vstack([rng.normal(size=(20, 2)), [[200.0, 0.0]]])
    nu = np.append(np.full(20, (1 - 0.5 / s) / 20), 0.5 / s)
    shifted = nu * np.append(np.linspace(0.8, 1.2, 20), 1.5)
    shifted /= shifted.sum()
    exceeded = dict.fromkeys(("same", "seen", "tv", "chi2", "kl"), 0)
    trials = 400
    for _ in range(trials):
        sample = rng.multinomial(s, nu)
        drawn, held = {"same": rng.multinomial(n, nu), "shifted": rng.multinomial(n, shifted)}, sample > 0
        known = moments(values[held], sample[held] / s) | {"change_supremum": 200.0}
        facts = replace(FACTS, n_source=n, n_surrogate=s, sampling_failure=failure, **known)
        for name in exceeded:
            kind, strictness = ("same", "seen") if name == "seen" else (name, "strict")
            distance = declared(kind, divergences(shifted, nu).get(kind, 0.0), sampling=strictness)
            counts = drawn["same" if kind == "same" else "shifted"]
            moved = float(np.linalg.norm((counts / n - sample / s) @ values))
            bound = (surrogate_term(facts, distance) + sampling_term(facts, distance)) / amplification(facts)
            exceeded[name] += moved > bound
    assert exceeded.pop("seen") > 3 * failure * trials
    assert max(exceeded.values()) < failure * trials


@pytest.mark.parametrize("failure", [0.05, 0.01])
@pytest.mark.parametrize("rarity", [0.5, 0.02])
def test_norms_of_sums_of_unequal_vectors_exceed_klein_and_rios_excess_less_often(rarity, failure):
    rng = np.random.default_rng(56)
    count, dimension = 80, 8
    vectors = rng.standard_t(3, size=(count, dimension))
    vectors *= (np.minimum(np.linalg.norm(vectors, axis=1), 10.0) / np.linalg.norm(vectors, axis=1))[:, None]
    hits = rng.random((8000, count)) < rarity
    norms = np.linalg.norm((hits - rarity) @ vectors, axis=1)
    variance = float(np.linalg.eigvalsh(rarity * (1 - rarity) * vectors.T @ vectors)[-1])
    step = max(rarity, 1 - rarity) * float(np.linalg.norm(vectors, axis=1).max())
    mean = float(norms[:4000].mean())
    excess = klein_rio_excess(mean, variance, step, failure)
    assert np.mean(norms[4000:] > mean + excess) < failure
    assert np.mean(norms[4000:] > mean) > 0.3


@pytest.mark.parametrize("rarity", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("count", [20, 400])
def test_exact_tails_of_a_binomial_stay_below_the_failure(rarity, count):
    hits = np.arange(count + 1)
    weights = stats.binom.pmf(hits, count, rarity)
    norms = np.abs(hits - count * rarity)
    mean = float(weights @ norms)
    for failure in (0.5, 0.1, 1e-2, 1e-4, 1e-8, 1e-12):
        excess = klein_rio_excess(mean, count * rarity * (1 - rarity), max(rarity, 1 - rarity), failure)
        assert float(weights[norms >= mean + excess].sum()) <= failure


@REPRODUCIBLE
@given(
    expected=moderate,
    variance=moderate,
    step=moderate,
    failure=st.floats(min_value=1e-12, max_value=0.5),
    scale=moderate,
)
def test_klein_rio_excess_scales_with_the_vectors_and_grows_with_everything(expected, variance, step, failure, scale):
    here = klein_rio_excess(expected, variance, step, failure)
    assert klein_rio_excess(expected * scale, variance * scale**2, step * scale, failure) == pytest.approx(
        here * scale, rel=1e-9
    )
    for more in [
        (2 * expected, variance, step, failure),
        (expected, 2 * variance, step, failure),
        (expected, variance, 2 * step, failure),
    ]:
        assert klein_rio_excess(*more) >= here
    assert klein_rio_excess(expected, variance, step, failure / 2) > here


pytestmark = pytest.mark.usefixtures("one_thread")

# The bound ------------------------------------------------------------------------------------------------------

WEIGHTED = ResidualFacts(
    n_source=100,
    n_forget=20,
    n_surrogate=25,
    l2=0.5,
    training_residual=0.04,
    solver_residual=8.0,
    rounding=2.0,
    change_mean=0.5,
    change_eigenvalue=0.64,
    change_trace=1.0,
    change_fourth=5.0,
    change_fourth_eigenvalue=2.25,
    change_largest=2.5,
    change_supremum=7.0,
    longest_row=1.0,
    row_bound=1.0,
    sampling_failure=math.exp(-2.0),
    weight_largest=4.0,
    sampled_trace=2.25,
    sampled_eigenvalue=1.5,
    sampled_largest=5.0,
)
MATCHED = declared("same", matched=True)


def test_the_sampling_term_with_weights_in_closed_form() -> None:
    expected = math.sqrt(1.0 / 100 + 2.25 / 25)
    excess = klein_rio_excess(expected, 0.64 / 100 + 1.5 / 25, 2.0 * 5.0 / 25, math.exp(-2.0))
    assert sampling_term(WEIGHTED, MATCHED) == pytest.approx(2.5 * (expected + excess), rel=1e-14)
    # where the source is the smaller set, its own rows are the longest step
    few = replace(WEIGHTED, n_source=30, sampled_largest=0.1)
    expected = math.sqrt(1.0 / 30 + 2.25 / 25)
    excess = klein_rio_excess(expected, 0.64 / 30 + 1.5 / 25, 2.0 * 2.5 / 30, math.exp(-2.0))
    assert sampling_term(few, MATCHED) == pytest.approx(3.0 / 0.5 * (expected + excess), rel=1e-14)


def test_unseen_rows_and_strict_moments_count_the_largest_weight() -> None:
    short = replace(WEIGHTED, longest_row=0.5, n_surrogate=1000, sampling_failure=3.0 * math.exp(-2.0))
    mass = 2.0 * 4.0 / 1000
    count = 100 * mass + math.sqrt(400.0 * mass) + 2.0 / 3.0
    assert unseen_rows(short, MATCHED) == pytest.approx(count, rel=1e-14)
    raised = strict_moments(WEIGHTED, 2.0)
    slack = 3.0 * math.sqrt(2.0 * 4.0 / 50.0)
    trace = (math.sqrt(1.25 + slack**2) + slack) ** 2
    assert raised.change_trace == pytest.approx(trace, rel=1e-14)
    assert raised.sampled_trace == pytest.approx(4.0 * trace, rel=1e-14)
    assert raised.sampled_largest == pytest.approx(10.0)
    assert raised.sampled_eigenvalue == pytest.approx(4.0 * min(trace, (math.sqrt(0.89 + slack**2) + slack) ** 2))


@pytest.mark.parametrize("name", ["weight_largest", "sampled_trace", "sampled_eigenvalue", "sampled_largest"])
@pytest.mark.parametrize("sampling", ["seen", "strict"])
def test_a_larger_weight_never_lowers_the_term(name: str, sampling: str) -> None:
    distance = replace(MATCHED, sampling=sampling)
    facts = replace(WEIGHTED, longest_row=0.9)
    larger = replace(facts, **{name: 1.5 * getattr(facts, name)})
    assert sampling_term(larger, distance) >= sampling_term(facts, distance)


def test_what_of_the_weighted_moments_is_missing_leaves_those_of_the_change() -> None:
    assert WEIGHTED.weighted() == (2.25, 1.5, 5.0)
    for name in ("sampled_trace", "sampled_eigenvalue", "sampled_largest"):
        assert replace(WEIGHTED, **{name: None}).weighted() == (1.0, 0.64, 2.5)


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_a_hundred_rows_that_count_are_enough_and_one_fewer_is_not(weight: float) -> None:
    class Rows(list[int]):
        largest_weight = weight

    require_enough(Rows(range(int(100 * weight))))
    with pytest.raises(DataError, match="at least 100 are needed"):
        require_enough(Rows(range(int(100 * weight) - 1)))
