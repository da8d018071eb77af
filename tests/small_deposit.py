"""A small source, a model trained on it and a deposit of it, made once for all tests that only look at them."""

from __future__ import annotations

import functools
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from expunge.deposit.file import Deposit
from expunge.deposit.make import NewDeposit, make_deposit
from expunge.model import LinearModel
from expunge.train import train

N_SOURCE = 400


@functools.cache
def source() -> tuple[np.ndarray, np.ndarray]:
    """Three classes that a linear model tells apart roughly; the last row is the first one again."""
    generator = np.random.default_rng(7)
    features = generator.standard_normal((N_SOURCE, 4)) / 2
    labels = (6 * features @ generator.standard_normal((4, 3)) + generator.gumbel(size=(N_SOURCE, 3))).argmax(axis=1)
    features[-1], labels[-1] = features[0], labels[0]
    return features, labels


@functools.cache
def trained() -> LinearModel:
    return train(*source(), l2=0.01, max_norm=3.0, bias=True)


@functools.cache
def kept() -> NewDeposit:
    return make_deposit(trained(), source(), seed=3)


def rows(*numbers: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the source, by number."""
    features, labels = source()
    return features[list(numbers)], labels[list(numbers)]


def assert_same(one: Deposit, other: Deposit) -> None:
    """Two deposits made with one seed: the same to the last digits that sums in another order leave."""
    parts = [
        [
            *(part.model.matrix(), part.sums.gradient, part.sums.curvature.values, part.shape),
            *(each.values for each in part.sums.weighted),
            *(gauge.factor for gauge in part.gauges),
        ]
        for part in (one, other)
    ]
    assert len(parts[0]) == len(parts[1]) > 4
    for own, theirs in zip(*parts, strict=True):
        np.testing.assert_allclose(theirs, own, rtol=1e-10, atol=1e-12)
    numbers = [asdict(replace(part.numbers, created="")) for part in (one, other)]
    for name, value in numbers[0].items():
        expected = value if isinstance(value, str) else pytest.approx(value, rel=1e-7)
        assert numbers[1][name] == expected, name
    for own, theirs in zip(one.hashes.digests, other.hashes.digests, strict=True):
        assert np.array_equal(own, theirs)


def write_files(folder: Path) -> None:
    """The same as files: source.npz, forget.npz (three rows), later.npz (two others), other.npz (nobody's)."""
    parts = {
        "source": source(),
        "forget": rows(1, 2, 3),
        "later": rows(4, 5),
        "other": (np.random.default_rng(8).standard_normal((2, 4)), np.array([0, 1])),
    }
    for name, (features, labels) in parts.items():
        np.savez(folder / f"{name}.npz", X=features, y=labels)
    (folder / "model.safetensors").write_bytes(trained().to_bytes())
    (folder / "model.deposit").write_bytes(kept().deposit.to_bytes())
