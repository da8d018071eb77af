"""Surrogate rows beside a deposit against the truth: every inequality, and the region as often as is said."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import block_diag

from beside_problems import FAMILIES, Problem, assembled, random_problem
from deposit_problems import noised_gauges
from expunge.bounds.deposit import RANGE, remainder, sigmoid_bend, softmax_bend
from expunge.deposit import with_surrogate as module
from expunge.deposit.matrices import Blocks, Norm
from expunge.deposit.region import Penalty
from expunge.deposit.sums import is_joint, sums_of
from expunge.deposit.with_surrogate import (
    GradientRemainder,
    SurrogateStep,
    measure,
    remainder_of,
    smallest_with_surrogate,
    step_with_surrogate,
)
from expunge.distance import Distance
from expunge.errors import VacuousClaim
from expunge.heads import Rows, RowSet, head_for
from expunge.runtime import arrays as engine
from expunge.solve.linear import Ending

SEEDS = 24
FAILURE = 0.2


def step_of(problem: Problem, rows: RowSet | None = None) -> SurrogateStep:
    step = step_with_surrogate(problem.retained, problem.surrogate if rows is None else rows)
    assert step is not None
    return step


def halves(bends: GradientRemainder, norm: Norm) -> np.ndarray:
    """`M^-1/2 psi` of every row."""
    made = []
    for block, values in bends.pieces():
        psi = values[:, :, None] * block.features[:, None, :]
        vectors = psi.reshape(len(psi), 1, -1) if norm.matrix.joint else psi
        made += [norm.half(each[..., None]).reshape(-1) for each in vectors]
    return np.stack(made)


def problems(family: str, count: int) -> list[Problem]:
    made = (random_problem(family, seed, failure=FAILURE) for seed in range(count))
    return [problem for problem in made if problem is not None]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_said_of_retained_rows_holds_for_all_of_them(family: str) -> None:
    """Each row, any few of them together, and all of them: no chance has a part in it."""
    for problem in problems(family, 3):
        step = step_of(problem)
        kept = remainder_of(problem.head, problem.setting.anchor, step.update, problem.kept)
        for facts, norm in step.routes.measurements():
            if norm is None:
                continue
            beside = measure(step, facts, norm, problem.asked).known
            vectors, tiny = halves(kept, norm), 3.0 * kept.row_error / math.sqrt(norm.least)
            lengths = np.linalg.norm(vectors, axis=1)
            order = np.argsort(-lengths, kind="stable")
            assert float(lengths[order[0]]) <= beside.each * (1 + 1e-9) + tiny
            for count in (1, 3, 10, 50):
                together = float(engine.norm(vectors[order[:count]].sum(axis=0))) / len(vectors)
                assert together <= beside.together * math.sqrt(count / len(vectors)) * (1 + 1e-9) + tiny
                assert together <= remainder(facts) * (1 + 1e-9) + tiny
            assert float(engine.norm(vectors.mean(axis=0))) <= remainder(facts) * (1 + 1e-9) + tiny


@pytest.mark.parametrize("family", FAMILIES)
def test_a_certificate_can_tell_from_the_reach_how_little_rows_may_bend_at_most(family: str) -> None:
    """What verify holds against `change_supremum` and `change_each` is true of every honest one."""
    for problem in problems(family, 3):
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


def test_the_smallest_of_the_measured_routes_is_taken_or_the_one_that_is_stated() -> None:
    regions = 0
    for problem in problems("gaussian", 6):
        step = step_of(problem)
        best = smallest_with_surrogate(step, problem.asked)
        every = [measure(step, *each, problem.asked) for each in step.routes.measurements() if each[1] is not None]  # type: ignore[arg-type]
        smallest = min(each.radius for each in every)
        if best is None:
            assert not math.isfinite(smallest)
            continue
        regions += 1
        assert smallest <= best.radius <= 1.001 * smallest
        for each in every:
            stated = smallest_with_surrogate(step, problem.asked, like=each.facts)
            if math.isfinite(each.radius):
                assert stated is not None
                assert replace(stated.facts, solver=0.0) == replace(each.facts, solver=0.0)
    assert regions > 3


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


def left_over(problem: Problem, step: SurrogateStep) -> np.ndarray:
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
    assert np.allclose(left_over(problem, step), step.routes.left_over, atol=1e-12)


def test_with_the_retained_rows_themselves_it_is_retraining() -> None:
    problem = random_problem("gaussian", 3)
    assert problem is not None
    assert problem.off(step_of(problem, problem.kept).update) < 1e-7


def test_with_an_indefinite_jacobian_the_step_is_still_safe() -> None:
    """Surrogate rows many times longer than the source's: along the update their Hessian falls by more than A is."""
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((300, 2)) * 0.2
    labels = (rows[:, 0] + 0.1 * generator.standard_normal(300) > 0).astype(np.int64)
    labels[:60] = 1 - labels[:60]
    far = generator.standard_normal((200, 2)) * 6.0
    head = head_for("logistic", l2=0.0, n_classes=1, n_features=2, row_bound=30.0)
    surrogate = Rows(far, np.zeros(200, dtype=np.int64))
    problem = assembled(head, Rows(rows, labels), 60, surrogate, Distance("same", 0.0), penalty=Penalty(1e-3))
    assert problem is not None
    step, given = step_of(problem), problem.retained.problem
    assert given.system.dual(step.routes.left_over) <= given.system.dual(given.gradient)
    assert np.allclose(left_over(problem, step), step.routes.left_over, atol=1e-12)


def test_a_system_that_is_not_definite_has_no_solution() -> None:
    problem = random_problem("one-hot", 1)
    assert problem is not None
    given = problem.retained.problem
    flat = replace(given.sums, curvature=given.sums.curvature.times(0.0))
    problem.retained.problem = replace(given, sums=flat, penalty=Penalty(0.0))
    assert step_with_surrogate(problem.retained, problem.surrogate) is None


# How rows bend along an update: naive dense references, float64's share, suprema that hold

CASES = [("softmax", 4), ("softmax", 2), ("one-vs-rest", 3), ("logistic", 1)]
WIDTH, ROWS, BOUND = 5, 120, 3.0


def example(loss: str, classes: int, *, weighted: bool = False, size: float = 0.3) -> GradientRemainder:
    generator = np.random.default_rng(classes)

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape)

    features = normal(ROWS, WIDTH)
    features *= np.minimum(BOUND / np.linalg.norm(features, axis=1), 1.0)[:, None]
    weights = np.exp(normal(ROWS)) if weighted else None
    if weights is not None:
        weights /= weights.mean()
    head = head_for(loss, l2=0.7, n_classes=classes, n_features=WIDTH, row_bound=BOUND)
    update = normal(classes, WIDTH) * size
    if loss == "softmax":
        update -= update.mean(axis=0)
    rows = Rows(features, np.zeros(ROWS, dtype=np.int64), weights)
    return remainder_of(head, normal(classes, WIDTH), update, rows)


def norm_for(bends: GradientRemainder, seed: int = 0) -> tuple[Norm, np.ndarray]:
    """A random norm in the head's own blocks, and its matrix over all weights."""
    classes, joint = len(bends.weights), bends.head.name == "softmax"
    size, count = (classes * WIDTH, 1) if joint else (WIDTH, classes)
    drawn = np.random.default_rng(seed).standard_normal((count, size, size))
    values = drawn @ drawn.mT + np.eye(size, dtype=np.float64)
    norm = Norm.of(Blocks(values, joint))
    assert norm is not None
    return norm, block_diag(*values)


def naive(bends: GradientRemainder) -> np.ndarray:
    """psi of every row by automatic differentiation, rows x weights."""
    made = []
    at, update = torch.from_numpy(bends.weights), torch.from_numpy(bends.update)
    for x in torch.from_numpy(bends.rows.blocks()[0].features):  # type: ignore[index]

        def gradient(weights: torch.Tensor, x: torch.Tensor = x) -> torch.Tensor:
            return torch.outer(bends.head.predictions((weights @ x)[None])[0], x)

        _, linear = torch.autograd.functional.jvp(gradient, at, update)
        made.append((gradient(at + update) - gradient(at) - linear).reshape(-1))
    return engine.to_numpy(torch.stack(made))


def largest_of(bends: GradientRemainder, features: np.ndarray) -> np.ndarray:
    """c of other rows."""
    rows = Rows(features, np.zeros(len(features), dtype=np.int64))
    return np.concatenate([c for _, c in replace(bends, rows=rows).pieces()])


def close(value: float, expected: Any) -> None:
    assert value == pytest.approx(float(expected), rel=1e-7)


@pytest.mark.parametrize(("loss", "classes"), CASES)
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_are_those_of_a_naive_reference(loss: str, classes: int, weighted: bool) -> None:
    bends = example(loss, classes, weighted=weighted)
    norm, matrix = norm_for(bends)
    psi = naive(bends)
    shares = np.ones(ROWS, dtype=np.float64) if bends.rows.weights is None else bends.rows.weights  # type: ignore[attr-defined]
    half = np.linalg.solve(np.linalg.cholesky(matrix), psi.T).T
    mean = (half * shares[:, None]).mean(axis=0)
    about = half - mean
    squares = np.square(about).sum(axis=1)
    covariance = (about * shares[:, None]).T @ about / ROWS
    found = bends.moments(norm, reach=1.0)
    close(found.change_mean, engine.norm(mean))
    close(found.change_trace, covariance.trace())
    top = float(np.linalg.eigvalsh(covariance)[-1])
    assert top <= found.change_eigenvalue <= 1.01 * top
    close(found.change_fourth, (shares * np.square(squares)).mean())
    close(found.change_largest, np.sqrt(squares.max()))
    close(found.change_longest, np.linalg.norm(half, axis=1).max())
    assert found.change_fourth_eigenvalue == found.change_largest**2 * found.change_eigenvalue
    close(found.sampled_trace, (np.square(shares) * squares).mean())
    close(found.sampled_largest, (shares * np.sqrt(squares)).max())
    assert found.sampled_eigenvalue <= min(found.sampled_trace, float(shares.max()) * found.change_eigenvalue)
    close(found.longest_row, np.linalg.norm(bends.rows.blocks()[0].features, axis=1).max())  # type: ignore[index]
    assert np.allclose(bends.mean, (psi * shares[:, None]).mean(axis=0).reshape(bends.weights.shape), rtol=1e-10)


@pytest.mark.parametrize(("loss", "classes"), CASES)
def test_the_covariance_is_the_naive_one(loss: str, classes: int) -> None:
    bends, psi = example(loss, classes), naive(example(loss, classes))
    about = psi - psi.mean(axis=0)
    assert np.allclose(bends.covariance.values[0], about.T @ about / ROWS, rtol=1e-9, atol=1e-14)


def test_classes_one_by_one_are_never_below_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    bends = example("one-vs-rest", 3)
    norm, _ = norm_for(bends)
    whole = bends.moments(norm, 1.0).change_eigenvalue
    monkeypatch.setattr(module, "WHOLE", 1)
    apart = example("one-vs-rest", 3)
    assert apart.covariance.values.shape == (3, WIDTH, WIDTH)
    assert whole * 0.99 <= apart.moments(norm, 1.0).change_eigenvalue <= 3.1 * whole


@pytest.mark.parametrize(("loss", "classes"), CASES)
@pytest.mark.parametrize("size", [1e-3, 0.3, 30.0])
def test_no_admissible_row_bends_more_than_the_largest(loss: str, classes: int, size: float) -> None:
    bends = example(loss, classes, size=size)
    gauges = noised_gauges(bends.rows)
    difference = bends.update if loss != "softmax" else (bends.update[:, None] - bends.update[None]).reshape(-1, WIDTH)
    reach = BOUND * float(np.linalg.norm(difference, axis=1).max())
    directions = np.random.default_rng(1).standard_normal((4000, WIDTH))
    longest = directions / np.linalg.norm(directions, axis=1, keepdims=True) * BOUND
    assert float(np.linalg.norm(largest_of(bends, longest), axis=1).max()) <= bends.largest(reach)
    held = bends.rows.blocks()[0].features  # type: ignore[index]
    inside = min(gauge.kappa * float(gauge.length(difference).max()) for gauge in gauges)
    within = bends.largest(min(reach, inside), gauges)
    assert float(np.linalg.norm(largest_of(bends, held), axis=1).max()) <= within
    assert within <= bends.largest(reach) * (1 + 1e-12)


def test_the_supremum_is_in_the_norm() -> None:
    bends = example("softmax", 4)
    norm, _ = norm_for(bends)
    found = bends.moments(norm, reach=2.0)
    expected = bends.largest(2.0) * BOUND / math.sqrt(norm.least)
    assert found.change_supremum == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(("loss", "classes"), CASES)
def test_what_float64_loses_of_a_row_is_within_its_bound(loss: str, classes: int) -> None:
    bends = example(loss, classes)
    exact = _in_longer_numbers(bends)
    off = abs(largest_of(bends, bends.rows.blocks()[0].features) - exact)  # type: ignore[index]
    assert float(np.linalg.norm(off, axis=1).max()) * BOUND <= bends.row_error
    assert bends.row_error < 1e-10
    assert bends.mean_error >= bends.row_error


def _in_longer_numbers(bends: GradientRemainder) -> np.ndarray:
    from mpmath import exp, matrix, mp

    mp.dps = 40
    rows = []
    for x in bends.rows.blocks()[0].features[:20].tolist():  # type: ignore[index]
        z = matrix(bends.weights.tolist()) * matrix(x)
        b = matrix(bends.update.tolist()) * matrix(x)

        def link(outputs: Any) -> list[Any]:
            if bends.head.name != "softmax":
                return [1 / (1 + exp(-value)) for value in outputs]
            total = sum(exp(value) for value in outputs)
            return [exp(value) / total for value in outputs]

        before, after = link(z), link(z + b)
        mean = sum(p * step for p, step in zip(before, b, strict=True))
        curved = [
            p * (step - mean if bends.head.name == "softmax" else (1 - p) * step)
            for p, step in zip(before, b, strict=True)
        ]
        rows.append([float(a - p - c) for a, p, c in zip(after, before, curved, strict=True)])
    made = np.array(rows, dtype=np.float64)
    rest = largest_of(bends, bends.rows.blocks()[0].features[20:])  # type: ignore[index]
    return np.concatenate([made, rest])
