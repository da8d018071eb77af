"""Conjugate gradients: they find what Cholesky finds, and the residual they report is recomputed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from expunge.solve.cholesky import solve_dense
from expunge.solve.conjugate import solve_conjugate
from expunge.solve.equation import RetainHessian
from expunge.solve.newton import Manner, solve_linear
from step_problems import Example

pytestmark = pytest.mark.usefixtures("one_thread")
LOSSES = ("softmax", "ridge")
METHODS = ("cholesky", "conjugate gradients")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("loss", LOSSES)
def test_conjugate_gradients_and_cholesky_agree(loss: str, seed: int) -> None:
    example = Example(loss, classes=4, width=7, n=300, m=40, l2=10.0 ** -(1 + seed % 3), seed=seed)
    operator = RetainHessian(example.problem(), torch.zeros(4, 7, dtype=torch.float64), pull=0.0, last=None)
    right = torch.tensor(np.random.default_rng(seed).normal(size=(4, 7)))
    direct = solve_linear(operator, right, Manner(True, torch.float64, 1e-12), 1e-12)
    iterated = solve_linear(operator, right, Manner(False, torch.float64, 1e-12), 1e-12)
    exact = np.linalg.solve(example.jacobian(), right.numpy().reshape(-1)).reshape(4, 7)
    assert (direct.method, iterated.method) == METHODS
    assert np.allclose(direct.solution, exact, rtol=1e-8, atol=1e-11)
    assert np.allclose(iterated.solution, exact, rtol=1e-8, atol=1e-11)
    assert direct.positive_definite
    assert iterated.positive_definite


@pytest.mark.parametrize("tolerance", [0.3, 1e-2, 1e-6])
@pytest.mark.parametrize("working", [torch.float64, torch.float32])
def test_a_solver_s_residual_is_recomputed_and_true(tolerance: float, working: torch.dtype) -> None:
    example = Example(classes=4, width=9, n=200, m=20, l2=1e-2)
    problem = example.problem(surrogate_dtype=working, forget_dtype=working)
    operator = RetainHessian(problem, torch.zeros(4, 9, dtype=torch.float64), pull=0.0, last=None)
    right = torch.tensor(example.m * example.forget_gradient())
    for solved in (solve_conjugate(operator, right, tolerance, working), solve_dense(operator, right)):
        left = right.numpy().reshape(-1) - example.jacobian() @ solved.solution.double().numpy().reshape(-1)
        true = np.linalg.norm(left) / np.linalg.norm(right.numpy())
        assert solved.positive_definite
        assert solved.relative_residual == pytest.approx(
            true, rel=1e-3, abs=1e-12 if working == torch.float64 else 1e-4
        )
        if solved.method == "conjugate gradients" and working == torch.float64:
            assert true <= tolerance * (1 + 1e-6)
