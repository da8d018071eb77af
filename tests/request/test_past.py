"""What was forgotten before: kept as one sum of gradients and a count a class, and read back strictly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from expunge.errors import ExpungeError
from expunge.heads import Rows
from expunge.request.past import Past, anchored_bytes, left_over, nothing_forgotten, read_anchored, without
from expunge.train import train

pytestmark = pytest.mark.usefixtures("one_thread")


def model(bias: bool = False):
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    return train(rng.normal(size=(90, 4)) + np.eye(3, 4)[labels], labels, l2=0.1, max_norm=9.0, bias=bias)


@pytest.mark.parametrize("bias", [False, True])
def test_a_state_survives_its_file(bias: bool, tmp_path: Path) -> None:
    made = model(bias)
    past = nothing_forgotten(made).with_rows(torch.ones_like(made.matrix()), (2, 0, 1))
    (tmp_path / "state").write_bytes(anchored_bytes(made, past))
    again, read = read_anchored(tmp_path / "state")
    assert torch.equal(again.matrix(), made.matrix())
    assert again.record == made.record
    assert torch.equal(read.gradients, past.gradients)
    assert (read.counts, read.n_rows) == ((2, 0, 1), 3)


def test_what_is_left() -> None:
    record = model().record
    assert record is not None
    left = left_over(record, Past(torch.zeros(3, 4), (2, 0, 1)))
    assert (left.n_source, left.class_counts) == (87, (28, 30, 29))
    fewer = without(left, Rows(torch.zeros(2, 4), torch.tensor([1, 1])))
    assert (fewer.n_source, fewer.class_counts) == (85, (28, 28, 29))


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts.pop("forgotten"),
        lambda parts: parts.pop("counts"),
        lambda parts: parts.update(forgotten=torch.zeros(3, 5, dtype=torch.float64)),
        lambda parts: parts.update(counts=torch.tensor([1, 2])),
        lambda parts: parts.update(counts=torch.tensor([1, -2, 1])),
        lambda parts: parts.update(weight=parts["weight"] + 1.0),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, tmp_path: Path) -> None:
    made = model()
    assert made.record is not None
    parts = {
        "weight": made.weight.clone(),
        "forgotten": torch.zeros(3, 4, dtype=torch.float64),
        "counts": torch.tensor([0, 0, 0]),
    }
    save_file(parts, tmp_path / "whole", metadata={"expunge": made.record.to_json()})
    read_anchored(tmp_path / "whole")
    change(parts)
    save_file(parts, tmp_path / "state", metadata={"expunge": made.record.to_json()})
    with pytest.raises(ExpungeError):
        read_anchored(tmp_path / "state")
