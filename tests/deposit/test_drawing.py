"""Noise drawn where the shape is, beside the same drawn by numpy, and what is left of its equations by exact fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from expunge.bounds.ellipsoid import TWICE, Ellipsoid, _left, _unseen
from expunge.deposit import shape
from expunge.deposit.shape import DeviceEllipsoid
from expunge.noise import seeded_bytes

Array = Any


def factor_of(seed: int, size: int, condition: float) -> Array:
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(size, size)))[0]
    return np.linalg.cholesky((axes * np.geomspace(1.0, condition, size)) @ axes.T)


def both(factors: Array, parts: int, condition: float) -> tuple[Ellipsoid, DeviceEllipsoid]:
    known = (parts * factors.shape[-1], condition * 1.01, 0.99, parts * float((np.linalg.inv(factors[0]) ** 2).sum()))
    return Ellipsoid(*known, factors=factors), DeviceEllipsoid(*known, shape=torch.from_numpy(factors))


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("together", [1, 40, 1 << 25])
def test_the_same_bits_give_the_same_noise(blocks: int, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape, "TOGETHER", together)
    factors = np.stack([factor_of(seed, 7, 1e6) for seed in range(blocks)])
    here, there = both(factors, 3, 1e6)
    drawn = here.rest(2.0, seeded_bytes(1)), there.rest(2.0, seeded_bytes(1))
    assert drawn[0] == pytest.approx(drawn[1], rel=1e-13, abs=1e-15)
    tried = here.sample(2.0, np.random.default_rng(1)), there.sample(2.0, np.random.default_rng(1))
    assert tried[0] == pytest.approx(tried[1], rel=1e-9, abs=1e-12)
    vectors = np.random.default_rng(2).normal(size=(4, 21))
    assert here.whitened(vectors) == pytest.approx(there.whitened(vectors), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_left_is_known_to_twice_the_digits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    factor = factor_of(seed, 9, 10.0 ** rng.uniform(0, 12))
    solutions = rng.normal(size=(2, 9)) * 10.0 ** rng.uniform(-3, 3, (2, 9))
    beyond, normals = solutions * 2.0**-60, solutions @ factor
    _, there = both(factor[None], 2, 1e12)
    left, unseen = there._left(torch.from_numpy(factor), solutions, beyond, normals)
    for row in range(2):
        exact = [
            Fraction(normals[row, j])
            - sum(Fraction(factor[i, j]) * (Fraction(solutions[row, i]) + Fraction(beyond[row, i])) for i in range(9))
            for j in range(9)
        ]
        off = float(sum((Fraction(found) - true) ** 2 for found, true in zip(left[row], exact, strict=True))) ** 0.5
        assert off <= unseen[row] + 2.0**-52 * float(np.linalg.norm(left[row]))
        assert float(np.linalg.norm(left[row])) > 0.0
    numpy_left, numpy_unseen = _left(factor, solutions, beyond, normals), _unseen(factor, solutions)
    assert left == pytest.approx(numpy_left, rel=1e-12, abs=float(unseen.max()))
    assert unseen == pytest.approx(numpy_unseen, rel=1e-12, abs=0.0)
    assert unseen[0] > 9 * TWICE * np.linalg.norm(np.abs(solutions[0]) @ np.abs(factor))


@pytest.mark.parametrize("blocks", [1, 3])
def test_whitened_as_by_numpy(blocks: int) -> None:
    """Of one factor for all parts, and of one for each."""
    factors = np.stack([factor_of(seed, 7, 1e6) for seed in range(blocks)])
    here, there = both(factors, 3, 1e6)
    vectors = np.random.default_rng(2).normal(size=(5, 21))
    naive = np.stack([factors[part % blocks].T @ vectors[:, 7 * part : 7 * part + 7].T for part in range(3)])
    expected = naive.transpose(2, 0, 1).reshape(5, 21)
    assert there.whitened(vectors) == pytest.approx(expected, rel=1e-12)
    assert here.whitened(vectors) == pytest.approx(expected, rel=1e-12)
