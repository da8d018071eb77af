"""Damped steps on `a(u) = 0`, one after another, for losses that are not convex: Levenberg and Marquardt's method.

    (J(u) + scale pull I) d = -a(u)

`J` is what the equation gives for its Jacobian, of a network its Hessian or Gauss-Newton's matrix. `a` is the gradient
of an objective, and a step is taken where that falls: `d . (a(u) + a(u + d)) / 2 < 0`. Whether `||a||` falls would be
the wrong question: where curvature is negative it must rise on the way to a minimum. The pull is adapted: it shrinks
where the quadratic model foretold the fall well and grows where it did not.
"""

from __future__ import annotations

import math

import torch

from expunge.runtime.progress import Progress, expected, silent
from expunge.solve.newton import Equation, solve_linear
from expunge.solve.outcome import Ending, Step

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
    update = torch.zeros_like(equation.weights)
    current = equation.residual(update)
    start = smallest = float(current.norm())
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
        bent = operator.product(direction).sub_(direction, alpha=equation.scale * pull)
        image = equation.residual(update + direction)
        fall = -0.5 * float((direction * (current + image)).sum())
        foretold = -float((direction * (current + 0.5 * bent)).sum())
        tried, since = tried + 1, since + 1
        if fall > 0.0:
            update, current = update + direction, image
            if float(image.norm()) < smallest:
                best, smallest, its_pull, since = update, float(image.norm()), pull, 0
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
