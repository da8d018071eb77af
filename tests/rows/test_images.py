"""Images as they are published; nothing in a file is run."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from expunge import DataError, FileError
from expunge.rows.images import read_examples

RANDOM = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("end", ["", ".gz"])
def test_mnist(tmp_path: Path, end: str) -> None:
    images, labels = RANDOM.integers(0, 256, (5, 4, 3), dtype=np.uint8), np.arange(5, dtype=np.uint8)
    pack = gzip.compress if end else bytes
    (tmp_path / f"t10k-images-idx3-ubyte{end}").write_bytes(pack(idx(images)))
    (tmp_path / f"t10k-labels-idx1-ubyte{end}").write_bytes(pack(idx(labels)))
    found = read_examples(tmp_path / f"t10k-images-idx3-ubyte{end}")
    np.testing.assert_array_equal(found.inputs, images[:, None])
    np.testing.assert_array_equal(found.labels, labels)


def test_mnist_that_is_not_whole(tmp_path: Path) -> None:
    content = idx(RANDOM.integers(0, 256, (5, 4, 3), dtype=np.uint8))
    path = tmp_path / "a-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(FileError, match="no labels beside it"):
        read_examples(path)
    (tmp_path / "a-labels-idx1-ubyte").write_bytes(idx(np.arange(5, dtype=np.uint8)))
    for bad in (content[:-1], content + b"x", b"\0\0\x07" + content[3:], content[:2], content[:6]):
        path.write_bytes(bad)
        with pytest.raises(FileError):
            read_examples(path)
    path.write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", 2**31, 2**31, 2))
    with pytest.raises(FileError, match="limit"):
        read_examples(path)


def batch(count: int, start: int = 0) -> dict[bytes, object]:
    data = RANDOM.integers(0, 256, (count, 3072), dtype=np.uint8)
    return {b"data": data, b"labels": [(start + i) % 10 for i in range(count)], b"batch_label": b"x"}


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_cifar(tmp_path: Path, protocol: int) -> None:
    first, second, test = batch(3), batch(2, 3), batch(4)
    for name, content in (("data_batch_1", first), ("data_batch_2", second), ("test_batch", test)):
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=protocol))
    found = read_examples(tmp_path)
    np.testing.assert_array_equal(found.inputs.reshape(5, -1), np.concatenate([first[b"data"], second[b"data"]]))
    assert found.labels.tolist() == [0, 1, 2, 3, 4]
    assert found.inputs.shape == (5, 3, 32, 32)
    assert len(read_examples(tmp_path, split="test").inputs) == 4
    assert len(read_examples(tmp_path / "data_batch_2").inputs) == 2


class Runs:
    """What a pickle should never be able to do."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("made-by-a-pickle",)


@pytest.mark.parametrize(
    "content",
    [
        {b"data": Runs()},
        Runs(),
        [1, 2],
        {b"data": np.zeros((2, 3072)), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3071), np.uint8), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 11]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]},
        {b"data": np.array([object()]), b"labels": [0]},
        {b"data": np.zeros(2, dtype="S9"), b"labels": [0]},
    ],
    ids=["data-runs", "runs", "list", "floats", "width", "label", "few-labels", "objects", "text"],
)
def test_a_pickle_that_is_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(content))
    with pytest.raises((FileError, DataError)):
        read_examples(tmp_path / "data_batch_1")
    assert not (tmp_path / "made-by-a-pickle").exists()


def test_a_batch_cut_anywhere(tmp_path: Path) -> None:
    content = pickle.dumps(batch(1), protocol=2)
    for cut in (1, 10, 40, 100, len(content) - 5):
        (tmp_path / "data_batch_1").write_bytes(content[:cut])
        with pytest.raises(FileError):
            read_examples(tmp_path / "data_batch_1")


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


def test_cifar_as_pictures_of_one_image_a_line(tmp_path: Path) -> None:
    images = np.random.default_rng(2).integers(0, 255, (9, 3, 32, 32), dtype=np.uint8)
    for name, part in (("data_batch_1", images[:4]), ("data_batch_2", images[4:7]), ("test_batch", images[7:])):
        Image.fromarray(part.transpose(0, 2, 3, 1).reshape(len(part), 1024, 3)).save(tmp_path / f"{name}.png")
    (tmp_path / "train_lables.json").write_text("[1, 2, 3, 4, 5, 6, 7]")
    (tmp_path / "test_lables.json").write_text("[8, 9]")
    found, test = read_examples(tmp_path), read_examples(tmp_path, split="test")
    np.testing.assert_array_equal(found.inputs, images[:7])
    np.testing.assert_array_equal(test.inputs, images[7:])
    assert found.labels.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert test.labels.tolist() == [8, 9]
    (tmp_path / "test_lables.json").write_text("[8, 11]")
    with pytest.raises(FileError, match="from 0 to 9"):
        read_examples(tmp_path, split="test")
    (tmp_path / "train_lables.json").unlink()
    with pytest.raises(FileError, match="train_lables"):
        read_examples(tmp_path)
