"""The preconditioner: exact where its structure is, positive definite everywhere, and never a change of the solution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from expunge.heads import Curvature, LinearHead, Rows, head_for
from expunge.runtime.arrays import norm, to_numpy
from expunge.solve import linear
from expunge.solve.linear import KroneckerPreconditioner, solve_conjugate, too_wide
from expunge.train import minimise
from step_problems import preconditioned

pytestmark = pytest.mark.usefixtures("one_thread")


LOSSES = ("softmax", "ridge")


def problem(
    loss: str, classes: int, width: int, n: int, l2: float, seed: int = 0
) -> tuple[LinearHead, torch.Tensor, Rows]:
    rng = np.random.default_rng([seed, classes, width, n])
    X, y = reference.random_rows(rng, n, width, classes)
    X = X * np.arange(1, width + 1) ** -1.0  # a spectrum that is worth preconditioning
    X /= np.linalg.norm(X, axis=1, keepdims=True) * (1 + 1e-12)
    head = head_for(loss, l2=l2, n_classes=classes, n_features=width, row_bound=1.0)
    return head, torch.tensor(rng.normal(size=(classes, width)) * 4), Rows(torch.tensor(X), torch.tensor(y))


def test_where_the_structure_is_exact_one_iteration_is_enough() -> None:
    """Least squares: the curvature is the same for every row and class."""
    head, weights, rows = problem("ridge", 3, 5, 80, 1e-3)
    chosen = KroneckerPreconditioner(Curvature(head, weights, rows), 1.0)
    operator = preconditioned(head, weights, rows, chosen)
    solved = solve_conjugate(operator, torch.randn(3, 5, dtype=torch.float64), 1e-10, torch.float64)
    assert solved.iterations <= 2
    assert solved.relative_residual < 1e-10


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_symmetric_and_positive_definite(loss: str, scale: float) -> None:
    head, weights, rows = problem(loss, 3, 4, 60, 1e-3)
    rows = Rows(rows.features * scale, rows.labels)
    chosen = KroneckerPreconditioner(Curvature(head, weights / scale, rows), 3.0)
    basis = torch.eye(12, dtype=torch.float64).reshape(12, 3, 4)
    matrix = np.stack([to_numpy(chosen.solve(each)).reshape(-1) for each in basis], axis=1)
    assert np.allclose(matrix, matrix.T, atol=1e-9 * np.abs(matrix).max())
    # where squares overflow it is a multiple of the identity, which is of no help and no harm
    assert np.linalg.eigvalsh((matrix + matrix.T) / 2).min() > -1e-12 * np.abs(matrix).max()


@pytest.mark.parametrize("loss", LOSSES)
def test_the_solution_does_not_depend_on_it(loss: str) -> None:
    head, weights, rows = problem(loss, 4, 12, 300, 1e-3)
    right = torch.tensor(np.random.default_rng(2).normal(size=(4, 12)))
    dense = reference.hessian(to_numpy(weights), to_numpy(rows.features), head.l2, loss)
    for chosen in (None, KroneckerPreconditioner(Curvature(head, weights, rows), 1.0)):
        solved = solve_conjugate(preconditioned(head, weights, rows, chosen), right, 1e-12, torch.float64)
        assert np.allclose(solved.solution.reshape(-1), np.linalg.solve(dense, right.reshape(-1)), rtol=1e-8, atol=1e-8)


class NoRoom(Rows):
    """Nothing fits beside the rows."""

    def affords(self, n_bytes: int) -> bool:
        return False


def test_without_room_for_a_square_matrix_there_is_no_preconditioner() -> None:
    head, weights, rows = problem("softmax", 3, 4, 120, 1e-3)
    assert linear.precondition(Curvature(head, weights, NoRoom(rows.features, rows.labels)), 7.0, 0.5) is None
    assert linear.precondition(Curvature(head, weights, rows), 7.0, 0.5) is not None


def test_a_table_far_wider_than_long_is_solved_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty rows of 3,000 features: the step is that of the dense matrix, and no d x d matrix is made."""
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.normal(size=(30, 3_000)) / 60)
    head = head_for("softmax", l2=0.05, n_classes=2, n_features=3_000, row_bound=1.0)
    rows = Rows(X, torch.tensor(rng.integers(0, 2, 30)))
    assert too_wide(head, rows)
    assert not too_wide(head, Rows(X.repeat(20, 1), rows.labels.repeat(20)))
    with monkeypatch.context() as watched:
        watched.setattr(Curvature, "feature_factor", lambda *_: pytest.fail("a d x d matrix"))
        found = minimise(head, rows)
    assert float(norm(head.gradient(found, rows))) < 1e-10
    # the optimum lies in the span of the rows: found there by the same loss on 30 coordinates
    basis = torch.linalg.qr(X.T).Q
    narrow = head_for("softmax", l2=0.05, n_classes=2, n_features=30, row_bound=1.0)
    expected = minimise(narrow, Rows(X @ basis, rows.labels)) @ basis.T
    assert torch.allclose(found, expected, atol=1e-9)
