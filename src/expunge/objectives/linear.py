"""Linear heads: the mean of `ell(W x, y)` over rows, plus `(l2/2) ||W||^2`.

Shapes and averaging are stated here once. `W` is K x d (classes x features; a bias is the last column, multiplied by
a constant feature 1 and regularised like the rest). A row is `x` of length d with `||x|| <= row_bound`. With outputs
`z = W x`, predictions `p = link(z)` and targets `t(y)`,

    gradient of one row     (p - t) outer x
    curvature of one row    V -> (C(p) V x) outer x          C(p) is K x K
    change of gradient      phi_U(x) = (link((W+U) x) - link(W x)) outer x      the label cancels

Means over a set carry the factor 1/rows; rows may be weighted, with weights of mean 1, and every mean is then a weighted
one. The regulariser is added once per set. Everything that becomes evidence (gradients, changes of gradient) is summed in
float64 in a fixed order, whatever the dtype the rows are kept in.
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
BLOCK_BYTES = 1 << 22  # a block of rows stays in cache between the two products that use it
CLASS_MULTIPLE = 4  # thin matrix products run faster on a multiple of this many rows than on fewer


@dataclass(frozen=True)
class Rows:
    """Feature rows (bias column included) and class indices, on one device; `weights` (float64, mean 1), where rows differ in weight."""

    features: Tensor
    labels: Tensor
    weights: Tensor | None = None

    def __len__(self) -> int:
        return int(self.features.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.features.shape[1])

    @property
    def largest_weight(self) -> float:
        """1 without weights."""
        return 1.0 if self.weights is None else float(self.weights.max())

    @property
    def effective(self) -> float:
        """Effective sample size, `(sum w)^2 / sum w^2`: as many rows of equal weight average as well."""
        return float(len(self)) if self.weights is None else len(self) ** 2 / float(self.weights.square().sum())

    def weighted(self, values: Tensor, part: slice, dim: int) -> Tensor:
        """Values of the rows in `part`, which run along `dim`, times the rows' weights."""
        if self.weights is None:
            return values
        shape = [1] * values.ndim
        shape[dim] = -1
        return values * self.weights[part].to(values.dtype).reshape(shape)

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
        """`C(p) l` for each example's direction `l = V x`; classes first, one column an example, rows of zeros allowed."""

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
            total += float(rows.weighted(self.losses(outputs, rows.labels[part]), part, 0).sum())
        return total / len(rows) + 0.5 * self.l2 * float(weights.square().sum())

    def gradient(self, weights: Tensor, rows: Rows) -> Tensor:
        """Gradient of `L` at `weights`, K x d, float64."""
        total = torch.zeros_like(weights)
        for part in rows.blocks():
            features = rows.features[part].double()
            residuals = self.predictions(features @ weights.T) - self.targets(rows.labels[part], torch.float64)
            total += rows.weighted(residuals, part, 0).T @ features
        return total / len(rows) + self.l2 * weights

    def change(self, weights: Tensor, update: Tensor, features: Tensor) -> Tensor:
        """`link((W+U) x) - link(W x)` for each row; `phi_U(x)` is its outer product with `x`."""
        return self.predictions(features @ (weights + update).T) - self.predictions(features @ weights.T)

    def change_mean(self, weights: Tensor, update: Tensor, rows: Rows) -> Tensor:
        """Mean of `phi_U` over the rows, K x d, float64."""
        total = torch.zeros_like(weights)
        for part in rows.blocks():
            features = rows.features[part].double()
            total += rows.weighted(self.change(weights, update, features), part, 0).T @ features
        return total / len(rows)

    def rounding(self, weights: Tensor, n_rows: int) -> float:
        """Upper bound on the float64 rounding error of a mean gradient over `n_rows` rows, in norm.

        Any order of summing k terms is off by at most (k+1) u times the mean of their norms; the outputs z are off by
        at most (d+1) u ||W|| B in each coordinate, and link is 1-Lipschitz. Weights of mean 1 leave the mean of the norms
        below the same bound; their own roundings are among the 64.
        """
        norm = float(weights.norm()) * self.row_bound
        of_sum = (n_rows + 64) * self.residual_sup(weights)
        of_link = math.sqrt(self.n_classes) * (self.n_features + 64) * (1.0 + norm)
        return UNIT_ROUNDOFF * self.row_bound * (of_sum + of_link) + 4 * UNIT_ROUNDOFF * self.l2 * float(weights.norm())


def padded(matrix: Tensor) -> Tensor:
    """The matrix with rows of zeros appended up to a multiple of `CLASS_MULTIPLE`."""
    missing = -matrix.shape[0] % CLASS_MULTIPLE
    return torch.nn.functional.pad(matrix, (0, 0, 0, missing)) if missing else matrix


class Curvature:
    """The Hessian of `L` over one set at fixed weights: products, the dense matrix, and factors for preconditioning.

    Predictions are kept, since they are K/d of the data and every product needs them; classes first, padded, which is
    the layout the matrix products are fastest in. Works in the rows' own dtype.
    """

    def __init__(self, objective: LinearHead, weights: Tensor, rows: Rows) -> None:
        self.objective = objective
        self.rows = rows
        working = weights.to(rows.features.dtype)
        height = objective.n_classes + -objective.n_classes % CLASS_MULTIPLE
        self.predictions = torch.zeros((height, len(rows)), dtype=working.dtype, device=working.device)
        for part in rows.blocks():
            predicted = objective.predictions(rows.features[part] @ working.T)
            self.predictions[: objective.n_classes, part] = predicted.T

    def product(self, direction: Tensor) -> Tensor:
        """`H V`, in two matrix products a block and one pass between them."""
        features, wide = self.rows.features, padded(direction)
        total = torch.zeros_like(wide)
        for part in self.rows.blocks():
            block = features[part]
            curved = self.objective.curve(self.predictions[:, part], wide @ block.T)
            total.addmm_(self.rows.weighted(curved, part, 1), block)
        return total[: len(direction)].div_(len(self.rows)).add_(direction, alpha=self.objective.l2)

    def dense(self) -> Tensor:
        """The p x p Hessian, weights in row-major order."""
        objective, rows = self.objective, self.rows
        classes, width = objective.n_classes, objective.n_features
        matrix = torch.zeros((classes, width, classes, width), dtype=rows.features.dtype, device=rows.features.device)
        for part in rows.blocks():
            block = rows.features[part]
            for first in range(classes):
                for second in range(first, classes):
                    entry = objective.curvature_weights(self.predictions[:, part], first, second)
                    if entry is not None:
                        matrix[first, :, second, :] += (block * rows.weighted(entry, part, 0)[:, None]).T @ block
        for first in range(classes):
            for second in range(first + 1, classes):
                matrix[second, :, first, :] = matrix[first, :, second, :].T
        flat = matrix.reshape(objective.n_parameters, objective.n_parameters) / len(rows)
        flat.diagonal().add_(objective.l2)
        return flat

    def class_factor(self) -> Tensor:
        """Mean of `C(p)` over the rows, K x K."""
        classes = self.objective.n_classes
        basis = torch.eye(len(self.predictions), dtype=self.predictions.dtype, device=self.predictions.device)
        everything = slice(0, len(self.rows))
        columns = []
        for index in range(classes):
            curved = self.objective.curve(self.predictions, basis[:, [index]].expand_as(self.predictions))
            columns.append(self.rows.weighted(curved, everything, 1).mean(dim=1)[:classes])
        return torch.stack(columns)

    def feature_factor(self, most: int | None = None) -> Tensor:
        """Mean of `x x^T` over the rows, d x d; over about `most` of them, evenly spread, where that is enough."""
        part = slice(0, None, 1 if most is None else max(1, len(self.rows) // most))
        features = self.rows.features[part]
        return self.rows.weighted(features, part, 0).T @ features / len(features)
