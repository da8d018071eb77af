"""The value every bound returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

ROUND_UP = 1.0 + 1e-9  # covers the float64 arithmetic of the terms themselves


@dataclass(frozen=True)
class ErrorBound:
    """An upper bound on `||w_R - v||`, as the sum of named terms.

    >>> bound = ErrorBound("residual", {"training": 0.25, "solver": 0.5})
    >>> 0.75 < bound.total < 0.7500001
    True
    """

    kind: str
    terms: Mapping[str, float]

    @property
    def total(self) -> float:
        return math.fsum(self.terms.values()) * ROUND_UP

    def with_term(self, name: str, value: float) -> ErrorBound:
        """The same bound with one more term."""
        return ErrorBound(self.kind, {**self.terms, name: value})
