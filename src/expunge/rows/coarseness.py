"""What is learnt from rows, made so that no single row decides it: coarse, robust and rounded by chance.

What one person may change is small against a step, and where a step falls is chance that nobody is told:

- a few values at either end count as the next ones, and how many is drawn anew for each column: one at random of c to
  2c - 1, c being `rare` or one in a hundred. Whoever joins shifts ranks by one, so that on average over the draw centre
  and scale move by a c-th of what lies between these ranks, however far out the person is;
- scales are of twelve a decade, centres multiples of a part of their scale, and which of the two next ones is taken is
  drawn, in proportion to how near they are: a shift by a hundredth of a step shows in one of a hundred preparations;
- a value needs `rare` rows and, at random for each value, up to as many more: who was the tenth does not show.

The draws come from the operating system and are kept nowhere. How often somebody shows all the same is measured in
examples/preparation.md; over many columns it adds up. It is a practice, and no proof.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import OptionError

Array = NDArray[Any]
DIGITS = 2  # significant ones, of a scale
RARE = 10  # rows: a value that fewer have shares a feature with all such, and its name is not kept
MOST = 10.0  # scales that a value may lie from its centre; beyond, it counts as that far away
ENDS = 20  # of so many values at most one, and fewer than twice that by chance, counts as the next at either end
TAIL = 100  # of so many values one does, where `rare` is fewer and the column has other values still
A_DECADE = 12  # scales
_chance = secrets.SystemRandom()


@dataclass(frozen=True)
class Coarse:
    """How coarse: public numbers, which stand in the record."""

    digits: int = DIGITS
    rare: int = RARE
    most: float = MOST

    def few(self, n_rows: int, least: int | None = None) -> int:
        """How many of so many rows are too few to decide anything: by chance, `rare` to twice that; none of fewer than
        twenty."""
        least = min(self.rare if least is None else least, n_rows // ENDS)
        return least + _chance.randrange(least) if least else 0

    def blurred(self, counts: Array) -> Array:
        """Counts with fewer than `rare` taken off each, by chance; a value needs `rare` of what is left."""
        return np.asarray(counts) - np.array([_chance.randrange(self.rare) for _ in range(len(counts))], dtype=np.int64)

    def pulled_in(self, values: Array) -> Array:
        """The values with those furthest out at the place of the next ones; all the same where all but a few are."""
        for least in (max(self.rare, len(values) // TAIL), self.rare):
            few, ordered = self.few(len(values), least), np.sort(values)
            if few == 0:
                return values
            within = np.clip(values, ordered[few], ordered[-1 - few])
            if within.min() < within.max():
                break
        return within

    def quantile(self, values: Array, part: float) -> float:
        """A value that about this part of the others lies below: of those around it one by chance."""
        few = self.few(len(values), max(self.rare, len(values) // TAIL))
        place = round(part * (len(values) - 1)) + _chance.randint(-few, few)
        return float(np.sort(values)[min(max(place, 0), len(values) - 1)])

    def scale(self, value: float) -> float:
        """One of the two next scales, by chance, to so many digits; what is above 0 stays so.

        >>> Coarse().scale(10.0), Coarse().scale(11.0) in (10.0, 12.0), Coarse().scale(0.0)
        (10.0, True, 0.0)
        """
        if value <= 0.0:
            return 0.0
        decade, place = divmod(by_chance(A_DECADE * math.log10(value)), A_DECADE)
        return float(f"{10.0 ** (place / A_DECADE):.{self.digits - 1}f}e{decade}")

    def centre(self, value: float, scale: float, parts: int = 4) -> float:
        """One of the two next multiples, by chance, of 1, 2 or 5 with zeros: of the largest that is at most a scale's
        fourth part, or what `parts` says.

        >>> Coarse().centre(10_002.0, 4.6), Coarse().centre(1077.6, 6800.0) in (1000.0, 2000.0)
        (10002.0, True)
        """
        if scale <= 0.0:
            return float(f"{value:.{self.digits - 1}e}")
        decade = math.floor(math.log10(scale / parts) + 1e-9)
        step = next(each for each in (5, 2, 1) if each == 1 or float(f"{each}e{decade}") <= scale / parts)
        return float(f"{step * by_chance(value / float(f'{step}e{decade}'))}e{decade}")

    def moments(self, values: Array) -> tuple[float, float]:
        """Centre and scale of a column without gaps; a scale of 0 where it has one value but for a few rows."""
        within = self.pulled_in(values)
        scale = self.scale(float(within.std())) if within.min() < within.max() else 0.0
        return self.centre(float(within.mean()), scale), scale

    def count(self, rows: int) -> float:
        """How many rows, to one digit, by chance one of the two next.

        >>> Coarse().count(300), Coarse().count(349) in (300.0, 400.0)
        (300.0, True)
        """
        decade = math.floor(math.log10(rows))
        return float(by_chance(rows / 10**decade) * 10**decade)


def by_chance(value: float) -> int:
    """One of the two next whole numbers: each the more often the nearer it is, so that on average nothing changes."""
    below = math.floor(value)
    return below + (_chance.random() < value - below)


def require_rare(rare: int, least: int = 1) -> int:
    """How many rows a value needs for a feature of its own; where one would be enough, a person's stays."""
    if type(rare) is not int or rare < least:
        alone = " (where it is 1, what a single person has is kept: that is exact)" if least > 1 else ""
        raise OptionError(f"rare {rare!r}", f"a whole number from {least}{alone}", f"Leave it out, which is {RARE}.")
    return rare
