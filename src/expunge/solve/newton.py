"""The step: Newton's method on `a(u) = 0`, the equation that the retained rows' optimum satisfies (see `evidence/`).

With a surrogate its first iteration is the paper's Algorithm 1. Nothing here can harm the guarantee: the bound charges
`||a(u)||`, and that is recomputed in float64 from the update that is handed over, never taken from a solver's own
account.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from expunge.runtime.progress import Advance, Progress, expected, silent, unwatched
from expunge.solve.cholesky import solve_dense
from expunge.solve.conjugate import solve_conjugate
from expunge.solve.operators import SymmetricOperator
from expunge.solve.outcome import Ending, LinearSolution, Step

CONVERGED = 1e-8  # of ||a(0)||: far below what any other term of the bound can be
MAX_NEWTON = 30


@dataclass(frozen=True)
class Manner:
    """How linear systems are solved: by factorising or by conjugate gradients, in which dtype, how accurately.

    `inexact`: while Newton's method is far from its goal, a rough solution of each system will do.
    """

    dense: bool
    working: torch.dtype
    accurate: float
    inexact: bool = True


class Equation(Protocol):
    """`a(u) = 0`. `scale` is what a pull is multiplied by: the number of rows that `a` is a sum over."""

    @property
    def weights(self) -> Tensor:
        """The weights that an update is added to."""

    @property
    def scale(self) -> int:
        """What a pull is multiplied by."""

    @property
    def n_rows(self) -> int:
        """The rows that one evaluation goes over."""

    def residual(self, update: Tensor) -> Tensor:
        """`a(u)`, in float64."""

    def jacobian(self, update: Tensor, pull: float, last: SymmetricOperator | None) -> SymmetricOperator:
        """The derivative of `a(u) + scale pull u`; `last` is that of the iteration before, whose work may be used."""

    def manner(self) -> Manner:
        """How systems with the Jacobian are to be solved."""

    def agreed(self, step: Tensor) -> Tensor:
        """The step that all processes take: each has computed one, and sums may differ in the last digit."""


def solve_linear(
    operator: SymmetricOperator, right: Tensor, manner: Manner, tolerance: float, advance: Advance = unwatched
) -> LinearSolution:
    """Whichever of the two ways is wanted."""
    if manner.dense:
        return solve_dense(operator, right)
    return solve_conjugate(operator, right, tolerance, manner.working, advance)


def newton_step(
    equation: Equation, *, single: bool, pull: float = 0.0, safeguarded: bool = True, progress: Progress = silent
) -> Step:
    """Newton's method on `a(u) + scale pull u = 0` from `u = 0`.

    An iteration is accepted only if it reduces the left side.

    `single` stops after the first iteration, solved accurately: without a pull, Algorithm 1. Otherwise inner solves are
    as accurate as the outer residual deserves, until it is `CONVERGED` of its start or no longer falls. A `pull` above
    0 holds the update nearer to 0; whatever u comes out, the residual reported is that of `a(u)` itself. Without
    `safeguarded` an iteration is taken as it comes.
    """
    update = torch.zeros_like(equation.weights)
    current = equation.residual(update)
    start = size = float(current.norm())
    manner = equation.manner()
    operator: SymmetricOperator | None = None

    def products(done: int, total: int | None) -> None:
        rows = equation.n_rows
        progress("Hessian products (rows)", done * rows, None if total is None else total * rows)

    def pulled(at: Tensor) -> Tensor:
        return equation.residual(at).add_(at, alpha=equation.scale * pull)

    iterations = inner = 0
    damping, left, ending = 0.0, 0.0, Ending.REACHED
    while size > CONVERGED * start:
        if iterations == (1 if single else MAX_NEWTON):
            ending = Ending.STOPPED if single else Ending.LIMIT
            break
        progress("Newton iterations", iterations, expected(iterations, size, start, CONVERGED * start))
        operator = equation.jacobian(update, pull, operator)
        tolerance = manner.accurate if single or not manner.inexact else _enough(manner, size, start)
        solved = solve_linear(operator, -current, manner, tolerance, products)
        direction = equation.agreed(solved.solution)
        inner, iterations = inner + solved.iterations, iterations + 1
        damping, left = max(damping, solved.damping), solved.relative_residual
        trial = update + direction
        image = pulled(trial)
        length = 1.0
        while safeguarded and not float(image.norm()) < size and length > 2e-4:
            length /= 2
            trial = update + length * direction
            image = pulled(trial)
        if safeguarded and not float(image.norm()) < size:
            ending = Ending.STALLED
            break
        stalled = float(image.norm()) > 0.9 * size
        update, current, size = trial, image, float(image.norm())
        if stalled and manner.working == torch.float64 and damping == 0.0 and not single:
            ending = Ending.STALLED if size > CONVERGED * start else Ending.REACHED
            break
    residual = float(equation.residual(update).norm()) if pull else size
    method = "cholesky" if manner.dense else "conjugate gradients"
    return Step(update, residual, start, iterations, inner, method, damping, ending, pull, left)


def _enough(manner: Manner, size: float, start: float) -> float:
    """Tolerance of an inner solve.

    A tenth of what the outer residual has come down to, but no finer than it can use.
    """
    return max(manner.accurate, min(1e-2, 0.1 * size / start), 0.3 * CONVERGED * start / size)
