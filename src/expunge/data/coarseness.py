"""What is learnt from rows, made so coarse that a row's values cannot be read off it: a practice, and no proof.

A few values at either end are pulled in, so that nobody's own is the largest; a scale has two significant digits, and
a centre the digits that such a scale has; values that fewer than `rare` rows have are one value.
That somebody extreme was there can still move a digit, the more often the fewer rows there are
(examples/preparation.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import OptionError

Array = NDArray[Any]
DIGITS = 2  # significant ones, of what is kept
RARE = 10  # rows: a value that fewer have shares a feature with all such, and its name is not kept
MOST = 10.0  # scales that a value may lie from its centre; beyond, it counts as that far away
ENDS = 20  # one in so many values, and `rare` at most, is pulled in at either end


@dataclass(frozen=True)
class Coarse:
    """How coarse: public numbers, which stand in the record."""

    digits: int = DIGITS
    rare: int = RARE
    most: float = MOST

    def pulled(self, n_rows: int) -> int:
        """How many values of so many are pulled in at either end; none of fewer than twenty."""
        return min(self.rare, n_rows // ENDS)

    def pulled_in(self, values: Array) -> Array:
        """The values with those furthest out at the place of the next ones."""
        count, ordered = self.pulled(len(values)), np.sort(values)
        if count == 0:
            return values
        return np.clip(values, ordered[count], ordered[-1 - count])

    def scale(self, value: float) -> float:
        """To so many significant digits; what is above 0 stays so.

        >>> Coarse().scale(13.641), Coarse().scale(0.00999)
        (14.0, 0.01)
        """
        return float(f"{value:.{self.digits - 1}e}")

    def centre(self, value: float, scale: float) -> float:
        """To the last digit that a scale has: far from 0 it would be useless to so many digits of its own.

        >>> Coarse().centre(10000.3712, 1.0), Coarse().centre(1077.6, 7400.0), Coarse().centre(3.0, 0.0)
        (10000.4, 1100.0, 3.0)
        """
        if scale <= 0.0:
            return self.scale(value)
        return float(round(value, self.digits - 1 - math.floor(math.log10(scale))))

    def moments(self, values: Array) -> tuple[float, float]:
        """Centre and scale of a column without gaps; a scale of 0 where it has one value but for a few rows."""
        within = self.pulled_in(values)
        scale = self.scale(float(within.std()))
        return self.centre(float(within.mean()), scale), scale


def require_rare(rare: int, least: int = 1) -> int:
    """How many rows a value needs for a feature of its own; where one would be enough, a person's stays."""
    if type(rare) is not int or rare < least:
        alone = " (where it is 1, what a single person has is kept: that is exact)" if least > 1 else ""
        raise OptionError(f"rare {rare!r}", f"a whole number from {least}{alone}", f"Leave it out, which is {RARE}.")
    return rare
