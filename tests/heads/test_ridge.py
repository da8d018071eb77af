"""Ridge: its constants are attained."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import reference
from linear_heads import made, unit

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("bound", [0.5, 1.0, 3.0])
def test_ridge_constants_are_attained(bound: float) -> None:
    """A row along the top singular vector, its output opposite to its target."""
    rng = np.random.default_rng(6)
    classes, width, l2 = 4, 3, 0.2
    head = made("ridge", classes, width, l2=l2, bound=bound)
    direction = unit(rng, width)
    W = 2.5 * np.outer(-reference.one_hot(2, classes, "ridge") / math.sqrt(classes), direction)
    x = bound * direction
    residual = np.linalg.norm(W @ x - reference.one_hot(2, classes, "ridge"))
    gradient = reference.example_gradient(W, x, 2, "ridge") + l2 * W
    constants = head.constants(2.5)
    assert head.residual_sup(torch.tensor(W)) == pytest.approx(residual, rel=1e-12)
    assert constants.lipschitz == pytest.approx(np.linalg.norm(gradient), rel=1e-12)
    assert head.change_sup(torch.tensor(W)) == pytest.approx(
        np.linalg.norm(reference.example_change(0 * W, W, x, "ridge")), rel=1e-12
    )
    assert constants.smoothness == pytest.approx(
        np.linalg.eigvalsh(reference.example_hessian(W, x, "ridge"))[-1] + l2, rel=1e-12
    )
    assert constants.hessian_lipschitz == 0.0


def test_the_curvature_is_the_identity_for_every_row() -> None:
    """Five rows of three classes: entries of the upper half, the sum over weighted rows, one class at a time."""
    head, outputs = made("ridge", 3, 2), torch.zeros((3, 5), dtype=torch.float64)
    assert head.curvature_entries(outputs).tolist() == [[float(i == j)] * 5 for i in range(3) for j in range(i, 3)]
    weights = torch.tensor([0.5, 2.0, 0.0, 1.0, 1.5], dtype=torch.float64)
    assert head.curvature_sum(outputs, weights).tolist() == (5.0 * torch.eye(3)).tolist()
    assert head.separated(outputs).tolist() == [[1.0] * 5] * 3
    assert head.coupling(outputs).tolist() == [0.0] * 5
    assert made("ridge", 1, 2).coupling(outputs[:1]).tolist() == [0.0] * 5, "one output is enough"
    assert head.curve(outputs, torch.full((3, 5), 2.0)).tolist() == [[2.0] * 5] * 3
    assert head.moment_roundoffs(7) == 71
    assert head.constant_curvature
    assert not head.shift_invariant, "the same added to all outputs is farther from plus and minus one"


def test_losses_are_half_the_squared_distances_from_plus_and_minus_one() -> None:
    head = made("ridge", 2, 1)
    outputs = torch.tensor([[1.0, -1.0], [0.0, 3.0], [2.0, -1.0]], dtype=torch.float64)
    assert head.losses(outputs, torch.tensor([0, 1, 0])).tolist() == [0.0, 2.5, 0.5]
