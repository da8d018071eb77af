"""A kind of distance from outside the package, in one file: Hellinger's, h^2 = 1 - sum of sqrt(p q)."""

from __future__ import annotations

import math

from expunge.distance import Kind, shift_total_variation


class Hellinger(Kind):
    """Total variation is at most `h sqrt(2 - h^2)`."""

    name = "hellinger"
    meaning = "Hellinger distance between the feature distributions of source and surrogate"
    largest_value = 1.0
    rows_unlike_any = True

    def shift(self, value: float, deviation: float, supremum: float, centred_supremum: float) -> float:
        return shift_total_variation(self.tv_upper(value), supremum)

    def tv_upper(self, value: float) -> float:
        return min(1.0, value * math.sqrt(2.0 - value**2) * (1 + 1e-15))
