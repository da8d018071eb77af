"""What (epsilon, delta) means for somebody who guesses: how often anybody can be right."""

from __future__ import annotations

import math


def right_at_most(epsilon: float, delta: float) -> float:
    """The most often that anybody can tell two (epsilon, delta)-indistinguishable results apart.

    Who would have said 50 % for each beforehand errs with probability (a + b)/2, where a and b are the two kinds of
    error, `a + e^epsilon b >= 1 - delta` and `b + e^epsilon a >= 1 - delta`. Their sum is least where both are equal:

        right = 1 - (1 - delta)/(1 + e^epsilon) = (e^epsilon + delta)/(e^epsilon + 1).

    >>> round(right_at_most(1.0, 0.0), 4), right_at_most(0.0, 0.0), right_at_most(3.0, 1.0)
    (0.7311, 0.5, 1.0)
    """
    if not (0.0 <= epsilon < math.inf and 0.0 <= delta <= 1.0):
        raise ValueError(f"epsilon {epsilon} must be finite and at least 0, delta {delta} between 0 and 1")
    other = math.exp(-epsilon)
    return 1.0 - (1.0 - delta) * other / (1.0 + other)
