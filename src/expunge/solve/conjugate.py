"""Preconditioned conjugate gradients, which notice a direction of negative curvature."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from expunge.runtime.progress import Advance, expected, unwatched
from expunge.solve.cholesky import MAX_SHIFTS
from expunge.solve.operators import SymmetricOperator
from expunge.solve.outcome import Ending, LinearSolution, relative_residual

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
