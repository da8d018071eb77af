"""From Renyi divergences to (epsilon, delta), as the peers' papers convert them.

A divergence of order alpha that is at most D(alpha) is (epsilon, delta) with `epsilon = D(alpha) + ln(1/delta)/(alpha -
1)`, for every alpha > 1 (Mironov 2017). Where `D(alpha) = alpha rho`, the best order gives `rho + 2 sqrt(rho
ln(1/delta))` (Bun and Steinke 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable

SAFETY = 1.0 + 1e-9  # everything is rounded toward more noise
SHRINK = (math.sqrt(5.0) - 1.0) / 2.0


def require_budget(epsilon: float, delta: float) -> None:
    """Refuse an epsilon or delta that no formula here is for."""
    if not (0.0 < epsilon < math.inf and 0.0 < delta < 1.0):
        raise ValueError(f"epsilon {epsilon} must be above 0 and finite, delta {delta} strictly between 0 and 1")


def epsilon_of_rho(rho: float, delta: float) -> float:
    """What `D(alpha) = alpha rho` amounts to at the best order.

    >>> round(epsilon_of_rho(0.01, 1e-4), 4)
    0.617
    """
    return rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))


def rho_for(epsilon: float, delta: float) -> float:
    """The largest rho that is (epsilon, delta), rounded down.

    `sqrt(ln(1/delta) + epsilon) - sqrt(ln(1/delta))`, squared; as a quotient, which loses no digits.

    >>> round(epsilon_of_rho(rho_for(0.5, 1e-3), 1e-3), 6)
    0.5
    """
    require_budget(epsilon, delta)
    log = math.log(1.0 / delta)
    root = epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))
    return root * root / SAFETY


def smallest_over_orders(of_order: Callable[[float], float], lowest: float) -> float:
    """The smallest value found over orders above `lowest`: golden section over `ln(order - lowest)`.

    Any order's value is valid, so a search that ends a little beside the best one costs noise, never the guarantee.
    """
    low, high = math.log(1e-6 * lowest), math.log(1e9 * lowest)
    values = {point: of_order(lowest + math.exp(point)) for point in _grid(low, high, 60)}
    best = min(values, key=values.__getitem__)
    width = (high - low) / 60.0
    left, right = best - width, best + width
    while right - left > 1e-9:
        first, second = right - SHRINK * (right - left), left + SHRINK * (right - left)
        if of_order(lowest + math.exp(first)) <= of_order(lowest + math.exp(second)):
            right = second
        else:
            left = first
    return min(values[best], of_order(lowest + math.exp(0.5 * (left + right))))


def _grid(low: float, high: float, parts: int) -> list[float]:
    return [low + (high - low) * number / parts for number in range(parts + 1)]
