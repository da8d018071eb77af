"""What a set of rows adds up to at the anchor: gradient and Hessian of its mean loss, without the regulariser.

They are sums over rows, so rows leave them exactly: `n' = n - m`, `g' = (n g - m g_U)/n'`, and the Hessians alike. With
each goes a bound on what float64 made of it. A gauge is an ellipsoid that held every source row when it was made,
`x' Q^-1 x <= kappa^2`; it stays as it is when rows leave, and with it goes `H_2`, the mean of `x' Q^-1 x h(x)`. Of
narrow tables the third derivatives are summed too (third.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from expunge.evidence.deposit.blocks import UNIT_ROUNDOFF, Blocks
from expunge.evidence.deposit.third import third_error, third_of, whole_size
from expunge.heads import Block, LinearHead, Ridge, RowSet, Softmax

NU = (1e-4, 1e-2, 3e-2)  # multiples of the mean eigenvalue that gauges are widened by: which serves best differs
KAPPA_SLACK = 1.0 + 1e-6  # for rows whose entries are rounded otherwise when they leave
CURVATURE_SIZE = math.sqrt(0.5)  # Frobenius norm of C(p) at most, for softmax; less for a sigmoid


@dataclass(frozen=True)
class Gauge:
    """`Q = factor factor'`, d x d, and the largest `sqrt(x' Q^-1 x)` of any source row: frozen."""

    factor: Tensor
    kappa: float

    @cached_property
    def inverse(self) -> Tensor:
        """Of the factor."""
        unit = torch.eye(len(self.factor), dtype=self.factor.dtype, device=self.factor.device)
        inverse: Tensor = torch.linalg.solve_triangular(self.factor, unit, upper=False)
        return inverse

    @cached_property
    def lost(self) -> float:
        """Of a length by Q or its inverse, what float64 may change: `d u ||L|| ||L^-1||`, with room."""
        return 4 * (len(self.factor) + 8) * UNIT_ROUNDOFF * float(self.factor.norm() * self.inverse.norm())

    def squares(self, features: Tensor) -> Tensor:
        """`x' Q^-1 x` of each row, to within `2 lost` of itself."""
        halves: Tensor = torch.linalg.solve_triangular(self.factor, features.T, upper=False)
        return halves.square().sum(dim=0)

    def length(self, vectors: Tensor) -> Tensor:
        """`||u||_Q` of each row of u, rounded up."""
        lengths: Tensor = (vectors @ self.factor).norm(dim=-1)
        return lengths * (1.0 + self.lost)


@dataclass(frozen=True)
class Sums:
    """Means over `count` rows, and what float64 may have changed of them, in norm; `weighted` has one for a gauge.

    `third` is None where the third derivatives are not kept.
    """

    count: int
    gradient: Tensor
    curvature: Blocks
    weighted: tuple[Blocks, ...]
    gradient_error: float
    curvature_error: float
    weighted_errors: tuple[float, ...]
    third: Tensor | None = None
    third_error: float = 0.0

    def without(self, gone: Sums) -> Sums:
        """The means over what is left when these rows go."""
        left = self.count - gone.count
        if left < 1:
            raise ValueError(f"{gone.count} of {self.count} rows")
        own, other = self.count / left, gone.count / left
        if (self.third is None) != (gone.third is None):
            raise ValueError("third derivatives of one of the two")
        gradient_error, curvature_error, weighted_errors, third_error = self.errors_without(gone)
        return Sums(
            left,
            self.gradient * own - gone.gradient * other,
            self.curvature.combined(own, gone.curvature, -other),
            tuple(one.combined(own, their, -other) for one, their in zip(self.weighted, gone.weighted, strict=True)),
            gradient_error,
            curvature_error,
            weighted_errors,
            # own - other = 1, so that this is T + other (T - T_U): the largest of all, and touched once
            None if self.third is None or gone.third is None else torch.lerp(self.third, gone.third, -other),
            third_error,
        )

    def errors_without(self, gone: Sums, *, inherited: float = 1.0) -> tuple[float, float, tuple[float, ...], float]:
        """What may be off of the gradient, the curvature, the weighted ones and the third derivatives when rows go.

        With nothing `inherited` only what taking them out adds.
        """
        left = self.count - gone.count
        own, other = self.count / left, gone.count / left

        def less(error: float, theirs: float, size: float) -> float:
            charged = inherited * own * error + other * theirs + 8 * UNIT_ROUNDOFF * (own + other) * size
            return charged * (1.0 + 2.0**-40)

        pairs = zip(self.weighted_errors, gone.weighted_errors, self.weighted, gone.weighted, strict=True)
        return (
            less(self.gradient_error, gone.gradient_error, float(self.gradient.norm() + gone.gradient.norm())),
            less(self.curvature_error, gone.curvature_error, _size(self.curvature) + _size(gone.curvature)),
            tuple(less(error, theirs, _size(one) + _size(their)) for error, theirs, one, their in pairs),
            0.0
            if self.third is None or gone.third is None
            else less(self.third_error, gone.third_error, whole_size(self.third) + whole_size(gone.third)),
        )


def _size(matrix: Blocks) -> float:
    return float(matrix.values.norm())


def sums_of(
    head: LinearHead, weights: Tensor, rows: RowSet, gauges: Sequence[Gauge] = (), *, third: bool = False
) -> Sums:
    """The sums over these rows at these weights, with third derivatives if asked for."""
    plain = replace(head, l2=0.0)
    squares = mean_square(rows) * rows.largest_weight
    weighted, errors = [], []
    for gauge in gauges:
        weighted.append(_curvature(plain, weights, rows, gauge))
        of_lengths = 3.0 * gauge.lost * CURVATURE_SIZE * squares
        errors.append((_curvature_error(plain, weights, rows, squares) + of_lengths) * gauge.kappa**2)
    return Sums(
        len(rows),
        plain.gradient(weights, rows),
        _curvature(plain, weights, rows, None),
        tuple(weighted),
        plain.rounding(weights, rows) * max(1.0, rows.largest_weight),
        _curvature_error(plain, weights, rows, squares),
        tuple(errors),
        third_of(plain, weights, rows) if third else None,
        third_error(plain, weights, rows) if third else 0.0,
    )


def mean_square(rows: RowSet) -> float:
    """Mean of `||x||^2`."""
    total = torch.zeros((), dtype=torch.float64, device=rows.device)
    for block in rows.blocks():
        total += block.features.double().square().sum()
    return float(rows.total(total)) / len(rows)


def is_joint(head: LinearHead) -> bool:
    """Whether the loss couples the classes."""
    return isinstance(head, Softmax)


def _curvature(head: LinearHead, weights: Tensor, rows: RowSet, gauge: Gauge | None) -> Blocks:
    """Mean of `h(x)`, or of `x' Q^-1 x h(x)`."""
    if is_joint(head):
        return Blocks(_joint(head, weights, rows, gauge), joint=True)
    width = weights.shape[1]
    n_blocks = 1 if isinstance(head, Ridge) else len(weights)
    total = torch.zeros((n_blocks, width, width), dtype=torch.float64, device=weights.device)
    for block in rows.blocks():
        features = block.features.double()
        shares = features.new_ones((len(features), 1)) if isinstance(head, Ridge) else _slopes(features @ weights.T)
        if gauge is not None:
            shares = shares * gauge.squares(features)[:, None]
        shares = block.weighted(shares, 0)
        for index in range(n_blocks):
            total[index].addmm_((features * shares[:, index : index + 1]).T, features)
    total = rows.total(total) / len(rows)
    return Blocks((total + total.mT) / 2, joint=False)


def _slopes(outputs: Tensor) -> Tensor:
    """`p (1 - p)` of a sigmoid, to full relative accuracy."""
    return torch.sigmoid(outputs) * torch.sigmoid(-outputs)


def _joint(head: LinearHead, weights: Tensor, rows: RowSet, gauge: Gauge | None) -> Tensor:
    """The K d x K d matrix."""
    total = head.curvature(weights, Gauged(rows, gauge)).dense()
    return ((total + total.T) / 2)[None]


@dataclass(frozen=True)
class Gauged(RowSet):
    """The same rows in float64, each weighted by `x' Q^-1 x`, where there is a gauge. Their mean weight is not 1."""

    rows: RowSet
    gauge: Gauge | None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_features(self) -> int:
        return self.rows.n_features

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def has_weights(self) -> bool:
        return self.gauge is not None or self.rows.has_weights

    @property
    def largest_weight(self) -> float:
        return self.rows.largest_weight * (1.0 if self.gauge is None else self.gauge.kappa**2)

    @property
    def effective(self) -> float:
        raise NotImplementedError

    @property
    def n_mine(self) -> int:
        return self.rows.n_mine

    @property
    def n_before(self) -> int:
        return self.rows.n_before

    def blocks(self) -> Iterator[Block]:
        for block in self.rows.blocks():
            features, weights = block.features.double(), block.weights
            if self.gauge is not None:
                squares = self.gauge.squares(features)
                weights = squares if weights is None else squares * weights
            yield replace(block, features=features, weights=weights)

    def of_classes(self, shares: Tensor, counts: Tensor) -> RowSet:
        raise NotImplementedError

    def affords(self, n_bytes: int) -> bool:
        return self.rows.affords(n_bytes)

    def keeps(self, bytes_per_row: int) -> bool:
        return self.rows.keeps(bytes_per_row)

    def total(self, part: Tensor) -> Tensor:
        return self.rows.total(part)


def _curvature_error(head: LinearHead, weights: Tensor, rows: RowSet, squares: float) -> float:
    """Upper bound on the float64 error of a mean Hessian, in spectral norm.

    Summing k terms in any order is off by at most (k+1) u times the mean of their norms, `||C(p)||_F ||x||^2`; outputs
    are off by `(d+1) u ||W|| ||x||`, and C changes by at most half of that.
    """
    if isinstance(head, Ridge):
        return UNIT_ROUNDOFF * head.moment_roundoffs(len(rows)) * squares
    of_sum = (len(rows) + 64) * CURVATURE_SIZE
    of_link = math.sqrt(len(weights)) * (weights.shape[1] + 64) * (1.0 + float(weights.norm()) * head.row_bound)
    return UNIT_ROUNDOFF * squares * (of_sum + of_link)


def gauges_of(rows: RowSet, count: int = len(NU)) -> tuple[Gauge, ...]:
    """Ellipsoids around these rows, from the second moments, widened by a little."""
    width = rows.n_features
    total = torch.zeros((width, width), dtype=torch.float64, device=rows.device)
    for block in rows.blocks():
        features = block.features.double()
        total.addmm_(features.T, features)
    moments = rows.total(total) / len(rows)
    moments = (moments + moments.T) / 2
    mean = float(moments.diagonal().sum()) / width
    if mean == 0.0:
        return ()
    made = []
    for widened in NU[len(NU) - count :]:
        matrix = moments.clone()
        matrix.diagonal().add_(widened * mean)
        gauge = Gauge(torch.linalg.cholesky(matrix), 0.0)
        squares = (gauge.squares(block.features.double()) for block in rows.blocks() if len(block))
        largest = rows.largest(max((float(each.max()) for each in squares), default=0.0))
        made.append(replace(gauge, kappa=math.sqrt(largest) * (1.0 + gauge.lost) * KAPPA_SLACK))
    return tuple(made)
