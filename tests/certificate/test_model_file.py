"""A model's file, read without torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from expunge.model import LinearModel, declared_record
from expunge.record import read_model_file

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def stored(dtype: torch.dtype, *, bias: bool = True) -> LinearModel:
    weight = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(3, 4).to(dtype)
    model = LinearModel(weight, weight[:, 0].clone() if bias else None)
    record = declared_record(model, n_source=90, l2=0.1, loss="softmax", max_norm=1.0, residual=1e-3)
    return model.with_record(record)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_reader_without_torch_sees_the_same_numbers(dtype: torch.dtype, tmp_path: Path) -> None:
    model = stored(dtype)
    path = tmp_path / "model.safetensors"
    path.write_bytes(model.to_bytes())
    file = read_model_file(path)
    assert file.weight.dtype == str(dtype).removeprefix("torch.")
    assert np.array_equal(file.weight.values.astype(np.float64), model.weight.double().numpy())
    assert file.sha256 == model.sha256()
