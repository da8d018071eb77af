"""Data sets as they are published, train and test part together."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np

from experiments.datasets.published_images import read_cifar, read_mnist
from expunge.errors import DataError, FileError
from expunge.rows.arrays import DAMAGE, Array, read_npz
from expunge.runtime.files import readable
from expunge.runtime.memory import require_fits

Parts = tuple[Array, Array, Array, Array]  # features and labels to train on, and to test on
PARTS = ("X", "y", "X_test", "y_test")
USPS_PIXELS = 256
LONGEST_TEXT = 2**28


def one_npz(folder: Path, names: tuple[str, ...]) -> Parts:
    """One file with X, y, X_test and y_test."""
    arrays = read_npz(folder / names[0], PARTS)
    return arrays["X"], arrays["y"], arrays["X_test"], arrays["y_test"]


def part_npz(
    folder: Path,
    names: tuple[str, ...],
    *,
    rows: tuple[int | None, int | None] = (None, None),
    classes: tuple[int, ...] = (),
    columns: int | None = None,
) -> Parts:
    """The first so many train and test rows of one file, of these classes (none: all), and of so many columns."""
    X, y, X_test, y_test = one_npz(folder, names)
    parts: list[Array] = []
    for features, labels, most in ((X, y, rows[0]), (X_test, y_test, rows[1])):
        chosen = np.isin(labels, classes or np.unique(labels)).nonzero()[0][:most]
        parts += [np.ascontiguousarray(features[chosen, :columns]), labels[chosen]]
    return parts[0], parts[1], parts[2], parts[3]


def mnist_idx(folder: Path, names: tuple[str, ...]) -> Parts:
    """MNIST's four idx files, gzipped or not; named are the two of images."""
    parts = [read_mnist(folder / name) for name in names if "images" in name]
    (X, y), (X_test, y_test) = ((part.inputs[:, 0], part.labels) for part in parts)
    return X, y, X_test, y_test


def cifar_batches(folder: Path, names: tuple[str, ...]) -> Parts:
    """CIFAR-10's binary batches."""
    train, test = (read_cifar(folder / names[0], split) for split in ("train", "test"))
    return train.inputs, train.labels, test.inputs, test.labels


def usps_sparse(folder: Path, names: tuple[str, ...]) -> Parts:
    """USPS as LIBSVM has it: `label index:value ...` a line, labels 1 (digit 0) to 10, 256 values in [-1, 1]."""

    def row(line: str) -> tuple[float, list[float]]:
        label, *pairs = line.split()
        values = [0.0] * USPS_PIXELS
        for pair in pairs:
            index, value = pair.split(":")
            if not 1 <= int(index) <= USPS_PIXELS:
                raise ValueError(f"pixel {index}")
            values[int(index) - 1] = float(value)
        return float(label) - 1.0, values

    return _digits(folder, names, row)


def usps_plain(folder: Path, names: tuple[str, ...]) -> Parts:
    """USPS as zip.train.gz and zip.test.gz: the digit and 256 values in [-1, 1] a line."""

    def row(line: str) -> tuple[float, list[float]]:
        label, *values = map(float, line.split())
        if len(values) != USPS_PIXELS:
            raise ValueError(f"{len(values)} values in a line")
        return label, values

    return _digits(folder, names, row)


def _digits(folder: Path, names: tuple[str, ...], row: Callable[[str], tuple[float, list[float]]]) -> Parts:
    parts: list[Array] = []
    for name in names[:2]:
        path = readable(folder / name)
        try:
            opened = (bz2.open if path.suffix == ".bz2" else gzip.open)(path, "rt", encoding="ascii")
            with opened as stream:
                text = stream.read(LONGEST_TEXT + 1)
            require_fits(8 * len(text), path, "the text")
            if len(text) > LONGEST_TEXT:
                raise ValueError(f"more than {LONGEST_TEXT:,} characters")
            rows = [row(line) for line in text.splitlines() if line.strip()]
            labels = np.array([label for label, _ in rows])
            if not np.isin(labels, range(10)).all():
                raise ValueError("labels that are no digits")
        except DAMAGE as error:
            raise FileError(
                f"{path} is not USPS ({type(error).__name__}: {error})", "its published file is needed", "Get it again."
            ) from error
        if not rows:
            raise DataError(f"{path} holds no rows", "digits are needed", "Get it again.")
        parts += [np.array([values for _, values in rows], dtype=np.float32), labels.astype(np.int64)]
    return parts[0], parts[1], parts[2], parts[3]
