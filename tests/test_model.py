"""Models and their files: what is written is what is read, in the type it is stored in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from expunge.certificate.model_file import read_model_file
from expunge.errors import ModelError
from expunge.model import LinearModel, declared_record, read_model

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def stored(dtype: torch.dtype, *, bias: bool = True) -> LinearModel:
    weight = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(3, 4).to(dtype)
    model = LinearModel(weight, weight[:, 0].clone() if bias else None)
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
    assert read.weight.dtype == dtype
    assert torch.equal(read.weight, model.weight)
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
