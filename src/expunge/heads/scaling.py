"""How many rows were longer than the norm bound, and by how much: counted by length, block by block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

A_HAIR = 1e-6  # a row that is longer by less than this is longer by rounding alone
STEPS = 32  # of length, for each factor of 2
OCTAVES = 2100  # all that float64 can tell apart
FEW = 0.01  # of all rows: what a norm bound may scale without a word


@dataclass(frozen=True)
class Scaling:
    """`n_scaled` of `n_rows` rows were scaled down to the norm bound, the median one of them by `factor` (1: none was).

    `bound_for_few` is a norm bound that would scale one row in a hundred, to 2 % from above.
    """

    n_rows: int
    n_scaled: int
    factor: float
    bound_for_few: float

    @property
    def share(self) -> float:
        return self.n_scaled / max(1, self.n_rows)


class Lengths:
    """Rows that are too long, counted by their length over the norm bound."""

    def __init__(self, max_norm: float) -> None:
        self.max_norm = max_norm
        self.counts = torch.zeros(STEPS * OCTAVES, dtype=torch.float64)
        self.n_rows = 0

    def add(self, norms: Tensor) -> None:
        """Count these rows."""
        self.n_rows += len(norms)
        ratio = norms.double().cpu() / self.max_norm
        over = ratio[ratio > 1.0 + A_HAIR]
        if len(over):
            steps = (over.log2() * STEPS).long().clamp(0, len(self.counts) - 1)
            self.counts += torch.bincount(steps, minlength=len(self.counts))

    def scaling(self, total: Callable[[Tensor], Tensor] = lambda part: part) -> Scaling:
        """What was counted, over all processes."""
        n_rows, counts = int(total(torch.tensor([float(self.n_rows)]).double())), total(self.counts)
        n_scaled = int(counts.sum())
        if n_scaled == 0:
            return Scaling(n_rows, 0, 1.0, self.max_norm)
        above = n_scaled - counts.cumsum(0)  # rows longer than the upper edge of each step
        median, few = (int((above <= most).nonzero()[0]) for most in (n_scaled / 2, FEW * n_rows))
        enough = self.max_norm if n_scaled <= FEW * n_rows else self.max_norm * 2.0 ** min((few + 1) / STEPS, 1023.0)
        return Scaling(n_rows, n_scaled, 2.0 ** (-(median + 1) / STEPS), enough)


def scaling_of(norms: Tensor, max_norm: float) -> Scaling:
    """Of rows that are all at hand.

    >>> scaling_of(torch.tensor([1.0, 1.0, 4.0, 4.0]), 1.0).share
    0.5
    """
    lengths = Lengths(max_norm)
    lengths.add(norms)
    return lengths.scaling()
