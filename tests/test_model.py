"""Models and their files: what is written is what is read, in the type it is stored in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import expunge
from expunge.errors import DataError, FileError, ModelError
from expunge.model import LinearModel, declared_record, from_matrix, read_model
from expunge.record import TrainingRecord, read_model_file
from expunge.runtime.arrays import copy, dtype_name, equal, put

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def stored(dtype: torch.dtype, *, bias: bool = True) -> LinearModel:
    weight = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(3, 4).to(dtype)
    model = LinearModel(weight, copy(weight[:, 0]) if bias else None)
    record = declared_record(model, n_source=90, l2=0.1, loss="softmax", max_norm=1.0, residual=1e-3)
    return model.with_record(record)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_model_comes_back_in_the_type_it_is_stored_in(dtype: torch.dtype, bias: bool, tmp_path: Path) -> None:
    model = stored(dtype, bias=bias)
    path = tmp_path / "model.safetensors"
    path.write_bytes(model.to_bytes())
    read, digest = read_model(path)
    assert digest == model.sha256()
    assert read.record == model.record
    assert dtype_name(read.weight.dtype) == dtype_name(dtype)
    assert equal(put(read.weight, model.weight), model.weight)
    assert (read.bias is None) == (model.bias is None)
    assert read.weights_sha256() == model.weights_sha256()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_weight_that_is_not_finite_is_refused(dtype: torch.dtype, value: float, tmp_path: Path) -> None:
    weight = torch.ones(2, 3, dtype=dtype)
    weight[1, 2] = value
    save_file({"weight": weight}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"weight holds {value}"):
        read_model(tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"weight holds {value}"):
        read_model_file(tmp_path / "model.safetensors")


def test_one_changed_bit_of_a_weight_is_noticed(tmp_path: Path) -> None:
    content = bytearray(stored(torch.bfloat16).to_bytes())
    content[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(bytes(content))
    with pytest.raises(ModelError, match="not those the record was made for"):
        read_model_file(tmp_path / "model.safetensors")


def test_a_model_is_saved_once_and_loaded_as_it_was(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 3)), rng.integers(0, 3, 50)
    model = expunge.train(X, y, l2=0.1, max_norm=3.0, bias=True)
    model.save(tmp_path / "m.safetensors")
    again = LinearModel.load(tmp_path / "m.safetensors")
    assert again.to_bytes() == model.to_bytes()
    assert again.score(X, y) == float(np.mean(model.predict(X) == y))
    with pytest.raises(FileError, match="exists already"):
        model.save(tmp_path / "m.safetensors")
    with pytest.raises(FileError, match=r"Name it for example model\.safetensors"):
        model.save(tmp_path / "m.pkl")


@pytest.mark.parametrize("loss", ["softmax", "one-vs-rest"])
def test_probabilities_add_up_and_agree_with_predictions(loss: str) -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
    model = expunge.train(X, y, l2=0.01, max_norm=3.0, loss=loss)
    shares = model.predict_proba(X)
    assert shares.sum(axis=1) == pytest.approx(np.ones(60))
    assert (shares.argmax(axis=1) == model.predict(X)).all()
    alone = LinearModel(model.weight)  # without a record: softmax
    assert alone.predict_proba(X).shape == (60, 3)


def test_one_weight_vector_has_two_probabilities_and_ridge_none() -> None:
    record = TrainingRecord(4, ("a", "b"), (2, 2), 0.1, "logistic", 2.0, False, 0.0)
    one = from_matrix(np.array([[2.0, 0.0]]), bias=False, dtype="float64").with_record(record)
    X = np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert one.predict_proba(X)[:, 1] == pytest.approx(1 / (1 + np.exp([-2.0, 2.0])))
    assert one.predict(X).tolist() == ["b", "a"]
    ridge = expunge.train(X, ["a", "b"], l2=0.1, max_norm=2.0, loss="ridge")
    with pytest.raises(ModelError, match="probabilities of a ridge model"):
        ridge.predict_proba(X)
    with pytest.raises(DataError, match="rows without labels"):
        ridge.score(X)
    with pytest.raises(DataError, match="rows have 3 features"):
        ridge.predict(np.ones((2, 3)))
