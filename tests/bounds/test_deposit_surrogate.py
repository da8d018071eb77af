"""Surrogate rows beside a deposit: constants attained, terms in closed form, properties."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.bounds.deposit import (
    LONG_ROWS,
    RANGE,
    DepositFacts,
    SurrogateFacts,
    apart,
    bend,
    bound_with_surrogate,
    deposit_bound,
    radius_in_route,
    remainder,
    sampling_part,
    share_of,
    sigmoid_bend,
    softmax_bend,
    surrogate_part,
    surrogate_terms,
    tail_of,
    together,
    within,
)
from expunge.bounds.retained import (
    RetainedFacts,
    counted_rows,
    deviation,
    exchangeable,
    population_moments,
    retained_bound,
    unlike_any,
)
from expunge.distance import Distance

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=200)
MOMENTS = RetainedFacts(
    n_source=2000,
    n_forget=400,
    n_surrogate=900,
    l2=1.0,
    training_residual=0.0,
    solver_residual=0.0,
    rounding=0.0,
    change_mean=0.02,
    change_eigenvalue=0.0004,
    change_trace=0.0016,
    change_fourth=1e-5,
    change_fourth_eigenvalue=4e-6,
    change_largest=0.25,
    change_longest=0.26,
    change_supremum=3.0,
    longest_row=1.0,
    row_bound=2.0,
    directions=4,
    sampling_failure=0.01,
)
FACTS = DepositFacts(RANGE, 0.001, 0.0002, 1.44, reach=0.5, update_curved=0.3, concordance=2.0)
LONG = DepositFacts(LONG_ROWS, 0.001, 0.0002, 1.44, reach=0.5, update_curved=0.3, gauge=0.2, curvature_ratio=2.25)
SAME, SEEN = Distance("same", 0.0), Distance("same", 0.0, sampling="seen")
CHI2, TV, KL = Distance("chi2", 0.25), Distance("tv", 0.1), Distance("kl", 0.5)
BETWEEN = Distance("chi2", 0.25, between="samples")
KNOWN = SurrogateFacts(MOMENTS, each=1.5, together=0.4)


def softmax(z: np.ndarray) -> np.ndarray:
    p = np.exp(z - z.max())
    return p / p.sum()


def bent_softmax(z: np.ndarray, b: np.ndarray) -> np.ndarray:
    p = softmax(z)
    return softmax(z + b) - p - p * (b - p @ b)


# The constants -------------------------------------------------------------------------------------------------------


@REPRODUCIBLE
@given(st.integers(2, 8), st.floats(-3, 2.5), st.floats(-2, 1.5), st.integers(0, 2**32 - 1))
def test_no_row_bends_more_than_the_softmax_allows(classes: int, size: float, spread: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    z, b = rng.normal(size=classes) * 10**spread, rng.normal(size=classes) * 10**size
    allowed = softmax_bend(float(np.ptp(b)), float(np.linalg.norm(b - b.mean())))
    assert np.linalg.norm(bent_softmax(z, b)) <= allowed * (1 + 1e-9) + 1e-15


def test_the_softmax_attains_its_third_derivative_and_half_its_length() -> None:
    rare = (3.0 - math.sqrt(3.0)) / 6.0  # where p (1 - p) (1 - 2 p) is largest
    small = np.array([1.0, -1.0]) * 1e-4
    z = np.array([math.log(rare / (1 - rare)), 0.0])
    bent = np.linalg.norm(bent_softmax(z, small))
    assert bent == pytest.approx(softmax_bend(math.inf, float(np.linalg.norm(small))), rel=1e-3)
    large = np.array([1.0, -1.0]) * 1e4
    assert np.linalg.norm(bent_softmax(np.zeros(2), large)) == pytest.approx(
        softmax_bend(math.inf, float(np.linalg.norm(large))), rel=1e-3
    )


def test_self_concordance_bounds_many_classes_by_their_range() -> None:
    # phi(1) / (2 sqrt 2), far below what a length of 100 allows
    assert softmax_bend(1.0, 100.0) == pytest.approx((math.e - 2.0) / (2.0 * math.sqrt(2.0)), rel=1e-14)
    assert softmax_bend(1e3, 1.0) == pytest.approx(math.sqrt(2.0) / (3.0 * math.sqrt(3.0)) / 2.0, rel=1e-14)
    assert softmax_bend(1e3, 1e3) == 500.0


@REPRODUCIBLE
@given(st.integers(1, 6), st.floats(-3, 2.5), st.integers(0, 2**32 - 1))
def test_no_row_bends_more_than_sigmoids_allow(classes: int, size: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    z, b = rng.normal(size=classes) * 3, rng.normal(size=classes) * 10**size
    p = 1 / (1 + np.exp(-z))
    bent = np.linalg.norm(1 / (1 + np.exp(-np.clip(z + b, -700, 700))) - p - p * (1 - p) * b)
    assert bent <= sigmoid_bend(float(np.abs(b).max()), float(np.linalg.norm(b))) * (1 + 1e-9) + 1e-15


def test_a_sigmoid_attains_both_of_its_bounds() -> None:
    z = math.log((3.0 - math.sqrt(3.0)) / (3.0 + math.sqrt(3.0)))
    p, b = 1 / (1 + math.exp(-z)), 1e-4
    bent = abs(1 / (1 + math.exp(-z - b)) - p - p * (1 - p) * b)
    assert bent == pytest.approx(sigmoid_bend(b, b), rel=1e-3)
    assert abs(1.0 - 0.5 - 0.25 * 1e4) == pytest.approx(sigmoid_bend(1e4, 1e4), rel=1e-3)
    assert sigmoid_bend(1.0, 2.0) == pytest.approx(2.0 / (12.0 * math.sqrt(3.0)), rel=1e-14)


def test_rows_together_in_closed_form() -> None:
    one = replace(FACTS, reach=1.0, curvature_ratio=math.e)
    assert together(one, 1) == pytest.approx((math.e - 2.0) * 0.5 * math.sqrt(math.e), rel=1e-12)
    assert together(LONG, 1) == pytest.approx(bend(0.5) * 0.25 * 1.5, rel=1e-12)
    assert together(LONG, 9) == pytest.approx(3.0 * together(LONG, 1), rel=1e-12)


# The terms -----------------------------------------------------------------------------------------------------------


def test_the_surrogate_part_in_closed_form() -> None:
    assert surrogate_part(KNOWN, SAME) == 0.0
    assert surrogate_part(KNOWN, BETWEEN) == pytest.approx(0.5 * 0.02, rel=1e-14)
    # strict: psi is cut off at the longest seen, and that is then its supremum
    assert surrogate_part(KNOWN, TV) == pytest.approx(2 * 0.1 * 0.26, rel=1e-14)
    share = share_of(KNOWN, CHI2)
    assert share == pytest.approx(math.log(6 / 0.01), rel=1e-14)  # five events and the deviation
    raised = population_moments(MOMENTS, share).change_eigenvalue
    assert surrogate_part(KNOWN, CHI2) == pytest.approx(0.5 * math.sqrt(raised), rel=1e-14)
    assert surrogate_part(KNOWN, KL) == pytest.approx(
        math.sqrt(raised) * math.sqrt(2 * 0.5) + (2 * 0.26 + 0.02) * 0.5 / 3, rel=1e-12
    )
    # seen: nothing is cut off
    assert surrogate_part(KNOWN, Distance("tv", 0.1, sampling="seen")) == pytest.approx(2 * 0.1 * 3.0, rel=1e-14)
    assert within(MOMENTS, TV).change_supremum == 0.26
    assert within(replace(MOMENTS, change_supremum=0.3), KL).change_supremum == 0.3


@pytest.mark.parametrize("distance", [SAME, CHI2, SEEN])
def test_without_anything_known_of_retained_rows_it_is_the_residual_bounds_own(distance: Distance) -> None:
    plain = SurrogateFacts(MOMENTS, each=MOMENTS.change_supremum, together=math.inf)
    own = retained_bound(MOMENTS, distance, averaged=False).terms
    assert surrogate_part(plain, distance) == pytest.approx(own["surrogate"], rel=1e-12)
    assert sampling_part(plain, distance, math.inf) == pytest.approx(own["sampling"], rel=1e-9)


def test_rows_unlike_any_are_charged_the_least_of_what_is_known_of_them() -> None:
    share = share_of(KNOWN, CHI2)
    rows = unlike_any(MOMENTS, CHI2, share) / 1600
    for each, pooled, most, charged in (
        (1e-3, 9.0, 9.0, 1e-3 * rows),
        (9.0, 1e-3, 9.0, 1e-3 * math.sqrt(rows)),
        (9.0, 9.0, 1e-3, 1e-3),
    ):
        found = apart(SurrogateFacts(MOMENTS, each, pooled), CHI2, share, most)
        assert found == pytest.approx(
            charged + 2 * 0.26 / 900 + 0.26 * rows, rel=1e-12
        )  # the cut, and what was counted
    alone = deviation(within(MOMENTS, CHI2), CHI2, share).quantile(math.exp(-share))
    known = SurrogateFacts(MOMENTS, 0.0, 9.0)
    assert sampling_part(known, CHI2, 9.0) == pytest.approx(alone + apart(known, CHI2, share, 9.0), rel=1e-9)
    assert sampling_part(KNOWN, BETWEEN, 9.0) == 0.0
    whole = replace(MOMENTS, longest_row=2.0)  # with seen, no row can be longer than those seen
    assert apart(SurrogateFacts(whole, 9.0, 9.0), SEEN, share, 9.0) == 0.0
    assert apart(SurrogateFacts(MOMENTS, 0.0, 9.0), SEEN, share, 9.0) == pytest.approx(
        0.02 * unlike_any(MOMENTS, SEEN, share) / 1600, rel=1e-12
    )


def test_what_unlike_rows_add_is_a_mean_over_the_retained_ones() -> None:
    """1,600 of them: each 1.5/1600, k together 0.4 sqrt(k/1600), and what was cut off, 0.26/1600 each."""
    tail = tail_of(KNOWN, SAME, 3.0, 0.7)
    assert (tail.charge, tail.together, tail.most) == (1.5 / 1600, 0.4 / 40.0, 0.7)
    assert tail.counted == pytest.approx(0.26 / 1600, rel=1e-14)
    alone = tail_of(KNOWN, CHI2, 3.0, 0.7)
    assert (alone.charge, alone.together, alone.counted) == (0.0, math.inf, 0.0), "charged apart"


def test_the_deviation_is_one_of_the_events_that_share() -> None:
    for distance, shared in ((SAME, 4), (CHI2, 6), (SEEN, 3)):
        assert share_of(KNOWN, distance) == pytest.approx(math.log(shared / 0.01), rel=1e-14)
    assert share_of(KNOWN, BETWEEN) == 0.0


def test_exchangeable_rows_are_counted_within_the_tail() -> None:
    assert exchangeable(MOMENTS, SAME)
    parts = [sampling_part(SurrogateFacts(MOMENTS, each, math.inf), SAME, math.inf) for each in (0.0, 0.5, 1.5)]
    assert parts == sorted(parts)
    assert parts[0] < parts[1] < parts[2]
    # the charge of at most -ln f / ln((n+s)/n) + 1 rows, of s as many as they are taken for
    share = share_of(KNOWN, SAME)
    rows = share / math.log((1600 + counted_rows(MOMENTS)) / 1600) + 2
    assert parts[2] - parts[0] <= 1.5 * rows / 1600
    assert sampling_part(SurrogateFacts(MOMENTS, 1.5, 0.0), SAME, math.inf) == pytest.approx(parts[0], rel=1e-6)
    assert sampling_part(SurrogateFacts(MOMENTS, 1.5, math.inf), SAME, 0.0) == pytest.approx(parts[0], rel=1e-6)


@settings(REPRODUCIBLE, max_examples=60)
@given(
    st.floats(1e-6, 10.0),
    st.floats(1e-6, 10.0),
    st.floats(0.0, 1.0),
    st.sampled_from([SAME, CHI2, TV, KL, SEEN, BETWEEN]),
)
def test_more_is_never_less(each: float, pooled: float, most: float, distance: Distance) -> None:
    low = sampling_part(SurrogateFacts(MOMENTS, each, pooled), distance, most)
    assert 0.0 <= low <= sampling_part(SurrogateFacts(MOMENTS, 2 * each, pooled), distance, most) * (1 + 1e-9)
    assert low <= sampling_part(SurrogateFacts(MOMENTS, each, 2 * pooled), distance, most) * (1 + 1e-9)
    assert low <= sampling_part(SurrogateFacts(MOMENTS, each, pooled), distance, 2 * most) * (1 + 1e-9)
    wider = replace(MOMENTS, change_trace=0.0032, change_eigenvalue=0.0008)
    assert low <= sampling_part(SurrogateFacts(wider, each, pooled), distance, most) * (1 + 1e-9)


# The region ----------------------------------------------------------------------------------------------------------


def test_the_terms_stand_in_the_place_of_the_second_order() -> None:
    terms = surrogate_terms(FACTS, KNOWN, CHI2)
    assert terms == {
        "surrogate": surrogate_part(KNOWN, CHI2),
        "sampling": sampling_part(KNOWN, CHI2, remainder(FACTS)),
    }
    region = bound_with_surrogate(FACTS, KNOWN, CHI2)
    assert list(region.terms) == ["step", "surrogate", "sampling", "arithmetic"]
    rho = math.fsum(terms.values()) + 0.0012
    assert region.radius == pytest.approx(-math.log1p(-2.0 * rho) / 2.0 * 1.2, rel=1e-8)
    assert region.radius == pytest.approx(radius_in_route(FACTS, math.fsum(terms.values())) * 1.2, rel=1e-8)
    assert bound_with_surrogate(FACTS, None, SAME) == deposit_bound(FACTS)


def test_where_nothing_is_left_to_bound_it_says_so() -> None:
    region = bound_with_surrogate(replace(FACTS, concordance=1e3), KNOWN, CHI2)
    assert region.terms == {"surrogate": math.inf, "sampling": math.inf}
    assert radius_in_route(FACTS, 0.0) == pytest.approx(-math.log1p(-2.0 * 0.0012) / 2.0, rel=1e-12)
