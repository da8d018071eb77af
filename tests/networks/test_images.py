"""Images before an encoder: arrays and pictures by class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from expunge import DataError, FileError
from expunge.networks.encoders import read_examples

RANDOM = np.random.default_rng(0)


def test_pictures_by_class(tmp_path: Path) -> None:
    pictures = RANDOM.integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    for name, values in zip(("cat/b.png", "cat/a.png", "dog/a.png"), pictures, strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(values).save(tmp_path / name)
    (tmp_path / "cat" / "notes.txt").write_text("not a picture")
    found = read_examples(tmp_path)
    np.testing.assert_array_equal(found.inputs, pictures[[1, 0, 2]].transpose(0, 3, 1, 2))
    assert found.labels.tolist() == ["cat", "cat", "dog"]
    Image.fromarray(pictures[0, :2]).save(tmp_path / "dog" / "b.png")
    with pytest.raises(DataError, match="all must be alike"):
        read_examples(tmp_path)
    (tmp_path / "dog" / "b.png").write_bytes(b"\x89PNG nothing")
    with pytest.raises(FileError, match="not a whole picture"):
        read_examples(tmp_path)


def test_grey_pictures_have_one_channel(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / "a" / "x.png")
    assert read_examples(tmp_path).inputs.shape == (1, 1, 4, 5)


def test_arrays(tmp_path: Path) -> None:
    images = RANDOM.normal(size=(4, 1, 3, 3)).astype(np.float32)
    np.savez(tmp_path / "a.npz", X=images, y=np.arange(4))
    np.testing.assert_array_equal(read_examples(tmp_path / "a.npz").inputs, images)
    np.savez(tmp_path / "b.npz", X=images, y=np.arange(3))
    with pytest.raises(DataError, match="one label an example"):
        read_examples(tmp_path / "b.npz")
    with pytest.raises(DataError, match="no pictures"):
        read_examples(tmp_path)
    with pytest.raises(FileError, match="does not exist"):
        read_examples(tmp_path / "c.npz")
    (tmp_path / "x.xyz").write_bytes(b"1")
    with pytest.raises(FileError, match="unknown file type"):
        read_examples(tmp_path / "x.xyz")
