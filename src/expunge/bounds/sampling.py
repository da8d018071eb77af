"""How far sample means can be from their expectations, as tails: bounded at every size, not at one.

A deviation Z is the norm of one sum of independent centred vectors (retained rows and surrogate rows together), plus
what a few rows unlike any that was seen may add. Two inequalities bound the sum, and the smaller is taken; E bounds the
mean, V is the total variance:

    Klein and Rio 2005        P(Z >= E + x) <= exp(-x^2 / (2 v + 3 b x)),  v = variance + 2 b E
    Pinelis 1994 (Hilbert)    P(Z >= x) <= 2 exp(-(V/b^2) h(b x / V)),  h(t) = (1+t) ln(1+t) - t

Every function is of plain numbers, so that a certificate can be recomputed from its file alone. docs/theory.md,
section 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
SMALLEST_CHANCE = 1e-307  # of so many rows unlike any seen that their number needs no further thought
SMALLEST_STEP = 1e-100  # of the tail's own unit: a shorter step is taken for this long, which only raises the tail
LARGEST_SIZE = 1e150  # in that unit: a tail at a larger size is taken to be what it is there, which is more
LARGEST_RATIO = 1e300
FINEST = 1e-20  # of the tail's own unit: a quantile is sought no closer


def klein_rio_tail(x: Values, expected: float, variance: float, step: float) -> Values:
    """`P(Z >= x)`: 1 up to the mean's bound, then `exp(-t^2 / (2 v + 3 b t))` at `t = x - E`.

    >>> float(klein_rio_tail(np.array([3.0]), 1.0, 0.5, 0.0)[0]) == math.exp(-4.0)
    True
    """
    beyond = np.maximum(x - expected, 0.0)
    proxy = 2.0 * (variance + 2.0 * step * expected) + 3.0 * step * beyond
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.where(proxy > 0.0, beyond * (beyond / proxy), np.where(beyond > 0.0, math.inf, 0.0))
    return np.exp(-exponent)


def hilbert_tail(x: Values, total_variance: float, step: float) -> Values:
    """`P(Z >= x)` from the total variance V and the longest vector b: Bennett's inequality in a Hilbert space.

    >>> float(hilbert_tail(np.array([2.0]), 1.0, 0.0)[0]) == 2.0 * math.exp(-2.0)
    True
    """
    sizes = np.maximum(x, 0.0)
    if total_variance <= 0.0:
        return np.where(sizes > 0.0, 0.0, 1.0)
    with np.errstate(over="ignore"):  # an exponent beyond all numbers is a tail of 0
        if step <= 0.0:
            return np.minimum(1.0, 2.0 * np.exp(-(sizes**2) / (2.0 * total_variance)))
        ratio = np.minimum(step * sizes / total_variance, LARGEST_RATIO)
        # for a small ratio the difference cancels; h(t) >= t^2 / (2 (1 + t/3)) stands in for it, which is smaller
        exact = (1.0 + ratio) * np.log1p(ratio) - ratio
        small = np.minimum(ratio, 1.0)
        h = np.where(ratio < 1e-3, small**2 / (2.0 * (1.0 + small / 3.0)), exact * (1.0 - 1e-9))
        return np.minimum(1.0, 2.0 * np.exp(-(total_variance / step**2) * h))


def more_than(n_new: int, n_seen: int, count: Values) -> Values:
    """`(n/(n+s))^(k+1)`, at least `P(N > k)` for the number N of new rows above the largest of s seen, exchangeable.

    The exact value is `prod_{i<=k} (n-i)/(n+s-i)`, which is no larger, and 0 for all n of them: more there are not.
    Fewer than no rows are always exceeded.

    >>> more_than(2, 2, np.array([-1.0, 0.0, 1.0, 2.0])).tolist()
    [1.0, 0.5, 0.25, 0.0]
    """
    share = n_new / (n_new + n_seen)
    falling = share ** (np.clip(count, 0.0, n_new) + 1.0)
    return np.where(count < 0.0, 1.0, np.where(count >= n_new, 0.0, falling))


@dataclass(frozen=True)
class Tail:
    """The tail of a deviation, all lengths in the same unit.

    `expected` bounds the mean of the sum's norm (its square the total variance), `variance` its variance along any
    direction, `step` its longest vector. Rows unlike any seen add `charge` each; of `n_new` new rows and `n_seen`
    seen ones, as many exceed all of those seen as exchangeable draws would, or, with `n_seen` 0, none: whoever counts
    them otherwise charges them apart. Beyond `limit` a deviation is a failure: nothing is known of what follows.
    """

    expected: float
    variance: float
    step: float
    charge: float = 0.0
    n_new: int = 0
    n_seen: int = 0
    limit: float = math.inf

    @property
    def nothing(self) -> bool:
        """Whether nothing can deviate, as where no update was made."""
        return self.expected == 0.0 and self.variance == 0.0 and self.step == 0.0 and self.charge == 0.0

    def scaled(self, factor: float) -> Tail:
        """The tail in another unit."""
        return Tail(
            self.expected * factor,
            self.variance * factor**2,
            self.step * factor,
            self.charge * factor,
            self.n_new,
            self.n_seen,
            self.limit * factor,
        )

    def above(self, x: Values) -> Values:
        """`P(deviation > x)`, at most 1, falling in x.

        The sum and the number of unlike rows are not independent: `min over k of P(N > k) + P(Z > x - k charge)`.
        """
        if self.n_seen == 0 or self.charge == 0.0:
            return self._sum(x)
        counts = self._counts()
        each = more_than(self.n_new, self.n_seen, counts)[:, None] + self._sum(
            x[None, :] - self.charge * counts[:, None]
        )
        smallest: Values = np.minimum(1.0, each.min(axis=0))
        return smallest

    def _counts(self) -> Values:
        """Numbers of unlike rows that the minimum is taken over: all small ones, then ever fewer until no chance."""
        last = min(self.n_new, math.ceil(math.log(SMALLEST_CHANCE) / math.log(self.n_new / (self.n_new + self.n_seen))))
        some = np.unique(np.concatenate([np.arange(min(32, last + 1)), np.geomspace(1, max(last, 1), 48).round()]))
        return some.astype(np.float64)

    def _sum(self, x: Values) -> Values:
        """The smaller of both tails, in the sum's own unit: the squares of lengths far from 1 are no numbers."""
        unit = max(self.expected, self.step) or 1.0
        expected, variance, step = self.expected / unit, self.variance / unit / unit, self.step / unit
        step = max(step, SMALLEST_STEP) if step > 0.0 else 0.0
        with np.errstate(over="ignore"):
            sizes = np.minimum(x / unit, LARGEST_SIZE)
        return np.minimum(klein_rio_tail(sizes, expected, variance, step), hilbert_tail(sizes, expected**2, step))

    def quantile(self, failure: float) -> float:
        """A size that is exceeded with probability at most `failure`, rounded up."""

        def fits(x: float) -> bool:
            return float(self.above(np.array([x]))[0]) <= failure

        if self.nothing:
            return 0.0
        unit = max(self.expected, self.step, self.charge, 1e-250)
        # a sum that cannot deviate fits at every size above 0: it is sought no closer than the finest
        return bracket(fits, 0.0, unit, 1e-12, FINEST * unit)[1]


def bracket(
    enough: Callable[[float], bool], low: float, high: float, width: float, finest: float = 0.0
) -> tuple[float, float]:
    """Ends of an interval that holds the least number that is enough: `low`, which is not, and `high`, which is.

    `high` is doubled until it is enough (infinite ends where none is), and the interval halved to `width` relative to
    it, or to `finest`. A caller that rounds up takes the second.

    >>> bracket(lambda x: x >= 3.0, 0.0, 1.0, 0.25)
    (2.5, 3.0)
    """
    while not enough(high):
        low, high = high, 2.0 * high
        if not math.isfinite(high):
            return math.inf, math.inf
    while high - low > max(width * high, finest):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low, high


def raised_moment(mean: float, largest: float, rows: float, log_failure: float) -> float:
    """Upper bound on the expectation of a value in `[0, largest^2]` from the mean of that many draws of it.

    A mean L of s such values falls below its expectation E so far only with probability at most
    `exp(-s (E - L)^2 / (2 E r^2))`, whence `sqrt E <= sqrt(L + c^2) + c` with `c = r sqrt(ln(1/f) / (2 s))`.

    >>> raised_moment(3.0, 2.0, 2.0, 1.0)
    9.0
    """
    slack = largest * math.sqrt(log_failure / (2.0 * rows))
    return (math.sqrt(mean + slack**2) + slack) ** 2


def unlike_rows(n_rows: int, mass: float, log_failure: float) -> float:
    """Bound on how many of `n_rows` draws fall into a part of this mass: `n q + sqrt(2 n q L) + L/3` (Bernstein).

    >>> unlike_rows(100, 0.0, 3.0)
    1.0
    """
    expected = n_rows * mass
    return min(float(n_rows), expected + math.sqrt(2.0 * expected * log_failure) + log_failure / 3.0)
