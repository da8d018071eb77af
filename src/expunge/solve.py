"""The step: Newton's method on the residual `a(u)` of the unlearning equation.

    a(u) = n (g_S(w+u) - g_S(w)) - m g_U(w+u),      a(0) = -m g_U(w),      a'(u) = n H_S(w+u) - m H_U(w+u)

Its first iteration is the paper's Algorithm 1. Nothing here can harm the guarantee: the bound charges `||a(u)||`, and
that is recomputed in float64 from the update that is handed over, never taken from a solver's own account.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from expunge.objectives import Curvature, LinearHead, Rows, RowSet
from expunge.precondition import Preconditioner, precondition

Progress = Callable[[str, int, int | None], None]

CONVERGED = 1e-8  # of ||a(0)||: far below what any other term of the bound can be
MAX_NEWTON = 30
MAX_CONJUGATE = 1000
MAX_SHIFTS = 40  # fourfold each: more would mean that the matrix is not finite
DENSE_PARAMETERS = 4096  # above this a dense Hessian is never formed
DENSE_COPIES = 5  # of both sets, as summed, shifted and factorised
DENSE_ADVANTAGE = 8.0  # large matrix products run about this much faster than the thin ones of a Hessian product
EXPECTED_CONJUGATE = 40


def silent(stage: str, done: int, total: int | None) -> None:
    """The progress of nobody."""


Advance = Callable[[int, int | None], None]  # products done, products expected


def unwatched(done: int, total: int | None) -> None:
    """Nobody is told."""


class SymmetricOperator(Protocol):
    """A symmetric linear map on K x d matrices."""

    def product(self, direction: Tensor) -> Tensor: ...

    def dense(self) -> Tensor: ...

    def precondition(self, residual: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class MatrixFree:
    """A symmetric map that is known by its products alone: no matrix, no preconditioner."""

    product: Callable[[Tensor], Tensor]

    def dense(self) -> Tensor:
        raise NotImplementedError

    def precondition(self, residual: Tensor) -> Tensor:
        return residual.clone()


@dataclass(frozen=True)
class LinearSolution:
    """An approximate solution of `A x = b` with its residual `||b - A x|| / ||b||`, recomputed afterwards."""

    solution: Tensor
    relative_residual: float
    iterations: int
    method: str
    positive_definite: bool
    damping: float


@dataclass(frozen=True)
class Step:
    """The update, and the evidence for it: `residual` is `||a(u)||`, recomputed in float64; `pull` is what it was held back by."""

    update: Tensor
    residual: float
    residual_at_start: float
    iterations: int
    inner_iterations: int
    method: str
    positive_definite: bool
    damping: float
    converged: bool
    pull: float


class SetHessian:
    """`H` of one set, for training."""

    def __init__(
        self, objective: LinearHead, weights: Tensor, rows: RowSet, preconditioner: Preconditioner | None
    ) -> None:
        self.curvature = Curvature(objective, weights, rows)
        self._preconditioner = preconditioner

    @property
    def preconditioner(self) -> Preconditioner:
        if self._preconditioner is None:
            self._preconditioner = precondition(self.curvature, 1.0)
        return self._preconditioner

    def product(self, direction: Tensor) -> Tensor:
        return self.curvature.product(direction)

    def dense(self) -> Tensor:
        return self.curvature.dense()

    def precondition(self, residual: Tensor) -> Tensor:
        return self.preconditioner.solve(residual)


class RetainHessian:
    """`n H_S - m H_U + n pull I`: without a pull, (n - m) times the paper's estimate of the retain set's Hessian."""

    def __init__(self, problem: Unlearning, update: Tensor, pull: float, preconditioner: Preconditioner | None) -> None:
        at = problem.weights + update
        self.n, self.m, self.pull = problem.n_source, len(problem.forget), pull
        self.surrogate = Curvature(problem.objective, at, problem.surrogate)
        working = problem.surrogate.dtype  # the forget set's own rows stay float64, for the evidence
        forget = Rows(problem.forget.features.to(working), problem.forget.labels)
        self.forget = Curvature(problem.objective, at, forget)
        self._preconditioner = preconditioner

    @property
    def preconditioner(self) -> Preconditioner:
        if self._preconditioner is None:
            self._preconditioner = precondition(self.surrogate, float(self.n), self.pull)
        return self._preconditioner

    def product(self, direction: Tensor) -> Tensor:
        image = self.surrogate.product(direction).add_(direction, alpha=self.pull).mul_(self.n)
        return image.sub_(self.forget.product(direction), alpha=self.m)

    def dense(self) -> Tensor:
        matrix = self.surrogate.dense()
        matrix.diagonal().add_(self.pull)
        return matrix.mul_(self.n).sub_(self.forget.dense(), alpha=self.m)

    def precondition(self, residual: Tensor) -> Tensor:
        return self.preconditioner.solve(residual)


@dataclass(frozen=True)
class Unlearning:
    """What the step is computed from: trained weights (K x d, float64), forget and surrogate rows, the source's size."""

    objective: LinearHead
    weights: Tensor
    forget: Rows
    surrogate: RowSet
    n_source: int

    def residual(self, update: Tensor) -> Tensor:
        """`a(u)`, float64."""
        change = self.objective.change_mean(self.weights, update, self.surrogate) + self.objective.l2 * update
        return self.n_source * change - len(self.forget) * self.objective.gradient(self.weights + update, self.forget)


def dense_is_cheaper(objective: LinearHead, rows: RowSet) -> bool:
    """Whether forming and factorising the Hessian costs less than conjugate gradients, counted in multiplications, and fits."""
    parameters, n_rows = objective.n_parameters, len(rows)
    if parameters > DENSE_PARAMETERS or not rows.affords(DENSE_COPIES * 8 * parameters**2):
        return False
    forming = n_rows * objective.n_features * parameters * (objective.n_classes + 1) / 2
    conjugate = EXPECTED_CONJUGATE * 2 * n_rows * parameters
    return (forming + parameters**3 / 3) / DENSE_ADVANTAGE < conjugate


def solve_dense(operator: SymmetricOperator, right: Tensor) -> LinearSolution:
    """Cholesky; where the matrix is not positive definite, the smallest tried shift that makes it so."""
    matrix = operator.dense()
    vector = right.to(matrix.dtype).reshape(-1, 1)
    scale = float(matrix.diagonal().abs().mean())
    for tried in range(MAX_SHIFTS):
        shift = 0.0 if tried == 0 else 1e-4 * scale * 4.0 ** (tried - 1)
        shifted = matrix.clone()
        shifted.diagonal().add_(shift)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not bool(failed):
            solution = torch.cholesky_solve(vector, factor)
            solution += torch.cholesky_solve(vector - shifted @ solution, factor)  # one refinement: float32 needs it
            return LinearSolution(
                solution.reshape(right.shape).to(right.dtype),
                _ratio(vector - matrix @ solution, vector),
                1 + tried,
                "cholesky",
                tried == 0,
                shift,
            )
    return LinearSolution(torch.zeros_like(right), 1.0, MAX_SHIFTS, "cholesky", False, math.inf)


def solve_conjugate(
    operator: SymmetricOperator, right: Tensor, tolerance: float, working: torch.dtype, advance: Advance = unwatched
) -> LinearSolution:
    """Preconditioned conjugate gradients; a direction of negative curvature restarts it with a shift."""
    vector = right.to(working)
    shift, iterations = 0.0, 0
    for _ in range(MAX_SHIFTS):
        solution, used, curvature = _conjugate(operator, vector, tolerance, shift, advance)
        iterations += used
        if curvature is None:
            return LinearSolution(
                solution.to(right.dtype),
                _ratio(vector - operator.product(solution), vector),
                iterations,
                "conjugate gradients",
                shift == 0.0,
                shift,
            )
        shift = max(2.0 * abs(curvature), 4.0 * shift)
    return LinearSolution(torch.zeros_like(right), 1.0, iterations, "conjugate gradients", False, math.inf)


def _conjugate(
    operator: SymmetricOperator, right: Tensor, tolerance: float, shift: float, advance: Advance
) -> tuple[Tensor, int, float | None]:
    """One run; the third value is the offending Rayleigh quotient where the shifted operator is not positive definite."""
    solution = torch.zeros_like(right)
    residual = right.clone()
    conditioned = operator.precondition(residual)
    direction = conditioned.clone()
    inner = float((residual * conditioned).sum())
    goal = tolerance * float(right.norm())
    for iteration in range(MAX_CONJUGATE):
        size = float(residual.norm())
        advance(iteration, expected(iteration, size, goal / tolerance, goal))
        if size <= goal or inner <= 0.0:
            return solution, iteration, None
        image = operator.product(direction).add_(direction, alpha=shift)
        curvature = float((direction * image).sum())
        if not curvature > 0.0:
            return solution, iteration, curvature / float(direction.square().sum())
        length = inner / curvature
        solution.add_(direction, alpha=length)
        residual.sub_(image, alpha=length)
        conditioned = operator.precondition(residual)
        following = float((residual * conditioned).sum())
        direction.mul_(following / inner).add_(conditioned)
        inner = following
    return solution, MAX_CONJUGATE, None


def _ratio(residual: Tensor, right: Tensor) -> float:
    size = float(right.double().norm())
    return float(residual.double().norm()) / size if size > 0 else 0.0


def expected(done: int, size: float, start: float, goal: float) -> int | None:
    """How many iterations it will take from `start` to `goal` if the size goes on falling as in those done so far.

    >>> expected(10, 1e-2, 1.0, 1e-8)
    40
    """
    if not 0.0 < goal < start or not 0.0 < size < 0.9 * start:
        return None
    return max(done, math.ceil(done * math.log(start / goal) / math.log(start / size)))


def solve_linear(
    operator: SymmetricOperator,
    right: Tensor,
    *,
    tolerance: float,
    dense: bool,
    working: torch.dtype,
    advance: Advance = unwatched,
) -> LinearSolution:
    """Whichever of the two ways `dense` names."""
    return solve_dense(operator, right) if dense else solve_conjugate(operator, right, tolerance, working, advance)


def newton_step(problem: Unlearning, *, single: bool, pull: float = 0.0, progress: Progress = silent) -> Step:
    """Newton's method on `a(u) + n pull u = 0` from `u = 0`; an iteration is accepted only if it reduces the left side.

    `single` stops after the first iteration, solved accurately: without a pull, Algorithm 1. Otherwise inner solves are
    as accurate as the outer residual deserves, until it is `CONVERGED` of its start or no longer falls. A `pull` above 0
    holds the update nearer to 0; whatever u comes out, the residual reported is that of `a(u)` itself.
    """
    update = torch.zeros_like(problem.weights)
    current = problem.residual(update)
    start = size = float(current.norm())
    dense = dense_is_cheaper(problem.objective, problem.surrogate)
    working = problem.surrogate.dtype
    accurate = 1e-10 if working == torch.float64 else 1e-5
    preconditioner: Preconditioner | None = None
    n_rows = len(problem.surrogate)

    def products(done: int, total: int | None) -> None:
        progress("Hessian products (rows)", done * n_rows, None if total is None else total * n_rows)

    iterations = inner = 0
    method, definite, damping = "cholesky" if dense else "conjugate gradients", True, 0.0
    while iterations < (1 if single else MAX_NEWTON) and size > CONVERGED * start:
        progress("Newton iterations", iterations, expected(iterations, size, start, CONVERGED * start))
        operator = RetainHessian(problem, update, pull, preconditioner)
        tolerance = accurate if single else max(accurate, min(1e-2, 0.1 * size / start), 0.3 * CONVERGED * start / size)
        solved = solve_linear(operator, -current, tolerance=tolerance, dense=dense, working=working, advance=products)
        if not dense:
            preconditioner = operator.preconditioner
        step = problem.surrogate.agreed(solved.solution)
        inner, iterations = inner + solved.iterations, iterations + 1
        definite, damping = definite and solved.positive_definite, max(damping, solved.damping)
        scale, accepted = 1.0, False
        while scale > 1e-4 and not accepted:
            trial = update + scale * step
            image = problem.residual(trial).add_(trial, alpha=problem.n_source * pull)
            accepted = float(image.norm()) < size
            scale /= 2
        if not accepted:
            break
        stalled = float(image.norm()) > 0.9 * size
        update, current, size = trial, image, float(image.norm())
        if stalled and working == torch.float64 and definite:
            break
    residual = float(problem.residual(update).norm()) if pull else size
    return Step(update, residual, start, iterations, inner, method, definite, damping, size <= CONVERGED * start, pull)
