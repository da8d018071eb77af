"""How far each surrogate row's gradient bends along the update, and the moments of it in the norm of a route.

`psi_u(x) = c outer x` with `c = link((W+U) x) - link(W x) - C(p) U x`: what is left of the change of gradient when its
linear part, which the deposit has of the retained rows, is taken off. Lengths are `||psi||_{M^-1}`, from triangular
solves with M's factor; the covariance is formed, so that its largest eigenvalue can be bounded for certain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from expunge.bounds.deposit_surrogate import sigmoid_bend, softmax_bend
from expunge.deposit.blocks import UNIT_ROUNDOFF, Blocks, Norm
from expunge.deposit.sums import Gauge, Gauged, is_joint
from expunge.heads import Block, LinearHead, RowSet
from expunge.heads.curvature import product_means
from expunge.surrogate.moments import Moments

WHOLE = 2_000  # weights: up to here classes with a loss each are measured together, beyond one by one
SOLVED = 1 << 23  # numbers in memory while rows are solved for
UP = 1.0 + 2.0**-30  # for the float64 arithmetic of one number


@dataclass(frozen=True)
class Bending:
    """`psi_u` over the rows of a set, at the anchor `weights`; `head` has no regulariser."""

    head: LinearHead
    weights: Tensor
    update: Tensor
    rows: RowSet

    def pieces(self) -> Iterator[tuple[Block, Tensor]]:
        """Blocks in float64, and c of their rows, rows x K."""
        for block in Gauged(self.rows, None).blocks():
            yield block, bent(self.head, self.weights, self.update, block.features)

    @cached_property
    def mean(self) -> Tensor:
        """`E_S psi`, K x d."""
        total = torch.zeros_like(self.weights)
        for block, bends in self.pieces():
            total += block.weighted(bends, 0).T @ block.features
        return self.rows.total(total) / len(self.rows)

    @cached_property
    def lengths(self) -> tuple[float, float, float]:
        """Mean of `||psi||` and of its square, both weighted, and the longest row."""
        totals, longest = torch.zeros(2, dtype=torch.float64, device=self.weights.device), 0.0
        for block, bends in self.pieces():
            squares = block.features.square().sum(dim=1)
            sizes = squares * bends.square().sum(dim=1)
            both = torch.stack((sizes.sqrt(), sizes))
            totals += block.weighted(both, 1).sum(dim=1)
            longest = max(longest, float(squares.max()) if len(block) else 0.0)
        size, square = (self.rows.total(totals) / len(self.rows)).tolist()
        return size, square, math.sqrt(self.rows.largest(longest))

    @property
    def row_error(self) -> float:
        """What float64 may have changed of one row's psi, in plain length.

        Outputs are off by `sqrt(K) (d + 64) u (1 + ||W|| B)`, before and after, and so are predictions; C(p) by at most
        three times that, which multiplies U x.
        """
        bound, moved = self.head.row_bound, float(self.update.norm()) * self.head.row_bound
        size = float(self.weights.norm()) * bound + moved
        output = math.sqrt(self.head.n_classes) * (self.head.n_features + 64) * UNIT_ROUNDOFF * (1.0 + size)
        return bound * (2.0 + 4.0 * moved) * output

    @property
    def mean_error(self) -> float:
        """The same of the mean: summing s terms is off by (s + 1) u times the mean of their lengths."""
        return self.row_error + (len(self.rows) + 64) * UNIT_ROUNDOFF * self.lengths[0] * self.rows.largest_weight

    def largest(self, reach: float, gauges: Sequence[Gauge] = ()) -> float:
        """Bound on `||c||` over every admissible row with this R; with gauges, over those that they hold."""
        moved = self.update - self.update.mean(dim=0, keepdim=True) if is_joint(self.head) else self.update
        lengths = [self.head.row_bound * float(torch.linalg.matrix_norm(moved, 2))]
        lengths += [gauge.kappa * float(torch.linalg.matrix_norm(moved @ gauge.factor, 2)) for gauge in gauges]
        bend = softmax_bend if is_joint(self.head) else sigmoid_bend
        return bend(reach, min(lengths) * UP) * UP

    def squares(self, norm: Norm) -> Iterator[tuple[Block, Tensor, Tensor]]:
        """Blocks, c of their rows, and `||psi||^2` in `M^-1`."""
        together = max(16, SOLVED // norm.matrix.values.shape[-1])
        for block, bends in self.pieces():
            parts = [
                _squares(norm, bends[start : start + together], block.features[start : start + together])
                for start in range(0, len(block), together)
            ]
            yield block, bends, torch.cat(parts) if parts else bends.new_zeros(0)

    def moments(self, norm: Norm, reach: float) -> Moments:
        """All that the bound needs of psi, in `M^-1`; every number is raised by what float64 may have lost of it.

        `reach` is R of every admissible row. It takes passes over the rows, so that what was found is remembered.
        """
        if (known := self._known.get((id(norm), reach))) is not None and known[0] is norm:
            return known[1]
        found = self._moments(norm, reach)
        self._known[id(norm), reach] = (norm, found)
        return found

    @cached_property
    def _known(self) -> dict[tuple[int, float], tuple[Norm, Moments]]:
        return {}

    def _moments(self, norm: Norm, reach: float) -> Moments:
        least = norm.least
        error = self.row_error / math.sqrt(least)
        mean, size = norm.solved(self.mean), norm.dual(self.mean)
        lost = (norm.matrix.size + 64) * 2.0**-52
        totals = torch.zeros(3, dtype=torch.float64, device=self.weights.device)
        largest = torch.zeros(3, dtype=torch.float64, device=self.weights.device)
        for block, bends, squares in self.squares(norm):
            along = ((block.features @ mean.T) * bends).sum(dim=1)
            about = (squares - 2.0 * along + size**2 + lost * (squares + size**2)).clamp_(min=0.0)
            once = block.weighted(about, 0)
            twice = block.weighted(once, 0)
            totals += torch.stack((once.sum(), block.weighted(about.square(), 0).sum(), twice.sum()))
            if len(block):
                largest = torch.maximum(largest, torch.stack((about.max(), twice.max(), squares.max())))
        trace, fourth, sampled_trace = (self.rows.total(totals) / len(self.rows)).tolist()
        widest, weighted, longest = (math.sqrt(self.rows.largest(value)) * UP for value in largest.tolist())
        weight = self.rows.largest_weight
        trace, sampled_trace = (math.sqrt(trace) * UP + 2.0 * error) ** 2, math.sqrt(sampled_trace) * UP
        sampled_trace = min((sampled_trace + 2.0 * math.sqrt(weight) * error) ** 2, weight * trace)
        eigenvalue = min(trace, (math.sqrt(self._eigenvalue(norm)) + 2.0 * error) ** 2)
        widest += 2.0 * error
        return Moments(
            change_mean=size + error,
            change_eigenvalue=eigenvalue,
            change_trace=trace,
            change_fourth=(fourth**0.25 * UP + 2.0 * error) ** 4,
            change_fourth_eigenvalue=widest**2 * eigenvalue,
            change_largest=widest,
            change_longest=longest + 3.0 * error,
            change_supremum=self.largest(reach) * self.head.row_bound / math.sqrt(least) * UP + 3.0 * error,
            longest_row=self.lengths[2],
            sampled_trace=sampled_trace,
            sampled_eigenvalue=min(sampled_trace, weight * eigenvalue),
            sampled_largest=min(weighted + 2.0 * weight * error, weight * widest),
        )

    @cached_property
    def _whole(self) -> bool:
        """Whether all weights are measured together."""
        return is_joint(self.head) or len(self.weights) == 1 or self.weights.numel() <= WHOLE

    @cached_property
    def covariance(self) -> Blocks:
        """Of psi over the rows, in one block or, beyond `WHOLE`, a block for each class."""
        classes, width, rows = *self.weights.shape, Gauged(self.rows, None)
        if self._whole:
            pieces = ((block, bends.T) for block, bends in self.pieces())
            matrix, mean = product_means(rows, pieces, _products, classes)[None], self.mean.reshape(1, -1)
        else:
            matrix = torch.zeros((classes, width, width), dtype=torch.float64, device=self.weights.device)
            for block, bends in self.pieces():
                shares = block.weighted(bends.square(), 0)
                for index in range(classes):
                    matrix[index].addmm_((block.features * shares[:, index : index + 1]).T, block.features)
            matrix, mean = self.rows.total(matrix) / len(self.rows), self.mean
        matrix.baddbmm_(mean[:, :, None], mean[:, None, :], alpha=-1.0)  # it may be as large as there is room for
        return Blocks(matrix.add_(matrix.mT.clone()).div_(2.0), joint=self._whole)

    def _eigenvalue(self, norm: Norm) -> float:
        """Certain upper bound on the largest eigenvalue in `M^-1`; of classes one by one, the sum of theirs."""
        lost = 2.0 * (len(self.rows) + 64) * UNIT_ROUNDOFF * self.lengths[1] * self.rows.largest_weight
        if self._whole:
            return _one_block(norm).most(self.covariance, lost)
        return math.fsum(
            Norm(Blocks(norm.matrix.values[index, None], False), norm.factor[index, None]).most(
                Blocks(self.covariance.values[index, None], False), lost
            )
            for index in range(len(self.weights))
        )


def bent(head: LinearHead, weights: Tensor, update: Tensor, features: Tensor) -> Tensor:
    """c of each row, rows x K."""
    before = head.predictions(features @ weights.T)
    linear = head.curve(before.T, update @ features.T).T
    return head.predictions(features @ (weights + update).T) - before - linear


def bending(head: LinearHead, weights: Tensor, update: Tensor, rows: RowSet) -> Bending:
    """Of the loss alone, without its regulariser."""
    return Bending(replace(head, l2=0.0), weights, update, rows)


def _products(bends: Tensor) -> Tensor:
    """`c_k c_l` for k <= l, classes first."""
    pairs = torch.triu_indices(len(bends), len(bends), device=bends.device)
    return bends[pairs[0]] * bends[pairs[1]]


def _one_block(norm: Norm) -> Norm:
    """The same norm in one block."""
    if norm.matrix.joint or len(norm.matrix.values) == 1:
        return Norm(Blocks(norm.matrix.values, True), norm.factor)
    return Norm(Blocks(_diagonal(norm.matrix.values), True), _diagonal(norm.factor))


def _diagonal(blocks: Tensor) -> Tensor:
    """One block that holds these along its diagonal."""
    count, size = blocks.shape[:2]
    whole = blocks.new_zeros((count, size, count, size))
    whole.diagonal(dim1=0, dim2=2).copy_(blocks.permute(1, 2, 0))
    return whole.reshape(1, count * size, count * size)


def _squares(norm: Norm, bends: Tensor, features: Tensor) -> Tensor:
    if norm.matrix.joint:
        psi = (bends[:, :, None] * features[:, None, :]).reshape(len(features), -1)
        joint: Tensor = torch.linalg.solve_triangular(norm.factor[0], psi.T, upper=False).square().sum(dim=0)
        return joint * UP
    halves = torch.linalg.solve_triangular(norm.factor, features.T.expand(len(norm.factor), -1, -1), upper=False)
    squares: Tensor = (halves.square().sum(dim=1).T * bends.square()).sum(dim=1)
    return squares * UP
