"""What a surrogate is charged for, and what it assumes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from asking import asked
from expunge.distance import Distance
from expunge.errors import VacuousClaim
from expunge.evidence import gather
from expunge.mechanism import measure
from expunge.train import train
from step_problems import Example

pytestmark = pytest.mark.usefixtures("one_thread")
LOSSES = ("softmax", "ridge")


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("loss", LOSSES)
def test_what_the_mechanism_charges_for_rounding_covers_the_measured_residual(loss: str, scale: float) -> None:
    """a'(u) as computed against 64-bit mantissas, at the mechanism's own update from weights of any size."""
    for seed in range(6):
        example = Example(loss, classes=4, width=8, n=400, m=100, weights=scale, seed=seed)
        measured = measure(example.request())
        U, n, m, W, l2 = measured.step.update.numpy(), example.n, example.m, example.W, example.l2
        labels = np.zeros(len(example.S), dtype=int)
        after, before = (reference.exact_gradient(at, example.S, labels, l2, loss) for at in (W + U, W))
        exact = (n - m) * (after - before) - m * reference.exact_gradient(W, example.X[:m], example.y[:m], l2, loss)
        retained = gather(example.request()).retained
        error = float(np.sqrt(((retained.residual(torch.tensor(U)).numpy() - exact) ** 2).sum()))
        charged, left = measured.facts["rounding"].value, measured.facts["solver_residual"].value
        assert 0 < error <= charged
        assert float(np.sqrt((exact**2).sum())) <= left + charged


def one_hot_request(level: int, sampling: str):
    """One of 200 one-hot rows of five levels is to be forgotten; the surrogate has four of the levels."""
    levels = np.arange(200) % 5
    rows, labels = np.eye(5)[levels], levels % 2
    model = train(rows, labels, l2=0.1, max_norm=1.0, loss="ridge")
    row = int(np.flatnonzero(levels == level)[0])
    surrogate = np.eye(5)[np.arange(120) % 4]
    distance = Distance("same", 0.0, sampling=sampling)
    options = {"epsilon": 1.0, "delta": 1e-4, "distance": distance, "force": True}
    return asked(model, (rows[[row]], labels[[row]]), surrogate, **options)


def test_seen_is_refused_where_a_forget_row_shows_that_it_is_not_all() -> None:
    with pytest.raises(VacuousClaim, match="a forget row changes by") as refused:
        measure(one_hot_request(4, "seen"), seed=0)
    assert "--sampling strict" in str(refused.value)
    measure(one_hot_request(4, "strict"), seed=0)
    measure(one_hot_request(3, "seen"), seed=0)
