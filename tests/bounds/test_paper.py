"""The paper's bound: its figures, both readings of it, and where it must be infinite."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.bounds.paper import SIZE_CONVENTIONS, PaperConstants, hessian_mismatch, newton_remainder, paper_bound

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=200)
ONES = PaperConstants(1.0, 1.0, 1.0, 1.0)
UNEVEN = PaperConstants(2.0, 3.0, 5.0, 7.0)

small = st.floats(min_value=0.01, max_value=10.0)
sizes_of = st.integers(min_value=1, max_value=10**6)
constants_of = st.builds(PaperConstants, small, small, small, small, st.sampled_from([1, 2]))


def naive_newton(c, n, m):
    alpha, gamma, lipschitz = Fraction(c.strong_convexity), Fraction(c.hessian_lipschitz), Fraction(c.lipschitz)
    power = lipschitz if c.lipschitz_power == 1 else lipschitz * lipschitz
    return 2 * gamma * power * m * m / (alpha * alpha * alpha * n * n)


def naive_mismatch(c, n, m, s, gradient, tv, sizes):
    alpha, beta, gradient, tv = (Fraction(value) for value in (c.strong_convexity, c.smoothness, gradient, tv))
    if sizes == "source":
        s = n
    if n * alpha <= m * beta or s * alpha <= m * beta:
        return math.inf
    smaller, larger = sorted((n, s))
    return (
        gradient
        * (m * (larger - smaller) * beta + 2 * m * smaller * beta * tv)
        / ((n * alpha - m * beta) * (s * alpha - m * beta))
    )


# The paper's figures -------------------------------------------------------------------------------------------


def test_experiments_set_alpha_to_one_plus_l2_and_everything_else_to_one():
    assert PaperConstants.of_the_experiments(0.01) == PaperConstants(1.01, 1.0, 1.0, 1.0, 2)


@pytest.mark.parametrize("sizes", ["source", "surrogate"])
def test_unlearn_plus_with_a_tenth_forgotten_gives_the_papers_two_hundredths(sizes):
    bound = paper_bound(
        PaperConstants.of_the_experiments(0.01),
        n_source=1000,
        n_forget=100,
        n_surrogate=1000,
        gradient_norm=3.0,
        tv=0.0,
        sizes=sizes,
    )
    assert bound.kind == "paper"
    assert bound.terms["surrogate"] == 0.0
    assert bound.radius == pytest.approx(0.01941, abs=5e-6)  # 2 * 0.1^2 / 1.01^3
    assert round(bound.radius, 2) == 0.02


# The Newton term -----------------------------------------------------------------------------------------------


def test_newton_term_in_closed_form():
    assert newton_remainder(UNEVEN, 100, 20) == pytest.approx(1.75, rel=1e-15)  # 2 * 7 * 5^2 * 0.04 / 2^3
    to_the_first = replace(UNEVEN, lipschitz_power=1)  # 5 instead of 25
    assert newton_remainder(to_the_first, 100, 20) == pytest.approx(0.35, rel=1e-15)
    assert newton_remainder(UNEVEN, 100, 0) == 0.0


def test_the_lipschitz_constant_is_squared_unless_told_otherwise():
    assert PaperConstants(1.0, 1.0, 1.0, 1.0).lipschitz_power == 2
    ratio = newton_remainder(UNEVEN, 50, 10) / newton_remainder(replace(UNEVEN, lipschitz_power=1), 50, 10)
    assert ratio == pytest.approx(5.0, rel=1e-15)


@REPRODUCIBLE
@given(constants=constants_of, n=sizes_of, m=sizes_of)
def test_newton_term_against_fractions(constants, n, m):
    assert newton_remainder(constants, n, m) == pytest.approx(float(naive_newton(constants, n, m)), rel=1e-12)


def test_one_newton_step_with_the_true_hessian_stays_within_the_newton_term():
    rng = np.random.default_rng(41)
    for _ in range(100):
        n, l2 = 60, float(10.0 ** rng.uniform(-1.5, 0.0))
        m = int(rng.integers(1, 15))
        x, y = rng.uniform(-1.0, 1.0, size=n), rng.choice([-1.0, 1.0], size=n)

        def slope(w, rows, x=x, y=y, l2=l2):
            return float(np.mean(-y[rows] * x[rows] / (1.0 + np.exp(y[rows] * x[rows] * w)))) + l2 * w

        def curvature(w, rows, x=x, l2=l2):
            p = 1.0 / (1.0 + np.exp(-x[rows] * w))
            return float(np.mean(p * (1.0 - p) * x[rows] ** 2)) + l2

        def minimiser(rows, slope=slope, curvature=curvature):
            w = 0.0
            for _ in range(60):
                w -= slope(w, rows) / curvature(w, rows)
            return w

        everything, forget, retain = np.arange(n), np.arange(m), np.arange(m, n)
        trained, retrained = minimiser(everything), minimiser(retain)
        step = m * slope(trained, forget) / (n * curvature(trained, everything) - m * curvature(trained, forget))
        largest = max(abs(trained), abs(retrained))
        constants = PaperConstants(l2, 0.25 + l2, 1.0 + l2 * largest, 1.0 / (6.0 * math.sqrt(3.0)))
        assert abs(trained + step - retrained) <= newton_remainder(constants, n, m)


# The surrogate term --------------------------------------------------------------------------------------------


def test_surrogate_term_in_closed_form():
    assert SIZE_CONVENTIONS == ("source", "surrogate")
    for surrogate, tv, sizes, term in (
        (7, 0.35, "source", 6.0 / 7.0),  # alpha 2, beta 3: 4 * 20 * 3 * (2 * 100 * 0.35) / (200 - 60)^2
        (99, 0.35, "source", 6.0 / 7.0),  # however large the surrogate
        (50, 0.2, "surrogate", 3.0),  # 4 * 20 * 3 * (50 + 2 * 50 * 0.2) / ((200 - 60) (100 - 60)) = 240 * 70 / 5600
        (100, 0.35, "surrogate", 6.0 / 7.0),
        (50, 0.0, "source", 0.0),
        (50, 0.0, "surrogate", 15.0 / 7.0),  # unequal sizes cost something even at distance zero
    ):
        assert hessian_mismatch(UNEVEN, 100, 20, surrogate, 4.0, tv, sizes) == pytest.approx(term, rel=1e-15)


def test_source_and_surrogate_sizes_are_treated_alike():
    one = hessian_mismatch(UNEVEN, 100, 20, 50, 4.0, 0.2, "surrogate")
    other = hessian_mismatch(UNEVEN, 50, 20, 100, 4.0, 0.2, "surrogate")
    assert one == pytest.approx(other, rel=1e-15)
    assert one > 0.0


@pytest.mark.parametrize(
    ("n", "m", "s"),
    [
        (100, 20, 5),  # only the surrogate's factor is negative
        (5, 20, 100),  # only the source's
        (5, 20, 5),  # both, so that their product looks fine
        (20, 20, 100),  # exactly zero
        (100, 20, 20),
    ],
)
def test_surrogate_term_is_infinite_where_a_factor_is_not_positive(n, m, s):
    assert hessian_mismatch(ONES, n, m, s, 1.0, 0.1, "surrogate") == math.inf
    assert (
        paper_bound(ONES, n_source=n, n_forget=m, n_surrogate=s, gradient_norm=1.0, tv=0.1, sizes="surrogate").radius
        == math.inf
    )


def test_surrogate_term_is_finite_just_inside_and_infinite_at_the_source_sizes_edge():
    assert hessian_mismatch(ONES, 21, 20, 21, 1.0, 0.5, "surrogate") == pytest.approx(420.0)  # 20 * 21 / 1
    assert hessian_mismatch(ONES, 21, 20, 5, 1.0, 0.5, "source") == pytest.approx(420.0)
    assert hessian_mismatch(ONES, 20, 20, 100, 1.0, 0.5, "source") == math.inf
    assert hessian_mismatch(ONES, 5, 20, 100, 1.0, 0.5, "source") == math.inf


@REPRODUCIBLE
@given(
    constants=constants_of,
    n=sizes_of,
    m=st.integers(min_value=1, max_value=1000),
    s=sizes_of,
    gradient=small,
    tv=st.floats(min_value=0.0, max_value=1.0),
    sizes=st.sampled_from(SIZE_CONVENTIONS),
)
def test_surrogate_term_against_fractions(constants, n, m, s, gradient, tv, sizes):
    truth = naive_mismatch(constants, n, m, s, gradient, tv, sizes)
    effective = n if sizes == "source" else s
    margin = min(abs(size * constants.strong_convexity - m * constants.smoothness) for size in (n, effective))
    if margin > 1e-6 * max(n, effective):
        assert hessian_mismatch(constants, n, m, s, gradient, tv, sizes) == pytest.approx(float(truth), rel=1e-8)


def test_no_pair_of_discrete_curvatures_moves_the_step_further():
    rng = np.random.default_rng(42)
    closest = 0.0
    for _ in range(1000):
        alpha = float(rng.uniform(0.2, 1.0))
        beta = alpha * float(rng.uniform(1.0, 3.0))
        n, s = int(rng.integers(50, 500)), int(rng.integers(50, 500))
        m = int(rng.integers(1, 1 + int(0.8 * min(n, s) * alpha / beta)))
        curvature = rng.uniform(alpha, beta, size=6)
        source, surrogate = rng.dirichlet(np.full(6, 0.5)), rng.dirichlet(np.full(6, 0.5))
        forget = float(rng.uniform(alpha, beta))
        gradient = float(rng.normal())
        tv = 0.5 * float(np.abs(source - surrogate).sum())
        for sizes, size in [("source", n), ("surrogate", s)]:
            exact = m * gradient / (n * float(source @ curvature) - m * forget)
            used = m * gradient / (size * float(surrogate @ curvature) - m * forget)
            bound = hessian_mismatch(PaperConstants(alpha, beta, 1.0, 1.0), n, m, s, abs(gradient), tv, sizes)
            assert abs(exact - used) <= bound * (1 + 1e-12)
            closest = max(closest, abs(exact - used) / bound if bound else 0.0)
    assert closest > 0.5


# Both together -------------------------------------------------------------------------------------------------


def test_bound_is_the_sum_of_its_two_terms():
    bound = paper_bound(UNEVEN, n_source=100, n_forget=20, n_surrogate=50, gradient_norm=4.0, tv=0.2, sizes="surrogate")
    assert dict(bound.terms) == pytest.approx({"newton": 1.75, "surrogate": 3.0})
    assert bound.radius == pytest.approx(4.75, rel=1e-8)


def test_the_source_size_is_the_default_convention():
    given = {"n_source": 100, "n_forget": 20, "n_surrogate": 50, "gradient_norm": 4.0, "tv": 0.2}
    assert paper_bound(UNEVEN, **given) == paper_bound(UNEVEN, **given, sizes="source")
    assert paper_bound(UNEVEN, **given) != paper_bound(UNEVEN, **given, sizes="surrogate")


def test_kullback_leibler_enters_through_bretagnolle_and_huber():
    given = {"n_source": 100, "n_forget": 20, "n_surrogate": 50, "gradient_norm": 4.0}
    by_kl = paper_bound(UNEVEN, **given, kl=math.log(4.0 / 3.0))
    assert by_kl.terms["surrogate"] == pytest.approx(paper_bound(UNEVEN, **given, tv=0.5).terms["surrogate"], rel=1e-12)
    assert by_kl.terms["newton"] == pytest.approx(1.75)
    assert paper_bound(UNEVEN, **given, kl=0.0) == paper_bound(UNEVEN, **given, tv=0.0)


@pytest.mark.parametrize("distances", [{}, {"tv": 0.1, "kl": 0.1}, {"tv": 0.0, "kl": 0.0}])
def test_exactly_one_distance_must_be_given(distances):
    with pytest.raises(ValueError, match="exactly one of tv and kl"):
        paper_bound(UNEVEN, n_source=100, n_forget=20, n_surrogate=50, gradient_norm=4.0, **distances)


@REPRODUCIBLE
@given(
    constants=constants_of,
    gradient=small,
    tv=st.floats(min_value=0.0, max_value=0.9),
    kl=st.floats(min_value=0.0, max_value=20.0),
)
def test_bound_grows_with_distance_and_gradient(constants, gradient, tv, kl):
    given = {"n_source": 10**6, "n_forget": 10, "n_surrogate": 10**5}
    here = paper_bound(constants, **given, gradient_norm=gradient, tv=tv).radius
    assert math.isfinite(here)
    assert paper_bound(constants, **given, gradient_norm=gradient, tv=tv + 0.1).radius > here
    assert paper_bound(constants, **given, gradient_norm=2 * gradient, tv=tv).radius >= here
    by_kl = paper_bound(constants, **given, gradient_norm=gradient, kl=kl).radius
    assert by_kl == pytest.approx(
        paper_bound(constants, **given, gradient_norm=gradient, tv=math.sqrt(1.0 - math.exp(-kl))).radius, rel=1e-6
    )


# What the paper's text gets wrong beside its bound --------------------------------------------------------------


def test_donsker_varadhan_approaches_kl_from_below():
    rng = np.random.default_rng(3)
    for _ in range(50):
        p, q = rng.dirichlet(np.ones(8), size=2)
        kl = float((p * np.log(p / q)).sum())
        for _ in range(20):
            t = rng.normal(scale=2.0, size=8)
            assert p @ t - np.log(q @ np.exp(t)) <= kl + 1e-12
        best = np.log(p / q)
        assert p @ best - np.log(q @ np.exp(best)) == pytest.approx(kl, rel=1e-12)


def test_the_energy_of_a_linear_head_has_no_finite_integral():
    # in one dimension with weights (1, -2) the integral over [-r, r] is e^r - e^-r + (e^2r - e^-2r)/2: it grows with r
    for r in (1.0, 2.0, 4.0):
        x = np.linspace(-r, r, 200_001)
        found = np.trapezoid(np.exp(np.logaddexp(x, -2.0 * x)), x)
        assert found == pytest.approx(2.0 * np.sinh(r) + np.sinh(2.0 * r), rel=1e-6)
        assert found > np.exp(2.0 * r) / 3.0


def test_the_printed_covariance_is_none_and_the_meant_one_is():
    d, ones = 50, np.ones((50, 50))
    for zeta in (0.02, 0.1):
        printed = zeta * ones - (zeta + 1.0) * np.eye(d)
        assert np.allclose(np.diag(printed), -1.0)
        assert np.linalg.eigvalsh(printed)[0] < 0
        meant = (1.0 - zeta) * np.eye(d) + zeta * ones
        assert np.linalg.eigvalsh(meant) == pytest.approx([1.0 - zeta] * (d - 1) + [1.0 + (d - 1) * zeta], rel=1e-12)
