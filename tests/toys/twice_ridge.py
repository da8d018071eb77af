"""A loss from outside the package, in one file: least squares without the factor one half."""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass
from typing import ClassVar

from expunge.heads.linear import Ridge
from expunge.record import Constants, Loss
from expunge.runtime.arrays import Array, Dtype


def constants(l2: float, n_classes: int, row_bound: float, weights_norm: float) -> Constants:
    gradient = 2.0 * (weights_norm * row_bound + math.sqrt(n_classes)) * row_bound
    return Constants(l2, 2.0 * row_bound**2 + l2, gradient + l2 * weights_norm, 0.0)


@dataclass(frozen=True)
class TwiceRidge(Ridge):
    """`ell(z, y) = ||z - t(y)||^2`: predictions and targets count twice, `C = 2 I`."""

    about: ClassVar[Loss] = Loss("twice-ridge", constants)
    steepest: ClassVar[float] = 2.0

    def targets(self, labels: Array, dtype: Dtype) -> Array:
        return 2 * super().targets(labels, dtype)

    def predictions(self, outputs: Array) -> Array:
        return 2 * outputs

    def losses(self, outputs: Array, labels: Array) -> Array:
        return ((outputs - super().targets(labels, outputs.dtype)) ** 2).sum(axis=1)

    def slopes(self, predictions: Array) -> Array:
        return 2 * super().slopes(predictions)

    def residual_sup(self, weights: Array) -> float:
        return 2.0 * super().residual_sup(weights)

    def rounding(self, weights: Array, rows: Sized) -> float:
        return 2.0 * super().rounding(weights, rows)
