"""A record speaks of the weights it was made for: with others, nothing is unlearned, opened or kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import expunge
from expunge.desk import Policy, create_desk
from expunge.errors import ModelError
from expunge.model import LinearModel
from expunge.train import train

RNG = np.random.default_rng(2)
X = RNG.standard_normal((300, 3))
Y = np.where(X[:, 0] + RNG.standard_normal(300) > 0.0, "yes", "no")
MODELS = {loss: train(X[:200], Y[:200], l2=0.1, max_norm=5.0, loss=loss, bias=True) for loss in ("softmax", "logistic")}


def others(loss: str) -> dict[str, LinearModel]:
    """The record of a model beside weights that it is not of."""
    model = MODELS[loss]
    assert model.record is not None
    assert model.bias is not None
    twice = LinearModel(torch.cat([model.weight, model.weight]), torch.cat([model.bias, model.bias]))
    return {
        "the weights are not those": replace(model, weight=3.0 * model.weight),
        "weight rows": replace(twice, record=model.record),
        "the record says bias False": model.with_record(replace(model.record, bias=False)),
    }


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
@pytest.mark.parametrize("said", ["the weights are not those", "weight rows", "the record says bias False"])
def test_a_record_of_other_weights_is_refused(loss: str, said: str, tmp_path: Path) -> None:
    model, promise = others(loss)[said], {"epsilon": 5.0, "delta": 1e-3, "distance": "same", "force": True}
    with pytest.raises(ModelError, match=said):
        expunge.unlearn(model, (X[:2], Y[:2]), (X[200:], Y[200:]), **promise)
    with pytest.raises(ModelError, match=said):
        create_desk(tmp_path / "desk", model, (X[200:], Y[200:]), Policy(planned=2, **promise))
    with pytest.raises(ModelError, match=said):
        expunge.deposit(model, X[:200], Y[:200])
    assert not (tmp_path / "desk").exists()
