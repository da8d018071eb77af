"""Every inequality between a deposit and the retrained weights, each beside a dense reference; and the traps on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deposit_problems import LONG, Problem, centring, drawn, gradient, hessian, slopes, whole
from expunge.bounds.deposit import (
    EXACT,
    LONG_ROWS,
    PLAIN,
    RANGE,
    THIRD,
    DepositFacts,
    bend,
    deposit_bound,
    radius_in_route,
    remainder,
)
from expunge.deposit import region
from expunge.deposit.matrices import Blocks
from expunge.deposit.region import (
    Penalty,
    RetainedProblem,
    Routes,
    Setting,
    difference,
    regions,
    smallest_region,
)
from expunge.deposit.sums import Sums
from expunge.errors import ModelError
from expunge.runtime import arrays as engine

pytestmark = pytest.mark.usefixtures("one_thread")
Array = Any
REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=30)
CURVED = ("softmax", "logistic", "one-vs-rest")
problems = st.builds(
    drawn,
    st.integers(0, 10_000),
    st.sampled_from(CURVED),
    n=st.integers(15, 90),
    width=st.integers(1, 4),
    classes=st.integers(2, 4),
    l2=st.sampled_from([1e-4, 1e-2, 1.0]),
    free=st.booleans(),
    fixed_c=st.booleans(),
    tails=st.sampled_from([2.0, 50.0]),
    steps=st.sampled_from([1, 3, 200]),
)


# A route with the matrix it measured by ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Route:
    """What a route said, beside the problem it is about and the matrix M that it used."""

    problem: Problem
    kept: Array
    update: Array
    facts: DepositFacts
    matrix: Array | None

    @property
    def rows(self) -> Array:
        return self.problem.X[self.kept]

    @property
    def updated(self) -> Array:
        return self.problem.anchor.astype(LONG) + self.update.astype(LONG)

    def hessian_at(self, weights: Array, shares: Array | None = None) -> Array:
        return hessian(weights, self.rows, self.problem.loss, shares)

    @property
    def regulariser(self) -> Array:
        return np.diag(self.problem.diagonal(len(self.kept)).reshape(-1)).astype(LONG)

    @property
    def left_over(self) -> Array:
        """E_R[psi_u], in longer numbers."""
        problem, y = self.problem, self.problem.y[self.kept]
        bent = gradient(self.updated, self.rows, y, problem.loss) - gradient(problem.anchor, self.rows, y, problem.loss)
        return bent.reshape(-1) - self.hessian_at(problem.anchor) @ self.update.astype(LONG).reshape(-1)

    def ranges(self, direction: Array) -> Array:
        """The range of `e x` for every retained row."""
        outputs = self.rows.astype(LONG) @ direction.astype(LONG).T
        return outputs.max(axis=1) - outputs.min(axis=1) if self.problem.softmax else np.abs(outputs).max(axis=1)

    def gauge_squares(self, index: int) -> Array:
        factor = engine.to_numpy(self.problem.gauges[index].factor).astype(LONG)
        return ((np.linalg.inv(factor.astype(float)).astype(LONG) @ self.rows.T) ** 2).sum(axis=0)

    @property
    def gauge(self) -> int:
        """Which gauge gave r."""
        lengths = [
            max(float(gauge.length(pair[None]).item()) for pair in pairs_of(self.problem, self.update))
            for gauge in self.problem.gauges
        ]
        return int(np.argmin([abs(length - self.facts.gauge) for length in lengths]))


def pairs_of(problem: Problem, weights: Array) -> list[Array]:
    """Differences of classes that compete, or the classes themselves."""
    if not problem.softmax:
        return list(weights)
    return [weights[j] - weights[k] for j, k in permutations(range(len(weights)), 2)]


def retained(problem: Problem, m: int) -> tuple[Array, Sums]:
    """The rows that stay when the first go, and their sums."""
    return np.arange(m, problem.n), problem.sums.without(problem.of(np.arange(m)))


def given_of(problem: Problem, sums: Sums, setting: Setting | None = None) -> RetainedProblem:
    return RetainedProblem(setting or problem.setting, sums, problem.penalty(sums.count), problem.shape)


def linear(given: RetainedProblem) -> Routes:
    return Routes(given, given.linear_step, given.left(given.linear_step))


def work_of(problem: Problem, m: int, spoilt: float = 0.0, seed: int = 0) -> tuple[Routes, Array]:
    kept, sums = retained(problem, m)
    given = given_of(problem, sums)
    assert given.solvable
    update = given.linear_step
    if spoilt:
        noise = (np.random.default_rng(seed).normal(size=update.shape)) * spoilt * engine.norm(update)
        update = update + problem.setting.centred(noise)
    return Routes(given, update, given.left(update)), kept


def facts_of(work: Routes) -> list[DepositFacts]:
    return [facts for facts, _ in work.measurements() if math.isfinite(facts.size)]


def routes_of(problem: Problem, m: int, spoilt: float = 0.0) -> list[Route]:
    """Every route with a finite radius, with the matrix that it used."""
    try:
        work, kept = work_of(problem, m, spoilt)
    except (ModelError, AssertionError):
        return []
    return [
        Route(
            problem,
            kept,
            engine.to_numpy(work.update),
            facts,
            None if M is None else whole(engine.to_numpy(M.values), problem),
        )
        for facts, M in work.measurements()
        if math.isfinite(facts.size)
    ]


def least_eigenvalue(matrix: Array) -> float:
    return float(np.linalg.eigvalsh(matrix.astype(np.float64))[0])


def ratio(matrix: Array, other: Array) -> float:
    """`lambda_max(M^-1 A)`."""
    inverse = np.linalg.inv(np.linalg.cholesky(matrix.astype(np.float64)))
    return float(np.linalg.eigvalsh(inverse @ other.astype(np.float64) @ inverse.T)[-1])


def length_by(matrix: Array, vector: Array) -> float:
    return math.sqrt(max(0.0, float(vector @ (matrix @ vector))))


def dual_by(matrix: Array, vector: Array) -> float:
    return math.sqrt(float(vector @ np.linalg.solve(matrix.astype(np.float64), vector.astype(np.float64))))


CASES = [
    drawn(seed, loss, n=70, l2=l2, free=free, fixed_c=seed % 2 == 0, tails=3.0, width=3, steps=200 if seed % 3 else 3)
    for seed, (loss, l2, free) in enumerate(
        (loss, l2, free) for loss in CURVED for l2 in (1e-3, 0.1, 1.0) for free in (False, True)
    )
]


@cache
def every() -> list[Route]:
    """Routes of all cases, for few and for many rows, and for updates that were spoilt."""
    whole_steps = [route for problem in CASES for m in (1, 4, 20) for route in routes_of(problem, m)]
    return whole_steps + [route for problem in CASES for route in routes_of(problem, 2, spoilt=0.3)]


@cache
def by_one_matrix() -> list[Route]:
    """The same as for many weights: one matrix for both routes, of which one or two eigenvalues are proved."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(region, "MANY", 0)
        made = [route for problem in CASES for m in (1, 4, 20) for route in routes_of(problem, m)]
    return [route for route in made if route.matrix is not None]


def test_the_cases_below_are_of_every_kind() -> None:
    for loss in CURVED:
        for kind in (RANGE, LONG_ROWS):
            made = [route for route in by_one_matrix() if route.facts.route == kind and route.problem.loss == loss]
            assert len(made) >= 4, (loss, kind)
    assert len(every()) > 120
    for loss in CURVED:
        for kind in (RANGE, LONG_ROWS, PLAIN):
            assert sum(route.facts.route == kind and route.problem.loss == loss for route in every()) >= 4, (loss, kind)


# Self-concordance --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", CURVED)
def test_along_the_update_a_row_s_hessian_changes_by_at_most_e_to_its_range(loss: str) -> None:
    """`e^-R h(w) <= h(w+u) <= e^R h(w)`, row by row; for two classes nearly attained."""
    rng = np.random.default_rng(0)
    closest = math.inf
    for _ in range(200):
        classes = 1 if loss == "logistic" else int(rng.integers(2, 6))
        W, x = rng.normal(size=(classes, 3)) * 3, rng.normal(size=(1, 3))
        u = rng.normal(size=(classes, 3)) * 10 ** rng.uniform(-2, 0.5)
        outputs = (u @ x[0]).astype(float)
        R = np.ptp(outputs) if loss == "softmax" else np.abs(outputs).max()
        before, after = slopes(W, x, loss)[0].astype(float), slopes(W + u, x, loss)[0].astype(float)
        slack = 1e-14 * np.trace(math.exp(R) * before + after)
        assert least_eigenvalue(after - math.exp(-R) * before) >= -slack
        assert least_eigenvalue(math.exp(R) * before - after) >= -slack
        closest = min(closest, abs(R - abs(math.log(np.trace(after) / np.trace(before)))) / R)
    assert closest < 0.1


@given(problems, st.integers(0, 1000))
@REPRODUCIBLE
def test_what_the_gradient_bends_is_at_most_phi_of_the_range(problem: Problem, seed: int) -> None:
    """`|q . E psi_u| <= phi(R) ||q||_H ||u||_H` for every q, R the largest range over the rows."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=problem.anchor.shape) * 10 ** rng.uniform(-3, 0) / problem.row_bound
    route = Route(problem, np.arange(problem.n), u, DepositFacts(RANGE, 0.0, 0.0, 1.0), None)
    H, bent = route.hessian_at(problem.anchor), route.left_over
    R = float(route.ranges(u).max())
    for _ in range(5):
        q = rng.normal(size=u.size)
        allowed = bend(R) * length_by(H, q) * length_by(H, u.reshape(-1))
        assert abs(float(q @ bent)) <= allowed * (1 + 1e-9) + 1e-17 * problem.row_bound


# What is measured of the update ---------------------------------------------------------------------------------------------------


def test_no_row_s_range_exceeds_the_reach() -> None:
    for route in every():
        R = float(route.ranges(route.update).max())
        assert route.facts.reach >= R
        tightest = [
            problem_reach(route),
            *(g.kappa * gauge_length(route, i) for i, g in enumerate(route.problem.gauges)),
        ]
        assert route.facts.reach == pytest.approx(min(tightest), rel=1e-6, abs=0.0)


def problem_reach(route: Route) -> float:
    return route.problem.row_bound * max(float(np.linalg.norm(pair)) for pair in pairs_of(route.problem, route.update))


def gauge_length(route: Route, index: int) -> float:
    gauge = route.problem.gauges[index]
    lengths = gauge.length(np.stack(pairs_of(route.problem, route.update)))
    return float(lengths.max())


def test_the_update_s_lengths_are_those_by_the_retained_rows() -> None:
    for route in every():
        shares = route.gauge_squares(route.gauge) if route.facts.route == LONG_ROWS else None
        true = length_by(route.hessian_at(route.problem.anchor, shares), route.update.astype(LONG).reshape(-1))
        assert route.facts.update_curved >= true
        assert route.facts.update_curved <= true * (1 + 1e-4) + 1e-6 * float(np.linalg.norm(route.update))
        if route.facts.route == LONG_ROWS:
            assert route.facts.gauge == pytest.approx(gauge_length(route, route.gauge), rel=1e-8, abs=0.0)


# Matrices -------------------------------------------------------------------------------------------------------------------------


def test_the_matrix_is_at_most_the_hessian_at_the_updated_weights() -> None:
    """Both `e^-R H' + reg` and `(1 - a/2) H' - (r^2/2a) H_2' + reg`; among weights whose classes sum to zero for softmax."""
    closest = {RANGE: math.inf, LONG_ROWS: math.inf}
    for route in (*every(), *by_one_matrix()):
        if route.matrix is None:
            continue
        at, P = route.hessian_at(route.updated) + route.regulariser, centring(route.problem)
        room = least_eigenvalue(P @ (at - route.matrix) @ P)
        assert room >= -1e-13 * np.trace(at)
        closest[route.facts.route] = min(closest[route.facts.route], room / least_eigenvalue(at + np.eye(len(P)) - P))
    assert all(value < 0.05 for value in closest.values())


def adverse(problem: Problem, m: int, error: float) -> tuple[Array, Sums]:
    """Sums that are off by nearly as much as they say, in the direction that flatters."""
    kept, sums = retained(problem, m)
    worse = replace(
        sums,
        curvature=sums.curvature.plus(0.999 * error),
        curvature_error=sums.curvature_error + error,
        weighted=tuple(each.plus(-0.999 * error) for each in sums.weighted),
        weighted_errors=tuple(each + error for each in sums.weighted_errors),
    )
    return kept, worse


@pytest.mark.parametrize("loss", [*CURVED, "ridge"])
def test_what_the_sums_may_be_off_by_is_taken_off_the_matrix(loss: str) -> None:
    """The trap: an H' that is off, with its error not subtracted, gives a matrix above the true Hessian."""
    problem = drawn(1, loss, n=60, l2=0.05, tails=50.0)
    kept, sums = adverse(problem, 3, 0.01)
    work = linear(given_of(problem, sums))
    made = [(facts, norm) for facts, norm in work.measurements() if math.isfinite(facts.size)]
    assert made
    update = engine.to_numpy(work.update)
    v = problem.anchor + update
    at = hessian(v, problem.X[kept], loss) + np.diag(problem.diagonal(len(kept)).reshape(-1))
    P = centring(problem)
    for _, norm in made:
        if norm is not None:
            M = whole(engine.to_numpy(norm.values), problem)
            assert least_eigenvalue(P @ (at - M) @ P) >= -1e-13 * np.trace(at)
    true_H = hessian(problem.anchor, problem.X[kept], loss)
    u = update.astype(LONG).reshape(-1)
    for facts, norm in made:
        if facts.route in (RANGE, PLAIN):
            assert facts.update_curved >= length_by(true_H, u)
        if facts.route == RANGE:  # e^{R/2} stands for the root of lambda_max(M^-1 H')
            M = whole(engine.to_numpy(norm.values), problem)
            allowed = bend(facts.reach) * math.exp(facts.reach / 2) * facts.update_curved
            assert allowed >= bend(facts.reach) * math.sqrt(ratio(M, true_H)) * length_by(true_H, u) * (1 - 1e-12)
    W, uncertain = problem.retrained(kept, v)
    for facts, _ in made:
        assert problem.length(W - v) - uncertain <= deposit_bound(facts).radius


def test_ratios_are_upper_bounds_and_close() -> None:
    for route in every():
        facts, problem = route.facts, route.problem
        shape = whole(engine.to_numpy(problem.shape @ problem.shape.mT), problem)
        M = np.eye(len(shape), dtype=LONG) if route.matrix is None else route.matrix
        seen = shape if route.matrix is None else centring(problem) @ shape @ centring(problem)
        pairs = [(facts.shape_ratio, ratio(M, seen))]
        if facts.route in (LONG_ROWS, PLAIN):
            pairs.append((facts.curvature_ratio, ratio(M, route.hessian_at(problem.anchor))))
        if facts.route == LONG_ROWS:
            weighted = route.hessian_at(problem.anchor, route.gauge_squares(route.gauge))
            pairs += [(facts.weight_ratio, ratio(M, weighted)), (facts.spread, spread(route))]
        for stated, true in pairs:
            assert true <= stated * (1 + 1e-12)
            assert stated <= 1.03 * true + 1e-6


def test_what_one_matrix_says_for_both_routes_is_above_the_truth() -> None:
    """Not close, since the gauges are measured by the noise's shape; but a region is hardly larger than by its own."""
    for route in by_one_matrix():
        facts, problem, M = route.facts, route.problem, route.matrix
        shape = whole(engine.to_numpy(problem.shape @ problem.shape.mT), problem)
        true = ratio(M, centring(problem) @ shape @ centring(problem))
        assert true * (1 - 1e-12) <= facts.shape_ratio <= 1.03 * true
        assert ratio(M, route.hessian_at(problem.anchor)) <= facts.curvature_ratio
        if facts.route == LONG_ROWS:
            weighted = route.hessian_at(problem.anchor, route.gauge_squares(route.gauge))
            assert ratio(M, weighted) <= facts.weight_ratio
            assert spread(route) <= facts.spread
    with pytest.MonkeyPatch.context() as patched:
        for problem in CASES:
            given = given_of(problem, replace(retained(problem, 1)[1], third=None))
            patched.setattr(region, "MANY", 1500)
            each = smallest_region(given)
            patched.setattr(region, "MANY", 0)
            one = smallest_region(given)
            if each is not None and each.facts.reach < 0.2:
                assert one is not None
                assert one.facts.size < 1.25 * each.facts.size


def spread(route: Route) -> float:
    """`2 lambda_max(M^-1 (centred x Q))`, or the largest over the blocks without the 2."""
    factor = engine.to_numpy(route.problem.gauges[route.gauge].factor)
    rows, Q = len(route.problem.anchor), factor @ factor.T
    assert route.matrix is not None
    if not route.problem.softmax:
        return ratio(route.matrix, np.kron(np.eye(rows), Q))
    return 2.0 * ratio(route.matrix, np.kron(np.eye(rows) - 1.0 / rows, Q))


def test_the_spread_bounds_every_difference_of_classes() -> None:
    """tau^2: the largest `||e_j - e_k||_Q^2` for an e of length 1 in M, whichever classes they are."""
    attained = 0.0
    for route in every():
        if route.facts.route != LONG_ROWS:
            continue
        factor = engine.to_numpy(route.problem.gauges[route.gauge].factor)
        Q, rows = factor @ factor.T, len(route.problem.anchor)
        unit = np.eye(rows)
        for pair in pairs_of(route.problem, unit):
            share = ratio(route.matrix, np.kron(np.outer(pair, pair), Q))
            assert share <= route.facts.spread
            attained = max(attained, share / route.facts.spread)
    assert attained > 0.97


def test_the_concordance_bounds_every_range() -> None:
    """c: the largest range of `e x` over rows for an e of length 1 in M is the dual length of `(1_j - 1_k) x`."""
    attained = 0.0
    for route in (*every(), *by_one_matrix()):
        if route.facts.route not in (RANGE, LONG_ROWS):
            continue
        M, rows = route.matrix.astype(np.float64), len(route.problem.anchor)
        for pair in pairs_of(route.problem, np.eye(rows)):
            outer = np.einsum("k,ni->nki", pair, route.problem.X).reshape(len(route.problem.X), -1)
            ranges = np.sqrt(np.einsum("np,np->n", outer, np.linalg.solve(M, outer.T).T))
            assert ranges.max() <= route.facts.concordance
            attained = max(attained, ranges.max() / route.facts.concordance)
    assert attained > 0.5


# What enters rho --------------------------------------------------------------------------------------------------------------------


def test_what_the_step_left_is_charged_in_the_dual_norm() -> None:
    for route in (*every(), *by_one_matrix()):
        problem, y = route.problem, route.problem.y[route.kept]
        g = gradient(problem.anchor, route.rows, y, problem.loss) + problem.diagonal(len(route.kept)) * problem.anchor
        linear = (route.hessian_at(problem.anchor) + route.regulariser) @ route.update.astype(LONG).reshape(-1)
        left = centring(problem) @ (g.reshape(-1) + linear).astype(np.float64)
        true = np.linalg.norm(left) if route.matrix is None else dual_by(route.matrix, left)
        assert true <= route.facts.solver + route.facts.rounding
        if not any(route is each for each in by_one_matrix()):
            assert route.facts.solver <= true * (1 + 1e-6) + route.facts.rounding


def test_what_the_gradient_bends_is_charged_in_the_norm_of_the_route() -> None:
    for route in (*every(), *by_one_matrix()):
        bent = (centring(route.problem) @ route.left_over).astype(np.float64)
        true = np.linalg.norm(bent) if route.matrix is None else dual_by(route.matrix, bent)
        assert true <= remainder(route.facts) * (1 + 1e-9) + 1e-17


def test_the_retrained_weights_are_inside_every_region() -> None:
    """In the norm of the route's own matrix, and in that of the noise's shape."""
    ratios = []
    for route in (*every(), *by_one_matrix()):
        v = engine.to_numpy(route.problem.anchor + route.update)
        W, uncertain = route.problem.retrained(route.kept, v)
        error = (W - v).reshape(-1)
        own = float(np.linalg.norm(error)) if route.matrix is None else length_by(route.matrix, error)
        away = route.problem.length(W - v)
        assert own * (1 - 1e-9) - 1e3 * uncertain <= radius_in_route(route.facts)
        assert away - uncertain <= deposit_bound(route.facts).radius
        ratios.append(deposit_bound(route.facts).radius / away)
    assert min(ratios) < 3.0


def test_quadratic_losses_are_exact_but_for_rounding() -> None:
    for seed in range(6):
        problem = drawn(seed, "ridge", n=50, l2=10.0**-seed, free=seed % 2 == 1, fixed_c=seed % 3 == 0)
        for m in (1, 10, 40):
            (route,) = routes_of(problem, m)
            assert route.facts.route == EXACT
            v = engine.to_numpy(problem.anchor + route.update)
            W, uncertain = problem.retrained(route.kept, v)
            radius = deposit_bound(route.facts).radius
            assert problem.length(W - v) - uncertain <= radius < 1e-7
            at = route.hessian_at(problem.anchor) + route.regulariser
            assert least_eigenvalue(at - route.matrix) >= -1e-15 * np.trace(at)


# Steps and settings ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [1500, 0])
@pytest.mark.parametrize("loss", [*CURVED, "ridge"])
def test_the_step_is_newton_s(loss: str, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many weights by rough factors, as exactly."""
    monkeypatch.setattr(region, "MANY", many)
    problem = drawn(4, loss, n=60, l2=0.02, free=True)
    kept, sums = retained(problem, 5)
    given = given_of(problem, sums)
    update, left = given.linear_step, given.left(given.linear_step)
    X, y = problem.X[kept], problem.y[kept]
    H = hessian(problem.anchor, X, loss).astype(float) + np.diag(problem.diagonal(len(kept)).reshape(-1))
    g = (gradient(problem.anchor, X, y, loss) + problem.diagonal(len(kept)) * problem.anchor).astype(float)
    expected = -np.linalg.lstsq(H, g.reshape(-1), rcond=1e-13)[0].reshape(g.shape)
    expected = expected - expected.mean(axis=0) if loss == "softmax" else expected
    assert engine.to_numpy(update) == pytest.approx(expected, rel=1e-7, abs=1e-10)
    assert float(engine.norm(left)) < 1e-14 * (1.0 + float(np.linalg.norm(g)))


def test_where_no_step_can_be_made_nothing_is_found() -> None:
    problem = drawn(0, "logistic", n=20, width=5)
    _, sums = retained(problem, 19)
    given = RetainedProblem(problem.setting, sums, Penalty(0.0, True), problem.shape)
    assert not given.solvable
    assert smallest_region(given) is None


def test_the_smallest_region_is_taken() -> None:
    for problem in CASES[::3]:
        sums = replace(retained(problem, 4)[1], third=None)
        made = smallest_region(given_of(problem, sums))
        finite = routes_of(problem, 4)
        if made is None:
            assert not finite
            continue
        assert made.facts.size == min(route.facts.size for route in finite)
        assert made.facts in [route.facts for route in finite]
        work, _ = work_of(problem, 4)
        assert made.residual == float(engine.norm(work.left_over))
        assert engine.equal(made.update, work.update)


def test_a_verifier_finds_the_route_that_is_stated_whatever_it_is() -> None:
    """Of both orders, by every gauge: also where rounding decided, and it was not the smallest."""
    third = 0
    for problem in CASES:
        given = given_of(problem, retained(problem, 4)[1])
        update, left, _ = given.third_order_step()
        candidates = regions(given, ties=True)
        for work in (linear(given), Routes(given, update, left, third=True)):
            for facts in facts_of(work):
                near = replace(facts, solver=facts.solver / 2.0, reach=facts.reach * (1.0 + 1e-9))
                found = min(candidates, key=lambda each: difference(each.facts, near))
                assert (found.facts.route, found.facts.kappa) == (facts.route, facts.kappa)
                assert found.facts.size == pytest.approx(facts.size, rel=1e-3)
                third += facts.route.endswith(THIRD)
    assert third > 20
    alike = DepositFacts(RANGE, 1e-3, 1e-6, 4.0, reach=0.1, update_curved=0.02, concordance=2.0, curvature_ratio=1.5)
    assert difference(alike, replace(alike, solver=7.0, l2=3.0)) == (False, 0.0, 0.0)
    assert difference(replace(alike, reach=0.11), alike)[2] == pytest.approx(0.01 / 0.11)
    assert difference(replace(alike, route=PLAIN), alike)[0] is True
    assert replace(alike, shape_ratio=9.0).size == pytest.approx(3.0 * radius_in_route(alike), rel=1e-15)


def test_an_update_far_beyond_what_e_to_the_range_can_hold_has_no_region_but_the_plain() -> None:
    problem = drawn(1, "softmax", l2=0.5)
    work, _ = work_of(problem, 2)
    for length in (700.0, 1e4):
        far = Routes(work.problem, work.update * length / float(engine.norm(work.update)), work.left_over)
        assert facts_of(far) == []
    assert Routes(work.problem, work.update * 1e9, work.left_over).solutions() == []


def test_the_plain_route_needs_every_weight_regularised() -> None:
    for free in (False, True):
        kinds = {route.facts.route for route in routes_of(drawn(2, "softmax", free=free), 2)}
        assert (PLAIN in kinds) is not free


# What float64 changes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("free", [False, True])
def test_weights_whose_classes_do_not_sum_to_zero_are_charged_for_it(free: bool) -> None:
    """The minimiser's do, but for a free intercept, whose common part nothing sees."""
    problem = drawn(3, "softmax", l2=0.05, free=free)
    shifted = replace(problem, anchor=problem.anchor + 1e-3 * np.array([1.0, -2.0, 0.5, 1.0, 5.0]))
    work, kept = work_of(shifted, 2)
    v = engine.to_numpy(shifted.anchor + work.update)
    W, uncertain = shifted.retrained(kept, v)
    if free:  # of all minimisers the one with v's own sum of intercepts
        W[:, -1] += (v[:, -1] - W[:, -1].astype(float)).mean()
    for facts in facts_of(work):
        assert shifted.length(W - v) - uncertain <= deposit_bound(facts).radius
    centred = work_of(problem, 2)[0]
    assert centred.displaced() < 1e-14
    common = 1e-3 * math.sqrt(3.0) * math.sqrt(1.0 + 4.0 + 0.25 + 1.0 + (0.0 if free else 25.0))
    assert work.displaced() == pytest.approx(common, rel=1e-6, abs=0.0)


def test_lengths_in_weak_directions_are_not_lost_to_rounding() -> None:
    """`u' H u` of a u that H hardly sees: its rounding is far above it, and is added."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    matrix = (axes * np.r_[np.ones(11), 1e-17]) @ axes.T
    blocks = Blocks((matrix + matrix.T)[None] / 2, True)
    problem = drawn(0, "softmax", width=3, classes=3)
    work, _ = work_of(problem, 1)
    weak = Routes(work.problem, axes[:, -1].reshape(3, 4).copy(), work.left_over)
    exact = engine.to_numpy(blocks.values[0]).astype(LONG)
    true = length_by(exact, axes[:, -1].astype(LONG))
    assert true <= weak.curved(blocks, 0.0) < 1e-6
    assert weak.curved(blocks, 1e-4) == pytest.approx(1e-2, rel=1e-3, abs=0.0)


# Traps ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["softmax", "logistic", "one-vs-rest"])
def test_what_copies_are_charged_does_not_pass_what_rows_can_be(loss: str) -> None:
    """`H_2` is at most `kappa^2 H`, and a variance a quarter of the squared range, however uncertain the sums are."""
    problem = drawn(2, loss, n=3000, l2=0.01)
    _, sums = retained(problem, 1)
    classes, seen = 1 if loss == "softmax" else len(problem.anchor), []
    for charge in (0.0, 1.0, 1e4):
        uncertain = replace(
            sums,
            curvature_error=sums.curvature_error + 1e-9 * charge,
            weighted_errors=tuple(error + charge for error in sums.weighted_errors),
        )
        given = given_of(problem, uncertain)
        step = given_of(problem, sums).linear_step
        for facts, _ in Routes(given, step, given.left(step)).measurements():
            widest = 0.5 * math.sqrt(classes) * facts.reach * (1 + 1e-6)
            if facts.route == LONG_ROWS:
                assert facts.weight_ratio <= facts.kappa**2 * facts.curvature_ratio * (1 + 1e-6)
                assert facts.update_curved <= facts.kappa * widest
                seen.append(charge)
            elif facts.route == RANGE:
                assert facts.update_curved <= math.sqrt(1.0 + region.MOST_MISSING) * widest
    assert set(seen) == {0.0, 1.0, 1e4}
