"""Preconditioners: exact where their structure is, positive definite everywhere, and never a change of the solution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import reference
from expunge.heads import Curvature, LinearHead, Rows, head_for
from expunge.solve import linear
from expunge.solve.linear import (
    ClassBlocks,
    KroneckerPreconditioner,
    blocks_pay,
    solve_conjugate,
    too_wide,
)
from expunge.solve.newton import SurrogateEquation, newton_step
from expunge.train import minimise
from step_problems import preconditioned

pytestmark = pytest.mark.usefixtures("one_thread")


KINDS = [KroneckerPreconditioner, ClassBlocks]
LOSSES = ("softmax", "ridge")


class Plain:
    """No preconditioner at all."""

    def solve(self, residual: torch.Tensor) -> torch.Tensor:
        return residual.clone()


def problem(
    loss: str, classes: int, width: int, n: int, l2: float, seed: int = 0
) -> tuple[LinearHead, torch.Tensor, Rows]:
    rng = np.random.default_rng([seed, classes, width, n])
    X, y = reference.random_rows(rng, n, width, classes)
    X = X * np.arange(1, width + 1) ** -1.0  # a spectrum that is worth preconditioning
    X /= np.linalg.norm(X, axis=1, keepdims=True) * (1 + 1e-12)
    head = head_for(loss, l2=l2, n_classes=classes, n_features=width, row_bound=1.0)
    return head, torch.tensor(rng.normal(size=(classes, width)) * 4), Rows(torch.tensor(X), torch.tensor(y))


def as_matrix(preconditioner: Any, classes: int, width: int) -> np.ndarray[Any, Any]:
    """The map, column by column."""
    size = classes * width
    basis = torch.eye(size, dtype=torch.float64).reshape(size, classes, width)
    return np.stack([preconditioner.solve(each).numpy().reshape(-1) for each in basis], axis=1)


@pytest.mark.parametrize("kind", KINDS)
def test_where_the_structure_is_exact_one_iteration_is_enough(kind: Any) -> None:
    """Least squares: the curvature is the same for every row and class."""
    head, weights, rows = problem("ridge", 3, 5, 80, 1e-3)
    operator = preconditioned(head, weights, rows, kind(Curvature(head, weights, rows), 1.0))
    solved = solve_conjugate(operator, torch.randn(3, 5, dtype=torch.float64), 1e-10, torch.float64)
    assert solved.iterations <= 2
    assert solved.relative_residual < 1e-10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_symmetric_and_positive_definite(kind: Any, loss: str, scale: float) -> None:
    head, weights, rows = problem(loss, 3, 4, 60, 1e-3)
    rows = Rows(rows.features * scale, rows.labels)
    matrix = as_matrix(kind(Curvature(head, weights / scale, rows), 3.0), 3, 4)
    assert np.allclose(matrix, matrix.T, atol=1e-9 * np.abs(matrix).max())
    # where squares overflow it is a multiple of the identity, which is of no help and no harm
    assert np.linalg.eigvalsh((matrix + matrix.T) / 2).min() > -1e-12 * np.abs(matrix).max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_solution_does_not_depend_on_it(kind: Any, loss: str) -> None:
    head, weights, rows = problem(loss, 4, 12, 300, 1e-3)
    chosen = kind(Curvature(head, weights, rows), 1.0)
    right = torch.tensor(np.random.default_rng(2).normal(size=(4, 12)))
    solved = solve_conjugate(preconditioned(head, weights, rows, chosen), right, 1e-12, torch.float64)
    dense = reference.hessian(weights.numpy(), rows.features.numpy(), head.l2, loss)
    assert np.allclose(solved.solution.reshape(-1), np.linalg.solve(dense, right.reshape(-1)), rtol=1e-8, atol=1e-8)


def test_blocks_need_fewer_iterations_than_the_others() -> None:
    """Undecided rows that lie elsewhere for each class: what Kronecker factors cannot know."""
    head, weights, rows = problem("softmax", 6, 40, 2000, 1e-6)
    curvature = Curvature(head, 5 * weights, rows)
    right = torch.tensor(np.random.default_rng(2).normal(size=(6, 40)))
    right -= right.mean(dim=0)
    needed = {
        type(chosen): solve_conjugate(
            preconditioned(head, 5 * weights, rows, chosen), right, 1e-8, torch.float64
        ).iterations
        for chosen in (Plain(), KroneckerPreconditioner(curvature, 1.0), ClassBlocks(curvature, 1.0))
    }
    assert 1.5 * needed[ClassBlocks] < needed[KroneckerPreconditioner]
    assert 3 * needed[ClassBlocks] < needed[Plain]


def test_blocks_are_formed_only_where_they_pay() -> None:
    def many(n: int, width: int) -> Rows:
        return Rows(torch.zeros(1, width).expand(n, width), torch.zeros(1, dtype=torch.int64).expand(n))

    def head(loss: str, classes: int, width: int) -> LinearHead:
        return head_for(loss, l2=1e-4, n_classes=classes, n_features=width, row_bound=1.0)

    assert blocks_pay(head("softmax", 10, 512), many(2_000_000, 512))
    assert not blocks_pay(head("softmax", 10, 512), many(2_000, 512))
    assert not blocks_pay(head("softmax", 1000, 2048), many(1_281_167, 2048))
    assert not blocks_pay(head("ridge", 10, 512), many(2_000_000, 512))


@pytest.mark.parametrize("pull", [0.0, 0.3])
def test_the_step_is_the_same_with_either(pull: float, monkeypatch: pytest.MonkeyPatch) -> None:
    head, _, rows = problem("softmax", 3, 6, 200, 1e-2)
    weights = torch.tensor(reference.retrain(rows.features.numpy(), rows.labels.numpy(), 3, head.l2, "softmax").weights)
    task = SurrogateEquation(head, weights, Rows(rows.features[:20], rows.labels[:20]), rows, len(rows))
    monkeypatch.setattr(LinearHead, "dense_pays", lambda *_: False)
    found = []
    for pays in (False, True):
        monkeypatch.setattr(linear, "blocks_pay", lambda *_, pays=pays: pays)
        expected = ClassBlocks if pays else KroneckerPreconditioner
        assert type(task.jacobian(torch.zeros_like(weights), pull, None).preconditioner) is expected
        found.append(newton_step(task, single=False, pull=pull).update)
    assert torch.allclose(*found, rtol=1e-6, atol=1e-9)


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
    assert float(head.gradient(found, rows).norm()) < 1e-10
    # the optimum lies in the span of the rows: found there by the same loss on 30 coordinates
    basis = torch.linalg.qr(X.T).Q
    narrow = head_for("softmax", l2=0.05, n_classes=2, n_features=30, row_bound=1.0)
    expected = minimise(narrow, Rows(X @ basis, rows.labels)) @ basis.T
    assert torch.allclose(found, expected, atol=1e-9)
