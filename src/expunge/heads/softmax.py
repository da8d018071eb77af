"""Softmax (multinomial logistic) regression, K >= 2 classes, one weight row a class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expunge.heads.linear import LinearHead
from expunge.record import SOFTMAX, Loss


@dataclass(frozen=True)
class Softmax(LinearHead):
    """`ell(z, y) = logsumexp(z) - z_y`, so `p = softmax(z)`, `C(p) = diag(p) - p p^T` with spectral norm at most 1/2.

    >>> import torch
    >>> from expunge.heads.rows import Rows
    >>> head = Softmax(l2=1.0, n_classes=2, n_features=1, row_bound=1.0)
    >>> rows = Rows(torch.ones(4, 1, dtype=torch.float64), torch.tensor([0, 0, 0, 0]))
    >>> head.gradient(torch.zeros(2, 1, dtype=torch.float64), rows).flatten().tolist()
    [-0.5, 0.5]
    """

    about: ClassVar[Loss] = SOFTMAX
    shift_invariant: ClassVar[bool] = True
    constant_curvature: ClassVar[bool] = False

    def targets(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.nn.functional.one_hot(labels, self.n_classes).to(dtype)

    def predictions(self, outputs: Tensor) -> Tensor:
        return torch.softmax(outputs, dim=1)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return torch.logsumexp(outputs, dim=1) - outputs.gather(1, labels[:, None]).squeeze(1)

    def curve(self, predictions: Tensor, directions: Tensor) -> Tensor:
        weighted = predictions * directions
        return weighted.addcmul_(predictions, weighted.sum(dim=0, keepdim=True), value=-1.0)

    def curvature_entries(self, predictions: Tensor) -> Tensor:
        pairs = torch.triu_indices(self.n_classes, self.n_classes, device=predictions.device)
        entries = (predictions[pairs[0]] * predictions[pairs[1]]).neg_()
        entries[pairs[0] == pairs[1]] += predictions
        return entries

    def curvature_sum(self, predictions: Tensor, weights: Tensor) -> Tensor:
        weighted = predictions * weights
        return torch.diag(weighted.sum(dim=1)).sub_(weighted @ predictions.T)

    def separated(self, predictions: Tensor) -> Tensor:
        """`q_k (1 + 2 sum q^2 / (sum q)^2)` with `q = p (1 - p)`, the diagonal of C(p).

        Along the difference of two classes a row is undecided between, C(p) is twice its diagonal; where the doubt is
        spread over many classes, about once. The factor is 2 for the first and near 1 for the second.
        """
        own = predictions * (1.0 - predictions)
        every = own.sum(dim=0).clamp_(min=torch.finfo(own.dtype).tiny)
        return own * (1.0 + 2.0 * (own / every).square().sum(dim=0))

    def coupling(self, predictions: Tensor) -> Tensor:
        """`sum q^2 / sum q` with `q = p (1 - p)`: large where the doubt is between few classes.

        Along the sum of those classes C(p) is near 0, and its separated form is not. Doubt that is spread over all
        classes has that direction in common with every other row: the mean over classes, which needs no row to be
        known.
        """
        own = predictions * (1.0 - predictions)
        return own.square().sum(dim=0) / own.sum(dim=0).clamp_(min=torch.finfo(own.dtype).tiny)

    def residual_sup(self, weights: Tensor) -> float:
        return math.sqrt(2.0)

    def change_sup(self, update: Tensor) -> float:
        """`||phi_U(x)|| <= min(||U x||/2, sqrt 2) ||x||`: C(p) has norm at most 1/2.

        Two distributions differ by at most sqrt 2.
        """
        spectral = float(torch.linalg.matrix_norm(update, 2))
        return min(0.5 * spectral * self.row_bound, math.sqrt(2.0)) * self.row_bound
