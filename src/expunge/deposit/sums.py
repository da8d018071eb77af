"""What a set of rows adds up to at the anchor: gradient, Hessian and third derivatives of its mean loss, without the
regulariser.

They are sums over rows, so rows leave them exactly: `n' = n - m`, `g' = (n g - m g_U)/n'`, and all others alike. The
last digits of what is left are not the retained rows' but rounding's, which knows who left: where no retained row has
two features together, they would be all that there is. So sums are rounded when rows leave. With each goes a bound on
what float64 made of it, from powers of two: to the last digit it would tell the mean square of rows that are gone.

A gauge is an ellipsoid that held every source row when it was made, `x' Q^-1 x <= kappa^2`; it stays as it is when rows
leave, so it is made of shortened rows and noise that hides each of them, and kappa is a power of two. With it goes
`H_2`, the mean of `x' Q^-1 x h(x)`.

Third derivatives are kept of narrow tables. A row's is `c (x) x (x) x (x) x`, with c the third cumulants of its
predicted classes: of a sigmoid `s''`, one number a weight vector; of softmax a number for every three classes. Of three
features and of three classes only `i >= j >= k` are kept. With them what is unknown of the gradient at `w + u` is of
third order in u, and a region is smaller by about a third of the largest range of `u x`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.bounds.calibration import power_of_two
from expunge.deposit.matrices import UNIT_ROUNDOFF, Blocks, Gram, factored
from expunge.heads import LinearHead, Logistic, OneVsRest, Ridge, RowSet, Softmax
from expunge.heads.rows import in_memory
from expunge.record import TrainingRecord
from expunge.runtime.arrays import (
    Array,
    Device,
    add_product,
    add_scaled,
    add_square,
    contiguous,
    double,
    is_sparse,
    namespace,
    namespace_of,
    norm,
    on_cpu,
    put,
    row_lengths,
    sigmoid,
    size,
    slice_rows,
    solve_triangular,
    take_into,
    to_device,
    to_numpy,
    zeros,
)

NU = (0.0, 0.1)  # multiples of the mean eigenvalue that gauges are widened by beyond their noise: which serves differs
GAUGE_MU = 1.0  # deviations of its noise that a row with all its entries zero instead moves a gauge by, at most
KAPPA_SLACK = 1.0 + 1e-6  # for rows whose entries are rounded otherwise when they leave
CURVATURE_SIZE = math.sqrt(0.5)  # Frobenius norm of C(p) at most, for softmax; less for a sigmoid
COARSE = 2.0**-44  # of what is left of a feature: sums from which rows left keep no digits below it
LEAST_LENGTH = 2.0**-13  # of the longest of all features: digits of a feature are not kept as if it were shorter
MOST_NUMBERS = 2**23  # third derivatives that are summed over every row
AT_ONCE = 2**20  # products of two features, or eight factors of them, that are made at one time: they stay in cache
FEW_SHARES, WIDE = 16, 128  # up to which, and from how many features on, each is summed by itself
SPARSE = 4  # a feature that fewer than one row in so many has is gone over in those alone
ERRORS = ("gradient_error", "curvature_error", "weighted_errors", "third_error")  # of sums
# For a loss: by how much c enters at most (in the root of the sum of squares over its classes), and c's own derivative
SIGMOID_SIZES = (1.0 / (6.0 * math.sqrt(3.0)), 0.125)
SOFTMAX_SIZES = (2.0 * math.sqrt(2.0), 7.0)


@dataclass(frozen=True, repr=False)
class Gauge:
    """`Q = factor factor'`, d x d, and a power of two, `kappa^2`, that no source row's `x' Q^-1 x` is above: frozen."""

    factor: Array
    kappa: float

    @cached_property
    def inverse(self) -> Array:
        """The inverse of the factor, from `R L = I`; column by column in memory, for products with it."""
        eye = namespace(self.factor).eye(len(self.factor), dtype=self.factor.dtype, device=self.factor.device)
        return contiguous(solve_triangular(self.factor.mT, eye, upper=True)).mT

    @cached_property
    def lost(self) -> float:
        """What float64 may change of a length by Q or its inverse: `d u ||L|| ||L^-1||`, with room."""
        return 4 * (len(self.factor) + 8) * UNIT_ROUNDOFF * norm(self.factor) * norm(self.inverse)

    def squares(self, features: Array) -> Array:
        """`x' Q^-1 x` of each row, to within `2 lost` of itself.

        Of sparse rows by a product with the inverse, in which only stored values count. It loses no more: row by row R
        solves `R (L + E) = I` with `|E| <= d u |L|`, so that `R x` is off by `R E L^-1 x`, at most `d u |R| |L|` of its
        own length, and by the product's `d u |R| |x|`, where `|x| <= |L| |L^-1 x|`.
        """
        if not is_sparse(features):
            return namespace(features).square(solve_triangular(self.factor, features.T)).sum(axis=0)
        squares, step = np.empty(features.shape[0]), max(16, AT_ONCE // len(self.factor))
        for start in range(0, len(squares), step):
            part = slice(start, min(start + step, len(squares)))
            squares[part] = np.square(slice_rows(features, part) @ self.inverse.T).sum(axis=1)
        return squares

    def length(self, vectors: Array) -> Array:
        """`||u||_Q` of each row of u, rounded up."""
        return namespace(vectors).linalg.vector_norm(vectors @ self.factor, axis=-1) * (1.0 + self.lost)


@dataclass(frozen=True, repr=False)
class Sums:
    """Means over `count` rows, and what float64 may have changed of them, in norm; `weighted` has one for a gauge.

    `third` is None where the third derivatives are not kept. `gram` are the exact second moments that the noise takes
    its shape from.
    """

    count: int
    gradient: Array
    curvature: Blocks
    weighted: tuple[Blocks, ...]
    gradient_error: float
    curvature_error: float
    weighted_errors: tuple[float, ...]
    third: Array | None = None
    third_error: float = 0.0
    gram: Gram | None = None

    def on(self, device: Device) -> Sums:
        return replace(
            self,
            gradient=to_device(self.gradient, device),
            curvature=self.curvature.on(device),
            weighted=tuple(each.on(device) for each in self.weighted),
            third=None if self.third is None else to_device(self.third, device),
            gram=None if self.gram is None else self.gram.on(device),
        )

    @property
    def errors(self) -> dict[str, Any]:
        """The four errors, by name."""
        return {name: getattr(self, name) for name in ERRORS}

    def without(self, gone: Sums) -> Sums:
        """The means over what is left when these rows go."""
        left = self.count - gone.count
        if left < 1:
            raise ValueError(f"{gone.count} of {self.count} rows")
        if (self.third is None) != (gone.third is None):
            raise ValueError("third derivatives of one of the two")
        own, other = self.count / left, gone.count / left
        curvature = coarse(self.curvature.combined(own, gone.curvature, -other))
        lengths = lengths_of(curvature, self.gradient.shape[1])
        third = None
        if self.third is not None and gone.third is not None:
            i, j, k = (lengths[put(part, lengths)] for part in threes(len(lengths)))
            third = _on_grid(add_scaled(self.third * own, -other, gone.third), i * j * k)
        made = replace(
            self,
            count=left,
            gradient=_on_grid(self.gradient * own - gone.gradient * other, lengths),
            curvature=curvature,
            weighted=tuple(
                coarse(a.combined(own, b, -other)) for a, b in zip(self.weighted, gone.weighted, strict=True)
            ),
            third=third,
            gram=None if self.gram is None or gone.gram is None else self.gram.without(gone.gram),
        )
        return replace(made, **self.errors_without(gone, made))

    def errors_without(self, gone: Sums, made: Sums, *, inherited: float = 1.0) -> dict[str, Any]:
        """What may be off of what is left, `made`; with nothing `inherited` only what taking the rows out adds."""
        own, other = self.count / made.count, gone.count / made.count

        def less(error: float, theirs: float, size: float, rounded: float) -> float:
            added = other * theirs + 8 * UNIT_ROUNDOFF * (own + other) * size + rounded
            # to the last digit what is added would be a number of the rows that go
            return (inherited * own * error + power_of_two(added)) * (1.0 + 2.0**-40)

        def of_matrix(error: float, theirs: float, one: Blocks, other: Blocks, new: Blocks) -> float:
            return less(error, theirs, norm(one.values) + norm(other.values), coarse_error(new))

        classes, width = made.gradient.shape
        length, third = norm(lengths_of(made.curvature, width)), 0.0
        if self.third is not None and gone.third is not None and made.third is not None:
            # no three classes are there more than six times
            rounded = 0.5 * COARSE * math.sqrt(6 * len(made.third)) * length**3
            third = less(self.third_error, gone.third_error, whole_size(self.third) + whole_size(gone.third), rounded)
        gradients = norm(self.gradient) + norm(gone.gradient)
        weighted = (self.weighted_errors, gone.weighted_errors, self.weighted, gone.weighted, made.weighted)
        return {
            "gradient_error": less(
                self.gradient_error, gone.gradient_error, gradients, 0.5 * COARSE * math.sqrt(classes) * length
            ),
            "curvature_error": of_matrix(
                self.curvature_error, gone.curvature_error, self.curvature, gone.curvature, made.curvature
            ),
            "weighted_errors": tuple(of_matrix(*each) for each in zip(*weighted, strict=True)),
            "third_error": third,
        }


def coarse(matrix: Blocks) -> Blocks:
    """The matrix without the digits that are rounding's, in place: entries on a grid, a power of two for two features.

    >>> values = np.array([[[1.0, 2.0**-50], [2.0**-50, 4.0]]])
    >>> coarse(Blocks(values, joint=False)).values.tolist()
    [[[1.0, 0.0], [0.0, 4.0]]]
    """
    values, lengths = matrix.values, _lengths(matrix)
    values /= lengths[:, None, :]
    _on_grid(values, lengths[:, :, None])
    values *= lengths[:, None, :]
    return Blocks(values, matrix.joint)


def coarse_error(matrix: Blocks) -> float:
    """By how much `coarse` changed a matrix at most, in norm; `matrix` is the changed one, where a length may be half
    of what it was."""
    lengths = _lengths(matrix)
    return 2.0 * COARSE * float((lengths * lengths).sum(axis=1).max())


def lengths_of(matrix: Blocks, width: int) -> Array:
    """For each feature a power of two, of the size of what is left of it: the root of the curvature's own."""
    lengths = _lengths(matrix).reshape(-1, width)
    return namespace(lengths).max(lengths, axis=0)


def _lengths(matrix: Blocks) -> Array:
    """Row by row of each block; of features that hardly any row has something in not below what rounding leaves there
    of somebody who had."""
    diagonal, xp = matrix.diagonal, namespace(matrix.values)
    least = max(float(diagonal.max()) * LEAST_LENGTH**2, 2.0**-1000)
    return xp.exp2(xp.ceil(xp.log2(xp.clip(diagonal, min=least)) / 2.0))


def _on_grid(values: Array, sizes: Array) -> Array:
    """Multiples of `COARSE` times these sizes, in place: they are powers of two, so that nothing else is rounded."""
    with np.errstate(invalid="ignore"):  # infinity by infinity, without a warning, as torch divides
        values /= sizes
        values /= COARSE
    namespace(values).round(values, out=values)
    values *= COARSE
    values *= sizes
    return values


def _rounded_up(error: float) -> float:
    """To a power of two: to the last digit it would tell the mean square of the source's rows, and so of who left."""
    return power_of_two(error)


def sums_of(
    head: LinearHead,
    weights: Array,
    rows: RowSet,
    gauges: Sequence[Gauge] = (),
    *,
    third: bool = False,
    gram: Gram | None = None,
) -> Sums:
    """The sums over these rows at these weights, with third derivatives and exact second moments if asked for."""
    plain = replace(head, l2=0.0)
    means, largest = means_of(plain, weights, rows, gauges, third=third), rows.largest_weight
    curvature_error = _curvature_error(plain, weights, rows, means.square * largest)
    return Sums(
        len(rows),
        means.gradient,
        means.curvatures[0],
        means.curvatures[1:],
        _rounded_up(plain.rounding(weights, rows) * max(1.0, largest)),
        _rounded_up(curvature_error),
        tuple(
            _rounded_up((curvature_error + 3.0 * gauge.lost * CURVATURE_SIZE * means.square * largest) * gauge.kappa**2)
            for gauge in gauges
        ),
        means.third,
        _rounded_up(third_error(plain, weights, len(rows), means.cube * largest)) if third else 0.0,
        gram,
    )


def by_class(rows: RowSet, record: TrainingRecord) -> RowSet:
    """The rows, each with the weight of its class where a record has such weights: they were fixed at training, and
    stay as they are when rows leave.

    The objective is `mean of s_y ell + (l2/2) ||W||^2` with one s for each class. It has the same optimum as with all s
    and l2 divided by the largest s, and so it is kept: no weight is above 1, and everything that bounds a row (its
    gradient, its curvature, what float64 loses of it) bounds a weighted one.
    """
    if record.class_weights is None:
        return rows
    held = in_memory(rows, "weights by class")
    weights = put(record.class_weights, held.features, "float64")
    return replace(held, weights=weights[held.labels])


def is_joint(head: LinearHead) -> bool:
    """Whether the loss couples the classes."""
    return isinstance(head, Softmax)


@dataclass(frozen=True)
class Means:
    """Means over rows: the gradient, `h(x)` and for each gauge `x' Q^-1 x h(x)`, third derivatives where they were
    asked for, `||x||^2` and `||x||^3`."""

    gradient: Array
    curvatures: tuple[Blocks, ...]
    third: Array | None
    square: float
    cube: float


def means_of(
    head: LinearHead, weights: Array, rows: RowSet, gauges: Sequence[Gauge] = (), *, third: bool = False
) -> Means:
    """Everything that is summed at these weights, in one pass over the rows."""
    (vectors, width), xp = weights.shape, namespace(weights)
    entries = 1 if isinstance(head, Ridge) else vectors * (vectors - 1) // 2 if is_joint(head) else vectors
    moments = tuple(zeros(weights, (entries, width, width)) for _ in range(1 + len(gauges)))
    # of two classes the four numbers of a row are one, and its opposite
    n_summed = 0 if not third else 1 if is_joint(head) and vectors == 2 else n_lines(head, vectors)
    products = ProductSums(moments, n_summed)
    gradient, powers = zeros(weights), zeros(weights, (2,))
    for block in rows.blocks():
        features = double(block.features)
        outputs = (weights @ features.T).T
        predictions = head.predictions(outputs)
        residuals = predictions - head.targets(block.labels, weights.dtype)
        gradient += block.weighted(residuals, 0).T @ features
        with np.errstate(over="ignore"):  # an infinite error says that nothing is known of a sum
            lengths = row_lengths(features)
            powers += xp.stack([(lengths**2).sum(), (lengths**3).sum()])
        shares = block.weighted(_shares(head, outputs, predictions), 1)
        lines = block.weighted(_third_slopes(head, outputs, predictions)[:n_summed], 1) if third else None
        products.add(features, [shares, *(shares * gauge.squares(features) for gauge in gauges)], lines)
    curvatures = tuple(_matrix_of(head, rows.total(each), vectors, len(rows)) for each in moments)
    if third:
        mean = products.in_order(rows.total(products.third) / len(rows))
        third_mean = xp.concat([mean, -mean, mean, -mean]) if is_joint(head) and vectors == 2 else mean
    square, cube = (rows.total(powers) / len(rows)).tolist()
    return Means(
        rows.total(gradient) / len(rows), curvatures, third_mean if third else None, float(square), float(cube)
    )


def _shares(head: LinearHead, outputs: Array, predictions: Array) -> Array:
    """By what a row's `x x'` enters its Hessian, classes first; none is below zero. Of sigmoids `p (1 - p)`, to full
    relative accuracy; of softmax `p_k p_l` for every two classes."""
    if isinstance(head, Ridge):
        return zeros(outputs, (1, len(outputs))) + 1.0
    if not is_joint(head):
        return (predictions * sigmoid(-outputs)).T
    first, second = np.triu_indices(outputs.shape[1], k=1)
    chances = predictions.T
    return chances[put(first, outputs)] * chances[put(second, outputs)]


def _matrix_of(head: LinearHead, moments: Array, vectors: int, n_rows: int) -> Blocks:
    """The mean Hessian from sums of shares times `x x'`, of which the entries above the diagonal are there."""
    xp = namespace(moments)
    moments /= n_rows
    if not is_joint(head):
        for each in moments:
            each[...] = xp.triu(each) + xp.triu(each, k=1).mT
        return Blocks(moments, joint=False)
    width = moments.shape[-1]
    matrix = zeros(moments, (vectors, width, vectors, width))
    for k, other, each in zip(*np.triu_indices(vectors, k=1), moments, strict=True):
        whole = xp.triu(each) + xp.triu(each, k=1).mT
        matrix[k, :, other] = matrix[other, :, k] = -whole
        matrix[k, :, k] += whole  # the shares of a class and all the others add up to p (1 - p)
        matrix[other, :, other] += whole
    return Blocks(matrix.reshape(1, vectors * width, vectors * width), joint=True)


def _add_square(total: Array, features: Array, shares: Array) -> None:
    """`total += features' diag(shares) features`: of dense rows as a square, in half the arithmetic of a product."""
    if is_sparse(features):
        add_square(total, features, shares)
        return
    scaled = features * namespace(shares).sqrt(shares)[:, None]
    add_product(total, scaled.T, scaled)


class ProductSums:
    """Sums over rows of shares times `x x'`, for each of `moments` as many as it has entries; and of c times
    `x (x) x (x) x`, for each of `n_lines` numbers c of a row, in `third`, in an order of their own.

    With third derivatives, or many shares, products of two features are made once for all of them, and everything that
    they are in is one matrix product. Few shares are cheaper one by one, as squares of rows that are scaled by the root
    of a share.
    """

    def __init__(self, moments: Sequence[Array], n_lines: int) -> None:
        self.moments, self.n_lines = moments, n_lines
        self.width, n_shares = moments[0].shape[-1], sum(len(each) for each in moments)
        self.third = zeros(moments[0], (n_lines * folded_size(self.width),)) if n_lines else None
        self.together = n_lines > 0 or (n_shares > FEW_SHARES and self.width < WIDE)
        self.by_pairs = n_lines > FEW_SHARES
        pairs = self.width * (self.width + 1) // 2
        numbers = pairs if self.by_pairs else 8 * (n_shares + self.width * (1 + n_lines))
        self.at_once = max(512, AT_ONCE // numbers)

    def add(self, features: Array, shares: Sequence[Array], lines: Array | None) -> None:
        """The sums over these rows; `shares` and `lines` have one column for each."""
        if not self.together:
            for total, each in zip(self.moments, shares, strict=True):
                for moment, share in zip(total, each, strict=True):
                    _add_square(moment, features, share)
            return
        add = self._add_by_pairs if self.by_pairs else self._add_by_feature
        for start in range(0, features.shape[0], self.at_once):
            part, xp = slice(start, min(start + self.at_once, features.shape[0])), namespace(*shares)
            some, few = xp.concat([each[:, part] for each in shares]), slice_rows(features, part)
            few = to_numpy(few) if is_sparse(few) else few
            add(contiguous(few.T), some, some[:0] if lines is None else lines[:, part])

    def _add_by_feature(self, features: Array, shares: Array, lines: Array) -> None:
        """Of columns: what the products of feature j with itself and those after it are multiplied by are the shares,
        and c times each feature up to j."""
        xp, begin = namespace(features), 0
        factors = xp.concat([shares, (features[:, None] * lines).reshape(-1, features.shape[1])])
        for index in range(self.width):
            own, after = features[index], features[index:]
            left = factors[: len(shares) + self.n_lines * (index + 1)]
            used = xp.nonzero(own)[0] if on_cpu(own.device) else own  # a GPU would have to be waited for
            if SPARSE * len(used) < len(own):  # of a category, which few rows have
                own, after, left = own[used], xp.take(after, used, axis=1), xp.take(left, used, axis=1)
            made = left @ (own * after).T
            self._add_moments(index, made[: len(shares)])
            begin = self._add_third(begin, made[len(shares) :])

    def _add_by_pairs(self, features: Array, shares: Array, lines: Array) -> None:
        """Of columns: c times feature k is multiplied by all products of two features that are not before it."""
        xp, width, begin = namespace(features), self.width, 0
        ends = np.cumsum(np.arange(width, 0, -1)).tolist()
        starts = [0, *ends[:-1]]
        pairs = xp.concat([features[index] * features[index:] for index in range(width)])
        made = shares @ pairs.T
        for index in range(width):
            self._add_moments(index, made[:, starts[index] : ends[index]])
        for index in range(width):
            begin = self._add_third(begin, (lines * features[index]) @ pairs[starts[index] :].T)

    def _add_moments(self, index: int, made: Array) -> None:
        first = 0
        for total in self.moments:
            total[:, index, index:] += made[first : first + len(total)]
            first += len(total)

    def _add_third(self, begin: int, made: Array) -> int:
        """Add what comes next of the third derivatives, and say where it ends."""
        if self.third is not None:
            self.third[begin : begin + size(made)] += made.reshape(-1)
        return begin + size(made)

    def in_order(self, third: Array) -> Array:
        """Third derivatives as they were added up, a line for each c, in the order of `threes`."""
        kept, begin, lines = zeros(third, (self.n_lines, folded_size(self.width))), 0, self.n_lines
        middle, first = np.triu_indices(self.width)  # as products of two are made
        places = first * (first + 1) * (first + 2) // 6 + middle * (middle + 1) // 2
        starts = np.searchsorted(middle, np.arange(self.width + 1))
        for index in range(self.width):
            if self.by_pairs:
                where = places[starts[index] :] + index
            else:
                where = places[starts[index] : starts[index + 1]] + np.arange(index + 1)[:, None]
            end = begin + lines * where.size
            shape = (lines, -1) if self.by_pairs else (index + 1, lines, -1)
            part = third[begin:end].reshape(shape)
            kept[:, put(where, third)] = part if self.by_pairs else namespace(third).permute_dims(part, (1, 0, 2))
            begin = end
        return kept


def _curvature_error(head: LinearHead, weights: Array, rows: RowSet, squares: float) -> float:
    """Upper bound on the float64 error of a mean Hessian, in spectral norm.

    Summing k terms in any order is off by at most (k+1) u times the mean of their norms, `||C(p)||_F ||x||^2`; what of
    softmax a class has with itself is summed over the other classes, too, in whose sizes it is as large. Outputs are
    off by `(d+1) u ||W|| ||x||`, and C changes by at most half of that.
    """
    if isinstance(head, Ridge):
        return UNIT_ROUNDOFF * head.moment_roundoffs(len(rows)) * squares
    of_sum = (len(rows) + len(weights) + 64) * CURVATURE_SIZE
    of_link = math.sqrt(len(weights)) * (weights.shape[1] + 64) * (1.0 + norm(weights) * head.row_bound)
    return UNIT_ROUNDOFF * squares * (of_sum + of_link)


def gauges_of(rows: RowSet, gram: Gram, generator: np.random.Generator, count: int = len(NU)) -> tuple[Gauge, ...]:
    """Ellipsoids around these rows: second moments of rows that are cut to an ordinary length, with noise.

    `Q = E[y y'] + N + widening`, y a row cut to the length c, so that a row of zeros in the place of one moves Q by at
    most `c^2/n` in the root of the sum of squares, and any other row by at most `sqrt(2)` times that. N is Gaussian, of
    `c^2/(n GAUGE_MU)` an entry; the widening is at least its spectral norm, all but surely. c^2 is the mean square of
    rows, rounded up to a power of two.
    """
    width, total, xp = rows.n_features, float(gram.mean.diagonal().sum()), namespace_of(rows.dtype)
    if total == 0.0:
        return ()
    square = power_of_two(total)
    moments = xp.zeros((width, width), dtype=xp.float64, device=rows.device)
    for block in rows.blocks():
        features = double(block.features)
        add_square(moments, features, square / xp.clip(xp.square(row_lengths(features)), min=square))
    moments = rows.total(moments) / len(rows)
    deviation = square / (len(rows) * GAUGE_MU)
    drawn = np.tril(generator.normal(size=(width, width)) * deviation)
    noisy = (moments + moments.T) / 2 + put(drawn + np.tril(drawn, -1).T, moments)
    least = 2.2 * deviation * math.sqrt(width)
    gauges = []
    for widened in NU[:count]:
        factor = factored(Blocks(noisy[None], joint=False).plus(least + widened * square / width))
        if factor is None:  # noise longer than nearly all is
            continue
        gauge = Gauge(factor[0], 0.0)
        squares = (gauge.squares(double(block.features)) for block in rows.blocks() if len(block))
        largest = rows.largest(max((float(each.max()) for each in squares), default=0.0))
        farthest = power_of_two(largest * ((1.0 + gauge.lost) * KAPPA_SLACK) ** 2)
        gauges.append(replace(gauge, kappa=math.sqrt(farthest)))
    return tuple(gauges)


# Third derivatives ----------------------------------------------------------------------------------------------------


def has_third(head: LinearHead) -> bool:
    """Whether the third derivatives of this head are kept: of softmax and sigmoids with few features."""
    if not isinstance(head, Softmax | Logistic | OneVsRest):
        return False
    lines = n_lines(head, 1 if isinstance(head, Logistic) else head.n_classes)
    return lines * folded_size(head.n_features) <= MOST_NUMBERS


def n_lines(head: LinearHead, vectors: int) -> int:
    """Rows of the table of numbers that are kept: three classes each, or a weight vector."""
    return folded_size(vectors) if isinstance(head, Softmax) else vectors


def sizes_of(head: LinearHead) -> tuple[float, float]:
    """Upper bounds on a row's c and on how fast it changes with the outputs."""
    return SOFTMAX_SIZES if isinstance(head, Softmax) else SIGMOID_SIZES


def _third_slopes(head: LinearHead, outputs: Array, predictions: Array) -> Array:
    """c of each row, a line for each weight vector or three classes."""
    return (_cumulants(predictions) if is_joint(head) else _second_slopes(outputs)).T


def _second_slopes(outputs: Array) -> Array:
    """`s'' = s (1 - s)(1 - 2 s)`, each factor to full relative accuracy."""
    return sigmoid(outputs) * sigmoid(-outputs) * -namespace(outputs).tanh(outputs / 2.0)


def _cumulants(chances: Array) -> Array:
    """`E[(e_j - p_j)(e_k - p_k)(e_l - p_l)]` for one class drawn by p, j >= k >= l."""
    xp = namespace(chances)
    others = chances.sum(axis=1)[:, None] - chances
    first, second, third = (put(part, chances) for part in threes(chances.shape[1]))
    p, q, r = chances[:, first], chances[:, second], chances[:, third]
    upper, lower = first == second, second == third
    value = xp.where(lower, q * (2.0 * q - 1.0), 2.0 * q * r)  # the last two are one class, or none are
    value = xp.where(upper, r * (2.0 * p - 1.0), value)  # the first two are
    return p * xp.where(upper & lower, others[:, first] * (1.0 - 2.0 * p), value)


def third_error(head: LinearHead, weights: Array, n_rows: int, cube: float) -> float:
    """Upper bound on what float64 makes of it, as a form: |T[a, u, u]| for a and u of length 1; `cube` is the mean of
    `||x||^3`.

    As for the Hessian: a sum of k terms in any order is off by at most (k + 1) units times the mean of their sizes,
    outputs by `(d + 1) u ||W|| ||x||`, and c by at most so much times that.
    """
    most, change = sizes_of(head)
    of_sum = (n_rows + 64) * most
    of_link = 8.0 * change * math.sqrt(len(weights)) * (weights.shape[1] + 64)
    of_link *= 1.0 + norm(weights) * head.row_bound
    return UNIT_ROUNDOFF * cube * (of_sum + of_link)


def copy_error(head: LinearHead, weights: Array) -> float:
    """By how much a row's third derivatives change for each unit that a copy of it is away."""
    (most, change), bound = sizes_of(head), head.row_bound
    return change * float(namespace(weights).linalg.matrix_norm(weights, ord=2)) * bound**3 + 3.0 * most * bound**2


def along(third: Array, update: Array, *, joint: bool) -> Blocks:
    """`T[u]`, the matrix by which the Hessian changes along u but for what is of second order in u: of every weight
    vector by itself, or of all classes together."""
    classes, width = update.shape
    places, first, second = (put(part, update) for part in _places(width))
    lines = [[k] * 3 for k in range(classes)]
    if joint:
        lines = np.stack(threes(classes), axis=1).tolist()
    folded, xp = zeros(update, (classes, classes if joint else 1, len(first))), namespace(update)
    # a line as a feature by a pair of features; the next takes the place of the last
    form, where = xp.empty(places.shape, dtype=third.dtype, device=third.device), places.reshape(-1)
    for numbers, line in zip(third, lines, strict=True):
        take_into(form.reshape(-1), numbers, where)
        vectors = sorted(set(line))
        for vector, made in zip(vectors, update[vectors] @ form, strict=True):
            one, other = line[: line.index(vector)] + line[line.index(vector) + 1 :]
            for pair in {(one, other), (other, one)} if joint else {(one, 0)}:
                folded[pair] += made
    values = xp.empty((*folded.shape[:2], width, width), dtype=update.dtype, device=update.device)
    values[..., first, second] = values[..., second, first] = folded
    if not joint:
        return Blocks(values[:, 0], joint=False)
    whole = xp.permute_dims(values, (0, 2, 1, 3)).reshape(1, classes * width, classes * width)
    return Blocks(whole, joint=True)


def pull(third: Array, update: Array, *, joint: bool) -> Array:
    """`T[u, u]/2`, K x d."""
    return 0.5 * along(third, update, joint=joint).product(update)


def pull_error(third: Array, update: Array, error: float) -> float:
    """Upper bound on the error of a pull, in length: of the third derivatives, and of the product."""
    terms = size(update) ** 2 + 32
    return 0.5 * (error + terms * UNIT_ROUNDOFF * whole_size(third)) * norm(update) ** 2


def whole_size(third: Array) -> float:
    """At least the root of the sum of squares of all entries: none is there more than six times six."""
    return 6.0 * norm(third)


def folded_size(width: int) -> int:
    """How many triples `i >= j >= k` of so many features or classes there are."""
    return width * (width + 1) * (width + 2) // 6


Places = NDArray[np.int64]


@lru_cache(maxsize=8)
def threes(width: int) -> tuple[Places, Places, Places]:
    """All triples `i >= j >= k` of numbers below `width`, in the order of i, j and k."""
    first, second = np.tril_indices(width)
    third = np.concatenate([np.arange(j + 1) for j in second])
    return first.repeat(second + 1), second.repeat(second + 1), third


@lru_cache(maxsize=8)
def _places(width: int) -> tuple[Places, Places, Places]:
    """For i and the pair `j >= k`, d x d(d + 1)/2: where the three are among those kept; and the pairs."""
    first, second = np.tril_indices(width)
    third = np.arange(width)[:, None]
    low, high = np.minimum(third, second), np.maximum(third, first)
    middle = np.maximum(np.minimum(third, first), second)
    return high * (high + 1) * (high + 2) // 6 + middle * (middle + 1) // 2 + low, first, second
