"""What a surrogate is charged for, and what it assumes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from expunge.mechanism import measure
from step_problems import Example

pytestmark = pytest.mark.usefixtures("one_thread")
LOSSES = ("softmax", "ridge")


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("loss", LOSSES)
def test_what_the_mechanism_charges_for_rounding_covers_the_measured_residual(loss: str, scale: float) -> None:
    """a(u) as computed against 64-bit mantissas, at the mechanism's own update from weights of any size."""
    for seed in range(6):
        example = Example(loss, classes=4, width=8, n=400, m=100, weights=scale, seed=seed)
        measured = measure(example.request())
        U, n, m, W, l2 = measured.step.update.numpy(), example.n, example.m, example.W, example.l2
        labels = np.zeros(len(example.S), dtype=int)
        after, before = (reference.exact_gradient(at, example.S, labels, l2, loss) for at in (W + U, W))
        exact = n * (after - before) - m * reference.exact_gradient(W + U, example.X[:m], example.y[:m], l2, loss)
        error = float(np.sqrt(((example.problem().residual(torch.tensor(U)).numpy() - exact) ** 2).sum()))
        charged, left = measured.facts["rounding"].value, measured.facts["solver_residual"].value
        assert 0 < error <= charged
        assert float(np.sqrt((exact**2).sum())) <= left + charged
