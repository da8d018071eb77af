"""Logistic regression: one weight vector for two classes, or one for each of several against the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expunge.heads.linear import LinearHead
from expunge.record import LOGISTIC, ONE_VS_REST, Loss


@dataclass(frozen=True)
class OneVsRest(LinearHead):
    """`ell(z, y) = sum_k logistic(z_k, y = k)`, so `p = sigmoid(z)` and `C(p) = diag(p (1 - p))`: K models in one.

    >>> import torch
    >>> from expunge.heads.rows import Rows
    >>> head = OneVsRest(l2=1.0, n_classes=3, n_features=1, row_bound=1.0)
    >>> rows = Rows(torch.ones(4, 1, dtype=torch.float64), torch.tensor([0, 0, 0, 0]))
    >>> head.gradient(torch.zeros(3, 1, dtype=torch.float64), rows).flatten().tolist()
    [-0.5, 0.5, 0.5]
    """

    about: ClassVar[Loss] = ONE_VS_REST
    shift_invariant: ClassVar[bool] = False
    constant_curvature: ClassVar[bool] = False

    def targets(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.nn.functional.one_hot(labels, self.n_classes).to(dtype)

    def predictions(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        signs = 2.0 * self.targets(labels, outputs.dtype) - 1.0
        return -torch.nn.functional.logsigmoid(signs * outputs).sum(dim=1)

    def curve(self, predictions: Tensor, directions: Tensor) -> Tensor:
        return predictions * (1.0 - predictions) * directions

    def curvature_entries(self, predictions: Tensor) -> Tensor:
        pairs = torch.triu_indices(self.n_classes, self.n_classes, device=predictions.device)
        entries = torch.zeros((pairs.shape[1], predictions.shape[1]), dtype=predictions.dtype, device=pairs.device)
        entries[pairs[0] == pairs[1]] = predictions * (1.0 - predictions)
        return entries

    def curvature_sum(self, predictions: Tensor, weights: Tensor) -> Tensor:
        return torch.diag((predictions * (1.0 - predictions) * weights).sum(dim=1))

    def separated(self, predictions: Tensor) -> Tensor:
        return predictions * (1.0 - predictions)

    def coupling(self, predictions: Tensor) -> Tensor:
        return torch.zeros_like(predictions[0])

    def residual_sup(self, weights: Tensor) -> float:
        return math.sqrt(self.n_classes)

    def change_sup(self, update: Tensor) -> float:
        """`||phi_U(x)|| <= min(||U x||/4, sqrt K) ||x||`: a sigmoid has slope at most 1/4."""
        spectral = float(torch.linalg.matrix_norm(update, 2))
        return min(0.25 * spectral * self.row_bound, math.sqrt(self.n_classes)) * self.row_bound


@dataclass(frozen=True)
class Logistic(OneVsRest):
    """Two classes and one weight vector, for the second: K is 1."""

    about: ClassVar[Loss] = LOGISTIC

    def targets(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return labels.to(dtype)[:, None]
