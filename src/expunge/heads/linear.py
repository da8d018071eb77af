"""Linear heads: the mean of `ell(W x, y)` over rows, plus `(l2/2) ||W||^2`.

Shapes and averaging are stated here once. `W` is K x d (classes x features; a bias is the last column, multiplied by
a constant feature 1 and regularised like the rest). A row is `x` of length d with `||x|| <= row_bound`. With outputs
`z = W x`, predictions `p = link(z)` and targets `t(y)`,

    gradient of one row     (p - t) outer x
    curvature of one row    V -> (C(p) V x) outer x          C(p) is K x K
    change of gradient      phi_U(x) = (link((W+U) x) - link(W x)) outer x      the label cancels

Means over a set carry the factor 1/rows; rows may be weighted, with weights of mean 1, and every mean is then a
weighted one. The regulariser is added once per set. Everything that becomes evidence (gradients, changes of gradient)
is summed in float64 in a fixed order, whatever the dtype the rows are kept in.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sized
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expunge.heads.curvature import Curvature
from expunge.heads.rows import Rows, RowSet
from expunge.heads.spread import Spread
from expunge.record import Constants, Loss

UNIT_ROUNDOFF = 2.0**-53
DENSE_PARAMETERS = 4096  # above this a dense Hessian is never formed
DENSE_COPIES = 5  # of both sets, as summed, shifted and factorised
DENSE_ADVANTAGE = 8.0  # large matrix products run about this much faster than the thin ones of a Hessian product
EXPECTED_CONJUGATE = 40


@dataclass(frozen=True)
class LinearHead(ABC):
    """An L2-regularised linear head on feature rows."""

    l2: float
    n_classes: int
    n_features: int
    row_bound: float

    about: ClassVar[Loss]  # what a certificate has to know of it
    shift_invariant: ClassVar[bool]  # C(p) 1 = 0: adding the same to all outputs changes nothing
    constant_curvature: ClassVar[bool]  # C(p) is the same for every row
    inexact: ClassVar[bool] = True  # far from the goal, linear systems may be solved roughly

    @property
    def name(self) -> str:
        return self.about.name

    @property
    def n_parameters(self) -> int:
        return self.n_classes * self.n_features

    @property
    def n_directions(self) -> int:
        """How many directions a row has."""
        return self.n_features

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
        """`C(p) l` for each example's direction `l = V x`.

        Classes first, one column an example, rows of zeros allowed.
        """

    @abstractmethod
    def curvature_entries(self, predictions: Tensor) -> Tensor:
        """Entries of `C(p)` on and above the diagonal, row by row, K (K+1)/2 x examples; classes first."""

    @abstractmethod
    def curvature_sum(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """Sum over examples of their weight times `C(p)`, K x K; classes first."""

    @abstractmethod
    def separated(self, predictions: Tensor) -> Tensor:
        """`c_k(p)`, classes first: the diagonal matrix that stands for `C(p)` where classes are treated one by one."""

    @abstractmethod
    def coupling(self, predictions: Tensor) -> Tensor:
        """How much of each example's `C(p)` its separated form misses; above 0 only where `C(p) = diag(p) - p p^T`."""

    @abstractmethod
    def residual_sup(self, weights: Tensor) -> float:
        """Upper bound on `||p - t||` over all rows and labels."""

    @abstractmethod
    def change_sup(self, update: Tensor) -> float:
        """Upper bound on `||phi_U(x)||` over all rows `||x|| <= row_bound`."""

    # What follows for all of them ------------------------------------------------------------------------------

    def loss(self, weights: Tensor, rows: RowSet) -> float:
        """`L(W)`: mean loss plus `(l2/2) ||W||^2`."""
        total = torch.zeros((), dtype=torch.float64, device=weights.device)
        for block in rows.blocks():
            outputs = block.features.double() @ weights.T
            total += block.weighted(self.losses(outputs, block.labels), 0).sum()
        return float(rows.total(total)) / len(rows) + 0.5 * self.l2 * float(weights.square().sum())

    def gradient(self, weights: Tensor, rows: RowSet) -> Tensor:
        """Gradient of `L` at `weights`, K x d, float64."""
        total = torch.zeros_like(weights)
        for block in rows.blocks():
            features = block.features.double()
            residuals = self.predictions(features @ weights.T) - self.targets(block.labels, torch.float64)
            total += block.weighted(residuals, 0).T @ features
        return rows.total(total) / len(rows) + self.l2 * weights

    def change(self, weights: Tensor, update: Tensor, features: Tensor) -> Tensor:
        """`link((W+U) x) - link(W x)` for each row; `phi_U(x)` is its outer product with `x`."""
        return self.predictions(features @ (weights + update).T) - self.predictions(features @ weights.T)

    def change_mean(self, weights: Tensor, update: Tensor, rows: RowSet) -> Tensor:
        """Mean of `phi_U` over the rows, K x d, float64."""
        total = torch.zeros_like(weights)
        for block in rows.blocks():
            features = block.features.double()
            total += block.weighted(self.change(weights, update, features), 0).T @ features
        return rows.total(total) / len(rows)

    def constants(self, weights_norm: float) -> Constants:
        """Constants in closed form; the gradient's bound holds for weights of norm at most `weights_norm`."""
        assert self.about.constants is not None
        return self.about.constants(self.l2, self.n_classes, self.row_bound, weights_norm)

    def curvature(self, weights: Tensor, rows: RowSet) -> Curvature:
        """The Hessian of `L` over these rows."""
        return Curvature(self, weights, rows)

    def spread(self, weights: Tensor, update: Tensor, rows: RowSet) -> Spread:
        """How `phi_U` spreads over these rows."""
        return Spread(self, weights, update, rows)

    def working(self, rows: Rows, dtype: torch.dtype) -> Rows:
        """The rows in the dtype that linear systems are solved in."""
        return Rows(rows.features.to(dtype), rows.labels)

    def accurate(self, dtype: torch.dtype) -> float:
        """Relative residual that linear systems are solved to where they are solved once."""
        return 1e-10 if dtype == torch.float64 else 1e-5

    def dense_pays(self, rows: RowSet) -> bool:
        """Whether forming and factorising the Hessian takes fewer multiplications than the iterations, and fits."""
        parameters, n_rows = self.n_parameters, len(rows)
        if parameters > DENSE_PARAMETERS or not rows.affords(DENSE_COPIES * 8 * parameters**2):
            return False
        forming = n_rows * self.n_features * parameters * (self.n_classes + 1) / 2
        conjugate = EXPECTED_CONJUGATE * 2 * n_rows * parameters
        return (forming + parameters**3 / 3) / DENSE_ADVANTAGE < conjugate

    def rounding(self, weights: Tensor, rows: Sized) -> float:
        """Upper bound on the float64 rounding error of a mean gradient over these rows, in norm.

        Any order of summing k terms is off by at most (k+1) u times the mean of their norms; the outputs z are off by
        at most (d+1) u ||W|| B in each coordinate, and link is 1-Lipschitz. Weights of mean 1 leave the mean of the
        norms below the same bound; their own roundings are among the 64.
        """
        norm = float(weights.norm()) * self.row_bound
        of_sum = (len(rows) + 64) * self.residual_sup(weights)
        of_link = math.sqrt(self.n_classes) * (self.n_features + 64) * (1.0 + norm)
        return UNIT_ROUNDOFF * self.row_bound * (of_sum + of_link) + 4 * UNIT_ROUNDOFF * self.l2 * float(weights.norm())
