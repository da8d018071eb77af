"""Images as they are published: MNIST's idx files, and CIFAR-10's binary batches."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from experiments.datasets.published_images import read_cifar, read_mnist
from expunge import FileError

RANDOM = np.random.default_rng(3)


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("end", ["", ".gz"])
def test_mnist(tmp_path: Path, end: str) -> None:
    images, labels = RANDOM.integers(0, 256, (5, 4, 3), dtype=np.uint8), np.arange(5, dtype=np.uint8)
    pack = gzip.compress if end else bytes
    (tmp_path / f"t10k-images-idx3-ubyte{end}").write_bytes(pack(idx(images)))
    (tmp_path / f"t10k-labels-idx1-ubyte{end}").write_bytes(pack(idx(labels)))
    found = read_mnist(tmp_path / f"t10k-images-idx3-ubyte{end}")
    np.testing.assert_array_equal(found.inputs, images[:, None])
    np.testing.assert_array_equal(found.labels, labels)


def test_mnist_that_is_not_whole(tmp_path: Path) -> None:
    content = idx(RANDOM.integers(0, 256, (5, 4, 3), dtype=np.uint8))
    path = tmp_path / "a-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(FileError, match="no labels beside it"):
        read_mnist(path)
    (tmp_path / "a-labels-idx1-ubyte").write_bytes(idx(np.arange(5, dtype=np.uint8)))
    for bad in (content[:-1], content + b"x", b"\0\0\x07" + content[3:], content[:2], content[:6]):
        path.write_bytes(bad)
        with pytest.raises(FileError):
            read_mnist(path)
    path.write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", 2**31, 2**31, 2))
    with pytest.raises(FileError, match="limit"):
        read_mnist(path)


def batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    return np.hstack([labels[:, None].astype(np.uint8), images.reshape(len(images), -1)]).tobytes()


def test_cifar(tmp_path: Path) -> None:
    images, labels = RANDOM.integers(0, 256, (9, 3, 32, 32), dtype=np.uint8), np.arange(9)
    for name, part in (("data_batch_1", slice(4)), ("data_batch_2", slice(4, 7)), ("test_batch", slice(7, 9))):
        (tmp_path / f"{name}.bin").write_bytes(batch(images[part], labels[part]))
    found, test = read_cifar(tmp_path), read_cifar(tmp_path, "test")
    np.testing.assert_array_equal(found.inputs, images[:7])
    np.testing.assert_array_equal(test.inputs, images[7:])
    assert [found.labels.tolist(), test.labels.tolist()] == [list(range(7)), [7, 8]]


def test_cifar_that_is_not_whole(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="has no data_batch"):
        read_cifar(tmp_path)
    content = batch(np.zeros((2, 3, 32, 32), dtype=np.uint8), np.array([3, 11]))
    for bad, match in ((content[:-1], "an image takes 3,073"), (content, "a label 11")):
        (tmp_path / "data_batch_1.bin").write_bytes(bad)
        with pytest.raises(FileError, match=match):
            read_cifar(tmp_path)
