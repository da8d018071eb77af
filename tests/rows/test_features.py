"""Feature files name the encoder they come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from expunge import DataError, FileError, read_data, train

OURS, OTHER = "a" * 64, "b" * 64


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    features = 2.0 * np.eye(3, 4)[labels] + 0.3 * np.random.default_rng(seed).normal(size=(count, 4))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


X, Y = rows(120, 1)


def test_files_name_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=X, y=Y, encoder=np.array(OURS))
    save_file({"X": X, "y": Y}, tmp_path / "a.safetensors", metadata={"encoder": OURS})
    np.savez(tmp_path / "b.npz", X=X, y=Y)
    assert [read_data(tmp_path / name).encoder for name in ("a.npz", "a.safetensors", "b.npz")] == [OURS, OURS, None]
    features, labels = read_data(tmp_path / "a.npz").rows
    np.testing.assert_array_equal(features, X)
    np.testing.assert_array_equal(labels, Y)


@pytest.mark.parametrize("odd", [np.array("a" * 63), np.array([1, 2]), np.array(3.0)])
def test_an_encoder_that_is_no_digest(tmp_path: Path, odd: np.ndarray) -> None:
    np.savez(tmp_path / "a.npz", X=X, y=Y, encoder=odd)
    with pytest.raises(FileError, match="digest"):
        read_data(tmp_path / "a.npz")
    with pytest.raises(DataError, match="digest"):
        train(X, Y, l2=0.1, max_norm=1, encoder="features.npz")
