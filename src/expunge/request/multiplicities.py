"""How often each row occurs, counted in one pass without keeping the rows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expunge.distance import Distance, Estimation
from expunge.request.copies import copy_factor

MOST_DISTINCT = 1 << 18  # fingerprints kept: with counts, and those that wait, 8 MB
MIXING = -7046029254386353131  # odd, as are the columns' numbers: wrapping products with it lose nothing
LOW_HALF = (1 << 32) - 1


def row_prints(features: Tensor) -> NDArray[np.uint64]:
    """A number of 64 bits for each row, from all its columns: equal rows have equal ones."""
    bits = (features.double() + 0.0).view(torch.int64)  # a copy, so that -0 is 0
    odd = np.random.default_rng(0).integers(-(2**62), 2**62, bits.shape[1]) * 2 + 1
    for factor in (MIXING, torch.from_numpy(odd).to(bits.device)):
        _fold(bits).mul_(factor)
    summed = bits.sum(dim=1)
    prints: NDArray[np.uint64] = _fold(_fold(summed).mul_(MIXING)).cpu().numpy().view(np.uint64)
    return prints


def _fold(numbers: Tensor) -> Tensor:
    """Carry the upper halves into the lower ones, in place."""
    return numbers.bitwise_xor_((numbers >> 32).bitwise_and_(LOW_HALF))


class Multiplicities:
    """Rows counted by fingerprint, a block at a time.

    Where there are too many distinct ones, half of them are let go, by a bit of the fingerprint, as often as needed:
    how often a row occurs has no part in whether it is kept, and those that are kept are counted in full.
    """

    def __init__(self, by_class: bool = False, most: int = MOST_DISTINCT) -> None:
        self.by_class, self.most, self.halvings = by_class, most, 0
        self._prints, self._counts = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._waiting: list[NDArray[np.uint64]] = []

    @staticmethod
    def of(distance: Distance | Estimation) -> Multiplicities | None:
        """To be counted where rows are a sample; its rows of each class may be chosen where classes are matched."""
        return Multiplicities(by_class=distance.matched) if distance.samples_rows else None

    def add(self, features: Tensor) -> None:
        """Count the rows of a block."""
        prints = row_prints(features)
        self._waiting.append(prints[self._chosen(prints)])
        if sum(map(len, self._waiting)) > self.most:
            self._merge()

    def _chosen(self, prints: NDArray[np.uint64]) -> NDArray[np.bool_]:
        chosen: NDArray[np.bool_] = prints & np.uint64((1 << self.halvings) - 1) == 0
        return chosen

    def _merge(self) -> None:
        """Those that wait, counted with the others."""
        fresh, fresh_counts = np.unique(np.concatenate([np.empty(0, np.uint64), *self._waiting]), return_counts=True)
        self._waiting = []
        self._prints, place = np.unique(np.concatenate([self._prints, fresh]), return_inverse=True)
        weights = np.concatenate([self._counts, fresh_counts])
        self._counts = np.bincount(place, weights, len(self._prints)).astype(np.int64)
        while len(self._prints) > self.most:
            self.halvings += 1
            chosen = self._chosen(self._prints)
            self._prints, self._counts = self._prints[chosen], self._counts[chosen]

    def occurring(self) -> Counter[int]:
        """How many distinct rows, of those kept, occur exactly j times."""
        self._merge()
        times, counts = np.unique(self._counts, return_counts=True)
        return Counter(dict(zip(times.tolist(), counts.tolist(), strict=True)))

    def copied(self, class_counts: list[int]) -> int:
        """How often rows were copied, 0 where independent draws may repeat as these do."""
        numbers = class_counts if self.by_class else [sum(class_counts)]
        found = copy_factor(self.occurring(), numbers, self.halvings)
        return 0 if found is None else found[0]
