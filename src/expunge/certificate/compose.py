"""What all published models say together.

If every bound of the series holds, model i is a Gaussian mechanism with `mu_i = Delta_i / sigma_i`; that some bound
does not has probability at most F, counted once. So all models are (epsilon, delta) together where epsilon is what
dp-accounting's privacy loss distribution gives for these mechanisms at `delta - F`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from expunge.bounds.calibration import epsilon_for

MU_GRID = 1e-12  # mechanisms of one policy differ by float64 rounding only; moved up to this grid they are one kind
MOST_COUNTED = 10_000_000


@dataclass(frozen=True)
class Composition:
    """(epsilon, delta) of `models` published models together; `failures` of delta is for bounds, the rest for noise."""

    models: int
    epsilon: float
    delta: float
    failures: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compose(mus: Sequence[float], delta: float, failures: float) -> Composition:
    """All of these Gaussian mechanisms together, by dp-accounting.

    Its root finder may land below the truth by a relative 1e-9; Gaussians compose in closed form (`mu^2` adds), and the
    larger of the two is taken. Below the tail mass it cuts off (a delta of about 1e-20) it says infinity, and the
    closed form stands alone.
    """
    remaining = delta - failures
    if not mus:
        return Composition(0, 0.0, delta, failures)
    if remaining <= 0.0:
        return Composition(len(mus), math.inf, delta, failures)
    said, exact = by_dp_accounting(mus, remaining), closed_form(mus, remaining)
    return Composition(len(mus), max(said, exact) if math.isfinite(said) else exact, delta, failures)


def by_dp_accounting(mus: Sequence[float], delta: float) -> float:
    """Epsilon of the sequence, from dp-accounting's PLD accountant."""
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for mu, count in sorted(Counter(math.ceil(mu / MU_GRID) * MU_GRID for mu in mus).items()):
        accountant.compose(dp_accounting.GaussianDpEvent(1.0 / mu), count)
    return float(accountant.get_epsilon(delta))


def closed_form(mus: Sequence[float], delta: float) -> float:
    """Epsilon of Gaussians with `mu^2 = sum mu_i^2`."""
    return epsilon_for(delta, math.sqrt(math.fsum(mu * mu for mu in mus)))


def models_left(squares: float, mu: float, delta: float, limit: float) -> int:
    """How many more models with this mu fit under the limit, where `squares` is the sum of `mu_i^2` so far."""
    if delta <= 0.0 or mu <= 0.0:
        return 0

    def fits(count: int) -> bool:
        return epsilon_for(delta, math.sqrt(squares + count * mu * mu)) <= limit

    low, high = 0, 1
    while high <= MOST_COUNTED and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def deletions_left(total: float, carried: float, noise_share: float) -> int | None:
    """How often `total - carried` can be added to the bound before the noise reaches the weights' norm.

    >>> deletions_left(total=0.25, carried=0.125, noise_share=0.25)
    6
    """
    added = total - carried
    if added <= 0.0 or noise_share <= 0.0:
        return None
    return max(0, math.floor((total / noise_share - total) / added))
