"""The door in Python: what may be given, and that nothing of it is changed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import expunge
from expunge.train import train


def test_nothing_of_the_caller_is_changed(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=0.5, force=True)
    copies = [np.array(array) for pair in parts.values() for array in pair]
    weights = model.weight.clone()
    expunge.unlearn(model, parts["forget"], parts["surrogate"], epsilon=1.0, delta=1e-3, distance="same", force=True)
    assert all(
        np.array_equal(a, b) for a, b in zip(copies, [array for pair in parts.values() for array in pair], strict=True)
    )
    assert torch.equal(weights, model.weight)


def test_arrays_and_tensors_give_the_same_certificate(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0, force=True)
    facts = {
        "n_source": 300,
        "l2": 0.05,
        "loss": "softmax",
        "max_norm": 2.0,
        "training_residual": model.record.residual,
    }
    asked = {"epsilon": 1.0, "delta": 1e-3, "distance": "same", "force": True, "insecure_test_seed": 3}
    arrays = expunge.unlearn(model.weight.numpy(), parts["forget"], parts["surrogate"], **asked, **facts)
    tensors = expunge.unlearn(
        model.weight,
        tuple(map(torch.from_numpy, parts["forget"])),
        tuple(map(torch.from_numpy, parts["surrogate"])),
        **asked,
        **facts,
    )
    assert torch.equal(arrays.model.weight, tensors.model.weight)
    assert arrays.certificate.total == tensors.certificate.total


def test_surrogate_labels_may_be_left_out(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0, force=True)
    asked = {"epsilon": 1.0, "delta": 1e-3, "distance": "same", "force": True, "insecure_test_seed": 3}
    with_labels = expunge.unlearn(model, parts["forget"], parts["surrogate"], **asked)
    without = expunge.unlearn(model, parts["forget"], parts["surrogate"][0], **asked)
    assert with_labels.certificate.total == without.certificate.total


@pytest.mark.parametrize("size", [1e-8, 1e-9, 1e-29])
@pytest.mark.parametrize("distance", ["same", "kl:0.1", "tv:0.01"])
def test_rows_so_short_that_nothing_of_their_change_is_left(
    size: float, distance: str, parts, within: Callable[[float], Any]
) -> None:
    """The gradient's change is 0 on every surrogate row in float64, and its supremum is not: the search for noise ends."""
    (X, y), (S, t) = ((size * part[0], part[1]) for part in (parts["source"], parts["surrogate"]))
    model = train(X, y, l2=0.1, max_norm=10.0 * size)
    with within(20):
        made = expunge.unlearn(model, (X[:1], y[:1]), (S, t), epsilon=1.0, delta=1e-4, distance=distance, force=True)
    assert made.certificate.total < made.certificate.sigma
