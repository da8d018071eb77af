"""Dense systems: the zero right-hand side, and a matrix that had to be shifted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from expunge.solve.equation import RetainHessian
from expunge.solve.newton import Manner, solve_linear
from step_problems import Example, indefinite

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_zero_right_hand_side_has_the_zero_solution() -> None:
    example = Example()
    operator = RetainHessian(example.problem(), torch.zeros(3, 5, dtype=torch.float64), pull=0.0, last=None)
    zero = torch.zeros(3, 5, dtype=torch.float64)
    for dense in (True, False):
        solved = solve_linear(operator, zero, Manner(dense, torch.float64, 1e-10), 1e-10)
        assert torch.equal(solved.solution, zero)
        assert solved.relative_residual == 0.0


@pytest.mark.parametrize("dense", [True, False])
def test_a_shifted_solution_reports_the_residual_of_the_matrix_as_it_is(dense: bool) -> None:
    """Not of the shifted one, which it solves well."""
    example = indefinite("ridge", 1e-4, 1000)
    operator = RetainHessian(example.problem(), torch.zeros(2, 200, dtype=torch.float64), pull=0.0, last=None)
    right = torch.tensor(example.m * example.forget_gradient())
    solved = solve_linear(operator, right, Manner(dense, torch.float64, 1e-10), 1e-10)
    left = right.numpy().reshape(-1) - example.jacobian() @ solved.solution.numpy().reshape(-1)
    assert not solved.positive_definite
    assert solved.damping > 0
    assert solved.relative_residual == pytest.approx(np.linalg.norm(left) / np.linalg.norm(right.numpy()), rel=1e-8)
    assert solved.relative_residual > 1e-6
