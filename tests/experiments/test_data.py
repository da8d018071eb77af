"""Data sets of the experiments: digests, forms, splits, and what is missing."""

from __future__ import annotations

import bz2
import copy
import gzip
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from experiments import census
from experiments.datasets.catalogue import CATALOGUE, OWN_FEATURES
from experiments.datasets.census import FILES, encode_census
from experiments.datasets.folder import DataFolder
from experiments.datasets.splits import class_split, dirichlet_split, random_split
from experiments.datasets.synthetic import angle_labels, source_rows, surrogate_covariance, surrogate_kl, surrogate_rows
from experiments.protocol.config import config_of
from experiments.shared.closed_forms import gaussian_kl
from expunge.errors import DataError, FileError, OptionError

RANDOM = np.random.default_rng(5)


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_mnist_has_one_digest_in_every_form(tmp_path: Path) -> None:
    images = {part: RANDOM.integers(0, 256, (4, 28, 28), dtype=np.uint8) for part in ("train", "t10k")}
    labels = np.array([3, 1, 4, 1], dtype=np.uint8)
    official, packed = tmp_path / "official", tmp_path / "packed"
    official.mkdir()
    packed.mkdir()
    for part, values in images.items():
        (official / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(values)))
        (official / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
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


@pytest.mark.parametrize(("rows", "share", "apart"), [(15_000, 0.1, 1500), (13_500, 0.1, 1350), (7, 0.5, 3)])
def test_a_random_split_is_a_partition(rows: int, share: float, apart: int) -> None:
    first, second = random_split(rows, share, np.random.default_rng(0))
    assert len(second) == apart
    assert sorted([*first, *second]) == list(range(rows))
    again = random_split(rows, share, np.random.default_rng(0))
    assert np.array_equal(first, again[0])
    assert not np.array_equal(second, np.arange(apart))


def test_a_class_goes_whole() -> None:
    labels = np.array(["a", "b", "a", "c"])
    stay, go = class_split(labels, ["a"])
    assert stay.tolist() == [1, 3]
    assert go.tolist() == [0, 2]
    for classes in (["z"], ["a", "b", "c"]):
        with pytest.raises(DataError):
            class_split(labels, classes)


@pytest.mark.parametrize("concentration", [0.5, 13.0, 100.0])
def test_a_dirichlet_split_has_the_proportions_drawn(concentration: float) -> None:
    labels = np.random.default_rng(0).integers(0, 10, 20_000)
    source, surrogate, proportions = dirichlet_split(labels, concentration, np.random.default_rng(1))
    assert not set(source) & set(surrogate)
    for part, wanted in zip((source, surrogate), proportions, strict=True):
        shares = np.bincount(labels[part], minlength=10) / len(part)
        np.testing.assert_allclose(shares, wanted, atol=10 / len(part))
    used = np.bincount(labels[np.concatenate([source, surrogate])], minlength=10)
    assert max(used / np.bincount(labels)) > 0.99  # no larger pair of this kind fits


pytestmark = pytest.mark.usefixtures("one_thread")


def people_of_census(count: int, years: tuple[int, ...], seed: int, share: float = 0.5) -> Any:
    generator = np.random.default_rng(seed)
    age = generator.integers(0, 96, count).astype(float)
    sex = np.where(generator.random(count) < share, "1", "2")
    working = ((age > 18) & (age < 66) & (generator.random(count) < 0.8)).astype(np.int64)
    columns = {"AGEP": age, "SEX": pa.array(sex).dictionary_encode(), "employed": working}
    columns |= {"year": np.resize(years, count), "prediction": working, "predicted_probability": working * 1.0}
    return pa.table(columns)


def test_drift_is_small_within_a_population_and_large_between_two() -> None:
    same, other, shifted = (
        encode_census(people_of_census(4000, (2016,), 9), people_of_census(4000, (2016,), seed, share)).later.X
        for seed, share in ((1, 0.5), (2, 0.5), (3, 0.8))
    )
    assert census.drift(same, other) < 0.05
    exact = (0.8 - 0.5) ** 2 / 0.5 + (0.2 - 0.5) ** 2 / 0.5
    assert census.drift(shifted, same) == pytest.approx(exact, rel=0.3)


def test_the_case_small(tmp_path: Path) -> None:
    later = people_of_census(900, (2016, 2017), 1)
    pa.parquet.write_table(people_of_census(400, (2015,), 0), tmp_path / FILES[0])
    pa.parquet.write_table(later.drop_columns(["employed"]), tmp_path / FILES[1])
    pa.parquet.write_table(later.select(["employed"]), tmp_path / FILES[2])
    alone = DataFolder(tmp_path).load("employment-2015")
    assert (len(alone.y), len(alone.y_test)) == (320, 80)
    config = copy.deepcopy(dict(config_of("census")))
    config["run"] |= {"l2": 0.05, "draws": 3, "distances": ["same", "chi2:0.1"], "epsilons": [1.0, 5.0]}
    config["run"]["rehearsal"] |= {"l2": [0.05]}
    records = []
    for case in census.cases(config, 1):
        result = json.loads(json.dumps(census.run(case, config, DataFolder(tmp_path)), allow_nan=False))
        records.append(
            {
                "key": case.key,
                "seed": case.seed,
                "options": dict(case.options),
                "result": result,
                "seconds": 0.0,
                "run": 0,
            }
        )
    checks = records[1]["result"]["checks"]
    assert len(checks) == 3
    assert all(one["true"] <= one["residual"] for one in checks)
    rehearsed, drifts, certified = census.tables(config, records)  # type: ignore[arg-type]
    assert len(rehearsed.rows) == 1
    assert len(drifts.rows) == 3
    assert [row[0] for row in certified.rows] == ["same", "chi2:0.1", "chi2:0.1, classes matched"]
    assert census.figures(config, records)["census.png"].startswith(b"\x89PNG")  # type: ignore[arg-type]


def test_classes_are_sectors_of_equal_angle() -> None:
    for index in range(10):
        middle = -math.pi + (index + 0.5) * 2 * math.pi / 10
        assert angle_labels(np.array([[math.cos(middle), math.sin(middle), 9.0]]), 10).tolist() == [index]
    assert angle_labels(np.array([[-1.0, 0.0]]), 10).tolist() == [0]  # the angle pi itself wraps around
    features, labels = source_rows(np.random.default_rng(0), 20_000)
    assert features.shape == (20_000, 50)
    np.testing.assert_allclose(np.bincount(labels) / 20_000, 0.1, atol=0.01)


@pytest.mark.parametrize("zeta", [0.0, 0.02, 0.1, 0.9])
def test_the_surrogate_has_its_covariance(zeta: float) -> None:
    rows, _ = surrogate_rows(np.random.default_rng(0), zeta, 100_000, 6)
    np.testing.assert_allclose(np.cov(rows.T), surrogate_covariance(zeta, 6), atol=0.03)


@pytest.mark.parametrize("zeta", [0.02, 0.04, 0.1])
def test_its_divergence_is_the_gaussian_one(zeta: float) -> None:
    zero = np.zeros(50)
    expected = gaussian_kl(zero, surrogate_covariance(zeta), zero, np.eye(50))
    assert surrogate_kl(zeta) == pytest.approx(expected, rel=1e-10)
