"""How the change of gradient spreads over the rows of a set; no covariance is formed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from expunge.heads.curvature import CLASS_MULTIPLE, padded
from expunge.heads.rows import Block, Kept, RowSet

if TYPE_CHECKING:
    from expunge.heads.linear import LinearHead


NEGLIGIBLE = 0.02  # of the largest eigenvalue: directions of the features below it are bounded, not looked at


@dataclass(frozen=True)
class SpreadSums:
    """What one pass over the rows says of `f - c`; `longest` is the largest `||f||`."""

    trace: float
    fourth: float
    largest: float
    longest: float
    longest_row: float
    sampled_trace: float
    sampled_largest: float


class Spread:
    """`f - c` of each row; only `link((W+U) x) - link(W x)` and `||f - c||^2` are kept, where the rows allow it."""

    knows_fourth = True

    def __init__(self, objective: LinearHead, weights: Tensor, update: Tensor, rows: RowSet) -> None:
        self.objective, self.weights, self.update, self.rows = objective, weights, update, rows
        self.height = objective.n_classes + -objective.n_classes % CLASS_MULTIPLE
        keep = rows.keeps(8 * (self.height + 1))
        # of ||f||^2: what float64 may lose of ||f - c||^2 where the spread is far below the mean
        self.cancellation = (objective.n_features + objective.n_classes + 64) * 2.0**-52
        self.changes = Kept(rows, self._blocks, self._change, self.height, keep)
        self.mean = self._mean()
        self.squares = Kept(rows, self.changes, self._square, 1, keep)

    def _blocks(self) -> Iterator[tuple[Block, Tensor]]:
        return ((block, block.features.double()) for block in self.rows.blocks())

    def _change(self, block: Block, features: Tensor) -> Tensor:
        change = torch.zeros((self.height, len(block)), dtype=torch.float64, device=self.weights.device)
        change[: self.objective.n_classes] = self.objective.change(self.weights, self.update, features).T
        return change  # classes first, as in Curvature

    def _mean(self) -> Tensor:
        total = torch.zeros((self.height, self.objective.n_features), dtype=torch.float64, device=self.weights.device)
        for block, features, change in self.changes():
            total.addmm_(block.weighted(change, 1), features)
        return self.rows.total(total) / len(self.rows)

    def _square(self, block: Block, features: Tensor, change: Tensor) -> Tensor:
        """`||f - c||^2`, never too small by rounding."""
        along = (self.mean @ features.T).mul_(change).sum(dim=0)
        sizes = change.square().sum(dim=0) * features.square().sum(dim=1)
        centre = self.mean.square().sum()
        squares: Tensor = sizes - 2 * along + centre + self.cancellation * (sizes + centre)
        return squares.clamp_(min=0.0)

    def sums(self) -> SpreadSums:
        totals = torch.zeros(3, dtype=torch.float64, device=self.weights.device)
        largest = torch.zeros(4, dtype=torch.float64, device=self.weights.device)
        for block, features, change, squares in self.squares():
            once = block.weighted(squares, 0)
            twice = block.weighted(once, 0)
            totals += torch.stack((once.sum(), block.weighted(squares.square(), 0).sum(), twice.sum()))
            lengths = features.square().sum(dim=1)
            sizes = change.square().sum(dim=0) * lengths * (1.0 + self.cancellation)
            each = torch.stack((squares.max(), lengths.max(), twice.max(), sizes.max()))
            largest = torch.maximum(largest, each)
        trace, fourth, sampled_trace = (self.rows.total(totals) / len(self.rows)).tolist()
        norms = [math.sqrt(self.rows.largest(value)) for value in largest.tolist()]
        return SpreadSums(trace, fourth, norms[0], norms[3], norms[1], sampled_trace, norms[2])

    def narrow(self, products: int) -> Narrow | None:
        """Where so many products with the covariance are cheaper in a few directions of the features; else None.

        f is `a x^T`, so its covariance is at most `E[||a||^2 x x^T]` in every class: that d x d matrix is formed, and
        its leading eigenvectors are taken.
        """
        width, classes = self.objective.n_features, self.objective.n_classes
        if 2 * width > products * classes:
            return None  # forming it would cost more than a quarter of the products
        total = torch.zeros((width, width), dtype=torch.float64, device=self.weights.device)
        for block, features, change in self.changes():
            total.addmm_((features * block.weighted(change.square().sum(dim=0), 0)[:, None]).T, features)
        total = self.rows.total(total) / len(self.rows)
        values, vectors = (self.rows.agreed(each) for each in torch.linalg.eigh((total + total.T) / 2))
        rest = int((values < NEGLIGIBLE * values[-1]).sum())
        if rest == 0 or (width - rest) * (2 * classes + width) > classes * width:
            return None  # as many products in these directions would cost more than half
        lost = (width + 64) * 2.0**-50 * float(total.trace())
        return Narrow(self, vectors[:, rest:].contiguous(), max(0.0, float(values[rest - 1])) + lost)

    def covariance_product(self, direction: Tensor, power: int, fourth: bool) -> Tensor:
        """Mean over rows of `w^power (f - c) <f - c, direction>`, for the fourth moment times `||f - c||^2`.

        f is not formed.
        """
        pieces = self.squares() if fourth else ((*piece, None) for piece in self.changes())
        return _product(self.rows, pieces, self.mean, direction, power)


class Narrow:
    """A spread in directions of the features, d x r, that hold nearly all of it.

    `left` bounds from above what any direction orthogonal to them, in whatever class, has of it.
    """

    def __init__(self, spread: Spread, basis: Tensor, left: float) -> None:
        self.spread, self.basis, self.left = spread, basis, left
        self.mean = spread.mean @ basis
        size = basis.shape[1]
        self.features = Kept(spread.rows, spread.changes, self._project, size, spread.rows.keeps(8 * size))

    def _project(self, block: Block, features: Tensor, change: Tensor) -> Tensor:
        return self.basis.T @ features.T

    def covariance_product(self, direction: Tensor) -> Tensor:
        """Mean over rows of `w (f - c) <f - c, direction>`, in the coordinates of these directions, K x r."""
        pieces = ((block, projected.T, change, None) for block, _, change, projected in self.features())
        return _product(self.spread.rows, pieces, self.mean, direction, 1)


def _product(rows: RowSet, pieces: Iterable[tuple[Any, ...]], mean: Tensor, direction: Tensor, power: int) -> Tensor:
    """Mean of `w^power (f - c) <f - c, direction>` times whatever number the pieces have for a row, if any."""
    wide = padded(direction)
    centre = (wide * mean).sum()
    total = torch.zeros_like(wide)
    off = torch.zeros((), dtype=torch.float64, device=wide.device)
    for block, features, change, squares in pieces:
        along = (wide @ features.T).mul_(change).sum(dim=0).sub_(centre)
        if squares is not None:
            along *= squares
        for _ in range(power):
            along = block.weighted(along, 0)
        off += along.sum()
        total.addmm_(change * along, features)
    total, off = rows.total(total), rows.total(off)
    return total.sub_(mean * off)[: len(direction)].div_(len(rows))
