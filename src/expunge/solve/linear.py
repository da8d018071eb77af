"""Linear systems and eigenvalues: Cholesky, conjugate gradients, Lanczos; each hands back evidence of what it found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from expunge.heads import Curvature, LinearHead, RowSet
from expunge.runtime.progress import Advance, expected, unwatched

# Symmetric maps that a solver is given -----------------------------------------------------------------------------


class SymmetricOperator(Protocol):
    """A symmetric linear map on tensors of the weights' shape."""

    def product(self, direction: Tensor) -> Tensor:
        """The map's value."""

    def dense(self) -> Tensor:
        """Its matrix, one row and column a weight."""

    def precondition(self, residual: Tensor) -> Tensor:
        """Roughly the map's inverse, symmetric and positive definite."""


# What a solver hands back: the result, its evidence, and how it ended, by name -------------------------------------


class Ending(StrEnum):
    """How an iteration ended. None of them can harm the guarantee: the bound charges what is left."""

    REACHED = "reached"
    STALLED = "stalled"
    LIMIT = "iteration limit"
    STOPPED = "stopped as asked"  # one Newton step was wanted
    NOT_FINITE = "no shift helped"

    @property
    def advice(self) -> str:
        """What to do about it."""
        return {
            Ending.REACHED: "",
            Ending.STALLED: "rounding or the surrogate allow no more; --dtype float64, or a larger l2, may",
            Ending.LIMIT: "use --step balanced, or a larger l2",
            Ending.STOPPED: "use --step converged for what one step leaves out",
            Ending.NOT_FINITE: "the matrix is not finite; check the rows",
        }[self]


@dataclass(frozen=True)
class LinearSolution:
    """An approximate solution of `A x = b` with its residual `||b - A x|| / ||b||`, recomputed afterwards.

    `damping` is what had to be added to A's diagonal, infinite where nothing helped.
    """

    solution: Tensor
    relative_residual: float
    iterations: int
    method: str
    damping: float
    ending: Ending = Ending.REACHED

    @property
    def positive_definite(self) -> bool:
        """Whether A was, as far as the solver noticed."""
        return self.damping == 0.0


@dataclass(frozen=True)
class Step:
    """The update, and the evidence for it: `residual` is `||a(u)||`, recomputed in float64.

    `pull` is what it was held back by.

    `relative_residual` is that of the last linear system.
    """

    update: Tensor
    residual: float
    residual_at_start: float
    iterations: int
    inner_iterations: int
    method: str
    damping: float
    ending: Ending
    pull: float
    relative_residual: float = 0.0

    @property
    def positive_definite(self) -> bool:
        """Whether every linear system was, as far as the solver noticed."""
        return self.damping == 0.0

    @property
    def converged(self) -> bool:
        return self.ending is Ending.REACHED


def relative_residual(residual: Tensor, right: Tensor) -> float:
    """`||residual|| / ||right||` in float64; 0 where the right side is."""
    size = float(right.double().norm())
    return float(residual.double().norm()) / size if size > 0 else 0.0


# Dense systems, by Cholesky's factorisation ------------------------------------------------------------------------

MAX_SHIFTS = 40  # fourfold each: more would mean that the matrix is not finite


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
            left = relative_residual(vector - matrix @ solution, vector)
            return LinearSolution(
                solution.reshape(right.shape).to(right.dtype), left, 1 + tried, "cholesky", shift, Ending.REACHED
            )
    return LinearSolution(torch.zeros_like(right), 1.0, MAX_SHIFTS, "cholesky", math.inf, Ending.NOT_FINITE)


# Preconditioned conjugate gradients, which notice a direction of negative curvature --------------------------------

MAX_CONJUGATE = 1000


def solve_conjugate(
    operator: SymmetricOperator, right: Tensor, tolerance: float, working: torch.dtype, advance: Advance = unwatched
) -> LinearSolution:
    """Conjugate gradients in the dtype `working`; a direction of negative curvature restarts them with a shift."""
    vector = right.to(working)
    shift, iterations = 0.0, 0
    for _ in range(MAX_SHIFTS):
        solution, used, curvature = _run(operator, vector, tolerance, shift, advance)
        iterations += used
        if curvature is None:
            left = relative_residual(vector - operator.product(solution), vector)
            ending = Ending.LIMIT if used == MAX_CONJUGATE else Ending.REACHED
            return LinearSolution(solution.to(right.dtype), left, iterations, "conjugate gradients", shift, ending)
        shift = max(2.0 * abs(curvature), 4.0 * shift)
    return LinearSolution(torch.zeros_like(right), 1.0, iterations, "conjugate gradients", math.inf, Ending.NOT_FINITE)


def _run(
    operator: SymmetricOperator, right: Tensor, tolerance: float, shift: float, advance: Advance
) -> tuple[Tensor, int, float | None]:
    """One run.

    The third value is the offending Rayleigh quotient where the shifted operator is not positive definite.
    """
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


# The largest eigenvalue from above, by Lanczos ---------------------------------------------------------------------

EIGENVALUE_SLACK = 0.02
SAMPLING_SLACK = 0.1  # where the eigenvalue only enters the sampling term's excess, fewer steps are worth more


def lanczos_steps(n_parameters: int, failure: float, slack: float = EIGENVALUE_SLACK) -> int:
    """Steps k after which `lambda_max <= theta_k/(1-slack)` fails with probability at most `failure`.

    Kuczynski and Wozniakowski 1992, Gaussian start: `1.648 sqrt(p) exp(-sqrt(slack) (2k-1))`.

    >>> lanczos_steps(5120, 4e-12, slack=0.05)
    70
    """
    needed = math.log(1.648 * math.sqrt(n_parameters) / failure) / math.sqrt(slack)
    return max(1, math.ceil((needed + 1.0) / 2.0))


def largest_eigenvalue_upper(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    failure: float,
    advance: Callable[[int, int], None] | None = None,
    slack: float = EIGENVALUE_SLACK,
) -> float:
    """Upper bound on the largest eigenvalue of a positive semi-definite map, by Lanczos with full reorthogonalisation.

    `start` must be a standard Gaussian draw, independent of the map. The bound fails with probability at most
    `failure`, unless the Krylov space is exhausted, when it is exact.
    """
    parameters = start.numel()
    steps = lanczos_steps(parameters, failure, slack)
    if parameters <= 2 * steps:
        steps = parameters  # for a little more work the result is exact
    ritz, exact = lanczos(product, start, steps, advance)
    return max(0.0, ritz) * (1.0 + 1e-9) if exact else max(0.0, ritz) / (1.0 - slack)


def lanczos(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    steps: int,
    advance: Callable[[int, int], None] | None = None,
) -> tuple[float, bool]:
    """The largest Ritz value of a symmetric map after so many steps, fully reorthogonalised, and whether it is exact.

    It never exceeds the largest eigenvalue, and is that where the Krylov space is exhausted.
    """
    basis = torch.empty((steps, start.numel()), dtype=torch.float64, device=start.device)
    diagonal, off, largest = [], [], 0.0
    vector = start.reshape(-1) / start.norm()
    exact = steps == start.numel()
    for step in range(steps):
        basis[step] = vector
        image = product(vector.reshape(start.shape)).reshape(-1)
        diagonal.append(float(vector @ image))
        for _ in range(2):
            image = image - basis[: step + 1].T @ (basis[: step + 1] @ image)
        length = float(image.norm())
        if advance is not None:
            advance(step + 1, steps)
        largest = max(largest, abs(diagonal[-1]))
        if length <= 1e-13 * largest or step == steps - 1:
            exact = exact or step < steps - 1
            break
        off.append(length)
        vector = image / length
    size = len(diagonal)
    tridiagonal = np.diag(diagonal) + np.diag(off[: size - 1], 1) + np.diag(off[: size - 1], -1)
    return float(np.linalg.eigvalsh(tridiagonal)[-1]), exact


# An approximate inverse of a Hessian, from its structure, that leaves conjugate gradients few iterations. It changes
# how many a solve takes, never what it converges to. A Hessian is the mean of `C(p) kron x x^T` plus `l2 I`;
# the mean of `C(p)` kron the mean of `x x^T` is nearly free, and exact where all C(p) are the same. Of tables so wide,
# or with so few rows, that d x d matrices cost more than the iterations, there is none.

SAMPLED_ROWS = 16_384  # evenly spread: enough to shape a preconditioner by
KRONECKER_COPIES = 4  # of a d x d matrix: the sum, in float64, its eigenvectors, room to find them in
FEW_ROWS = 4  # times rows and classes fewer than features: iterations end sooner than a d x d matrix is factorised
WIDE_TABLE, WIDEST = 2_000, 20_000  # features from which that is asked at all, and from which no such matrix is made


class Preconditioner(Protocol):
    """A symmetric positive definite map on K x d matrices, near the inverse of a Hessian."""

    def solve(self, residual: Tensor) -> Tensor:
        """The map's value."""


class KroneckerPreconditioner:
    """Inverse of `scale (A kron C + (l2 + shift) I)`, factorised once: mean curvature A, second moment C of x."""

    def __init__(self, curvature: Curvature, scale: float, shift: float = 0.0) -> None:
        factors = [curvature.class_factor().double(), curvature.feature_factor(SAMPLED_ROWS).double()]
        if not all(bool(torch.isfinite(factor).all()) for factor in factors):  # rows whose squares overflow
            factors = [torch.zeros_like(factor) for factor in factors]
        class_values, self.class_vectors = torch.linalg.eigh(factors[0])
        feature_values, self.feature_vectors = torch.linalg.eigh(factors[1])
        spectrum = torch.outer(class_values.clamp(min=0), feature_values.clamp(min=0)) + curvature.objective.l2 + shift
        self.inverse_spectrum = 1.0 / (scale * spectrum)

    def solve(self, residual: Tensor) -> Tensor:
        rotated = self.class_vectors.T @ residual.double() @ self.feature_vectors
        solved: Tensor = self.class_vectors @ (rotated * self.inverse_spectrum) @ self.feature_vectors.T
        return solved.to(residual.dtype)


def too_wide(objective: LinearHead, rows: RowSet) -> bool:
    """Whether a d x d matrix does not fit beside the rows, or costs more than what it saves."""
    width, reached = objective.n_features, len(rows) * objective.n_classes
    if not rows.affords(KRONECKER_COPIES * 8 * width**2) or width > WIDEST:
        return True
    return width > WIDE_TABLE and FEW_ROWS * reached < width


def precondition(curvature: Curvature, scale: float, shift: float = 0.0) -> Preconditioner | None:
    """Kronecker factors; None where they are not worth their work."""
    return None if too_wide(curvature.objective, curvature.rows) else KroneckerPreconditioner(curvature, scale, shift)
