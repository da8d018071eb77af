"""The losses of linear heads: softmax, logistic (one vector, or one against the rest), least squares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expunge.heads.linear import LinearHead
from expunge.record import LOGISTIC, ONE_VS_REST, RIDGE, SOFTMAX, Loss

# Softmax (multinomial logistic) regression, K >= 2 classes, one weight row a class ---------------------------------


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


# Logistic regression: one weight vector for two classes, or one for each of several against the re -----------------


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


# Least squares on class targets -1 and +1 (a ridge classifier), one weight row a class -----------------------------


@dataclass(frozen=True)
class Ridge(LinearHead):
    """`ell(z, y) = ||z - t(y)||^2 / 2`, so `p = z`, `C = I`: quadratic, one Newton step is exact.

    >>> import torch
    >>> from expunge.heads.rows import Rows
    >>> head = Ridge(l2=1.0, n_classes=2, n_features=1, row_bound=1.0)
    >>> rows = Rows(torch.ones(4, 1, dtype=torch.float64), torch.tensor([0, 0, 0, 0]))
    >>> head.gradient(torch.zeros(2, 1, dtype=torch.float64), rows).flatten().tolist()
    [-1.0, 1.0]
    """

    about: ClassVar[Loss] = RIDGE
    shift_invariant: ClassVar[bool] = False
    constant_curvature: ClassVar[bool] = True

    def targets(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.nn.functional.one_hot(labels, self.n_classes).to(dtype) * 2 - 1

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return 0.5 * (outputs - self.targets(labels, outputs.dtype)).square().sum(dim=1)

    def curve(self, predictions: Tensor, directions: Tensor) -> Tensor:
        return directions

    def curvature_entries(self, predictions: Tensor) -> Tensor:
        pairs = torch.triu_indices(self.n_classes, self.n_classes, device=predictions.device)
        return (pairs[0] == pairs[1]).to(predictions.dtype)[:, None].expand(-1, predictions.shape[1])

    def curvature_sum(self, predictions: Tensor, weights: Tensor) -> Tensor:
        return torch.eye(len(predictions), dtype=weights.dtype, device=weights.device) * weights.sum()

    def separated(self, predictions: Tensor) -> Tensor:
        return torch.ones_like(predictions)

    def coupling(self, predictions: Tensor) -> Tensor:
        return torch.zeros_like(predictions[0])

    def residual_sup(self, weights: Tensor) -> float:
        return float(torch.linalg.matrix_norm(weights, 2)) * self.row_bound + math.sqrt(self.n_classes)

    def change_sup(self, update: Tensor) -> float:
        """`||phi_U(x)|| = ||U x|| ||x||`."""
        return float(torch.linalg.matrix_norm(update, 2)) * self.row_bound**2

    def moment_roundoffs(self, n_rows: int) -> int:
        """Unit roundoffs of the mean square that the mean of `x x'` over so many rows can lose."""
        return n_rows + 64
