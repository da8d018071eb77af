"""Tangent weights as a file: they come back as they went, and go with one network only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from expunge.errors import ExpungeError, ModelError
from expunge.heads.tangent import last_parameters
from expunge.networks.tangent import (
    TangentModel,
    network_digest,
    objective_of,
    read_tangent,
    train_tangent,
    weights_digest,
)
from tangent_problems import examples, network

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model() -> TangentModel:
    module = network(0)
    return train_tangent(module, *examples(60, 1), l2=0.05, max_norm=1.5, names=last_parameters(module, 2))


def test_a_file_comes_back_as_it_went(model: TangentModel, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(model.to_bytes())
    read = read_tangent(path)
    assert torch.equal(read.weights, model.weights)
    assert (read.names, read.record) == (model.names, model.record)
    assert read.sha256() == model.sha256()


def test_a_changed_weight_or_record_is_noticed(model: TangentModel, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    content = bytearray(model.to_bytes())
    content[-1] ^= 1
    other = replace(model, record=replace(model.record, loss="ridge"))
    for written in (bytes(content), other.to_bytes(), model.to_bytes()[:-8], b"x" * 64):
        path.write_bytes(written)
        with pytest.raises(ExpungeError):
            read_tangent(path)


def test_it_goes_with_the_network_it_was_linearised_at(model: TangentModel) -> None:
    assert objective_of(network(0), model, 8, "cpu").n_parameters == len(model.weights)
    for other in (network(1), network(0, width=5)):
        with pytest.raises(ModelError, match="not the one"):
            objective_of(other, model, 8, "cpu")
    with pytest.raises(ModelError, match="not the one"):
        objective_of(network(0), replace(model, names=model.names[:1]), 8, "cpu")


def test_predictions_are_the_largest_outputs_whatever_the_blocks(model: TangentModel) -> None:
    module, (inputs, labels) = network(0), examples(60, 1)
    found = [model.predict(module, inputs, block=block) for block in (1, 7, 64)]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    assert (found[0] == labels).mean() > 0.6


def test_digests_are_of_network_and_names_and_of_every_bit() -> None:
    module = network(0)
    assert network_digest(module, ("a", "b")) != network_digest(module, ("ab",))
    assert network_digest(module, ("a",)) != network_digest(network(1), ("a",))
    weights = torch.zeros(4, dtype=torch.float64)
    assert weights_digest(weights) == weights_digest(weights.clone())
    assert weights_digest(weights) != weights_digest(-weights), "-0 is another bit"
