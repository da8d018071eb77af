"""What of a deposit hardly changes from deletion to deletion, and its regulariser, which may."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from expunge.deposit.blocks import Blocks
from expunge.deposit.sums import Gauge
from expunge.errors import DataError, ModelError


@dataclass(frozen=True)
class Penalty:
    """`(l2/2) ||W||^2` on the columns that are penalised: all, or all but a free intercept, the last."""

    l2: float
    free: bool = False

    def diagonal(self, like: Tensor) -> Tensor:
        """Of the Hessian, K x d."""
        values = torch.full_like(like, self.l2)
        if self.free:
            values[:, -1] = 0.0
        return values


@dataclass(frozen=True)
class Setting:
    """The anchor, the rows' bounds, the kind of loss.

    `shift_free`: the loss does not see what is added to all classes (softmax), and outputs compete in pairs. `stiff` is
    what is added to the direction common to all classes.
    """

    anchor: Tensor
    row_bound: float
    gauges: tuple[Gauge, ...]
    quadratic: bool
    shift_free: bool
    stiff: float = 0.0

    def centred(self, weights: Tensor) -> Tensor:
        """Without what is common to all classes, where that is not seen."""
        return weights - weights.mean(dim=0, keepdim=True) if self.shift_free else weights

    def stiffened(self, matrix: Blocks) -> Blocks:
        """With the direction common to all classes made stiff."""
        if not self.shift_free:
            return matrix
        classes, width = self.anchor.shape
        values = matrix.values.clone()
        view = values.view(classes, width, classes, width)
        view.diagonal(dim1=1, dim2=3).add_(self.stiff / classes)
        return Blocks(values, matrix.joint)

    def penalised(self, matrix: Blocks, penalty: Penalty) -> Blocks:
        """With the regulariser on the diagonal."""
        diagonal = penalty.diagonal(self.anchor)
        flat = diagonal.reshape(1, -1) if matrix.joint else (diagonal[: len(matrix.values)])
        return matrix.plus(flat)


def not_definite() -> ModelError:
    """Why there can be no deposit of some models."""
    return ModelError(
        "the second moments of the rows, with the regulariser, are not positive definite, as far as float64 can tell",
        "the noise takes its shape from them",
        "Train with a larger l2, or leave out features that are combinations of others.",
    )


def too_small() -> DataError:
    """Why there can be no noise beside rows that are nothing where they are rounded for it (shape.py)."""
    return DataError(
        "every feature of every row is zero, or smaller than a thousandth",
        "noise takes its shape from features that are rounded to 1/512",
        "Scale the features to ordinary size; where all rows but such have left, delete the model and its deposit.",
    )
