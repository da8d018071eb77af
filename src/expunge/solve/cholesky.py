"""Dense systems, by Cholesky's factorisation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from expunge.solve.operators import SymmetricOperator
from expunge.solve.outcome import Ending, LinearSolution, relative_residual

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
