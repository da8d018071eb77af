"""Linear systems and eigenvalues: Cholesky, conjugate gradients, Lanczos; each hands back evidence of what it found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from expunge.heads import Curvature, LinearHead, RowSet
from expunge.runtime.arrays import (
    Array,
    Dtype,
    add_to_diagonal,
    cast,
    cholesky,
    cholesky_solve,
    copy,
    double,
    namespace,
    norm,
    size,
    zeros,
)
from expunge.runtime.progress import Advance, expected, unwatched

# Symmetric maps that a solver is given -----------------------------------------------------------------------------


class SymmetricOperator(Protocol):
    """A symmetric linear map on arrays of the weights' shape."""

    def product(self, direction: Array) -> Array:
        """The map's value."""

    def dense(self) -> Array:
        """The map's matrix, one row and column a weight."""

    def precondition(self, residual: Array) -> Array:
        """Roughly the map's inverse, symmetric and positive definite."""


# What a solver hands back: the result, its evidence, and how it ended, by name -------------------------------------


class Ending(StrEnum):
    """How an iteration ended. None of them can harm the guarantee: the bound charges what is left."""

    REACHED = "reached"
    STALLED = "stalled"
    LIMIT = "iteration limit"
    STOPPED = "stopped as asked"  # one Newton step was wanted
    NOT_FINITE = "no shift helped"


@dataclass(frozen=True)
class LinearSolution:
    """An approximate solution of `A x = b` with its residual `||b - A x|| / ||b||`, recomputed afterwards.

    `damping` is what had to be added to A's diagonal, infinite where nothing helped.
    """

    solution: Array
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

    update: Array
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


def relative_residual(residual: Array, right: Array) -> float:
    """`||residual|| / ||right||` in float64; 0 where the right side is."""
    length = norm(double(right))
    return norm(double(residual)) / length if length > 0 else 0.0


# Dense systems, by Cholesky's factorisation ------------------------------------------------------------------------

MAX_SHIFTS = 40  # fourfold each: more would mean that the matrix is not finite


def solve_dense(operator: SymmetricOperator, right: Array) -> LinearSolution:
    """Cholesky; where the matrix is not positive definite, the smallest tried shift that makes it so."""
    matrix = operator.dense()
    vector = cast(right, matrix.dtype).reshape(-1, 1)
    scale = float(abs(matrix.diagonal()).mean())
    for tried in range(MAX_SHIFTS):
        shift = 0.0 if tried == 0 else 1e-4 * scale * 4.0 ** (tried - 1)
        shifted = add_to_diagonal(copy(matrix), shift)
        factor = cholesky(shifted)
        if factor is not None:
            solution = cholesky_solve(factor, vector)
            solution += cholesky_solve(factor, vector - shifted @ solution)  # one refinement: float32 needs it
            left = relative_residual(vector - matrix @ solution, vector)
            return LinearSolution(
                cast(solution.reshape(right.shape), right.dtype), left, 1 + tried, "cholesky", shift, Ending.REACHED
            )
    return LinearSolution(zeros(right), 1.0, MAX_SHIFTS, "cholesky", math.inf, Ending.NOT_FINITE)


# Preconditioned conjugate gradients, which notice a direction of negative curvature --------------------------------

MAX_CONJUGATE = 1000


def solve_conjugate(
    operator: SymmetricOperator, right: Array, tolerance: float, working: Dtype, advance: Advance = unwatched
) -> LinearSolution:
    """Conjugate gradients in the dtype `working`; a direction of negative curvature restarts them with a shift."""
    vector = cast(right, working)
    shift, iterations = 0.0, 0
    for _ in range(MAX_SHIFTS):
        solution, used, curvature = _run(operator, vector, tolerance, shift, advance)
        iterations += used
        if curvature is None:
            left = relative_residual(vector - operator.product(solution), vector)
            ending = Ending.LIMIT if used == MAX_CONJUGATE else Ending.REACHED
            return LinearSolution(cast(solution, right.dtype), left, iterations, "conjugate gradients", shift, ending)
        shift = max(2.0 * abs(curvature), 4.0 * shift)
    return LinearSolution(zeros(right), 1.0, iterations, "conjugate gradients", math.inf, Ending.NOT_FINITE)


def _run(
    operator: SymmetricOperator, right: Array, tolerance: float, shift: float, advance: Advance
) -> tuple[Array, int, float | None]:
    """Conjugate gradients with one shift: the solution, iterations, and None.

    The third value is the offending Rayleigh quotient where the shifted operator is not positive definite.
    """
    solution = zeros(right)
    residual = copy(right)
    conditioned = operator.precondition(residual)
    direction = copy(conditioned)
    inner = float((residual * conditioned).sum())
    goal = tolerance * norm(right)
    for iteration in range(MAX_CONJUGATE):
        left = norm(residual)
        advance(iteration, expected(iteration, left, goal / tolerance, goal))
        if left <= goal or inner <= 0.0:
            return solution, iteration, None
        image = operator.product(direction)
        if shift:
            image += shift * direction
        curvature = float((direction * image).sum())
        if not curvature > 0.0:
            return solution, iteration, curvature / norm(direction) ** 2
        length = inner / curvature
        solution += length * direction
        residual -= length * image
        conditioned = operator.precondition(residual)
        following = float((residual * conditioned).sum())
        direction *= following / inner
        direction += conditioned
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
    product: Callable[[Array], Array],
    start: Array,
    failure: float,
    advance: Callable[[int, int], None] | None = None,
    slack: float = EIGENVALUE_SLACK,
) -> float:
    """Upper bound on the largest eigenvalue of a positive semi-definite map, by Lanczos with full reorthogonalisation.

    `start` must be a standard Gaussian draw, independent of the map. The bound fails with probability at most
    `failure`, unless the Krylov space is exhausted, when it is exact.
    """
    parameters = size(start)
    steps = lanczos_steps(parameters, failure, slack)
    if parameters <= 2 * steps:
        steps = parameters  # for a little more work the result is exact
    ritz, exact = lanczos(product, start, steps, advance)
    return max(0.0, ritz) * (1.0 + 1e-9) if exact else max(0.0, ritz) / (1.0 - slack)


def lanczos(
    product: Callable[[Array], Array],
    start: Array,
    steps: int,
    advance: Callable[[int, int], None] | None = None,
) -> tuple[float, bool]:
    """The largest Ritz value of a symmetric map after so many steps, fully reorthogonalised, and whether it is exact.

    It never exceeds the largest eigenvalue, and is that where the Krylov space is exhausted.
    """
    xp, parameters = namespace(start), size(start)
    basis = xp.empty((steps, parameters), dtype=xp.float64, device=start.device)
    diagonal, off, largest = [], [], 0.0
    vector = start.reshape(-1) / norm(start)
    exact = steps == parameters
    for step in range(steps):
        basis[step] = vector
        image = product(vector.reshape(start.shape)).reshape(-1)
        diagonal.append(float(vector @ image))
        for _ in range(2):
            image = image - basis[: step + 1].T @ (basis[: step + 1] @ image)
        length = norm(image)
        if advance is not None:
            advance(step + 1, steps)
        largest = max(largest, abs(diagonal[-1]))
        if length <= 1e-13 * largest or step == steps - 1:
            exact = exact or step < steps - 1
            break
        off.append(length)
        vector = image / length
    sides = off[: len(diagonal) - 1]
    tridiagonal = np.diag(diagonal) + np.diag(sides, 1) + np.diag(sides, -1)
    return float(np.linalg.eigvalsh(tridiagonal)[-1]), exact


# An approximate inverse of a Hessian, from its structure, that leaves conjugate gradients few iterations. It changes
# how many a solve takes, never what it converges to. A Hessian is the mean of `C(p) kron x x^T` plus `l2 I`;
# the mean of `C(p)` kron the mean of `x x^T` is nearly free, and exact where all C(p) are the same. Of tables so wide,
# or with so few rows, that d x d matrices cost more than the iterations, there is none.

SAMPLED_ROWS = 16_384  # evenly spread: enough to shape a preconditioner by
KRONECKER_COPIES = 4  # of a d x d matrix: the sum, in float64, its eigenvectors, room to find them in
FEW_ROWS = 4  # times rows and classes fewer than features: iterations end sooner than a d x d matrix is factorised
PLAIN_PRODUCTS = 500  # with sparse rows, whose products are fast: iterations end sooner where they take less than that
WIDE_TABLE, WIDEST = 2_000, 20_000  # features from which that is asked at all, and from which no such matrix is made


class Preconditioner(Protocol):
    """A symmetric positive definite map on K x d matrices, near the inverse of a Hessian."""

    def solve(self, residual: Array) -> Array:
        """The map's value."""


class KroneckerPreconditioner:
    """Inverse of `scale (A kron C + (l2 + shift) I)`, factorised once: mean curvature A, second moment C of x."""

    def __init__(self, curvature: Curvature, scale: float, shift: float = 0.0) -> None:
        factors = [double(curvature.class_factor()), double(curvature.feature_factor(SAMPLED_ROWS))]
        xp = namespace(*factors)
        if not all(bool(xp.isfinite(factor).all()) for factor in factors):  # rows whose squares overflow
            factors = [zeros(factor) for factor in factors]
        class_values, self.class_vectors = xp.linalg.eigh(factors[0])
        feature_values, self.feature_vectors = xp.linalg.eigh(factors[1])
        spectrum = xp.outer(xp.clip(class_values, min=0.0), xp.clip(feature_values, min=0.0))
        spectrum = spectrum + curvature.objective.l2 + shift
        self.inverse_spectrum = 1.0 / (scale * spectrum)

    def solve(self, residual: Array) -> Array:
        rotated = self.class_vectors.T @ double(residual) @ self.feature_vectors
        solved = self.class_vectors @ (rotated * self.inverse_spectrum) @ self.feature_vectors.T
        return cast(solved, residual.dtype)


def too_wide(objective: LinearHead, rows: RowSet) -> bool:
    """Whether a d x d matrix does not fit beside the rows, or costs more than what it saves."""
    width, reached, stored = objective.n_features, len(rows) * objective.n_classes, rows.n_stored
    if stored < len(rows) * width and width**3 > PLAIN_PRODUCTS * stored * objective.n_classes:
        return True
    if not rows.affords(KRONECKER_COPIES * 8 * width**2) or width > WIDEST:
        return True
    return width > WIDE_TABLE and FEW_ROWS * reached < width


def precondition(curvature: Curvature, scale: float, shift: float = 0.0) -> Preconditioner | None:
    """Kronecker factors; None where they are not worth their work."""
    return None if too_wide(curvature.objective, curvature.rows) else KroneckerPreconditioner(curvature, scale, shift)
