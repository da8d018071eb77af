"""Least squares on class targets -1 and +1 (a ridge classifier), one weight row a class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expunge.heads.linear import LinearHead
from expunge.record import RIDGE, Loss


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
