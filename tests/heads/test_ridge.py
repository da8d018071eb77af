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
