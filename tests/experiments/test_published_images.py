"""Images as they are published: MNIST's idx files; CIFAR-10's batches by their layout, of which no pickle is run."""

from __future__ import annotations

import gzip
import os
import pickle
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from experiments.datasets.cifar import read_batch
from experiments.datasets.published_images import read_cifar, read_mnist
from expunge import DataError, FileError

RANDOM = np.random.default_rng(3)


def batch(rows: int) -> dict[bytes, Any]:
    """A batch as its publisher has it, of fewer rows."""
    return {
        b"data": RANDOM.integers(0, 256, (rows, 3072), dtype=np.uint8),
        b"labels": [row % 10 for row in range(rows)],
        b"batch_label": b"training batch 1 of 5",
        b"filenames": [f"leptodactylus_pentadactylus_s_{row:06d}.png".encode() for row in range(rows)],
    }


def string(text: bytes, form: str = "U<B") -> bytes:
    """Text as Python 2 pickles it."""
    return form[0].encode() + struct.pack(form[1:], len(text)) + text


def numbers(*values: int) -> bytes:
    return b"".join(b"J" + struct.pack("<i", value) for value in values)


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87R"
TYPE = b"cnumpy\ndtype\nq\x05U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + numbers(-1, -1) + b"K\x00tb"


def original(
    content: dict[bytes, Any], *, array: bytes = ARRAY, kind: bytes = TYPE, shape: bytes | None = None
) -> bytes:
    """The bytes the published files have: Python 2's cPickle, protocol 2."""
    data = content[b"data"]
    sizes = numbers(*data.shape) + b"\x86" if shape is None else shape
    made = b"\x80\x02}q\x01(" + string(b"data") + array + b"q\x06(K\x01" + sizes + kind + b"\x89"
    made += string(data.tobytes(), "T<I") + b"tb" + string(b"labels") + b"]q\x07("
    made += b"".join(b"K" + bytes([label]) for label in content[b"labels"]) + b"e"
    made += string(b"batch_label") + string(content[b"batch_label"]) + string(b"filenames") + b"]("
    return made + b"".join(string(name) for name in content[b"filenames"]) + b"eu."


def read(tmp_path: Path, pickled: bytes) -> tuple[np.ndarray, np.ndarray]:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickled)
    return read_batch(path)


@pytest.mark.parametrize("rows", [1, 7, 300])
def test_a_batch_as_it_was_published(tmp_path: Path, rows: int) -> None:
    content = batch(rows)
    assert pickle.loads(original(content), encoding="bytes")[b"labels"] == content[b"labels"], "it is what it claims"
    pixels, labels = read(tmp_path, original(content))
    np.testing.assert_array_equal(pixels, content[b"data"])
    assert labels.tolist() == content[b"labels"]
    assert pixels.flags.writeable


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("by_column", [False, True])
def test_a_batch_written_by_this_python(tmp_path: Path, protocol: int, by_column: bool) -> None:
    content = batch(12)
    given = {**content, b"data": np.asfortranarray(content[b"data"])} if by_column else content
    pixels, labels = read(tmp_path, pickle.dumps(given, protocol=protocol))
    np.testing.assert_array_equal(pixels, content[b"data"])
    assert labels.tolist() == content[b"labels"]


def test_uninitialised_memory_is_not_features(tmp_path: Path) -> None:
    """numpy.ndarray called by the pickle itself: memory of this process as pixels, were it run."""
    call = b"cnumpy\nndarray\n" + numbers(4, 3072) + b"\x86" + TYPE + b"\x86R"
    pickled = b"\x80\x02}(" + string(b"data") + call + string(b"labels") + b"](K\x00K\x00K\x00K\x00eu."
    assert pickle.loads(pickled, encoding="bytes")[b"data"].shape == (4, 3072), "what would happen"
    with pytest.raises(FileError, match="never run"):
        read(tmp_path, pickled)


HOSTILE = {
    "another array": original(batch(2), array=ARRAY.replace(b"K\x00\x85", b"K\x09\x85")),
    "an array of another class": original(batch(2), array=ARRAY.replace(b"ndarray", b"matrix")),
    "another type": original(batch(2), kind=TYPE.replace(b"u1", b"O1")),
    "a type with objects": original(batch(2), kind=TYPE.replace(b"K\x00tb", b"K\x3ftb")),
    "more rows than bytes": original(batch(2), shape=numbers(200, 3072) + b"\x86"),
    "a negative shape": original(batch(2), shape=numbers(-2, -3072) + b"\x86"),
    "one dimension": original(batch(2), shape=numbers(6144) + b"\x85"),
    "protocol 0": pickle.dumps(batch(1), protocol=0),
    "protocol 5": b"\x80\x05" + original(batch(1))[2:],
    "bytes after the end": original(batch(1)) + b"x",
    "a call of a builtin": b"\x80\x02cbuiltins\neval\n" + string(b"1") + b"\x85R.",
    "the same, by stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.",
    "a persistent id": b"\x80\x02Px\n.",
    "an extension": b"\x80\x02\x82\x01.",
    "an instance": b"\x80\x02(ios\nsystem\n.",
    "a state for a list": b"\x80\x02]N}b.",
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "a value that is not there": b"\x80\x02h\x09.",
    "an empty stack": b"\x80\x02e.",
    "a mark without an end": b"\x80\x02}(.",
    "nothing": b"\x80\x02.",
    "a name without an end": b"\x80\x02c" + b"a" * 300,
    "text that is none": b"\x80\x02X\x02\x00\x00\x00\xff\xff.",
    "more than it holds": b"\x80\x02T\xff\xff\xff\x7fx.",
    "labels that are text": original(batch(1)).replace(b"]q\x07(K\x00e", b"]q\x07(U\x01xe"),
    "an encoding": pickle.dumps({b"data": b"x"}, protocol=2).replace(b"latin1", b"utf-16"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_every_other_pickle_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileError, match="data_batch_1"):
        read(tmp_path, HOSTILE[name])


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02" + b"]" * 2_000_000 + b".",
        b"\x80\x02" + b"}" * 2_000_000 + b".",
        b"\x80\x02c_codecs\nencode\nq\x00X" + struct.pack("<I", 500_000) + b"x" * 500_000 + b"q\x01"
        + b"h\x00h\x01X\x06\x00\x00\x00latin1\x86R" * 4000 + b".",
        original(batch(1))[:-1] + b"0h\x06" * 100_000 + b".",
    ],
    ids=["lists", "tables", "copies", "steps"],
)  # fmt: skip
def test_what_is_made_is_not_much_larger_than_the_file(tmp_path: Path, pickled: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FileError):
            read(tmp_path, pickled)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000 + 3 * len(pickled)
    finally:
        tracemalloc.stop()


def test_a_batch_changed_or_cut_anywhere_is_read_or_refused(tmp_path: Path) -> None:
    """Whatever the bytes say, the outcome is pixels of the right shape or a message."""
    for pickled in (original(batch(1)), pickle.dumps(batch(1), protocol=4)):
        outcomes = set()
        chance = random.Random(5)
        for _ in range(400):
            changed = bytearray(pickled)
            for _ in range(chance.choice([1, 1, 3])):  # where the opcodes are: pixels are not looked at
                place = chance.choice([chance.randrange(150), len(changed) - 1 - chance.randrange(150)])
                changed[place] = chance.randrange(256)
            if chance.random() < 0.2:
                changed = changed[: chance.randrange(len(changed))] or bytearray(b"x")
            try:
                pixels, labels = read(tmp_path, bytes(changed))
                assert pixels.dtype == np.uint8
                assert pixels.shape[1] == 3072
                assert labels.dtype == np.int64
                outcomes.add("read")
            except FileError:
                outcomes.add("refused")
        assert outcomes == {"read", "refused"}


# Files and folders --------------------------------------------------------------------------------------------------


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


def small_batch(count: int, start: int = 0) -> dict[bytes, object]:
    data = RANDOM.integers(0, 256, (count, 3072), dtype=np.uint8)
    return {b"data": data, b"labels": [(start + i) % 10 for i in range(count)], b"batch_label": b"x"}


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_cifar(tmp_path: Path, protocol: int) -> None:
    first, second, test = small_batch(3), small_batch(2, 3), small_batch(4)
    for name, content in (("data_batch_1", first), ("data_batch_2", second), ("test_batch", test)):
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=protocol))
    found = read_cifar(tmp_path)
    np.testing.assert_array_equal(found.inputs.reshape(5, -1), np.concatenate([first[b"data"], second[b"data"]]))
    assert found.labels.tolist() == [0, 1, 2, 3, 4]
    assert found.inputs.shape == (5, 3, 32, 32)
    assert len(read_cifar(tmp_path, "test").inputs) == 4


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
        read_cifar(tmp_path)
    assert not (tmp_path / "made-by-a-pickle").exists()


def test_a_batch_cut_anywhere(tmp_path: Path) -> None:
    content = pickle.dumps(small_batch(1), protocol=2)
    for cut in (1, 10, 40, 100, len(content) - 5):
        (tmp_path / "data_batch_1").write_bytes(content[:cut])
        with pytest.raises(FileError):
            read_cifar(tmp_path)


def test_cifar_as_pictures_of_one_image_a_line(tmp_path: Path) -> None:
    images = np.random.default_rng(2).integers(0, 255, (9, 3, 32, 32), dtype=np.uint8)
    for name, part in (("data_batch_1", images[:4]), ("data_batch_2", images[4:7]), ("test_batch", images[7:])):
        Image.fromarray(part.transpose(0, 2, 3, 1).reshape(len(part), 1024, 3)).save(tmp_path / f"{name}.png")
    (tmp_path / "train_lables.json").write_text("[1, 2, 3, 4, 5, 6, 7]")
    (tmp_path / "test_lables.json").write_text("[8, 9]")
    found, test = read_cifar(tmp_path), read_cifar(tmp_path, "test")
    np.testing.assert_array_equal(found.inputs, images[:7])
    np.testing.assert_array_equal(test.inputs, images[7:])
    assert found.labels.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert test.labels.tolist() == [8, 9]
    (tmp_path / "test_lables.json").write_text("[8, 11]")
    with pytest.raises(FileError, match="from 0 to 9"):
        read_cifar(tmp_path, "test")
    (tmp_path / "train_lables.json").unlink()
    with pytest.raises(FileError, match="train_lables"):
        read_cifar(tmp_path)
