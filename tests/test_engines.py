"""Models come as arrays of numpy or as tensors: numpy computes with both, and what is published is as the model came."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import expunge
from expunge.deposit.make import make_deposit
from expunge.model import LinearModel
from expunge.runtime.arrays import dtype_name, is_tensor, put, to_numpy
from small_deposit import kept, rows, source, trained

PROMISE = {"epsilon": 1.0, "delta": 1e-3, "force": True}


def as_tensors(model: LinearModel, dtype: torch.dtype = torch.float64) -> LinearModel:
    """The same model, of tensors."""
    parts = (None if part is None else torch.tensor(to_numpy(part)).to(dtype) for part in (model.weight, model.bias))
    weight, bias = parts
    assert weight is not None
    return replace(model, weight=weight, bias=bias)


def test_a_model_of_tensors_has_the_deposit_and_the_update_of_the_same_numbers() -> None:
    X, y = source()
    model, tensors = trained(), as_tensors(trained())
    assert model.weights_sha256() == tensors.weights_sha256()
    made = [expunge.deposit(each, X, y, seed=3) for each in (model, tensors)]
    assert np.array_equal(to_numpy(made[0].anchor), to_numpy(made[1].anchor))
    given = (X[200:], y[200:])
    drawn = [
        expunge.unlearn(each, rows(1), given, distance="same", insecure_test_seed=1, **PROMISE)
        for each in (model, tensors)
    ]
    assert np.array_equal(to_numpy(drawn[0].model.weight), to_numpy(drawn[1].model.weight))
    assert [is_tensor(each.model.weight) for each in drawn] == [False, True]
    assert expunge.unlearn(tensors, rows(1), deposit=kept().deposit, **PROMISE).certificate.status == "proven"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_model_of_tensors_is_published_in_their_type(dtype: torch.dtype) -> None:
    X, y = source()
    model = as_tensors(trained(), dtype)
    bare = LinearModel(model.weight, model.bias)
    record = trained().record
    assert record is not None
    declared = {"n_source": record.n_source, "l2": record.l2, "loss": record.loss, "max_norm": record.max_norm}
    made = expunge.unlearn(
        bare, rows(1), (X[200:], y[200:]), distance="same", training_residual=1.0, **declared, **PROMISE
    )
    assert dtype_name(made.model.weight.dtype) == dtype_name(dtype)
    assert made.model.predict(put(X, model.weight)).shape == y.shape


@pytest.mark.parametrize("stored", [True, False], ids=["a deposit", "a surrogate"])
def test_a_model_and_a_deposit_of_tensors_are_unlearned_on_the_processor(
    stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 4)) / 10.0
    y = (X[:, 0] > 0).astype(int)
    made = []
    for tensors in (True, False):
        monkeypatch.setattr("expunge.runtime.arrays.TENSORS", tensors)
        model = expunge.train(X[:600], y[:600], l2=0.1, max_norm=1.0)
        made.append((model, make_deposit(model, (X[:600], y[:600]), seed=0).deposit))
    assert isinstance(made[0][0].weight, torch.Tensor)
    assert isinstance(made[0][1].sums.gradient, torch.Tensor)
    options = {"epsilon": 1.0, "delta": 1e-2, "force": True, "insecure_test_seed": 1}
    found = []
    for model, deposit in made:
        if stored:
            result = expunge.unlearn(None, (X[:2], y[:2]), deposit=deposit, **options)
        else:
            result = expunge.unlearn(model, (X[:2], y[:2]), (X[600:], y[600:]), distance="same", **options)
        found.append(to_numpy(result.model.weight))
    # the same random bits, and updates that differ by rounding
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-5)
