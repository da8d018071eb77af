"""Newton's method on `a(u) = 0`: the equation that the retained rows' optimum satisfies, or training's.

All equations are at the end of this file. With a surrogate the first iteration is the paper's Algorithm 1. Nothing here
can harm the guarantee: the bound charges `||a(u)||`, and that is recomputed in float64 from the update that is handed
over, never taken from a solver's own account."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from expunge.heads.linear import Curvature
from expunge.runtime.arrays import Array, Dtype, add_to_diagonal, copy, is_double, norm, zeros
from expunge.runtime.progress import Advance, Progress, expected, silent, unwatched
from expunge.solve.linear import (
    Ending,
    LinearSolution,
    Preconditioner,
    Step,
    SymmetricOperator,
    precondition,
    solve_conjugate,
    solve_dense,
)

CONVERGED = 1e-8  # of ||a(0)||: far below what any other term of the bound can be
MAX_NEWTON, MAX_TRAINING = 30, 50
ROUNDED = 1e-8  # of a gradient: from here on an objective hides in its rounding what an iteration gains


@dataclass(frozen=True)
class Manner:
    """How linear systems are solved: by factorising or by conjugate gradients, in which dtype, how accurately.

    `inexact`: while Newton's method is far from its goal, a rough solution of each system will do.
    """

    dense: bool
    working: Dtype
    accurate: float
    inexact: bool = True


class Equation(Protocol):
    """`a(u) = 0`. `scale` is what a pull is multiplied by: the number of rows that `a` is a sum over."""

    @property
    def weights(self) -> Array:
        """The weights that an update is added to."""

    @property
    def scale(self) -> int:
        """What a pull is multiplied by."""

    @property
    def n_rows(self) -> int:
        """The rows that one evaluation goes over."""

    def residual(self, update: Array) -> Array:
        """`a(u)`, in float64."""

    def jacobian(self, update: Array, pull: float, last: SymmetricOperator | None) -> SymmetricOperator:
        """The derivative of `a(u) + scale pull u`; `last` is that of the iteration before, whose work may be used."""

    def manner(self) -> Manner:
        """How systems with the Jacobian are to be solved."""

    def agreed(self, step: Array) -> Array:
        """The step that all processes take: each has computed one, and sums may differ in the last digit."""


def solve_linear(
    operator: SymmetricOperator, right: Array, manner: Manner, tolerance: float, advance: Advance = unwatched
) -> LinearSolution:
    """Solve a linear system in the wanted manner: by factorising, or by conjugate gradients."""
    if manner.dense:
        return solve_dense(operator, right)
    return solve_conjugate(operator, right, tolerance, manner.working, advance)


def newton_step(
    equation: Equation,
    *,
    single: bool = False,
    pull: float = 0.0,
    safeguarded: bool = True,
    goal: float | None = None,
    objective: Callable[[Array], float] | None = None,
    progress: Progress = silent,
) -> Step:
    """Newton's method on `a(u) + scale pull u = 0` from `u = 0`.

    An iteration is accepted only if it reduces the left side; where `a` is the gradient of an `objective`, if that
    falls or the gradient halves. Without `safeguarded` it is taken as it comes.

    `single` stops after the first iteration, solved accurately: without a pull, Algorithm 1. Otherwise inner solves are
    as accurate as the outer residual deserves, until it is at most `goal` (`CONVERGED` of its start) or no longer
    falls. A `pull` above 0 holds the update nearer to 0; whatever u comes out, the residual reported is that of `a(u)`.
    """
    update = zeros(equation.weights)
    value = 0.0 if objective is None else objective(update)  # first: the gradient may come with it
    current = equation.residual(update)
    start = size = norm(current)
    goal = CONVERGED * start if goal is None else goal
    most, shortest = (MAX_NEWTON, 2e-4) if objective is None else (MAX_TRAINING, 1e-6)
    manner = equation.manner()
    operator: SymmetricOperator | None = None

    def products(done: int, total: int | None) -> None:
        rows = equation.n_rows
        progress("Hessian products (rows)", done * rows, None if total is None else total * rows)

    iterations = inner = 0
    damping, left, ending = 0.0, 0.0, Ending.REACHED
    while size > goal:
        if iterations == (1 if single else most):
            ending = Ending.STOPPED if single else Ending.LIMIT
            break
        progress("Newton iterations", iterations, expected(iterations, size, start, goal))
        operator = equation.jacobian(update, pull, operator)
        # a tenth of what the outer residual has come down to, but no finer than it can use
        enough = max(manner.accurate, min(1e-2, 0.1 * size / start), 0.3 * goal / size)
        tolerance = manner.accurate if single or not manner.inexact else enough
        solved = solve_linear(operator, -current, manner, tolerance, products)
        direction = equation.agreed(solved.solution)
        inner, iterations = inner + solved.iterations, iterations + 1
        damping, left = max(damping, solved.damping), solved.relative_residual
        slope = float((current * direction).sum())
        length, accepted = 2.0, False
        while not accepted and length > shortest:
            length /= 2.0
            trial = update + length * direction
            there = value if objective is None else objective(trial)
            image = equation.residual(trial)
            if pull:
                image = image + (equation.scale * pull) * trial
            reached = norm(image)
            if objective is None:
                accepted = not safeguarded or reached < size
            else:
                accepted = there <= value + 1e-4 * length * slope or reached < 0.5 * size
        if not accepted:
            ending = Ending.STALLED
            break
        if objective is None:
            stalled = reached > 0.9 * size and is_double(manner.working) and damping == 0.0 and not single
        elif reached >= size and size < ROUNDED:
            ending = Ending.STALLED
            break
        else:
            stalled = False
        update, current, size, value = trial, image, reached, there
        if stalled:
            ending = Ending.STALLED if size > goal else Ending.REACHED
            break
    residual = norm(equation.residual(update)) if pull else size
    method = "cholesky" if manner.dense else "conjugate gradients"
    return Step(update, residual, start, iterations, inner, method, damping, ending, pull, left)


# Updates that are held back by a pull toward 0, and which of them to take ------------------------------------------

MAX_PULLS = 16


def no_step(like: Step) -> Step:
    """Staying where one is: all of the equation is left."""
    return replace(like, update=zeros(like.update), residual=like.residual_at_start, pull=math.inf)


def balanced_step(
    equation: Equation, bound_of: Callable[[Step], float], first_pull: float, progress: Progress = silent
) -> Step:
    """The update with the smallest bound found among those held back by a pull toward 0.

    A longer update leaves less of the forgotten gradient (solver term) but relies more on the surrogate (surrogate and
    sampling terms). Pulls grow fourfold; the search ends when the bound has risen twice, or is no better than
    for no update at all. Ranking needs no guarantee: the bound of the update chosen is computed anew afterwards.
    """
    best = newton_step(equation, single=False, progress=progress)
    none = no_step(best)
    smallest, rises, pull = bound_of(best), 0, first_pull
    for tried in range(MAX_PULLS):
        progress("Balancing the step", tried, None)
        step = newton_step(equation, single=False, pull=pull)
        bound = bound_of(step)
        rises = rises + 1 if bound >= smallest else 0
        if bound < smallest:
            best, smallest = step, bound
        if rises == 2:
            break
        pull *= 4.0
    return none if bound_of(none) <= smallest else best


# Damped steps, one after another, for losses that are not convex: Levenberg and Marquardt's method -------------------
#
#     (J(u) + scale pull I) d = -a(u)
#
# `J` is what the equation gives for its Jacobian, of a network its Hessian or Gauss-Newton's matrix. `a` is the
# gradient of an objective, and a step is taken where that falls: `d . (a(u) + a(u + d)) / 2 < 0`. Whether `||a||` falls
# would be the wrong question: where curvature is negative it must rise on the way to a minimum. The pull is adapted: it
# shrinks where the quadratic model foretold the fall well and grows where it did not.

GOAL = 1e-2  # of ||a(0)||: what may be left
FIRST_PULL = 1e-2
SMALLEST_PULL = 1e-8
MAX_TRIED = 100
SHRINK = 2.0  # along a valley a pull that shrinks faster is too small at once, and each step that fails costs a system
PATIENCE = 20  # after so many steps without a smaller residual it no longer falls
ROUGHLY = 0.1  # of its right side: what a linear system may leave, since the next step takes it up


def iterated_step(
    equation: Equation, *, first_pull: float = FIRST_PULL, goal: float = GOAL, progress: Progress = silent
) -> Step:
    """Steps from `u = 0` until `||a(u)||` is `goal` of its start (`REACHED`) or no longer falls (`STALLED`).

    What comes back has the smallest residual on the way, so it is never worse than no step. `iterations` counts the
    steps that were tried, `pull` is that of the step that led there, and infinite where none did.
    """
    update = zeros(equation.weights)
    current = equation.residual(update)
    start = smallest = norm(current)
    best, pull, its_pull, since = update, first_pull, math.inf, 0
    manner, inner, damping, left, tried, ending = equation.manner(), 0, 0.0, 0.0, 0, Ending.LIMIT
    while tried < MAX_TRIED:
        if smallest <= goal * start:
            ending = Ending.REACHED
            break
        if since == PATIENCE:
            ending = Ending.STALLED
            break
        progress("Damped steps", tried, expected(tried, smallest, start, goal * start))
        operator = equation.jacobian(update, pull, None)
        solved = solve_linear(operator, -current, manner, ROUGHLY)
        direction = equation.agreed(solved.solution)
        inner, damping, left = inner + solved.iterations, max(damping, solved.damping), solved.relative_residual
        bent = operator.product(direction)
        bent -= (equation.scale * pull) * direction
        image = equation.residual(update + direction)
        fall = -0.5 * float((direction * (current + image)).sum())
        foretold = -float((direction * (current + 0.5 * bent)).sum())
        tried, since = tried + 1, since + 1
        if fall > 0.0:
            update, current = update + direction, image
            if norm(image) < smallest:
                best, smallest, its_pull, since = update, norm(image), pull, 0
        pull = adapted(pull, fall / foretold if foretold > 0.0 else 0.0)
    method = "cholesky" if manner.dense else "conjugate gradients"
    return Step(best, smallest, start, tried, inner, method, damping, ending, its_pull, left)


def adapted(pull: float, agreement: float) -> float:
    """The next pull, from the share of the foretold fall that came true.

    >>> adapted(1.0, 0.9), adapted(1.0, 0.5), adapted(1.0, -2.0)
    (0.5, 1.0, 4.0)
    """
    if agreement > 0.75:
        return max(pull / SHRINK, SMALLEST_PULL)
    return pull if agreement > 0.25 else 4.0 * pull


# The equations to solve, from what is at hand. The surrogate stands in for the retained rows, or for the whole source
#     a'(u) = (n-m) (g_S(w+u) - g_S(w)) - m g_U(w),   with Jacobian (n-m) H_S(w+u)                RetainedEquation
#     a(u)  = n (g_S(w+u) - g_S(w)) - m g_U(w+u),     with Jacobian n H_S(w+u) - m H_U(w+u)       SurrogateEquation
#     g(w+u),                                         with Jacobian H(w+u)                        TrainingEquation
#
# The first two start at `-m g_U(w)`. The second is the paper's: its first Newton iteration is Algorithm 1,
# `u = m (n H_S - m H_U)^-1 g_U`. The first charges the forget rows, which u is made from, where they are known, and its
# Jacobian is always positive definite. The third is what training solves.


class Hessian:
    """`scale (H + pull I)` of one set, less `n_forget H_U` where there is a second.

    Preconditioned by its own structure, by what was made for an earlier one, or by what is `near` its inverse.
    """

    def __init__(
        self,
        curvature: Any,
        scale: float,
        pull: float,
        last: SymmetricOperator | None = None,
        near: Preconditioner | None = None,
        forget: Any = None,
        n_forget: int = 0,
    ) -> None:
        self.curvature, self.scale, self.pull, self.forget, self.n_forget = curvature, scale, pull, forget, n_forget
        self.near = last.preconditioner if isinstance(last, Hessian) else near

    @cached_property
    def preconditioner(self) -> Preconditioner | None:
        """Made once, from the first Hessian; None where it has no structure to make one from."""
        if self.near is None and isinstance(self.curvature, Curvature):
            return precondition(self.curvature, self.scale, self.pull)
        return self.near

    def product(self, direction: Array) -> Array:
        image: Array = self.curvature.product(direction)
        if self.pull:
            image += self.pull * direction
        image *= self.scale
        if self.forget is not None:
            image -= self.n_forget * self.forget.product(direction)
        return image

    def dense(self) -> Array:
        matrix = add_to_diagonal(self.curvature.dense(), self.pull)
        matrix *= self.scale
        if self.forget is not None:
            matrix -= self.n_forget * self.forget.dense()
        return matrix

    def precondition(self, residual: Array) -> Array:
        return copy(residual) if self.preconditioner is None else self.preconditioner.solve(residual)


class _Equation:
    """What the three have in common: an objective, the weights to start from (float64), the rows that are gone over.

    These are called `surrogate` in all three; of training they are the source.
    """

    head: Any
    weights: Array
    surrogate: Any

    @property
    def n_rows(self) -> int:
        return len(self.surrogate)

    def manner(self) -> Manner:
        working = self.surrogate.dtype
        return Manner(self.head.dense_pays(self.surrogate), working, self.head.accurate(working), self.head.inexact)

    def agreed(self, step: Array) -> Array:
        agreed: Array = self.surrogate.agreed(step)
        return agreed

    def change(self, update: Array) -> Array:
        """`g(w+u) - g(w)` over the rows, regulariser included."""
        change: Array = self.head.change_mean(self.weights, update, self.surrogate) + self.head.l2 * update
        return change


@dataclass(frozen=True)
class SurrogateEquation(_Equation):
    """`a(u) = 0`, from forget and surrogate rows and the source's size."""

    head: Any
    weights: Array
    forget: Any
    surrogate: Any
    n_source: int

    @property
    def scale(self) -> int:
        return self.n_source

    def residual(self, update: Array) -> Array:
        """`a(u)`, float64."""
        left: Array = self.head.gradient(self.weights + update, self.forget)
        return self.n_source * self.change(update) - len(self.forget) * left

    def jacobian(self, update: Array, pull: float, last: SymmetricOperator | None) -> Hessian:
        at = self.weights + update
        # the forget set's own rows stay float64, for the evidence
        forget = self.head.curvature(at, self.head.working(self.forget, self.surrogate.dtype))
        curvature = self.head.curvature(at, self.surrogate)
        return Hessian(curvature, self.n_source, pull, last, forget=forget, n_forget=len(self.forget))


@dataclass(frozen=True)
class RetainedEquation(_Equation):
    """`a'(u) = 0`: `forgotten` is the sum of the gradients, at the trained weights, of all rows that leave."""

    head: Any
    weights: Array
    forgotten: Array
    surrogate: Any
    n_retain: int

    @property
    def scale(self) -> int:
        return self.n_retain

    def residual(self, update: Array) -> Array:
        """`a'(u)`, float64."""
        return self.n_retain * self.change(update) - self.forgotten

    def jacobian(self, update: Array, pull: float, last: SymmetricOperator | None) -> Hessian:
        return Hessian(self.head.curvature(self.weights + update, self.surrogate), float(self.n_retain), pull, last)


@dataclass
class TrainingEquation(_Equation):
    """`g(w+u) = 0`. Somebody who has what is `near` the inverse of the Hessian saves forming Hessians."""

    head: Any
    weights: Array
    surrogate: Any  # the source itself
    near: Preconditioner | None = None
    scale = 1
    last: tuple[Array | None, Array | None] = (None, None)  # an update, and the gradient there

    def objective(self, update: Array) -> float:
        """`L(w+u)`; the gradient comes with it, in one pass over the rows."""
        value, gradient = self.head.value_and_gradient(self.weights + update, self.surrogate)
        self.last = update, gradient
        return float(value)

    def residual(self, update: Array) -> Array:
        """The gradient, float64."""
        of, gradient = self.last
        return gradient if of is update else self.head.gradient(self.weights + update, self.surrogate)

    def jacobian(self, update: Array, pull: float, last: SymmetricOperator | None) -> Hessian:
        return Hessian(self.head.curvature(self.weights + update, self.surrogate), 1.0, pull, last, self.near)

    def manner(self) -> Manner:
        working = self.surrogate.dtype
        dense = self.near is None and self.head.dense_pays(self.surrogate)
        return Manner(dense, working, self.head.accurate(working))
