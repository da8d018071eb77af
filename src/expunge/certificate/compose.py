"""What all published models say together.

If every bound of the series holds, model i is a Gaussian mechanism with `mu_i = Delta_i / sigma_i`; that some bound
does not has probability at most F, counted once. So all models are (epsilon, delta) together where epsilon is that of
one Gaussian mechanism with `mu^2 = sum mu_i^2` at `delta - F`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from expunge.bounds.calibration import epsilon_for

MU_GRID = 1e-12  # mechanisms of one policy differ by float64 rounding only; moved up to this grid they are one kind
MOST_COUNTED = 10_000_000
ROUND_UP = 1.0 + 1e-12  # covers the float64 arithmetic of the sum

Mus = Sequence[float] | Mapping[float, int]


@dataclass(frozen=True)
class Composition:
    """(epsilon, delta) of `models` published models together; `failures` of delta is for bounds, the rest for noise."""

    models: int
    epsilon: float
    delta: float
    failures: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compose(mus: Mus, delta: float, failures: float) -> Composition:
    """All of these Gaussian mechanisms together, each given by its mu, or mus with how often each occurs.

    Gaussians compose in closed form, adaptively chosen ones too: together they are one with `mu^2 = sum mu_i^2`. That
    takes as long for a thousand models as for one; dp-accounting's answer, which grows slow, is what tests hold it
    against.
    """
    counted = Counter(mus)
    if not counted:
        return Composition(0, 0.0, delta, failures)
    remaining = delta - failures
    epsilon = math.inf if remaining <= 0.0 else closed_form(counted, remaining)
    return Composition(counted.total(), epsilon, delta, failures)


def by_dp_accounting(mus: Mus, delta: float) -> float:
    """Epsilon of the sequence, from dp-accounting's PLD accountant: another's way to the same number.

    Its root finder may land below the truth by a relative 1e-9, and below the tail mass it cuts off (a delta of about
    1e-20) it says infinity.
    """
    import dp_accounting
    from dp_accounting import pld

    kinds: Counter[float] = Counter()
    for mu, count in Counter(mus).items():
        kinds[math.ceil(mu / MU_GRID) * MU_GRID] += count
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for mu, count in sorted(kinds.items()):
        accountant.compose(dp_accounting.GaussianDpEvent(1.0 / mu), count)
    return float(accountant.get_epsilon(delta))


def closed_form(mus: Mus, delta: float) -> float:
    """Epsilon of Gaussians with `mu^2 = sum mu_i^2`, rounded up."""
    squares = math.fsum(count * mu * mu for mu, count in Counter(mus).items())
    return epsilon_for(delta, math.sqrt(squares) * ROUND_UP)


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
