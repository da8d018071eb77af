"""Surrogate rows beside a deposit against the truth: every inequality, and the region as often as is said."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from beside_problems import FAMILIES, Problem, random_problem
from expunge.bounds.deposit import RANGE, remainder
from expunge.bounds.deposit_surrogate import Beside, beside_terms, sigmoid_bend, softmax_bend
from expunge.deposit.bending import Bending, bending
from expunge.deposit.beside import (
    MEASURED,
    Tried,
    beside_of,
    found_beside,
    radius_with,
    region_of,
    require_seen,
)
from expunge.deposit.beside import smallest_beside as smallest
from expunge.deposit.blocks import Norm
from expunge.deposit.routes import Routes, found
from expunge.deposit.solving import Solved, solved
from expunge.deposit.sums import is_joint
from expunge.errors import VacuousClaim
from expunge.heads import Rows

SEEDS = 24
FAILURE = 0.2


def routes_of(problem: Problem) -> tuple[Routes, Solved]:
    retained = problem.retained
    solution = solved(problem.setting, problem.head, retained.sums, problem.penalty, problem.asked.rows)
    assert solution is not None
    lost = solution.bends.mean_error
    return (
        Routes(
            problem.setting,
            retained.sums,
            problem.penalty,
            retained.shape,
            solution.update,
            solution.left,
            solution.system,
            lost,
        ),
        solution,
    )


def halves(bends: Bending, norm: Norm) -> torch.Tensor:
    """`M^-1/2 psi` of every row."""
    made = []
    for block, values in bends.pieces():
        psi = values[:, :, None] * block.features[:, None, :]
        made += [
            torch.linalg.solve_triangular(norm.factor, norm.matrix.vectors(each)[..., None], upper=False).reshape(-1)
            for each in psi
        ]
    return torch.stack(made)


def problems(family: str, count: int) -> list[Problem]:
    made = (random_problem(family, seed, failure=FAILURE) for seed in range(count))
    return [problem for problem in made if problem is not None]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_said_of_retained_rows_holds_for_all_of_them(family: str) -> None:
    """Each row, any few of them together, and all of them: no chance has a part in it."""
    for problem in problems(family, 6):
        routes, solution = routes_of(problem)
        kept = bending(problem.head, problem.setting.anchor, solution.update, problem.kept)
        for facts, norm in routes.tried():
            if norm is None:
                continue
            beside = beside_of(routes, facts, norm, solution, problem.asked)
            vectors, tiny = halves(kept, norm), 3.0 * kept.row_error / math.sqrt(norm.least)
            order = vectors.norm(dim=1).sort(descending=True)
            assert float(order.values[0]) <= beside.each * (1 + 1e-9) + tiny
            for count in (1, 3, 10, 50):
                together = float(vectors[order.indices[:count]].sum(dim=0).norm()) / len(vectors)
                assert together <= beside.together * math.sqrt(count / len(vectors)) * (1 + 1e-9) + tiny
                assert together <= remainder(facts) * (1 + 1e-9) + tiny
            assert float(vectors.mean(dim=0).norm()) <= remainder(facts) * (1 + 1e-9) + tiny


@pytest.mark.parametrize("family", FAMILIES)
def test_a_certificate_can_tell_from_the_reach_how_little_rows_may_bend_at_most(family: str) -> None:
    """What verify holds against `change_supremum` and `change_each` is true of every honest one."""
    for problem in problems(family, 6):
        routes, solution = routes_of(problem)
        joint, bound = is_joint(problem.head), problem.head.row_bound
        for facts, norm in routes.tried():
            if norm is None:
                continue
            beside = beside_of(routes, facts, norm, solution, problem.asked)
            pairs = math.sqrt(2.0) if joint else 1.0
            least = (softmax_bend if joint else sigmoid_bend)(facts.reach, facts.reach / pairs)
            largest = (0.5 if joint else 0.25) * bound**2 + problem.penalty.l2
            assert least * bound / math.sqrt(largest) <= beside.moments.change_supremum * (1 + 1e-9)
            if facts.route == RANGE:
                least_each = min(least * facts.concordance / pairs, beside.moments.change_supremum)
                assert least_each <= beside.each * (1 + 1e-9)
                assert facts.curvature_ratio >= math.exp(facts.reach)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_region_and_the_deviation_are_exceeded_no_more_often_than_is_said(family: str) -> None:
    regions, deviations, outside, exceeded = 0, 0, 0, 0
    for problem in problems(family, SEEDS):
        result = found_beside(problem.retained, problem.asked)
        if result is None:
            continue
        step, solution = result.found, result.solved
        regions += 1
        outside += problem.off(step.update) > region_of(step, problem.asked.distance).radius * (1 + 1e-9) + 1e-10
        assert step.beside is not None
        assert solution.update.equal(step.update)
        routes, _ = routes_of(problem)
        for facts, norm in routes.tried():
            if norm is not None and replace(facts, solver=step.facts.solver) == step.facts:
                kept = bending(problem.head, problem.setting.anchor, step.update, problem.kept)
                off = norm.dual(kept.mean - solution.bends.mean)
                deviations += 1
                exceeded += off > math.fsum(beside_terms(facts, step.beside, problem.asked.distance).values())
    assert regions >= SEEDS // 3
    assert deviations == regions
    assert outside <= FAILURE * regions
    assert exceeded <= FAILURE * deviations


def test_the_smallest_of_the_measured_routes_is_taken() -> None:
    taken = 0
    for problem in problems("gaussian", 12):
        routes, solution = routes_of(problem)
        best = smallest(routes, solution, problem.asked)
        every = []
        for facts, norm in routes.tried():
            if norm is not None:
                beside = beside_of(routes, facts, norm, solution, problem.asked)
                second = math.fsum(beside_terms(facts, beside, problem.asked.distance).values())
                every.append(radius_with(facts, second))
        if best is None:
            assert not math.isfinite(min(every))
            continue
        taken += 1
        assert best.tried <= MEASURED
        assert min(every) <= best.radius <= 1.1 * min(every)
    assert taken > 6


def test_surrogate_rows_help_where_many_go_and_rows_are_tame() -> None:
    smaller = 0
    for problem in problems("gaussian", SEEDS):
        retained = problem.retained
        alone = found(problem.setting, retained.sums, problem.penalty, retained.shape)
        result = found_beside(retained, problem.asked)
        alone_radius = math.inf if alone is None else region_of(alone, problem.asked.distance).radius
        if result is not None:
            smaller += region_of(result.found, problem.asked.distance).radius < alone_radius
    assert smaller > SEEDS // 2


def test_quadratic_losses_do_not_bend() -> None:
    problem = problems("gaussian", 1)[0]
    retained = problem.retained
    retained.setting = replace(retained.setting, quadratic=True)
    assert found_beside(retained, problem.asked) is None


def test_what_was_seen_is_not_all_there_is_where_a_forget_row_shows_more() -> None:
    problem = problems("gaussian", 1)[0]
    answer = found_beside(problem.retained, problem.asked)
    assert answer is not None
    best = answer.best
    require_seen(problem.retained, answer, _like(problem.asked.rows))
    far = Rows(problem.forget.features * 100.0, problem.forget.labels)
    with pytest.raises(VacuousClaim, match="a forget row's gradient bends by"):
        require_seen(problem.retained, answer, far)
    little = replace(best.beside.moments, change_longest=0.0)
    short = Tried(best.facts, best.norm, Beside(little, best.beside.each, best.beside.together), best.second, 1)
    with pytest.raises(VacuousClaim):
        require_seen(problem.retained, replace(answer, best=short), problem.forget)


def _like(rows: object) -> Rows:
    assert isinstance(rows, Rows)
    return Rows(rows.features[:5], rows.labels[:5])
