"""The retained-rows bound: each term in closed form, against naive forms, and its properties."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.bounds.retained import (
    RetainedFacts,
    beyond,
    counted_rows,
    deviation,
    events,
    exchangeable,
    log_share,
    population_moments,
    retained_bound,
    retained_moments,
    rounding_term,
    set_apart,
    solver_term,
    strict,
    surrogate_shift,
    surrogate_term,
    training_term,
    unlike_any,
)
from expunge.bounds.sampling import Tail, raised_moment, unlike_rows
from expunge.distance import Distance
from expunge.errors import DataError
from expunge.request.sets import require_enough

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=100)
FACTS = RetainedFacts(
    n_source=100,
    n_forget=20,
    n_surrogate=50,
    l2=0.5,
    training_residual=0.01,
    solver_residual=4.0,
    rounding=0.8,
    change_mean=0.5,
    change_eigenvalue=0.64,
    change_trace=1.0,
    change_fourth=5.0,
    change_fourth_eigenvalue=2.25,
    change_largest=2.5,
    change_longest=2.75,
    change_supremum=7.0,
    longest_row=1.0,
    row_bound=1.0,
    directions=2,
    sampling_failure=0.5,
)
SAME, SEEN = Distance("same", 0.0), Distance("same", 0.0, sampling="seen")
SOURCE = Distance("source", 0.0)


def test_plain_terms_in_closed_form() -> None:
    assert training_term(FACTS) == pytest.approx(100 / 80 * 0.01 / 0.5, rel=1e-14)
    assert solver_term(FACTS) == pytest.approx(4.0 / 80 / 0.5, rel=1e-14)
    assert rounding_term(FACTS) == pytest.approx(0.8 / 80 / 0.5, rel=1e-14)
    assert FACTS.n_retain == 80


@pytest.mark.parametrize(
    ("distance", "shift"),
    [
        (Distance("tv", 0.1), 1.4),  # 2 * 0.1 * 7
        (Distance("chi2", 0.25), 0.4),  # 0.5 * 0.8
        (Distance("kl", 0.5), 2.05),  # 0.8 + (7 + 0.5) * 0.5 / 3
        (Distance("kl", 0.5, "samples"), 0.8 + 2.5 * 0.5 / 3),
        (Distance("means", 0.3), 0.3),
        (SAME, 0.0),
    ],
)
def test_the_shift_in_closed_form(distance: Distance, shift: float) -> None:
    assert surrogate_shift(FACTS, distance) == pytest.approx(shift, rel=1e-14)
    loose = replace(distance, sampling="seen")
    assert surrogate_term(FACTS, loose, 1.0) == pytest.approx(shift / 0.5, rel=1e-14)


def test_strict_moments_enter_the_surrogate_term() -> None:
    raised = population_moments(FACTS, 2.0)
    slack = 2.75 * math.sqrt(2.0 / 100.0)
    trace = (math.sqrt(1.25 + slack**2) + slack) ** 2
    eigenvalue = (math.sqrt(0.89 + slack**2) + slack) ** 2
    assert raised.change_trace == pytest.approx(trace, rel=1e-14)
    assert raised.change_eigenvalue == pytest.approx(eigenvalue, rel=1e-14)
    assert raised.change_fourth == pytest.approx(2.75**2 * trace + trace**2, rel=1e-14)
    assert raised.change_fourth_eigenvalue == pytest.approx(2.75**2 * eigenvalue, rel=1e-14)
    assert raised.weighted() == (trace, eigenvalue, 2.5)
    strict_one = Distance("chi2", 0.25)
    assert surrogate_term(FACTS, strict_one, 2.0) == pytest.approx(0.5 * math.sqrt(eigenvalue) / 0.5, rel=1e-14)
    heavy = population_moments(replace(FACTS, weight_largest=2.0), 2.0)
    slack = 2.75 * math.sqrt(2.0 * 2.0 / 100.0)
    assert heavy.change_trace == pytest.approx((math.sqrt(1.25 + slack**2) + slack) ** 2, rel=1e-14)
    assert heavy.sampled_trace == pytest.approx(2.0 * heavy.change_trace, rel=1e-14)
    assert heavy.sampled_largest == 5.0
    capped = population_moments(replace(FACTS, change_eigenvalue=4.0), 2.0)
    assert capped.change_eigenvalue == capped.change_trace


def test_moments_of_the_retained_rows_in_closed_form() -> None:
    # variance of g is 5 - 1 = 4, of g_e at most 2.25; reach 2.5
    assert retained_moments(FACTS, Distance("chi2", 0.25), 2.5) == pytest.approx((2.0, 1.39), rel=1e-14)
    assert retained_moments(FACTS, Distance("tv", 0.2), 2.5) == pytest.approx((2.25, 1.89), rel=1e-14)
    assert retained_moments(FACTS, Distance("kl", 0.5), 2.5) == pytest.approx(
        (3 + 6.25 / 6, 2.14 + 6.25 / 6), rel=1e-14
    )
    assert retained_moments(FACTS, SAME, 2.5) == (1.0, 0.64)
    assert retained_moments(replace(FACTS, change_eigenvalue=3.0), SAME, 2.5) == (1.0, 1.0)


def test_the_events_that_share_the_failure() -> None:
    assert events(FACTS, SAME) == 3
    assert events(FACTS, Distance("chi2", 0.1)) == 5
    assert events(FACTS, replace(SAME, matched=True)) == 5
    assert events(FACTS, SEEN) == 0
    assert events(replace(FACTS, longest_row=0.9), SEEN) == 2
    assert log_share(FACTS, SAME) == pytest.approx(math.log(6.0), rel=1e-14)
    assert log_share(FACTS, SAME, more=1) == pytest.approx(math.log(8.0), rel=1e-14)
    assert strict(SAME)
    assert not strict(SEEN)
    assert not strict(Distance("chi2", 0.1, "samples"))


def test_rows_unlike_any_in_closed_form() -> None:
    # q = 2/50 = 0.04; chi2 0.25 adds 0.5 * 0.2 = 0.1: mass 0.14, n q = 11.2
    mass = 0.04 + 0.1
    count = 80 * mass + math.sqrt(2 * 80 * mass * 2.0) + 2.0 / 3.0
    assert unlike_any(FACTS, Distance("chi2", 0.25), 2.0) == pytest.approx(count, rel=1e-12)
    # total variation moves a mass by itself, KL 0.125 by sqrt(0.25 q) + 0.125/3; never to more than all
    for distance, moved in ((Distance("tv", 0.1), 0.14), (Distance("kl", 0.125), 0.04 + 0.1 + 0.125 / 3)):
        count_of = 80 * moved + math.sqrt(2 * 80 * moved * 2.0) + 2.0 / 3.0
        assert unlike_any(FACTS, distance, 2.0) == pytest.approx(count_of, rel=1e-12)
    assert unlike_any(FACTS, Distance("tv", 1.0), 2.0) == 80.0
    cut = 2 * 2.75 / 50
    assert set_apart(FACTS, Distance("chi2", 0.25), 2.0) == pytest.approx(cut + 9.75 * count / 80, rel=1e-12)
    heavier = replace(FACTS, weight_largest=3.0)
    more = unlike_any(heavier, Distance("chi2", 0.25), 2.0)
    assert set_apart(heavier, Distance("chi2", 0.25), 2.0) == pytest.approx(3 * cut + 9.75 * more / 80, rel=1e-12)
    loose = replace(FACTS, longest_row=0.9)
    seen = Distance("chi2", 0.25, sampling="seen")
    assert set_apart(loose, seen, 2.0) == pytest.approx(7.5 * count / 80, rel=1e-12)
    assert set_apart(FACTS, seen, 2.0) == 0.0
    assert set_apart(FACTS, SAME, 2.0) == pytest.approx(cut, rel=1e-12), "rows unlike any are counted in the tail"
    assert unlike_any(replace(FACTS, weight_largest=3.0), SAME, 2.0) > unlike_any(FACTS, SAME, 2.0)


def test_the_tail_that_was_seen_in_closed_form() -> None:
    tail = deviation(FACTS, SEEN, 1.0)
    assert tail.expected == pytest.approx(math.sqrt(1 / 80 + 1 / 50), rel=1e-14)
    assert tail.variance == pytest.approx(0.64 / 80 + 0.64 / 50, rel=1e-14)
    assert tail.step == pytest.approx(max(2.5 / 80, 2.5 / 50), rel=1e-14)
    assert tail.n_seen == 0
    shifted = deviation(FACTS, Distance("chi2", 0.25, sampling="seen"), 1.0)
    assert shifted.step == pytest.approx(max((2.5 + 0.4) / 80, 2.5 / 50), rel=1e-14)
    anywhere = deviation(FACTS, Distance("tv", 0.01, sampling="seen"), 1.0)
    assert anywhere.step == pytest.approx((7.5 + 0.14) / 80, rel=1e-14)
    weighted = replace(FACTS, sampled_trace=2.0, sampled_eigenvalue=1.5, sampled_largest=4.0)
    matched = deviation(weighted, replace(SEEN, matched=True), 1.0)
    assert matched.expected == pytest.approx(math.sqrt(1 / 80 + 2 / 50), rel=1e-14)
    assert matched.step == pytest.approx(2 * 4.0 / 50, rel=1e-14)


def test_the_strict_tail_in_closed_form() -> None:
    known = population_moments(FACTS, 2.0)
    tail = deviation(FACTS, SAME, 2.0)
    trace, eigenvalue, _ = known.weighted()
    assert tail.expected == pytest.approx(math.sqrt(trace / 80 + trace / 50), rel=1e-14)
    assert tail.variance == pytest.approx(eigenvalue / 80 + eigenvalue / 50, rel=1e-14)
    assert (tail.charge, tail.n_new, tail.n_seen) == (9.75 / 80, 80, counted_rows(FACTS))
    off = Tail(math.sqrt(trace / 50), eigenvalue / 50, 2 * 2.75 / 50).quantile(math.exp(-2.0))
    assert tail.step == pytest.approx(max((2.75 + 0.5 + off) / 80, (2.5 + off) / 50), rel=1e-12)
    apart = deviation(FACTS, Distance("chi2", 0.25), 2.0)
    assert apart.n_seen == 0
    assert apart.expected > tail.expected
    matched = deviation(FACTS, replace(SAME, matched=True), 2.0)
    assert matched.step == pytest.approx(2 * max((2.75 + 0.5 + off) / 80, (2.5 + off) / 50), rel=1e-12)


def test_how_far_the_surrogate_s_mean_may_be_off_follows_its_variance_along_one_direction() -> None:
    """Many rows without a preferred direction: of both inequalities the one that knows the direction is the smaller."""
    facts = replace(FACTS, n_surrogate=50_000, change_mean=0.0, change_eigenvalue=0.01, n_source=60_000)
    trace, eigenvalue, _ = population_moments(facts, 20.0).weighted()
    expected, variance, step = math.sqrt(trace / 50_000), eigenvalue / 50_000, 2 * 2.75 / 50_000
    linear = 3.0 * step * 20.0  # Klein and Rio, solved for the size that is exceeded with probability e^-20
    proxy = variance + 2.0 * step * expected
    off = expected + 0.5 * (linear + math.sqrt(linear**2 + 8.0 * proxy * 20.0))
    due = max((2.75 + off) / facts.n_retain, (2.5 + off) / 50_000)
    assert deviation(facts, SAME, 20.0).step == pytest.approx(due, rel=1e-10)
    assert due == (2.5 + off) / 50_000


def test_the_surrogate_counts_as_fewer_rows_where_it_has_leverage() -> None:
    """The update was solved with its rows: at 20 rows to a direction half of them count, at 100 five of six."""
    for rows_each, share in ((20, 1 / 2), (100, 5 / 6)):
        facts = replace(FACTS, n_surrogate=rows_each * 60, directions=60)
        assert counted_rows(facts) == round(share * rows_each * 60)


def test_what_is_averaged_and_what_is_split() -> None:
    averaged = retained_bound(FACTS, SAME, averaged=True)
    assert averaged.tail is not None
    assert averaged.terms["sampling"] == pytest.approx(2 * 2.75 / 50 / 0.5, rel=1e-12)
    assert averaged.tail.expected == pytest.approx(
        deviation(FACTS, SAME, log_share(FACTS, SAME)).expected / 0.5, rel=1e-12
    )
    split = retained_bound(FACTS, SAME, averaged=False)
    assert split.tail is None
    share = log_share(FACTS, SAME, more=1)
    assert split.terms["sampling"] == pytest.approx(
        (2 * 2.75 / 50 + deviation(FACTS, SAME, share).quantile(math.exp(-share))) / 0.5, rel=1e-9
    )
    loose = retained_bound(FACTS, SEEN, averaged=True)
    assert loose.tail is None, "what was seen is not averaged: its moments may be too small"
    for exact in (SOURCE, Distance("chi2", 0.1, "samples")):
        region = retained_bound(FACTS, exact, averaged=True)
        assert region.terms["sampling"] == 0.0
        assert region.tail is None
    assert list(averaged.terms) == ["training", "solver", "surrogate", "sampling", "rounding"]


@pytest.mark.parametrize(("factor", "each"), [(1.0, 2.75), (2.0, 5.5), (2.5, 6.875), (3.0, 7.0), (1e6, 7.0)])
def test_a_row_unlike_any_is_charged_what_it_is_stated_to_be_within(factor: float, each: float) -> None:
    within = Distance("chi2", 0.25, sampling=f"within:{factor:g}")
    assert beyond(FACTS, within) == pytest.approx(each + 2.75, rel=1e-15), "and what it was counted as among those seen"
    strictly = Distance("chi2", 0.25)
    cut = 2.0 * 2.75 / 50
    ratio = (set_apart(FACTS, within, 2.0) - cut) / (set_apart(FACTS, strictly, 2.0) - cut)
    assert ratio == pytest.approx((each + 2.75) / 9.75, rel=1e-12)
    assert surrogate_shift(FACTS, replace(within, kind="tv")) == surrogate_shift(FACTS, replace(strictly, kind="tv"))
    assert events(FACTS, within) == events(FACTS, strictly) == 5


@REPRODUCIBLE
@given(
    name=st.sampled_from(
        [field.name for field in fields(RetainedFacts) if field.name.startswith(("change", "training", "solver"))]
    ),
    kind=st.sampled_from(["same", "tv", "chi2", "kl"]),
    sampling=st.sampled_from(["strict", "seen"]),
    factors=st.lists(st.floats(1.0, 3.0), min_size=1, max_size=3),
)
def test_the_bound_grows_with_each_fact(name: str, kind: str, sampling: str, factors: list[float]) -> None:
    distance = Distance(kind, 0.0 if kind == "same" else 0.1, sampling=sampling)
    values = [getattr(FACTS, name) * factor for factor in sorted([1.0, *factors])]
    radii = [retained_bound(replace(FACTS, **{name: value}), distance, averaged=False).radius for value in values]
    assert all(one <= other * (1 + 1e-9) for one, other in pairwise(radii))


@REPRODUCIBLE
@given(rows=st.integers(60, 10**6), kind=st.sampled_from(["same", "chi2"]))
def test_more_surrogate_rows_never_harm(rows: int, kind: str) -> None:
    distance = Distance(kind, 0.0 if kind == "same" else 0.1)
    few, many = (replace(FACTS, n_surrogate=count) for count in (rows, 2 * rows))
    assert retained_bound(many, distance, averaged=False).radius <= retained_bound(
        few, distance, averaged=False
    ).radius * (1 + 1e-9)


def test_how_many_events_share_a_probability_at_the_edges() -> None:
    """A row within a millionth of the bound reaches it; twenty rows a direction are enough to count rows against rows."""
    for bound, longest, due in ((1.0, 1.0 - 1e-6, 0), (1.0, 1.0 - 1.1e-6, 2), (4.0, 4.0 * (1.0 - 1e-6), 0)):
        assert events(replace(FACTS, row_bound=bound, longest_row=longest), SEEN) == due
        assert events(replace(FACTS, row_bound=bound, longest_row=longest), SAME) == 3
    for bound, share, due in ((0.25, 1.0, 0), (4.0, 1.0, 0), (0.25, 0.75, 2), (4.0, 0.75, 2)):
        assert events(replace(FACTS, row_bound=bound, longest_row=share * bound), SEEN) == due
    for rows, fine in ((40, True), (39, False)):
        facts = replace(FACTS, n_surrogate=rows, directions=2)
        assert exchangeable(facts, SAME) == fine
        assert events(facts, SAME) == (3 if fine else 5)
    alike = (
        SEEN,
        replace(SAME, matched=True),
        SOURCE,
        *(Distance(kind, 0.0) for kind in ("chi2", "tv", "kl", "means")),
    )
    assert not any(exchangeable(FACTS, other) for other in alike)


def test_no_more_than_all_rows_are_unlike_any() -> None:
    """However far the distance shifts their mass; a total variation shifts it by itself, times a range of 1."""
    assert unlike_any(FACTS, Distance("chi2", 1e9), 2.0) == unlike_rows(FACTS.n_retain, 1.0, 2.0)
    mass = 2.0 * FACTS.weight_largest / FACTS.n_surrogate
    few = unlike_any(FACTS, Distance("tv", 1e-3), 2.0)
    assert few == pytest.approx(unlike_rows(FACTS.n_retain, mass + 1e-3, 2.0), rel=1e-12, abs=0.0)


def test_what_of_the_weighted_moments_is_missing_leaves_those_of_the_change() -> None:
    weighted = replace(FACTS, sampled_trace=2.0, sampled_eigenvalue=1.5, sampled_largest=4.0)
    assert weighted.weighted() == (2.0, 1.5, 4.0)
    for name in ("sampled_trace", "sampled_eigenvalue", "sampled_largest"):
        assert replace(weighted, **{name: None}).weighted() == (1.0, 0.64, 2.5)


@pytest.mark.parametrize(
    ("trace", "fourth", "spread"), [(2.0, 9.0, math.sqrt(5.0)), (0.5, 0.5, 0.5), (0.5, 0.25, 0.0), (0.5, 0.2, 0.0)]
)
def test_the_variance_of_a_square_is_the_fourth_moment_less_the_trace_squared(
    trace: float, fourth: float, spread: float
) -> None:
    """Never below nothing; a chi-square of 1/4 shifts the mean by half its root."""
    facts = replace(FACTS, change_trace=trace, change_fourth=fourth)
    shifted, _ = retained_moments(facts, Distance("chi2", 0.25), 10.0)
    assert shifted == pytest.approx(trace + 0.5 * spread, rel=1e-14, abs=0.0)


@pytest.mark.parametrize("weight", [1.0, 3.0])
@pytest.mark.parametrize("distance", [SAME, replace(SAME, matched=True), Distance("chi2", 0.25)])
def test_the_longest_vector_of_few_retained_rows_in_closed_form(weight: float, distance: Distance) -> None:
    """A row's change, less its own law's mean: the surrogate's, what that may be off by, and the shift."""
    facts = replace(FACTS, n_source=40, weight_largest=weight)
    trace = raised_moment(1.25, 2.75, 50 / weight, 2.0)
    eigenvalue = raised_moment(0.89, 2.75, 50 / weight, 2.0)
    alone = Tail(math.sqrt(weight * trace / 50), weight * eigenvalue / 50, 2 * weight * 2.75 / 50)
    off = alone.quantile(math.exp(-2.0))
    shift = 0.5 * math.sqrt(eigenvalue) if distance.kind == "chi2" else 0.0
    due = (2.75 + 0.5 + off + shift) / 20 * (2 if distance.matched else 1)
    assert deviation(facts, distance, 2.0).step == pytest.approx(due, rel=1e-12, abs=0.0)


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_a_hundred_rows_that_count_are_enough_and_one_fewer_is_not(weight: float) -> None:
    class Rows(list[int]):
        largest_weight, has_weights = weight, weight != 1.0

    require_enough(Rows(range(int(100 * weight))))
    with pytest.raises(DataError, match="at least 100 are needed"):
        require_enough(Rows(range(int(100 * weight) - 1)))
