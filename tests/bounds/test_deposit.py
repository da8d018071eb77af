"""A deposit's region: every formula by hand, against fifty digits, and by what it must do."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.bounds.deposit import (
    EXACT,
    LONG_ROWS,
    PLAIN,
    RANGE,
    ROUTES,
    TERMS,
    THIRD,
    DepositFacts,
    bend,
    bend_third,
    concordant_radius,
    deposit_bound,
    exp_tail,
    radius_in_route,
    reach_used,
    remainder,
    way_of,
    weighted_radius,
)
from expunge.bounds.region import ROUND_UP

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=200)
reaches = st.floats(min_value=-12.0, max_value=2.5).map(lambda exponent: 10.0**exponent)
sizes = st.floats(min_value=-9.0, max_value=3.0).map(lambda exponent: 10.0**exponent)
LN2 = math.log(2.0)

# e^R = 2, phi(R) = (1 - ln 2)/ln 2
FACTS = DepositFacts(
    RANGE,
    solver=0.01,
    rounding=0.002,
    shape_ratio=4.0,
    reach=LN2,
    update_curved=0.05,
    concordance=0.5,
    gauge=0.25,
    curvature_ratio=2.25,
    spread=8.0,
    weight_ratio=1.5,
    l2=0.125,
)


def true_bend(reach: float) -> mpmath.mpf:
    R = mpmath.mpf(reach)
    return (mpmath.expm1(R) - R) / R if R else mpmath.mpf(0)


def true_third(reach: float) -> mpmath.mpf:
    R = mpmath.mpf(reach)
    return (mpmath.expm1(R) - R - R**2 / 2) / R


# phi, and what it is of third order ----------------------------------------------------------------------------------------


def test_bends_in_closed_form() -> None:
    assert bend(0.0) == bend_third(0.0) == 0.0
    assert (exp_tail(0.0, 2), exp_tail(0.0, 3)) == (0.5, 1.0 / 6.0)
    assert bend(1.0) == pytest.approx(math.e - 2.0, rel=4e-15, abs=0.0)
    assert bend(LN2) == pytest.approx((1.0 - LN2) / LN2, rel=1e-15)
    assert bend_third(1.0) == pytest.approx(math.e - 2.5, rel=4e-15, abs=0.0)
    assert exp_tail(2.0, 2) == pytest.approx((math.e**2 - 3.0) / 4.0, rel=1e-15)
    assert exp_tail(2.0, 3) == pytest.approx((math.e**2 - 5.0) / 8.0, rel=1e-15)


def test_bends_beyond_what_float64_holds_are_infinite() -> None:
    beyond = math.nextafter(700.0, 701.0)
    assert math.isfinite(bend(700.0) + bend_third(700.0))
    assert bend(beyond) == bend_third(beyond) == exp_tail(beyond, 2) == math.inf


@given(reaches)
@REPRODUCIBLE
def test_bends_agree_with_sixty_digits(reach: float) -> None:
    with mpmath.workdps(60):
        assert abs(mpmath.mpf(bend(reach)) / true_bend(reach) - 1) < 2e-14
        assert abs(mpmath.mpf(bend_third(reach)) / true_third(reach) - 1) < 2e-14


@pytest.mark.parametrize("reach", [1e-9, 1e-3, 0.5, math.nextafter(1.0, 0.0)])
def test_the_series_is_what_it_stands_for(reach: float) -> None:
    with mpmath.workdps(60):
        assert abs(mpmath.mpf(bend(reach)) / true_bend(reach) - 1) < 4e-16
        assert abs(mpmath.mpf(bend_third(reach)) / true_third(reach) - 1) < 6e-16


@given(reaches)
@settings(REPRODUCIBLE, max_examples=50)
def test_bends_are_the_integrals_they_stand_for(reach: float) -> None:
    """`R int_0^1 (1 - t) e^{tR} dt`, the remainder of a gradient along the update; `R^2 int_0^1 (1 - t)^2/2 e^{tR} dt`,
    Taylor's remainder where the fourth derivative is at most `e^{tR}` of the second."""
    with mpmath.workdps(30):
        integral = reach * mpmath.quad(lambda t: (1 - t) * mpmath.exp(t * reach), [0, 0.5, 1])
        assert float(integral) == pytest.approx(bend(reach), rel=1e-9)
        integral = reach**2 * mpmath.quad(lambda t: (1 - t) ** 2 / 2 * mpmath.exp(t * reach), [0, 0.5, 1])
        assert float(integral) == pytest.approx(bend_third(reach), rel=1e-9)


@given(reaches, st.floats(min_value=1.001, max_value=10.0))
@REPRODUCIBLE
def test_bends_and_their_slopes_grow(reach: float, factor: float) -> None:
    """`phi(R_x) <= (phi(R)/R) R_x` for every row is what the long rows' remainder rests on."""
    for function, order in ((bend, 2), (bend_third, 3)):
        assert function(reach * factor) > function(reach)
        assert exp_tail(reach * factor, order) >= exp_tail(reach, order) * (1 - 1e-12)
    assert bend_third(reach) <= bend(reach) * (1 + 1e-12)


@given(
    st.floats(min_value=-30.0, max_value=30.0),
    st.floats(min_value=-6.0, max_value=0.6).flatmap(lambda e: st.sampled_from([10.0**e, -(10.0**e)])),
)
@REPRODUCIBLE
def test_a_sigmoid_bends_no_more_than_that(output: float, change: float) -> None:
    """`|s(z + b) - s - s' b - s'' b^2/2| <= s' |b| bend_third(|b|)`, and it is nearly attained where s is small."""
    with mpmath.workdps(50):
        z, b = mpmath.mpf(output), mpmath.mpf(change)
        s = 1 / (1 + mpmath.exp(-z))
        slope = s / (1 + mpmath.exp(z))
        left = 1 / (1 + mpmath.exp(-z - b)) - s - slope * b - slope * (1 - 2 * s) * b**2 / 2
        assert abs(left) <= slope * abs(b) * bend_third(abs(change)) * (1 + 1e-9)
        if output < -20.0 and change > 0.1:
            assert abs(left) >= 0.999 * slope * abs(b) * bend_third(abs(change))


# Radii ----------------------------------------------------------------------------------------------------------------------


def test_radii_in_closed_form() -> None:
    assert concordant_radius(0.5, 1.0) == pytest.approx(2.0 * LN2, rel=1e-15)  # 1 - c rho = 1/2
    assert concordant_radius(0.0, 0.25) == 0.25
    assert weighted_radius(1.0, 0.375) == 0.5  # sqrt(1 - 3/4) = 1/2
    assert weighted_radius(2.0, 0.1875) == 0.25
    assert weighted_radius(0.0, 0.25) == 0.25


@pytest.mark.parametrize("c", [1e-3, 1.0, 7.0])
def test_radii_end_where_their_roots_do(c: float) -> None:
    assert concordant_radius(c, 1.0 / c) == math.inf
    assert math.isfinite(concordant_radius(c, 0.999 / c))
    assert weighted_radius(c, 0.5 / c) == math.inf
    assert math.isfinite(weighted_radius(c, 0.499 / c))
    assert concordant_radius(c, math.nan) == weighted_radius(c, math.nan) == math.inf


@given(sizes, st.floats(min_value=1e-14, max_value=0.999))
@REPRODUCIBLE
def test_radii_agree_with_fifty_digits(c: float, product: float) -> None:
    with mpmath.workdps(60):
        rho = product / c
        exact = -mpmath.log1p(-mpmath.mpf(c) * rho) / c
        assert abs(concordant_radius(c, rho) / exact - 1) < 1e-8
        rho = product / (2.0 * c)
        root = (1 - mpmath.sqrt(1 - 2 * mpmath.mpf(c) * rho)) / c
        assert abs(weighted_radius(c, rho) / root - 1) < 1e-12


@pytest.mark.parametrize("product", [1e-12, 9.9e-9, 1.1e-8, 1e-4])
def test_a_small_product_rounds_up(product: float) -> None:
    with mpmath.workdps(60):
        exact = -mpmath.log1p(-mpmath.mpf(0.5) * mpmath.mpf(2.0 * product)) / mpmath.mpf(0.5)
        assert -1e-15 < concordant_radius(0.5, 2.0 * product) / exact - 1 < max(product, 1e-15)


@given(sizes, st.floats(min_value=1e-6, max_value=0.99))
@REPRODUCIBLE
def test_radii_are_where_the_gradient_turns_outward(c: float, product: float) -> None:
    """`(1 - e^{-c x})/c = rho` for the one, `x - C x^2/2 = rho` for the other."""
    rho = product / c
    x = concordant_radius(c, rho)
    assert -math.expm1(-c * x) / c == pytest.approx(rho, rel=1e-7)
    rho = product / (2.0 * c)
    x = weighted_radius(c, rho)
    assert x - 0.5 * c * x * x == pytest.approx(rho, rel=1e-9)
    assert c * x <= 1.0  # hence C x <= 4, which the proof needs


@given(sizes, st.floats(min_value=1e-6, max_value=0.9), st.floats(min_value=1.001, max_value=1.1))
@REPRODUCIBLE
def test_a_radius_is_at_least_rho_and_grows_faster(c: float, product: float, factor: float) -> None:
    """So that what is added to rho for a displacement is added to the radius."""
    for radius, rho in ((concordant_radius, product / c), (weighted_radius, product / (2.0 * c))):
        assert radius(c, rho) >= rho
        assert radius(c, factor * rho) - radius(c, rho) >= (factor - 1.0) * rho * (1 - 1e-6)


# Routes ---------------------------------------------------------------------------------------------------------------------


def test_the_remainder_of_each_route_by_hand() -> None:
    phi = (1.0 - LN2) / LN2
    assert remainder(FACTS) == pytest.approx(phi * math.sqrt(2.0) * 0.05, rel=1e-14)
    assert remainder(replace(FACTS, route=LONG_ROWS)) == pytest.approx(phi / LN2 * 0.25 * 0.05 * 1.5, rel=1e-14)
    assert remainder(replace(FACTS, route=PLAIN)) == pytest.approx(phi * 0.05 * 1.5, rel=1e-14)
    assert remainder(replace(FACTS, route=EXACT)) == 0.0


def test_the_radius_of_each_route_by_hand() -> None:
    phi = (1.0 - LN2) / LN2
    rho = 0.012 + phi * math.sqrt(2.0) * 0.05
    assert radius_in_route(FACTS) == pytest.approx(-2.0 * math.log(1.0 - 0.5 * rho), rel=1e-14)
    rho = 0.012 + phi / LN2 * 0.25 * 0.05 * 1.5
    C = math.sqrt(8.0 * 1.5 * 2.0)
    long_rows, by_lengths = replace(FACTS, route=LONG_ROWS), (1.0 - math.sqrt(1.0 - 2.0 * C * rho)) / C
    by_range = -2.0 * math.log(1.0 - 0.5 * rho)
    assert by_range < by_lengths, "the smaller of the two is taken"
    assert radius_in_route(long_rows) == pytest.approx(by_range, rel=1e-14)
    for c in (0.0, 50.0):  # not measured, or of no use
        assert radius_in_route(replace(long_rows, concordance=c)) == pytest.approx(by_lengths, rel=1e-13)
    rho = 0.012 + phi * 0.05 * 1.5
    assert radius_in_route(replace(FACTS, route=PLAIN)) == pytest.approx(rho / 0.125, rel=1e-14)
    assert radius_in_route(replace(FACTS, route=EXACT)) == pytest.approx(0.012, rel=1e-15)


def test_every_route_of_third_order_by_hand() -> None:
    chi = (1.0 - LN2 - LN2**2 / 2.0) / LN2  # of e^R = 2
    rho = 0.012 + chi * math.sqrt(2.0) * 0.05
    assert radius_in_route(replace(FACTS, route=RANGE + THIRD)) == pytest.approx(
        -2.0 * math.log(1 - 0.5 * rho), rel=1e-13
    )
    rho, C = 0.012 + chi / LN2**2 * 0.25**2 * 0.05 * math.sqrt(1.5), math.sqrt(8.0 * 1.5 * 2.0)
    radius = (1.0 - math.sqrt(1.0 - 2.0 * C * rho)) / C
    long_rows = replace(FACTS, route=LONG_ROWS + THIRD)
    assert radius_in_route(replace(long_rows, concordance=0.0)) == pytest.approx(radius, rel=1e-12)
    assert radius_in_route(long_rows) == pytest.approx(-2.0 * math.log(1.0 - 0.5 * rho), rel=1e-12)
    rho = 0.012 + chi * 0.05 * 1.5
    assert radius_in_route(replace(FACTS, route=PLAIN + THIRD)) == pytest.approx(rho / 0.125, rel=1e-13)


def test_what_is_used_of_each_route_by_hand() -> None:
    phi = (1.0 - LN2) / LN2
    assert reach_used(FACTS) == pytest.approx(0.5 * (0.012 + phi * math.sqrt(2.0) * 0.05), rel=1e-14)
    rho = 0.012 + phi / LN2 * 0.25 * 0.05 * 1.5
    long_rows = replace(FACTS, route=LONG_ROWS)
    assert reach_used(long_rows) == pytest.approx(0.5 * rho, rel=1e-14)
    for c in (0.0, 50.0):
        assert reach_used(replace(long_rows, concordance=c)) == pytest.approx(2.0 * math.sqrt(24.0) * rho, rel=1e-14)
    assert reach_used(replace(FACTS, route=PLAIN)) == reach_used(replace(FACTS, route=EXACT)) == 0.0


def test_an_unknown_route_has_no_radius() -> None:
    with pytest.raises(ValueError, match="route 'short rows'"):
        radius_in_route(replace(FACTS, route="short rows"))
    second = ("range", "long rows", "plain", "exact")
    assert list(ROUTES) == [*second, "range, third order", "long rows, third order", "plain, third order"]
    assert [way_of(route) for route in ROUTES] == [*second, *second[:3]]
    with pytest.raises(ValueError, match="route 'range, fourth order'"):
        radius_in_route(replace(FACTS, route="range, fourth order"))


@pytest.mark.parametrize("route", [route for route in ROUTES if route != EXACT])
def test_a_remainder_without_end_leaves_no_region(route: str) -> None:
    facts = replace(FACTS, route=route, reach=701.0)
    assert radius_in_route(facts) == math.inf
    assert deposit_bound(facts).terms == {"remainder": math.inf}
    assert radius_in_route(replace(facts, update_curved=0.0)) == math.inf  # infinity times 0 is no number


def test_the_region_is_in_the_norm_of_the_frozen_shape_and_its_terms_share_it() -> None:
    region = deposit_bound(FACTS)
    phi = (1.0 - LN2) / LN2
    parts = {"step": 0.01, "remainder": phi * math.sqrt(2.0) * 0.05, "arithmetic": 0.002}
    rho = sum(parts.values())
    radius = -2.0 * math.log(1.0 - 0.5 * rho) * 2.0  # the root of the shape's ratio
    assert region.kind == "deposit"
    assert [*region.terms] == [term.name for term in TERMS]
    for name, part in parts.items():
        assert region.terms[name] == pytest.approx(radius * part / rho, rel=1e-13)
    assert region.radius == pytest.approx(radius * ROUND_UP, rel=1e-14)


def test_nothing_left_and_nothing_lost_is_a_point() -> None:
    facts = DepositFacts(EXACT, 0.0, 0.0, 3.0)
    assert deposit_bound(facts).terms == {"step": 0.0, "remainder": 0.0, "arithmetic": 0.0}


facts_of = st.builds(
    DepositFacts,
    route=st.sampled_from(ROUTES),
    solver=sizes,
    rounding=sizes,
    shape_ratio=sizes,
    reach=st.floats(min_value=1e-9, max_value=3.0),
    update_curved=sizes,
    concordance=st.floats(min_value=1e-9, max_value=1e-4),
    gauge=sizes,
    curvature_ratio=sizes,
    spread=st.floats(min_value=1e-12, max_value=1e-6),
    weight_ratio=st.floats(min_value=1e-9, max_value=1.0),
    l2=sizes,
)


def fifty_digits(facts: DepositFacts) -> mpmath.mpf:
    """The whole region from its formulas."""
    with mpmath.workdps(50):
        R, u, c2 = (mpmath.mpf(value) for value in (facts.reach, facts.update_curved, facts.curvature_ratio))
        phi, chi = true_bend(facts.reach), true_third(facts.reach)
        more = {
            RANGE + THIRD: chi * mpmath.exp(R / 2) * u,
            LONG_ROWS + THIRD: chi / R**2 * facts.gauge**2 * u * mpmath.sqrt(facts.weight_ratio),
            PLAIN + THIRD: chi * u * mpmath.sqrt(c2),
            RANGE: phi * mpmath.exp(R / 2) * u,
            LONG_ROWS: phi / R * facts.gauge * u * mpmath.sqrt(c2),
            PLAIN: phi * u * mpmath.sqrt(c2),
            EXACT: mpmath.mpf(0),
        }[facts.route]
        rho = mpmath.mpf(facts.solver) + facts.rounding + more
        C = mpmath.sqrt(mpmath.mpf(facts.spread) * facts.weight_ratio * mpmath.exp(R))
        if facts.route == EXACT:
            x = rho
        elif facts.route.startswith(PLAIN):
            x = rho / facts.l2
        else:
            product = facts.concordance * rho
            x = -mpmath.log1p(-product) / facts.concordance if product < 1 else mpmath.inf
            if facts.route.startswith(LONG_ROWS) and 2 * C * rho < 1:
                x = min(x, (1 - mpmath.sqrt(1 - 2 * C * rho)) / C)
        return x * mpmath.sqrt(facts.shape_ratio)


@given(facts_of)
@REPRODUCIBLE
def test_the_region_agrees_with_fifty_digits_and_is_never_below(facts: DepositFacts) -> None:
    exact, radius = fifty_digits(facts), deposit_bound(facts).radius
    if math.isfinite(radius):
        assert 1.0 - 1e-12 < radius / exact < 1.0 + 2e-8
    else:
        assert exact == mpmath.inf or exact > 1e6 * facts.solver


@given(facts_of, st.floats(min_value=0.0, max_value=9.0))
@REPRODUCIBLE
def test_a_region_is_finite_until_all_of_the_reach_is_used(facts: DepositFacts, power: float) -> None:
    larger = replace(facts, concordance=facts.concordance * 10.0**power, spread=facts.spread * 10.0**power)
    used = reach_used(larger)
    with mpmath.workdps(50):
        assert (fifty_digits(larger) < mpmath.inf) == (used < 1.0)
    assert math.isfinite(radius_in_route(larger)) == (used < 1.0)
    assert reach_used(replace(larger, solver=2.0 * larger.solver)) >= used


@given(
    facts_of, st.sampled_from([field for field in DepositFacts.__dataclass_fields__ if field not in ("route", "l2")])
)
@REPRODUCIBLE
def test_a_larger_fact_never_makes_a_smaller_region(facts: DepositFacts, name: str) -> None:
    larger = replace(facts, **{name: getattr(facts, name) * 1.5})
    assert deposit_bound(larger).radius >= deposit_bound(facts).radius * (1 - 1e-12)


def test_every_fact_of_a_route_counts() -> None:
    counted = {
        RANGE: {"reach", "update_curved", "concordance"},
        LONG_ROWS: {"reach", "update_curved", "gauge", "curvature_ratio", "spread", "weight_ratio"},
        PLAIN: {"reach", "update_curved", "curvature_ratio"},
        EXACT: set(),
        RANGE + THIRD: {"reach", "update_curved", "concordance"},
        LONG_ROWS + THIRD: {"reach", "update_curved", "gauge", "spread", "weight_ratio"},
        PLAIN + THIRD: {"reach", "update_curved", "curvature_ratio"},
    }
    for route, names in counted.items():
        facts = replace(FACTS, route=route, concordance=0.5 if route.startswith(RANGE) else 0.0)
        for name in ("solver", "rounding", "shape_ratio", *names):
            larger = replace(facts, **{name: getattr(facts, name) * 1.01})
            assert deposit_bound(larger).radius > deposit_bound(facts).radius * 1.00001, (route, name)
    halved = replace(FACTS, route=PLAIN, l2=0.0625)
    assert deposit_bound(halved).radius == pytest.approx(2.0 * deposit_bound(replace(FACTS, route=PLAIN)).radius)


def test_a_radius_that_is_not_scaled_to_the_frozen_shape_would_be_too_small() -> None:
    """The planted fault: with M = M_0/9 the same error is three times as long in M_0."""
    plain, scaled = replace(FACTS, shape_ratio=1.0), replace(FACTS, shape_ratio=9.0)
    assert deposit_bound(scaled).radius == pytest.approx(3.0 * deposit_bound(plain).radius, rel=1e-14)


def test_what_a_route_does_not_need_is_nothing() -> None:
    assert DepositFacts(PLAIN, 0.1, 0.2, 4.0) == DepositFacts(PLAIN, 0.1, 0.2, 4.0, *[0.0] * 9)
