"""Rows repeated by copying: multiplicities that independent draws cannot explain (docs/theory.md, section 8.5).

Everything here is a function of plain numbers: how many distinct rows occur once, twice, three times and so on. Rows of
categorical columns repeat honestly, but not in steps: a value that is expected L times occurs a Poisson number of
times, and whatever L is, that is seldom a multiple of 50, and seldom 2 without being 1 or 3 about as often.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

IMPLAUSIBLE = 1e-9
LARGEST_STEP = 1000  # tried; larger ones are seen by their divisors, or where many rows occur equally often
INFLATION = 1.02  # of a supremum that is taken over a grid
FEWEST = 19  # distinct rows: the bound for fewer is above 3^-19, which is above IMPLAUSIBLE
MEANS = 2.0 ** np.arange(-10, 3)  # of a peak, in units of its place
SHARES = np.array([0.95, 0.5, 0.25, 0.1, 0.03, 0.01])  # of the largest weight a deviation may have


def copy_factor(
    multiplicities: Mapping[int, int], class_counts: Sequence[int] = (), halvings: int = 0
) -> tuple[int, float] | None:
    """How often rows were copied, and the probability, at most, of independent draws that repeat so; None above 1e-9.

    `multiplicities` says how many distinct rows occur exactly j times. `class_counts` are the rows of each class where
    their numbers may have been chosen; without them only the number of all rows may. `halvings` says how often the
    distinct rows looked at were halved in number, by something that does not depend on how often they occur.

    >>> copy_factor({1: 400, 2: 70, 3: 10}) is None
    True
    >>> copy_factor({50: 100})[0]
    50
    """
    occurring = {j: count for j, count in multiplicities.items() if count}
    if not occurring:
        return None
    times, counts = (np.array(part, np.int64) for part in (list(occurring), list(occurring.values())))
    numbers = list(class_counts) or [int(times @ counts)]
    tests = [(c, _steps(times, counts, c)) for c in range(2, min(max(occurring), LARGEST_STEP) + 1)]
    tests += [(c, _peak(occurring, c)) for c, count in occurring.items() if c > 1 and count >= FEWEST]
    spent = math.log(2 * (halvings + 1) * (halvings + 2)) + math.fsum(map(_fixed, numbers))
    log, factor = min(((log + math.log(c * (c - 1)) + spent, c) for c, log in tests), default=(0.0, 1))
    return None if log >= math.log(IMPLAUSIBLE) else (factor, math.exp(log))


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
