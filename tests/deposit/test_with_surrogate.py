"""Surrogate rows beside a deposit against the truth: every inequality, and the region as often as is said."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from beside_problems import FAMILIES, Problem, assembled, random_problem
from expunge.bounds.deposit import RANGE, remainder
from expunge.bounds.deposit_surrogate import sigmoid_bend, softmax_bend
from expunge.deposit.matrices import Norm
from expunge.deposit.region import smallest_region
from expunge.deposit.step import Penalty
from expunge.deposit.sums import is_joint, sums_of
from expunge.deposit.with_surrogate import (
    GradientRemainder,
    SurrogateStep,
    measure,
    region_of,
    remainder_of,
    smallest_with_surrogate,
    step_with_surrogate,
)
from expunge.distance import Distance
from expunge.errors import VacuousClaim
from expunge.heads import Rows, RowSet, head_for
from expunge.solve.linear import Ending

SEEDS = 24
FAILURE = 0.2


def step_of(problem: Problem, rows: RowSet | None = None) -> SurrogateStep:
    step = step_with_surrogate(problem.retained, problem.surrogate if rows is None else rows)
    assert step is not None
    return step


def halves(bends: GradientRemainder, norm: Norm) -> torch.Tensor:
    """`M^-1/2 psi` of every row."""
    made = []
    for block, values in bends.pieces():
        psi = values[:, :, None] * block.features[:, None, :]
        vectors = psi.reshape(len(psi), 1, -1) if norm.matrix.joint else psi
        made += [norm.half(each[..., None]).reshape(-1) for each in vectors]
    return torch.stack(made)


def problems(family: str, count: int) -> list[Problem]:
    made = (random_problem(family, seed, failure=FAILURE) for seed in range(count))
    return [problem for problem in made if problem is not None]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_said_of_retained_rows_holds_for_all_of_them(family: str) -> None:
    """Each row, any few of them together, and all of them: no chance has a part in it."""
    for problem in problems(family, 6):
        step = step_of(problem)
        kept = remainder_of(problem.head, problem.setting.anchor, step.update, problem.kept)
        for facts, norm in step.routes.measurements():
            if norm is None:
                continue
            beside = measure(step, facts, norm, problem.asked).known
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
        step = step_of(problem)
        joint, bound = is_joint(problem.head), problem.head.row_bound
        for facts, norm in step.routes.measurements():
            if norm is None:
                continue
            beside = measure(step, facts, norm, problem.asked).known
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
    regions, outside, exceeded = 0, 0, 0
    for problem in problems(family, SEEDS):
        result = smallest_with_surrogate(step_of(problem), problem.asked)
        if result is None:
            continue
        regions += 1
        solution = result.solution
        radius = region_of(solution, problem.asked.distance).radius
        assert radius == pytest.approx(result.radius, rel=1e-8)
        outside += problem.off(solution.update) > radius * (1 + 1e-9) + 1e-10
        kept = remainder_of(problem.head, problem.setting.anchor, solution.update, problem.kept)
        exceeded += result.norm.dual(kept.mean - result.step.remainder.mean) > result.second
    assert regions >= SEEDS // 3
    assert outside <= FAILURE * regions
    assert exceeded <= FAILURE * regions


def test_the_smallest_of_the_measured_routes_is_taken_or_the_one_that_is_stated() -> None:
    regions = 0
    for problem in problems("gaussian", 12):
        step = step_of(problem)
        best = smallest_with_surrogate(step, problem.asked)
        every = [measure(step, *each, problem.asked) for each in step.routes.measurements() if each[1] is not None]  # type: ignore[arg-type]
        smallest = min(each.radius for each in every)
        if best is None:
            assert not math.isfinite(smallest)
            continue
        regions += 1
        assert smallest <= best.radius <= 1.1 * smallest
        for each in every:
            stated = smallest_with_surrogate(step, problem.asked, like=each.facts)
            if math.isfinite(each.radius):
                assert stated is not None
                assert replace(stated.facts, solver=0.0) == replace(each.facts, solver=0.0)
    assert regions > 6


def test_surrogate_rows_help_where_many_go_and_rows_are_tame() -> None:
    smaller = 0
    for problem in problems("gaussian", SEEDS):
        alone = smallest_region(problem.retained.problem)
        result = smallest_with_surrogate(step_of(problem), problem.asked)
        alone_radius = math.inf if alone is None else region_of(alone, problem.asked.distance).radius
        smaller += result is not None and result.radius < alone_radius
    assert smaller > SEEDS // 2


def test_quadratic_losses_have_no_remainder() -> None:
    retained = problems("gaussian", 1)[0].retained
    retained.problem = replace(retained.problem, setting=replace(retained.problem.setting, quadratic=True))
    assert step_with_surrogate(retained, problems("gaussian", 1)[0].surrogate) is None


def test_what_was_seen_is_not_all_there_is_where_a_forget_row_shows_more() -> None:
    problem = problems("gaussian", 1)[0]
    best = smallest_with_surrogate(step_of(problem), problem.asked)
    assert best is not None
    best.require_seen(problem.retained, Rows(problem.surrogate.features[:5], problem.surrogate.labels[:5]))
    with pytest.raises(VacuousClaim, match="the remainder of a forget row's gradient is"):
        best.require_seen(problem.retained, Rows(problem.forget.features * 100.0, problem.forget.labels))
    moments = replace(best.known.moments, change_longest=0.0)
    with pytest.raises(VacuousClaim):
        replace(best, known=replace(best.known, moments=moments)).require_seen(problem.retained, problem.forget)


# The step -------------------------------------------------------------------------------------------------------------


def left_over(problem: Problem, step: SurrogateStep) -> torch.Tensor:
    """`g' + (H' + reg) u + E_S psi`, from gradients and a Hessian of their own."""
    given, S = problem.retained.problem, problem.surrogate
    anchor, sums = given.setting.anchor, given.sums
    gradient = sums.gradient + given.penalty.diagonal(anchor) * (anchor + step.update)
    before, after = (problem.head.gradient(at, S) for at in (anchor, anchor + step.update))
    linear = sums_of(problem.head, anchor, S).curvature.product(step.update)
    return given.setting.centred(gradient + sums.curvature.product(step.update) + after - before - linear)


@pytest.mark.parametrize("seed", range(8))
def test_next_to_nothing_is_left_and_it_is_what_is_said(seed: int) -> None:
    problem = random_problem("gaussian", seed)
    assert problem is not None
    step, system = step_of(problem), problem.retained.problem.system
    assert step.solved.ending is Ending.REACHED
    assert system.dual(step.routes.left_over) <= 1e-7 * system.dual(problem.retained.problem.gradient)
    assert torch.allclose(left_over(problem, step), step.routes.left_over, atol=1e-12)


def test_with_the_retained_rows_themselves_it_is_retraining() -> None:
    problem = random_problem("gaussian", 3)
    assert problem is not None
    assert problem.off(step_of(problem, problem.kept).update) < 1e-7


def test_with_an_indefinite_jacobian_the_step_is_still_safe() -> None:
    """Surrogate rows many times longer than the source's: along the update their Hessian falls by more than A is."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn((300, 2), dtype=torch.float64, generator=generator) * 0.2
    labels = (rows[:, 0] + 0.1 * torch.randn(300, dtype=torch.float64, generator=generator) > 0).long()
    labels[:60] = 1 - labels[:60]
    far = torch.randn((200, 2), dtype=torch.float64, generator=generator) * 6.0
    head = head_for("logistic", l2=0.0, n_classes=1, n_features=2, row_bound=30.0)
    surrogate = Rows(far, torch.zeros(200, dtype=torch.int64))
    problem = assembled(head, Rows(rows, labels), 60, surrogate, Distance("same", 0.0), penalty=Penalty(1e-3))
    assert problem is not None
    step, given = step_of(problem), problem.retained.problem
    assert given.system.dual(step.routes.left_over) <= given.system.dual(given.gradient)
    assert torch.allclose(left_over(problem, step), step.routes.left_over, atol=1e-12)


def test_a_system_that_is_not_definite_has_no_solution() -> None:
    problem = random_problem("one-hot", 1)
    assert problem is not None
    given = problem.retained.problem
    flat = replace(given.sums, curvature=given.sums.curvature.times(0.0))
    problem.retained.problem = replace(given, sums=flat, penalty=Penalty(0.0))
    assert step_with_surrogate(problem.retained, problem.surrogate) is None
