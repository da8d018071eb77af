"""The training record: written and read as it was, and refused where it cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from expunge import ModelError, train
from expunge.model import read_model
from expunge.record import TrainingRecord

OURS, OTHER = "a" * 64, "b" * 64


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    features = 2.0 * np.eye(3, 4)[labels] + 0.3 * np.random.default_rng(seed).normal(size=(count, 4))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


X, Y = rows(120, 1)


@pytest.fixture(scope="module")
def model() -> object:
    return train(X, Y, l2=0.1, max_norm=1, encoder=OURS)


def test_the_record_keeps_it_and_reads_it_back(model: object, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(model.to_bytes())
    found, _ = read_model(tmp_path / "m.safetensors")
    assert found.record == model.record
    assert found.record.encoder == OURS
    assert '"schema": "expunge/record/2"' in model.record.to_json()


def test_a_record_without_encoder_is_written_as_before() -> None:
    text = train(X, Y, l2=0.1, max_norm=1).record.to_json()
    assert '"schema": "expunge/record/1"' in text
    assert "encoder" not in text


@pytest.mark.parametrize(
    ("old", "new"),
    [('"expunge/record/2"', '"expunge/record/1"'), (f'"{OURS}"', '"A"'), (f'"{OURS}"', "null"), (f'"{OURS}"', "7")],
)
def test_an_impossible_record_is_refused(model: object, old: str, new: str) -> None:
    with pytest.raises(ModelError):
        TrainingRecord.from_json(model.record.to_json().replace(old, new), "it")
