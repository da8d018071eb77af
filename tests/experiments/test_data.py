"""Data sets in their published forms; what is missing or different is said."""

from __future__ import annotations

import bz2
import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.datasets.catalogue import CATALOGUE, OWN_FEATURES
from experiments.datasets.folder import DataFolder
from experiments.datasets.formats import part_npz
from experiments.datasets.sst2 import sentences
from expunge.errors import DataError, FileError, OptionError

RANDOM = np.random.default_rng(5)


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("end", ["", ".gz"])
def test_mnist_has_one_digest_in_every_form(tmp_path: Path, end: str) -> None:
    images = {part: RANDOM.integers(0, 256, (4, 28, 28), dtype=np.uint8) for part in ("train", "t10k")}
    labels = np.array([3, 1, 4, 1], dtype=np.uint8)
    pack = gzip.compress if end else bytes
    official, packed = tmp_path / "official", tmp_path / "packed"
    official.mkdir()
    packed.mkdir()
    for part, values in images.items():
        (official / f"{part}-images-idx3-ubyte{end}").write_bytes(pack(idx(values)))
        (official / f"{part}-labels-idx1-ubyte{end}").write_bytes(pack(idx(labels)))
    np.savez(packed / "mnist.npz", X=images["train"], y=labels, X_test=images["t10k"], y_test=labels)
    first, second = (DataFolder(folder).load("mnist") for folder in (official, packed))
    np.testing.assert_array_equal(first.X, second.X)
    np.testing.assert_array_equal(first.y_test, second.y_test)
    assert first.sha256 == second.sha256 != CATALOGUE["mnist"].sha256
    assert "contents differ" in first.label


def test_usps_has_one_digest_in_every_form(tmp_path: Path) -> None:
    pixels = RANDOM.uniform(-1, 1, (5, 256)).round(3)
    digits = np.array([0, 9, 5, 2, 7])
    forms = {name: tmp_path / name for name in ("sparse", "plain", "packed")}
    for folder in forms.values():
        folder.mkdir()
    sparse = "".join(
        f"{digit + 1} " + " ".join(f"{k + 1}:{value:.3f}" for k, value in enumerate(row)) + "\n"
        for digit, row in zip(digits, pixels, strict=True)
    )
    plain = "".join(
        f"{digit:.4f} " + " ".join(f"{value:.3f}" for value in row) + " \n"
        for digit, row in zip(digits, pixels, strict=True)
    )
    for name in ("usps.bz2", "usps.t.bz2"):
        (forms["sparse"] / name).write_bytes(bz2.compress(sparse.encode()))
    for name in ("zip.train.gz", "zip.test.gz"):
        (forms["plain"] / name).write_bytes(gzip.compress(plain.encode()))
    images = pixels.reshape(-1, 16, 16).astype(np.float32)
    np.savez(forms["packed"] / "usps.npz", X=images, y=digits, X_test=images, y_test=digits)
    read = {name: DataFolder(folder).load("usps") for name, folder in forms.items()}
    assert len({one.sha256 for one in read.values()}) == 1
    for one in read.values():
        np.testing.assert_allclose(one.X.reshape(5, -1), pixels, atol=1e-6)
        np.testing.assert_array_equal(one.y, digits)


@pytest.mark.parametrize(
    "text", [b"", b"3 1:0.5 257:0.1\n", b"12 1:0.5\n", b"1 x\n"], ids=["empty", "pixel", "label", "words"]
)
def test_usps_that_is_none(tmp_path: Path, text: bytes) -> None:
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / name).write_bytes(bz2.compress(text))
    with pytest.raises((FileError, DataError), match="usps"):
        DataFolder(tmp_path).load("usps")


def test_what_is_missing_is_said_and_never_replaced(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no --data folder.*mnist.npz or train-images-idx3-ubyte.*yann.lecun.com"):
        DataFolder(None).require(["mnist"])
    np.savez(
        tmp_path / "caltech101-resnet50-pca512.npz", X=np.zeros((2, 3)), y=[0, 1], X_test=np.zeros((1, 3)), y_test=[0]
    )
    folder = DataFolder(tmp_path)
    assert folder.has("caltech101")
    assert not folder.has("caltech256")
    with pytest.raises(FileError, match="does not hold caltech256"):
        folder.load("caltech256")
    with pytest.raises(OptionError, match="known are"):
        folder.load("imagenet")


def test_what_is_not_the_papers_own_is_labelled(tmp_path: Path) -> None:
    arrays = {"X": np.zeros((2, 3)), "y": np.array([0, 1]), "X_test": np.zeros((1, 3)), "y_test": np.array([0])}
    np.savez(tmp_path / "caltech101-resnet50-pca512.npz", **arrays)
    np.savez(tmp_path / "stanford-dogs-embeddings.npz", **arrays)
    described = DataFolder(tmp_path).described(["caltech101", "stanford-dogs"])
    assert "NOT the paper's Caltech-256" in described["caltech101"]["label"]
    assert described["stanford-dogs"]["label"] == OWN_FEATURES
    assert not CATALOGUE["mnist"].label
    assert not CATALOGUE["usps"].label


def test_files_that_are_not_arrays_are_handed_over_with_their_digests(tmp_path: Path) -> None:
    for name in CATALOGUE["employment"].forms[0].files:
        (tmp_path / name).write_bytes(name.encode())
    folder = DataFolder(tmp_path)
    described = folder.described(["employment"])["employment"]
    assert set(folder.paths("employment")) == set(described["sha256"]) == set(folder.digests("employment"))
    assert "contents differ from the employment known here" in described["label"]
    with pytest.raises(OptionError, match="read one by one"):
        folder.load("employment")


def people(*lines: str) -> bytes:
    return gzip.compress("\n".join(lines).encode())


def test_adult_is_prepared_as_its_training_file_asks(tmp_path: Path) -> None:
    line = "{}, {}, 7, HS, 9, Never, Sales, Wife, White, Male, 0, 0, 40, Cuba, {}"
    train = [line.format(20, "Private", "<=50K"), line.format(40, "Private", ">50K"), line.format(30, "?", "<=50K")]
    test = ["|1x3 Cross validator", line.format(50, "Private", ">50K."), line.format(30, "Never-worked", "<=50K."), ""]
    (tmp_path / "adult.data.csv.gz").write_bytes(people(*train))
    (tmp_path / "adult.test.csv.gz").write_bytes(people(*test))
    data = DataFolder(tmp_path).load("adult")
    assert data.X.shape == (3, 6 + 9)  # nine words in eight columns
    np.testing.assert_allclose(data.X[:, 0], np.array([-1.0, 1.0, 0.0]) * 1.5**0.5)
    np.testing.assert_allclose(data.X_test[:, 0], np.array([2.0, 0.0]) * 1.5**0.5)
    assert data.X[:, 6:8].tolist() == [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]
    assert data.X_test[:, 6:8].tolist() == [[0.0, 1.0], [0.0, 0.0]]  # a word that nobody had has no column
    assert (data.y.tolist(), data.y_test.tolist()) == ([0, 1, 0], [1, 0])
    assert "contents differ" in data.label


@pytest.mark.parametrize("text", ["", "1, 2, 3", ", ".join(["x"] * 15), ", ".join(["1"] * 15)])
def test_adult_that_is_none(tmp_path: Path, text: str) -> None:
    for name in ("adult.data.csv.gz", "adult.test.csv.gz"):
        (tmp_path / name).write_bytes(people(text))
    with pytest.raises(FileError, match="is not Adult"):
        DataFolder(tmp_path).load("adult")


@pytest.mark.parametrize(("name", "inside"), [("stanford-dogs", "Images"), ("caltech256", "256_ObjectCategories")])
def test_images_as_they_are_published(tmp_path: Path, name: str, inside: str) -> None:
    """Pictures of all sizes and modes become squares of three channels; features are asked for, never made up."""
    folder = DataFolder(tmp_path)
    with pytest.raises(FileError, match="does not hold"):
        folder.pictures(name, 8)
    for kind, size, mode in (
        ("n1-Chihuahua", (20, 10), "RGB"),
        ("n1-Chihuahua", (9, 30), "L"),
        ("n2-Pug", (8, 8), "RGBA"),
    ):
        target = tmp_path / inside / kind
        target.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, 200 if mode == "L" else (200, 100, 50, 255)[: len(mode)]).save(target / f"{mode}.png")
    images, labels = folder.pictures(name, 8)
    assert images.shape == (3, 3, 8, 8)
    assert labels.tolist() == ["n1-Chihuahua", "n1-Chihuahua", "n2-Pug"]
    assert sorted(images[:, 1, 4, 4].tolist()) == [100, 100, 200]
    with pytest.raises(FileError, match="features are not: make them with expunge embed"):
        folder.load(name)


@pytest.mark.parametrize(
    ("name", "rows", "classes", "width"),
    [("cifar10-part", 12, set(range(10)), 6), ("cifar10-3v8", 4, {3, 8}, 6)],
)
def test_a_part_is_the_same_cut_from_the_whole_or_alone(
    tmp_path: Path, name: str, rows: int, classes: set[int], width: int
) -> None:
    y = np.array([3, 8, 0, 1, 2, 4, 5, 6, 7, 9, 3, 8])
    X = RANDOM.standard_normal((12, 6)).astype(np.float16)
    whole, alone = tmp_path / "whole", tmp_path / "alone"
    for folder in (whole, alone):
        folder.mkdir()
    np.savez(whole / "cifar10-resnet50-pca512.npz", X=X, y=y, X_test=X[:4], y_test=y[:4])
    first = DataFolder(whole).load(name)
    assert (first.X.shape, set(first.y.tolist())) == ((rows, width), classes)
    np.savez(alone / f"{name}.npz", X=first.X, y=first.y, X_test=first.X_test, y_test=first.y_test)
    assert DataFolder(alone).load(name).sha256 == first.sha256


def test_parts_are_the_first_rows_and_columns(tmp_path: Path) -> None:
    X, y = np.arange(30.0).reshape(5, 6), np.arange(5)
    np.savez(tmp_path / "a.npz", X=X, y=y, X_test=X, y_test=y)
    found = part_npz(tmp_path, ("a.npz",), rows=(3, 2), columns=4)
    for given, wanted in zip(found, (X[:3, :4], y[:3], X[:2, :4], y[:2]), strict=True):
        np.testing.assert_array_equal(given, wanted)


def test_each_sentence_counts_once(tmp_path: Path) -> None:
    text = 'sentence\tlabel\na "good film \t1\nnot so\t0\na "good film\t1\n'
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(text.encode()))
    assert sentences(tmp_path / "a.tsv.gz") == {'a "good film': 1, "not so": 0}
