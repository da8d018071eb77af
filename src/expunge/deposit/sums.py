"""What a set of rows adds up to at the anchor: gradient and Hessian of its mean loss, without the regulariser.

They are sums over rows, so rows leave them exactly: `n' = n - m`, `g' = (n g - m g_U)/n'`, and the Hessians alike. The
last digits of what is left are not the retained rows' but rounding's, which knows who left: where no retained row has
two features together, they would be all that there is. So sums are rounded when rows leave. With each goes a bound on
what float64 made of it, from powers of two: to the last digit it would tell the mean square of rows that are gone.

A gauge is an ellipsoid that held every source row when it was made, `x' Q^-1 x <= kappa^2`; it stays as it is when rows
leave, so it is made of shortened rows and noise that hides each of them, and kappa is a power of two. With it goes
`H_2`, the mean of `x' Q^-1 x h(x)`. Of narrow tables the third derivatives are summed too (third.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from expunge.bounds.scale import power_of_two
from expunge.deposit.blocks import UNIT_ROUNDOFF, Blocks, factored
from expunge.deposit.shape import Gram
from expunge.deposit.third import third_error, third_of, threes, whole_size
from expunge.heads import Block, LinearHead, Ridge, RowSet, Softmax

NU = (0.0, 0.1)  # multiples of the mean eigenvalue that gauges are widened by beyond their noise: which serves differs
GAUGE_MU = 1.0  # deviations of its noise that a row with all its entries zero instead moves a gauge by, at most
KAPPA_SLACK = 1.0 + 1e-6  # for rows whose entries are rounded otherwise when they leave
CURVATURE_SIZE = math.sqrt(0.5)  # Frobenius norm of C(p) at most, for softmax; less for a sigmoid
COARSE = 2.0**-44  # of what is left of a feature: sums from which rows left keep no digits below it


@dataclass(frozen=True, repr=False)
class Gauge:
    """`Q = factor factor'`, d x d, and a power of two that no source row's `x' Q^-1 x` is above, as `kappa^2`:
    frozen."""

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


@dataclass(frozen=True, repr=False)
class Sums:
    """Means over `count` rows, and what float64 may have changed of them, in norm; `weighted` has one for a gauge.

    `third` is None where the third derivatives are not kept. `gram` are the exact second moments that the noise takes
    its shape from.
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
    gram: Gram | None = None

    def without(self, gone: Sums) -> Sums:
        """The means over what is left when these rows go."""
        left = self.count - gone.count
        if left < 1:
            raise ValueError(f"{gone.count} of {self.count} rows")
        own, other = self.count / left, gone.count / left
        if (self.third is None) != (gone.third is None):
            raise ValueError("third derivatives of one of the two")
        curvature = coarse(self.curvature.combined(own, gone.curvature, -other))
        lengths = lengths_of(curvature, self.gradient.shape[1])
        third = self.third
        if third is not None and gone.third is not None:
            # own - other = 1, so that this is T + other (T - T_U): the largest of all
            third = _on_grid(torch.lerp(third, gone.third, -other), _products(lengths))
        made = Sums(
            left,
            _on_grid(self.gradient * own - gone.gradient * other, lengths),
            curvature,
            tuple(
                coarse(one.combined(own, their, -other))
                for one, their in zip(self.weighted, gone.weighted, strict=True)
            ),
            0.0,
            0.0,
            (),
            third,
            0.0,
            None if self.gram is None or gone.gram is None else self.gram.without(gone.gram),
        )
        gradient_error, curvature_error, weighted_errors, third_error = self.errors_without(gone, made)
        return replace(
            made,
            gradient_error=gradient_error,
            curvature_error=curvature_error,
            weighted_errors=weighted_errors,
            third_error=third_error,
        )

    def errors_without(
        self, gone: Sums, made: Sums, *, inherited: float = 1.0
    ) -> tuple[float, float, tuple[float, ...], float]:
        """What may be off of the gradient, the curvature, the weighted ones and the third derivatives when rows go and
        these sums are made of what is left.

        With nothing `inherited` only what taking them out adds.
        """
        own, other = self.count / made.count, gone.count / made.count

        def less(error: float, theirs: float, size: float, rounded: float) -> float:
            added = other * theirs + 8 * UNIT_ROUNDOFF * (own + other) * size + rounded
            # to the last digit what is added would be a number of the rows that go
            return (inherited * own * error + power_of_two(added)) * (1.0 + 2.0**-40)

        classes, width = made.gradient.shape
        size = float(lengths_of(made.curvature, width).norm())
        step, lines = 0.5 * COARSE, 0 if made.third is None else len(made.third)
        pairs = zip(
            self.weighted_errors, gone.weighted_errors, self.weighted, gone.weighted, made.weighted, strict=True
        )
        return (
            less(
                self.gradient_error,
                gone.gradient_error,
                float(self.gradient.norm() + gone.gradient.norm()),
                step * math.sqrt(classes) * size,
            ),
            less(
                self.curvature_error,
                gone.curvature_error,
                _size(self.curvature) + _size(gone.curvature),
                coarse_error(made.curvature),
            ),
            tuple(
                less(error, theirs, _size(one) + _size(their), coarse_error(new))
                for error, theirs, one, their, new in pairs
            ),
            0.0
            if self.third is None or gone.third is None
            else less(
                self.third_error,
                gone.third_error,
                whole_size(self.third) + whole_size(gone.third),
                step * math.sqrt(6 * lines) * size**3,  # no three classes are there more than six times
            ),
        )


def coarse(matrix: Blocks) -> Blocks:
    """Without the digits that are rounding's: entries to a grid that is a power of two for each two features. In place.

    >>> values = torch.tensor([[[1.0, 2.0**-50], [2.0**-50, 4.0]]], dtype=torch.float64)
    >>> coarse(Blocks(values, joint=False)).values.tolist()
    [[[1.0, 0.0], [0.0, 4.0]]]
    """
    lengths = _lengths(matrix)
    values = _on_grid(matrix.values.div_(lengths[:, None, :]), lengths[:, :, None]).mul_(lengths[:, None, :])
    return Blocks(values, matrix.joint)


def coarse_error(matrix: Blocks) -> float:
    """By how much that changes a matrix at most, in norm; of one that it was done to, since when a
    length may be half of what it was."""
    return 2.0 * COARSE * float(_lengths(matrix).square().sum(dim=1).max())


def lengths_of(matrix: Blocks, width: int) -> Tensor:
    """For each feature a power of two, of the size of what is left of it: the root of the curvature's own."""
    return _lengths(matrix).reshape(-1, width).amax(dim=0)


def _lengths(matrix: Blocks) -> Tensor:
    """The same row by row of each block."""
    diagonal = matrix.values.diagonal(dim1=-2, dim2=-1)
    least = max(float(diagonal.max()) * 2.0**-100, 2.0**-1000)
    return torch.exp2(torch.ceil(torch.log2(diagonal.clamp(min=least)) / 2.0))


def _products(lengths: Tensor) -> Tensor:
    """Of every three of them."""
    first, second, third = (lengths[part.to(lengths.device)] for part in threes(len(lengths)))
    products: Tensor = first * second * third
    return products


def _on_grid(values: Tensor, sizes: Tensor) -> Tensor:
    """Multiples of `COARSE` times these sizes, in place: they are powers of two, so that nothing else is rounded."""
    return values.div_(sizes).div_(COARSE).round_().mul_(COARSE).mul_(sizes)


def _size(matrix: Blocks) -> float:
    return float(matrix.values.norm())


def sums_of(
    head: LinearHead,
    weights: Tensor,
    rows: RowSet,
    gauges: Sequence[Gauge] = (),
    *,
    third: bool = False,
    gram: Gram | None = None,
) -> Sums:
    """The sums over these rows at these weights, with third derivatives and exact second moments if asked for."""
    plain = replace(head, l2=0.0)
    squares = mean_square(rows) * rows.largest_weight
    weighted, errors = [], []
    for gauge in gauges:
        weighted.append(_curvature(plain, weights, rows, gauge))
        of_lengths = 3.0 * gauge.lost * CURVATURE_SIZE * squares
        errors.append(_rounded_up((_curvature_error(plain, weights, rows, squares) + of_lengths) * gauge.kappa**2))
    return Sums(
        len(rows),
        plain.gradient(weights, rows),
        _curvature(plain, weights, rows, None),
        tuple(weighted),
        _rounded_up(plain.rounding(weights, rows) * max(1.0, rows.largest_weight)),
        _rounded_up(_curvature_error(plain, weights, rows, squares)),
        tuple(errors),
        third_of(plain, weights, rows) if third else None,
        _rounded_up(third_error(plain, weights, rows)) if third else 0.0,
        gram,
    )


def _rounded_up(error: float) -> float:
    return power_of_two(error) if error > 0.0 else 0.0


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


def gauges_of(rows: RowSet, gram: Gram, generator: np.random.Generator, count: int = len(NU)) -> tuple[Gauge, ...]:
    """Ellipsoids around these rows: second moments of rows that are cut to an ordinary length, with noise.

    `Q = E[y y'] + N + widening`, y a row cut to the length c, so that a row of zeros in the place of one moves Q by at
    most `c^2/n` in the root of the sum of squares, and any other row by at most `sqrt(2)` times that. N is Gaussian, of
    `c^2/(n GAUGE_MU)` an entry; the widening is at least its spectral norm, all but surely. c^2 is the mean square of
    rows, rounded up to a power of two.
    """
    width, total = rows.n_features, float(gram.mean.diagonal().sum())
    if total == 0.0:
        return ()
    square = power_of_two(total)
    moments = torch.zeros((width, width), dtype=torch.float64, device=rows.device)
    for block in rows.blocks():
        features = block.features.double()
        lengths = features.norm(dim=1, keepdim=True)
        cut = features * (math.sqrt(square) / lengths.clamp(min=math.sqrt(square)))
        moments.addmm_(cut.T, cut)
    moments = rows.total(moments) / len(rows)
    deviation = square / (len(rows) * GAUGE_MU)
    drawn = torch.from_numpy(generator.normal(size=(width, width)) * deviation).tril().to(rows.device)
    noisy = (moments + moments.T) / 2 + drawn + drawn.tril(-1).T
    least = 2.2 * deviation * math.sqrt(width)
    made = []
    for widened in NU[:count]:
        matrix = noisy.clone()
        matrix.diagonal().add_(least + widened * square / width)
        factor = factored(Blocks(matrix[None], joint=False))
        if factor is None:  # noise longer than nearly all is
            continue
        gauge = Gauge(factor[0], 0.0)
        squares = (gauge.squares(block.features.double()) for block in rows.blocks() if len(block))
        largest = rows.largest(max((float(each.max()) for each in squares), default=0.0))
        farthest = power_of_two(largest * ((1.0 + gauge.lost) * KAPPA_SLACK) ** 2)
        made.append(replace(gauge, kappa=math.sqrt(farthest)))
    return tuple(made)
