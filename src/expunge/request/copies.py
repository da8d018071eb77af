"""Rows repeated by copying, told from rows that repeat honestly (docs/theory.md, section 8.5).

How many distinct rows occur once, twice, three times is what independent draws can, or cannot, explain. Rows of
categorical columns repeat honestly, but not in steps: a value that is expected L times occurs a Poisson number of
times, and whatever L is, that is seldom a multiple of 50, and seldom 2 without being 1 or 3 about as often.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from expunge.runtime.arrays import Array, double, namespace, put, to_numpy

IMPLAUSIBLE = 1e-9
LARGEST_STEP = 1000  # tried; larger ones are seen by their divisors, or where many rows occur equally often
INFLATION = 1.02  # of a supremum that is taken over a grid
FEWEST = 19  # distinct rows: the bound for fewer is above 3^-19, which is above IMPLAUSIBLE
MEANS = 2.0 ** np.arange(-10, 3)  # of a peak, in units of its place
SHARES = np.array([0.95, 0.5, 0.25, 0.1, 0.03, 0.01])  # of the largest weight a deviation may have
MOST_DISTINCT = 1 << 18  # fingerprints kept: with counts, and those that wait, 8 MB
MIXING = -7046029254386353131  # odd, as are the columns' numbers: wrapping products with it lose nothing
LOW_HALF = (1 << 32) - 1


def copy_factor(multiplicities: Mapping[int, int], class_counts: Sequence[int] = (), halvings: int = 0) -> int:
    """How often rows were copied; 0 where independent draws repeat so with a probability that may be above 1e-9.

    `multiplicities` says how many distinct rows occur exactly j times. `class_counts` are the rows of each class where
    their numbers may have been chosen; without them only the number of all rows may. `halvings` says how often the
    distinct rows looked at were halved in number, by something that does not depend on how often they occur.

    >>> copy_factor({1: 400, 2: 70, 3: 10}), copy_factor({50: 100})
    (0, 50)
    """
    occurring = {j: count for j, count in multiplicities.items() if count}
    if not occurring:
        return 0
    times, counts = (np.array(part, np.int64) for part in (list(occurring), list(occurring.values())))
    numbers = list(class_counts) or [int(times @ counts)]
    tests = [(c, _steps(times, counts, c)) for c in range(2, min(max(occurring), LARGEST_STEP) + 1)]
    tests += [(c, _peak(occurring, c)) for c, count in occurring.items() if c > 1 and count >= FEWEST]
    spent = math.log(2 * (halvings + 1) * (halvings + 2)) + math.fsum(map(_fixed, numbers))
    log, factor = min(((log + math.log(c * (c - 1)) + spent, c) for c, log in tests), default=(0.0, 1))
    return factor if log < math.log(IMPLAUSIBLE) else 0


def _fixed(number: int) -> float:
    """ln 1/Pr[Poisson(number) = number]: what it costs that a number of rows was fixed, and not left to chance."""
    return number - number * math.log(number) + math.lgamma(number + 1) if number else 0.0


def _steps(times: NDArray[np.int64], counts: NDArray[np.int64], step: int) -> float:
    """Logarithm of a bound on the probability that so many distinct rows occur a multiple of `step` times."""
    distinct, multiples = int(counts.sum()), int(counts[times % step == 0].sum())
    if multiples <= distinct * math.exp(-_fixed(step)):  # quickly: that is below step_share
        return 0.0
    return binomial_tail(distinct, multiples, min(1.0, INFLATION * step_share(step)))


@functools.cache
def step_share(step: int) -> float:
    """The largest probability, over all Poisson means, that a number which is not 0 is a multiple of `step`.

    Taken over a grid of means up to 8 times `step`; beyond, it is smaller.
    """
    means = np.arange(1.0, 64.0 * math.sqrt(step) + 1.0)[:, None] * math.sqrt(step) / 8.0
    largest = 8.0 * step
    multiples = step * np.arange(1.0, math.ceil((largest + 12.0 * math.sqrt(largest) + 20.0) / step) + 1.0)
    logs = multiples * np.log(means) - means - gammaln(multiples + 1.0)
    return float((np.exp(logs).sum(axis=1) / -np.expm1(-means[:, 0])).max())


def binomial_tail(trials: int, successes: int, probability: float) -> float:
    """Logarithm of Chernoff's bound on Pr[Binomial(trials, probability) >= successes]."""
    share = successes / trials
    if share <= probability:
        return 0.0
    failing = 0.0 if share == 1.0 else (1.0 - share) * math.log((1.0 - share) / (1.0 - probability))
    return -trials * (share * math.log(share / probability) + failing)


def _peak(occurring: Mapping[int, int], place: int) -> float:
    """Logarithm of a bound on the probability that so many rows occur `place` times beside those one more and one less.

    For a Poisson number N and any a, E[c(c+1) 1{N=c+1} - 2ac 1{N=c} + a^2 1{N=c-1}] is a positive multiple of (L-a)^2.
    So the product over rows of 1 minus a small multiple of what is in brackets has a mean of at most 1: it is seldom
    large.
    """
    below, here, above = (occurring.get(place + off, 0) for off in (-1, 0, 1))
    means = place * MEANS[:, None]
    weights = SHARES / np.maximum(place * (place + 1.0), means**2)
    products = (
        below * np.log1p(-weights * means**2)
        + here * np.log1p(2.0 * weights * means * place)
        + above * np.log1p(-weights * place * (place + 1.0))
    )
    return min(0.0, math.log(products.size) - float(logsumexp(products)))


def row_prints(features: Array) -> NDArray[np.uint64]:
    """A number of 64 bits for each row, from all its columns in float64: equal rows have equal ones."""
    bits = (double(features) + 0.0).view(namespace(features).int64)  # a copy, so that -0 is 0
    odd = np.random.default_rng(0).integers(-(2**62), 2**62, bits.shape[1]) * 2 + 1
    for factor in (MIXING, put(odd, bits)):
        bits = _fold(bits)
        bits *= factor
    summed = _fold(bits.sum(axis=1))
    summed *= MIXING
    prints: NDArray[np.uint64] = to_numpy(_fold(summed)).view(np.uint64)
    return prints


def _fold(numbers: Array) -> Array:
    """Carry the upper halves into the lower ones, in place."""
    numbers ^= (numbers >> 32) & LOW_HALF
    return numbers


class Multiplicities:
    """How many distinct rows occur exactly j times, by their fingerprints, a block at a time.

    Where there are too many distinct ones, half of them are let go, by a bit of the fingerprint, as often as needed:
    how often a row occurs has no part in whether it is kept, and those that are kept are counted in full.
    """

    def __init__(self, most: int = MOST_DISTINCT) -> None:
        self.most, self.halvings = most, 0
        self._prints, self._counts = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._waiting: list[NDArray[np.uint64]] = []

    def add(self, prints: NDArray[np.uint64]) -> None:
        """Count the rows of a block."""
        self._waiting.append(prints[self._chosen(prints)])
        if sum(map(len, self._waiting)) > self.most:
            self._merge()

    def _chosen(self, prints: NDArray[np.uint64]) -> NDArray[np.bool_]:
        chosen: NDArray[np.bool_] = prints & np.uint64((1 << self.halvings) - 1) == 0
        return chosen

    def _merge(self) -> None:
        """Count the fingerprints that wait with the others."""
        counts = np.concatenate([self._counts, np.ones(sum(map(len, self._waiting)), np.int64)])
        self._prints, place = np.unique(np.concatenate([self._prints, *self._waiting]), return_inverse=True)
        self._counts, self._waiting = np.bincount(place, counts, len(self._prints)).astype(np.int64), []
        while len(self._prints) > self.most:
            self.halvings += 1
            chosen = self._chosen(self._prints)
            self._prints, self._counts = self._prints[chosen], self._counts[chosen]

    def occurring(self) -> Counter[int]:
        """How many distinct rows, of those kept, occur exactly j times."""
        self._merge()
        times, counts = np.unique(self._counts, return_counts=True)
        return Counter(dict(zip(times.tolist(), counts.tolist(), strict=True)))
