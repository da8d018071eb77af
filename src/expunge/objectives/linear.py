"""Linear heads: the mean of `ell(W x, y)` over rows, plus `(l2/2) ||W||^2`.

Shapes and averaging are stated here once. `W` is K x d (classes x features; a bias is the last column, multiplied by
a constant feature 1 and regularised like the rest). A row is `x` of length d with `||x|| <= row_bound`. With outputs
`z = W x`, predictions `p = link(z)` and targets `t(y)`,

    gradient of one row     (p - t) outer x
    curvature of one row    V -> (C(p) V x) outer x          C(p) is K x K
    change of gradient      phi_U(x) = (link((W+U) x) - link(W x)) outer x      the label cancels

Means over a set carry the factor 1/rows; the regulariser is added once per set. Everything that becomes evidence
(gradients, changes of gradient) is summed in float64 in a fixed order, whatever the dtype the rows are kept in.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

UNIT_ROUNDOFF = 2.0**-53
BLOCK_BYTES = 1 << 20  # a block of rows stays in cache between the two products that use it


@dataclass(frozen=True)
class Rows:
    """Feature rows (bias column included) and class indices, on one device."""

    features: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return int(self.features.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.features.shape[1])

    def blocks(self) -> Iterator[slice]:
        """Slices of rows, each small enough to stay in cache."""
        size = max(16, BLOCK_BYTES // max(1, self.n_features * self.features.element_size()))
        if self.features.device.type != "cpu":
            size *= 64
        for start in range(0, len(self), size):
            yield slice(start, min(start + size, len(self)))


@dataclass(frozen=True)
class Constants:
    """Constants of one example's regularised loss over `||x|| <= row_bound`, as the paper's Assumption asks for them."""

    strong_convexity: float
    smoothness: float
    lipschitz: float
    hessian_lipschitz: float


@dataclass(frozen=True)
class LinearHead(ABC):
    """An L2-regularised linear head on feature rows."""

    l2: float
    n_classes: int
    n_features: int
    row_bound: float

    name: ClassVar[str]

    @property
    def n_parameters(self) -> int:
        return self.n_classes * self.n_features

    # What a loss must say about itself -------------------------------------------------------------------------

    @abstractmethod
    def targets(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Targets `t(y)`, rows x K."""

    @abstractmethod
    def predictions(self, outputs: Tensor) -> Tensor:
        """`link(z)`, rows x K."""

    @abstractmethod
    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row, without the regulariser."""

    @abstractmethod
    def curve(self, predictions: Tensor, directions: Tensor) -> Tensor:
        """`C(p) l` for each row's direction `l = V x`."""

    @abstractmethod
    def curvature_weights(self, predictions: Tensor, first: int, second: int) -> Tensor | None:
        """Entry (first, second) of `C(p)` for each row, or None where it is zero for all."""

    @abstractmethod
    def residual_sup(self, weights: Tensor) -> float:
        """Upper bound on `||p - t||` over all rows and labels."""

    @abstractmethod
    def change_sup(self, update: Tensor) -> float:
        """Upper bound on `||phi_U(x)||` over all rows `||x|| <= row_bound`."""

    @abstractmethod
    def constants(self, weights_norm: float) -> Constants:
        """Constants in closed form; the gradient's bound holds for weights of norm at most `weights_norm`."""

    # What follows for all of them ------------------------------------------------------------------------------

    def loss(self, weights: Tensor, rows: Rows) -> float:
        """`L(W)`: mean loss plus `(l2/2) ||W||^2`."""
        total = 0.0
        for part in rows.blocks():
            outputs = rows.features[part].double() @ weights.T
            total += float(self.losses(outputs, rows.labels[part]).sum())
        return total / len(rows) + 0.5 * self.l2 * float(weights.square().sum())

    def gradient(self, weights: Tensor, rows: Rows) -> Tensor:
        """Gradient of `L` at `weights`, K x d, float64."""
        total = torch.zeros_like(weights)
        for part in rows.blocks():
            features = rows.features[part].double()
            residuals = self.predictions(features @ weights.T) - self.targets(rows.labels[part], torch.float64)
            total += residuals.T @ features
        return total / len(rows) + self.l2 * weights

    def change(self, weights: Tensor, update: Tensor, features: Tensor) -> Tensor:
        """`link((W+U) x) - link(W x)` for each row; `phi_U(x)` is its outer product with `x`."""
        return self.predictions(features @ (weights + update).T) - self.predictions(features @ weights.T)

    def change_mean(self, weights: Tensor, update: Tensor, rows: Rows) -> Tensor:
        """Mean of `phi_U` over the rows, K x d, float64."""
        total = torch.zeros_like(weights)
        for part in rows.blocks():
            features = rows.features[part].double()
            total += self.change(weights, update, features).T @ features
        return total / len(rows)

    def rounding(self, weights: Tensor, n_rows: int) -> float:
        """Upper bound on the float64 rounding error of a mean gradient over `n_rows` rows, in norm.

        Any order of summing k terms is off by at most (k+1) u times the mean of their norms; the outputs z are off by
        at most (d+1) u ||W|| B in each coordinate, and link is 1-Lipschitz.
        """
        norm = float(weights.norm()) * self.row_bound
        of_sum = (n_rows + 64) * self.residual_sup(weights)
        of_link = math.sqrt(self.n_classes) * (self.n_features + 64) * (1.0 + norm)
        return UNIT_ROUNDOFF * self.row_bound * (of_sum + of_link) + 4 * UNIT_ROUNDOFF * self.l2 * float(weights.norm())


class Curvature:
    """The Hessian of `L` over one set at fixed weights: products, the dense matrix, and a factor for preconditioning.

    Predictions are kept, since they are K/d of the data and every product needs them. Works in the rows' own dtype.
    """

    def __init__(self, objective: LinearHead, weights: Tensor, rows: Rows) -> None:
        self.objective = objective
        self.rows = rows
        working = weights.to(rows.features.dtype)
        self.predictions = torch.empty((len(rows), objective.n_classes), dtype=working.dtype, device=working.device)
        for part in rows.blocks():
            self.predictions[part] = objective.predictions(rows.features[part] @ working.T)

    def product(self, direction: Tensor) -> Tensor:
        """`H V`, in two matrix products a block and one pass between them."""
        features, total = self.rows.features, torch.zeros_like(direction)
        transposed = direction.T
        for part in self.rows.blocks():
            block = features[part]
            curved = self.objective.curve(self.predictions[part], block @ transposed)
            total.addmm_(curved.T, block)
        return total.div_(len(self.rows)).add_(direction, alpha=self.objective.l2)

    def dense(self) -> Tensor:
        """The p x p Hessian, weights in row-major order."""
        objective, rows = self.objective, self.rows
        classes, width = objective.n_classes, objective.n_features
        matrix = torch.zeros((classes, width, classes, width), dtype=rows.features.dtype, device=rows.features.device)
        for part in rows.blocks():
            block = rows.features[part]
            for first in range(classes):
                for second in range(first, classes):
                    entry = objective.curvature_weights(self.predictions[part], first, second)
                    if entry is not None:
                        matrix[first, :, second, :] += (block * entry[:, None]).T @ block
        for first in range(classes):
            for second in range(first + 1, classes):
                matrix[second, :, first, :] = matrix[first, :, second, :].T
        flat = matrix.reshape(objective.n_parameters, objective.n_parameters) / len(rows)
        flat.diagonal().add_(objective.l2)
        return flat

    def class_factor(self) -> Tensor:
        """Mean of `C(p)` over the rows, K x K."""
        classes = self.objective.n_classes
        basis = torch.eye(classes, dtype=self.predictions.dtype, device=self.predictions.device)
        columns = [
            self.objective.curve(self.predictions, basis[c].expand_as(self.predictions)).mean(0) for c in range(classes)
        ]
        return torch.stack(columns)

    def feature_factor(self) -> Tensor:
        """Mean of `x x^T` over the rows, d x d."""
        features = self.rows.features
        total = torch.zeros((self.rows.n_features,) * 2, dtype=features.dtype, device=features.device)
        for part in self.rows.blocks():
            total.addmm_(features[part].T, features[part])
        return total.div_(len(self.rows))
