"""Splits and the synthetic family."""

from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.datasets.splits import class_split, dirichlet_split, random_split
from expunge.errors import DataError, OptionError


@pytest.mark.parametrize(("rows", "share", "apart"), [(15_000, 0.1, 1500), (13_500, 0.1, 1350), (7, 0.5, 3)])
def test_a_random_split_is_a_partition(rows: int, share: float, apart: int) -> None:
    first, second = random_split(rows, share, np.random.default_rng(0))
    assert len(second) == apart
    assert sorted([*first, *second]) == list(range(rows))
    again = random_split(rows, share, np.random.default_rng(0))
    assert np.array_equal(first, again[0])
    assert not np.array_equal(second, np.arange(apart))


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, math.nan])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(OptionError):
        random_split(10, share, np.random.default_rng(0))


def test_a_split_without_rows_is_refused() -> None:
    with pytest.raises(DataError):
        random_split(5, 0.1, np.random.default_rng(0))


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


def test_a_small_concentration_makes_the_two_unlike() -> None:
    labels = np.random.default_rng(0).integers(0, 10, 20_000)
    apart = {}
    for concentration in (1.0, 100.0):
        _, _, shares = dirichlet_split(labels, concentration, np.random.default_rng(2))
        apart[concentration] = np.abs(shares[0] - shares[1]).sum()
    assert apart[1.0] > 3 * apart[100.0]
    with pytest.raises(OptionError):
        dirichlet_split(labels, 0.0, np.random.default_rng(0))
