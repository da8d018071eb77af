"""Maps that are known by their products alone."""

import pytest
import torch

from expunge.solve.conjugate import solve_conjugate
from expunge.solve.operators import MatrixFree


def test_products_are_enough_to_solve_with() -> None:
    root = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    matrix = root @ root.T + torch.eye(6, dtype=torch.float64)
    right = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    operator = MatrixFree(lambda direction: (matrix @ direction.reshape(-1)).reshape(2, 3))
    solved = solve_conjugate(operator, right, 1e-12, torch.float64)
    torch.testing.assert_close(solved.solution.reshape(-1), torch.linalg.solve(matrix, right.reshape(-1)))


def test_nothing_is_preconditioned_and_no_matrix_pretended() -> None:
    operator = MatrixFree(lambda direction: direction)
    residual = torch.ones(3)
    copied = operator.precondition(residual)
    assert torch.equal(copied, residual)
    assert copied.data_ptr() != residual.data_ptr()
    with pytest.raises(NotImplementedError):
        operator.dense()
