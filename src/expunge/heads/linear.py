"""Linear heads: the mean of `ell(W x, y)` over rows, plus `(l2/2) ||W||^2`.

Shapes and averaging are stated here once. `W` is K x d (classes x features; a bias is the last column, multiplied by
a constant feature 1 and regularised like the rest). A row is `x` of length d with `||x|| <= row_bound`. With outputs
`z = W x`, predictions `p = link(z)` and targets `t(y)`,

    gradient of one row     (p - t) outer x
    curvature of one row    V -> (C(p) V x) outer x          C(p) is K x K
    change of gradient      phi_U(x) = (link((W+U) x) - link(W x)) outer x      the label cancels

Means over a set carry the factor 1/rows; rows may be weighted, with weights of mean 1, and every mean is then a
weighted one. The regulariser is added once per set. Everything that becomes evidence (gradients, changes of gradient)
is summed in float64 in a fixed order, whatever the dtype the rows are kept in. A loss is a small class at the end."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import ClassVar

from expunge.heads.rows import Block, BlockValues, Rows, RowSet
from expunge.record import LOGISTIC, ONE_VS_REST, RIDGE, SOFTMAX, Constants, Loss
from expunge.runtime.arrays import (
    Array,
    Device,
    Dtype,
    add_product,
    add_square,
    add_to_diagonal,
    cast,
    contiguous,
    double,
    is_double,
    is_sparse,
    log_sigmoid,
    log_sum_exp,
    namespace,
    namespace_of,
    norm,
    on_cpu,
    put,
    sigmoid,
    softmax,
    upper_triangle,
    zeros,
)

# The Hessian of a linear head over one set: products, the dense matrix, factors for preconditioning ----------------

DENSE_COLUMNS, DENSE_BYTES = 256, 1 << 21  # products of features at a time, and their size: they stay in cache
CLASS_MULTIPLE = 4  # thin matrix products run faster on a multiple of this many rows than on fewer


def padded_height(n_rows: int) -> int:
    """The next multiple of `CLASS_MULTIPLE`."""
    return n_rows + -n_rows % CLASS_MULTIPLE


def padded(matrix: Array) -> Array:
    """The matrix with rows of zeros appended up to the padded height; in one piece, as products with it are fastest."""
    height, xp = padded_height(len(matrix)), namespace(matrix)
    if height == len(matrix):
        return contiguous(matrix)
    wide = xp.zeros((height, *matrix.shape[1:]), dtype=matrix.dtype, device=matrix.device)
    wide[: len(matrix)] = matrix
    return wide


def few_at_a_time(device: Device) -> bool:
    """Whether small products that stay in cache are faster than half as many large ones: not on a GPU."""
    return on_cpu(device)


def product_means(
    rows: RowSet, pieces: Iterable[tuple[Block, Array]], entries_of: Callable[[Array], Array], classes: int
) -> Array:
    """Mean over the rows of `E kron x x^T`, K d x K d, from each row's values, classes first.

    `entries_of` makes the entries of each row's symmetric K x K matrix E, on and above the diagonal, from its values.
    Only `E_kl x_i x_j` with k <= l and i <= j are summed: a quarter of the entries says it all.
    """
    width, xp = rows.n_features, namespace_of(rows.dtype)
    total = xp.zeros((classes * (classes + 1) // 2, width, width), dtype=rows.dtype, device=rows.device)
    plain = len(total) <= FEW_PAIRS or not few_at_a_time(total.device)
    together = max(1, DENSE_COLUMNS // width)
    most = max(16, DENSE_BYTES // (together * width * rows.dtype.itemsize))
    for block, values in pieces:
        if plain or is_sparse(block.features):
            for pair, entry in zip(total, block.weighted(entries_of(values), 1), strict=True):
                add_square(pair, block.features, entry)
            continue
        for start in range(0, len(block), most):
            part = block[start : start + most]
            features = contiguous(part.features.T)  # long rows multiply faster
            entries = part.weighted(entries_of(values[:, start : start + most]), 1)
            for first in range(0, width, together):
                last = min(first + together, width)
                products = (features[first:last, None] * features[None, first:]).reshape(-1, features.shape[1])
                total[:, first:last, first:] += (entries @ products.T).reshape(-1, last - first, width - first)
    quarter = rows.total(total) / len(rows)
    half = xp.triu(quarter) + xp.triu(quarter, k=1).mT
    matrix = xp.empty((classes, classes, width, width), dtype=rows.dtype, device=rows.device)
    first, second = upper_triangle(classes, matrix)
    matrix[first, second] = half
    matrix[second, first] = half
    return xp.permute_dims(matrix, (0, 2, 1, 3)).reshape(classes * width, classes * width)


class Curvature:
    """The Hessian of `L` over one set at fixed weights: products, the dense matrix, and factors for preconditioning.

    Predictions are kept where the rows allow it, since they are K/d of the data and every product needs them; classes
    first, padded, which is the layout the matrix products are fastest in. Works in the rows' own dtype.
    """

    def __init__(self, objective: LinearHead, weights: Array, rows: RowSet) -> None:
        self.objective, self.rows, self.weights = objective, rows, cast(weights, rows.dtype)
        height = padded_height(objective.n_classes)
        keep = rows.keeps(height * rows.dtype.itemsize)
        self.predicted = BlockValues(rows, lambda: ((block,) for block in rows.blocks()), self._predict, height, keep)

    def _predict(self, block: Block) -> Array:
        return padded(self.objective.predictions((self.weights @ block.features.T).T).T)

    def product(self, direction: Array) -> Array:
        """`H V`, in two matrix products a block and one pass between them."""
        wide = padded(direction)
        total = zeros(wide)
        for block, predictions in self.predicted():
            curved = self.objective.curve(predictions, wide @ block.features.T)
            add_product(total, block.weighted(curved, 1), block.features)
        total = self.rows.total(total)[: len(direction)]
        total /= len(self.rows)
        total += self.objective.l2 * direction
        return total

    def dense(self) -> Array:
        """The p x p Hessian, weights in row-major order."""
        objective, classes = self.objective, self.objective.n_classes
        if objective.constant_curvature:
            flat = namespace(self.weights).kron(self.class_factor(), self.feature_factor())
        elif objective.shift_invariant and classes == 2:  # where C(p) is p_0 p_1 times a matrix of ones and minus ones
            pieces = ((block, predictions[:1] * predictions[1:2]) for block, predictions in self.predicted())
            signs = put([[1.0, -1.0], [-1.0, 1.0]], self.weights, self.weights.dtype)
            flat = namespace(self.weights).kron(signs, product_means(self.rows, pieces, lambda each: each, 1))
        else:
            pieces = ((block, predictions[:classes]) for block, predictions in self.predicted())
            flat = product_means(self.rows, pieces, objective.curvature_entries, classes)
        return add_to_diagonal(flat, objective.l2)

    def class_factor(self) -> Array:
        """Mean of `C(p)` over the rows, K x K."""
        classes, like, xp = self.objective.n_classes, self.weights, namespace(self.weights)
        total = zeros(like, (classes, classes))
        for block, predictions in self.predicted():
            weights = block.weighted(xp.ones(len(block), dtype=like.dtype, device=like.device), 0)
            total += self.objective.curvature_sum(predictions[:classes], weights)
        return self.rows.total(total) / len(self.rows)

    def feature_factor(self, most: int | None = None) -> Array:
        """Mean of `x x^T` over the rows, d x d; over about `most` of them, evenly spread, where that is enough."""
        width, like, xp = self.objective.n_features, self.weights, namespace(self.weights)
        total = zeros(like, (width, width))
        count = xp.zeros(1, dtype=xp.float64, device=like.device)
        step = 1 if most is None else max(1, len(self.rows) // most)
        for whole in self.rows.blocks():
            block = whole[-(self.rows.n_before + whole.start) % step :: step]
            add_square(total, block.features, None if block.weights is None else cast(block.weights, like.dtype))
            count += len(block)
        return self.rows.total(total) / float(self.rows.total(count)[0])


# How the change of gradient spreads over the rows of a set; no covariance is formed --------------------------------


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

    def __init__(self, objective: LinearHead, weights: Array, update: Array, rows: RowSet) -> None:
        self.objective, self.weights, self.update, self.rows = objective, weights, update, rows
        height = padded_height(objective.n_classes)
        keep = rows.keeps(8 * (height + 1))
        # of ||f||^2: what float64 may lose of ||f - c||^2 where the spread is far below the mean
        self.cancellation = (objective.n_features + objective.n_classes + 64) * 2.0**-52
        self.changes = BlockValues(rows, self._blocks, self._change, height, keep)
        xp = namespace(weights)
        total = xp.zeros((height, objective.n_features), dtype=xp.float64, device=weights.device)
        for block, features, change in self.changes():
            add_product(total, block.weighted(change, 1), features)
        self.mean = rows.total(total) / len(rows)
        self.squares = BlockValues(rows, self.changes, self._square, 1, keep)

    def _blocks(self) -> Iterator[tuple[Block, Array]]:
        return ((block, double(block.features)) for block in self.rows.blocks())

    def _change(self, block: Block, features: Array) -> Array:
        return padded(self.objective.change(self.weights, self.update, features).T)  # classes first, as in Curvature

    def _square(self, block: Block, features: Array, change: Array) -> Array:
        """`||f - c||^2`, never too small by rounding."""
        xp = namespace(features)
        along = self.mean @ features.T
        along *= change
        sizes = xp.square(change).sum(axis=0) * xp.square(features).sum(axis=1)
        centre = xp.square(self.mean).sum()
        squares = sizes - 2 * along.sum(axis=0) + centre + self.cancellation * (sizes + centre)
        return xp.clip(squares, min=0.0)

    def sums(self) -> SpreadSums:
        xp = namespace(self.weights)
        totals = xp.zeros(3, dtype=xp.float64, device=self.weights.device)
        largest = xp.zeros(4, dtype=xp.float64, device=self.weights.device)
        for block, features, change, squares in self.squares():
            once = block.weighted(squares, 0)
            twice = block.weighted(once, 0)
            totals += xp.stack((once.sum(), block.weighted(xp.square(squares), 0).sum(), twice.sum()))
            lengths = xp.square(features).sum(axis=1)
            sizes = xp.square(change).sum(axis=0) * lengths * (1.0 + self.cancellation)
            each = xp.stack((squares.max(), sizes.max(), lengths.max(), twice.max()))
            largest = xp.maximum(largest, each)
        trace, fourth, sampled_trace = (self.rows.total(totals) / len(self.rows)).tolist()
        norm, longest, longest_row, sampled = (math.sqrt(self.rows.largest(value)) for value in largest.tolist())
        return SpreadSums(trace, fourth, norm, longest, longest_row, sampled_trace, sampled)

    def longest(self, count: int) -> list[float]:
        """The largest `||f||`, so many of them and the largest first; beyond the rows there are the smallest again.

        In a group each process's own are held against one another, which gives no more than all rows together would.
        """
        xp, most = namespace(self.weights), self.weights.reshape(-1)[:0]
        for _, features, change in self.changes():
            sizes = xp.square(change).sum(axis=0) * xp.square(features).sum(axis=1)
            most = xp.sort(xp.concat([most, sizes * (1.0 + self.cancellation)]))[-count:]
        values = most.tolist()[::-1]
        values += [values[-1] if values else 0.0] * (count - len(values))
        return [math.sqrt(self.rows.largest(value)) for value in values]

    def covariance_product(self, direction: Array, power: int, fourth: bool) -> Array:
        """Mean over rows of `w^power (f - c) <f - c, direction>`, for the fourth moment times `||f - c||^2`."""
        wide = padded(direction)
        centre = (wide * self.mean).sum()
        xp = namespace(wide)
        total, off = zeros(wide), xp.zeros(1, dtype=xp.float64, device=wide.device)
        for block, features, change, *squares in self.squares() if fourth else self.changes():
            products = wide @ features.T
            products *= change
            along = products.sum(axis=0) - centre
            if fourth:
                along *= squares[0]
            for _ in range(power):
                along = block.weighted(along, 0)
            off += along.sum()
            add_product(total, change * along, features)
        total, off = self.rows.total(total), self.rows.total(off)
        return (total - self.mean * off)[: len(direction)] / len(self.rows)


# What all linear heads have in common ------------------------------------------------------------------------------

UNIT_ROUNDOFF = 2.0**-53
DENSE_PARAMETERS = 4096  # above this a dense Hessian is never formed
DENSE_COPIES = 5  # of both sets, as summed, shifted and factorised
DENSE_ADVANTAGE = 8.0  # large matrix products run about this much faster than the thin ones of a Hessian product
EXPECTED_CONJUGATE = 40
FEW_PAIRS = 3  # of classes, for each of which a matrix product takes less than products of features for all do


@dataclass(frozen=True)
class LinearHead(ABC):
    """An L2-regularised linear head on feature rows."""

    l2: float
    n_classes: int
    n_features: int
    row_bound: float

    about: ClassVar[Loss]  # what a certificate has to know of it
    steepest: ClassVar[float]  # link is Lipschitz with this constant: C(p) has no larger norm
    shift_invariant: ClassVar[bool] = False  # C(p) = diag(p) - p p^T: the same added to all outputs changes nothing
    constant_curvature: ClassVar[bool] = False  # C(p) is the same for every row
    inexact: ClassVar[bool] = True  # far from the goal, linear systems may be solved roughly

    @property
    def name(self) -> str:
        return self.about.name

    @property
    def n_parameters(self) -> int:
        return self.n_classes * self.n_features

    @property
    def n_directions(self) -> int:
        """How many directions a row has."""
        return self.n_features

    # What a loss says about itself ---------------------------------------------------------------------------------

    @abstractmethod
    def predictions(self, outputs: Array) -> Array:
        """`link(z)`, rows x K."""

    @abstractmethod
    def losses(self, outputs: Array, labels: Array) -> Array:
        """The loss of each row, without the regulariser."""

    @abstractmethod
    def slopes(self, predictions: Array) -> Array:
        """`c(p)`, classes first, rows of zeros allowed: `C(p) = diag(c)`, or `diag(c) - p p^T` if shift-invariant."""

    @property
    @abstractmethod
    def farthest(self) -> float:
        """How far any two predictions, or a prediction and a target, are apart at most."""

    def targets(self, labels: Array, dtype: Dtype) -> Array:
        """Targets `t(y)`, rows x K."""
        classes = namespace(labels).arange(self.n_classes, device=labels.device)
        return cast(labels[:, None] == classes, dtype)

    def residual_sup(self, weights: Array) -> float:
        """Upper bound on `||p - t||` over all rows and labels."""
        return self.farthest

    # C(p), and what stands for it; classes first -------------------------------------------------------------------

    def curve(self, predictions: Array, directions: Array) -> Array:
        """`C(p) l` for each example's direction `l = V x`; one column an example, rows of zeros allowed."""
        curved = self.slopes(predictions) * directions
        if self.shift_invariant:
            curved -= predictions * curved.sum(axis=0)
        return curved

    def curvature_entries(self, predictions: Array) -> Array:
        """Entries of `C(p)` on and above the diagonal, row by row, K (K+1)/2 x examples."""
        first, second = upper_triangle(self.n_classes, predictions)
        if self.shift_invariant:
            entries = -(predictions[first] * predictions[second])
        else:
            shape = (len(first), predictions.shape[1])
            entries = zeros(predictions, shape)
        entries[first == second] += self.slopes(predictions)
        return entries

    def curvature_sum(self, predictions: Array, weights: Array) -> Array:
        """Sum over examples of their weight times `C(p)`, K x K."""
        total = namespace(predictions).diag((self.slopes(predictions) * weights).sum(axis=1))
        return total - (predictions * weights) @ predictions.T if self.shift_invariant else total

    # Sums over sets ------------------------------------------------------------------------------------------------

    def loss(self, weights: Array, rows: RowSet) -> float:
        """`L(W)`: mean loss plus `(l2/2) ||W||^2`."""
        return self.value_and_gradient(weights, rows)[0]

    def gradient(self, weights: Array, rows: RowSet) -> Array:
        """Gradient of `L` at `weights`, K x d, float64."""
        return self._pass(weights, rows, valued=False)[1]

    def value_and_gradient(self, weights: Array, rows: RowSet) -> tuple[float, Array]:
        """`L(W)` and its gradient, in one pass over the rows."""
        return self._pass(weights, rows, valued=True)

    def _pass(self, weights: Array, rows: RowSet, *, valued: bool) -> tuple[float, Array]:
        total, xp = zeros(weights), namespace(weights)
        value = xp.zeros(1, dtype=xp.float64, device=weights.device)
        for block in rows.blocks():
            features = double(block.features)
            outputs = (weights @ features.T).T  # classes first in memory: the products run faster so
            if valued:
                value += block.weighted(self.losses(outputs, block.labels), 0).sum()
            residuals = self.predictions(outputs) - self.targets(block.labels, weights.dtype)
            add_product(total, block.weighted(residuals, 0).T, features)
        gradient = rows.total(total) / len(rows) + self.l2 * weights
        if not valued:
            return math.nan, gradient
        return float(rows.total(value)[0]) / len(rows) + 0.5 * self.l2 * norm(weights) ** 2, gradient

    def change(self, weights: Array, update: Array, features: Array) -> Array:
        """`link((W+U) x) - link(W x)` for each row; `phi_U(x)` is its outer product with `x`."""
        changed, before = (self.predictions((at @ features.T).T) for at in (weights + update, weights))
        return changed - before

    def change_mean(self, weights: Array, update: Array, rows: RowSet) -> Array:
        """Mean of `phi_U` over the rows, K x d, float64."""
        total = zeros(weights)
        for block in rows.blocks():
            features = double(block.features)
            add_product(total, block.weighted(self.change(weights, update, features), 0).T, features)
        return rows.total(total) / len(rows)

    def change_sup(self, update: Array) -> float:
        """Upper bound on `||phi_U(x)|| <= min(steepest ||U x||, farthest) ||x||` over all rows `||x|| <= row_bound`."""
        spectral = float(namespace(update).linalg.matrix_norm(update, ord=2))
        return min(self.steepest * spectral * self.row_bound, self.farthest) * self.row_bound

    def constants(self, weights_norm: float) -> Constants:
        """Constants in closed form; the gradient's bound holds for weights of norm at most `weights_norm`."""
        assert self.about.constants is not None
        return self.about.constants(self.l2, self.n_classes, self.row_bound, weights_norm)

    def curvature(self, weights: Array, rows: RowSet) -> Curvature:
        """The Hessian of `L` over these rows."""
        return Curvature(self, weights, rows)

    def spread(self, weights: Array, update: Array, rows: RowSet) -> Spread:
        """How `phi_U` spreads over these rows."""
        return Spread(self, weights, update, rows)

    def working(self, rows: Rows, dtype: Dtype) -> Rows:
        """The rows in the dtype that linear systems are solved in."""
        return Rows(cast(rows.features, dtype), rows.labels)

    def accurate(self, dtype: Dtype) -> float:
        """Relative residual that linear systems are solved to where they are solved once."""
        return 1e-10 if is_double(dtype) else 1e-5

    def dense_pays(self, rows: RowSet) -> bool:
        """Whether forming and factorising the Hessian takes fewer multiplications than the iterations, and fits."""
        parameters, n_rows = self.n_parameters, len(rows)
        if parameters > DENSE_PARAMETERS or not rows.affords(DENSE_COPIES * 8 * parameters**2):
            return False
        forming = n_rows * self.n_features * parameters * (self.n_classes + 1) / 2
        conjugate = EXPECTED_CONJUGATE * 2 * n_rows * parameters
        return (forming + parameters**3 / 3) / DENSE_ADVANTAGE < conjugate

    def rounding(self, weights: Array, rows: Sized) -> float:
        """Upper bound on the float64 rounding error of a mean gradient over these rows, in norm.

        Any order of summing k terms is off by at most (k+1) u times the mean of their norms; the outputs z are off by
        at most (d+1) u ||W|| B in each coordinate, and link is 1-Lipschitz. Weights of mean 1 leave the mean of the
        norms below the same bound; their own roundings are among the 64.
        """
        length = norm(weights)
        of_sum = (len(rows) + 64) * self.residual_sup(weights)
        of_link = math.sqrt(self.n_classes) * (self.n_features + 64) * (1.0 + length * self.row_bound)
        return UNIT_ROUNDOFF * self.row_bound * (of_sum + of_link) + 4 * UNIT_ROUNDOFF * self.l2 * length


# The losses --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Softmax(LinearHead):
    """K >= 2 classes, one weight row a class: `ell(z, y) = logsumexp(z) - z_y`, `p = softmax(z)`.

    >>> import numpy as np
    >>> from expunge.heads.rows import Rows
    >>> head = Softmax(l2=1.0, n_classes=2, n_features=1, row_bound=1.0)
    >>> rows = Rows(np.ones((4, 1)), np.array([0, 0, 0, 0]))
    >>> head.gradient(np.zeros((2, 1)), rows).flatten().tolist()
    [-0.5, 0.5]
    """

    about: ClassVar[Loss] = SOFTMAX
    steepest: ClassVar[float] = 0.5
    shift_invariant: ClassVar[bool] = True

    @property
    def farthest(self) -> float:
        return math.sqrt(2.0)

    def predictions(self, outputs: Array) -> Array:
        return softmax(outputs)

    def losses(self, outputs: Array, labels: Array) -> Array:
        own = namespace(outputs).take_along_axis(outputs, labels[:, None], axis=1)
        return log_sum_exp(outputs) - own[:, 0]

    def slopes(self, predictions: Array) -> Array:
        return predictions


@dataclass(frozen=True)
class OneVsRest(LinearHead):
    """K logistic models in one: `ell(z, y) = sum_k logistic(z_k, y = k)`, `p = sigmoid(z)`."""

    about: ClassVar[Loss] = ONE_VS_REST
    steepest: ClassVar[float] = 0.25

    @property
    def farthest(self) -> float:
        return math.sqrt(self.n_classes)

    def predictions(self, outputs: Array) -> Array:
        return sigmoid(outputs)

    def losses(self, outputs: Array, labels: Array) -> Array:
        signs = 2.0 * self.targets(labels, outputs.dtype) - 1.0
        return -log_sigmoid(signs * outputs).sum(axis=1)

    def slopes(self, predictions: Array) -> Array:
        return predictions * (1.0 - predictions)


@dataclass(frozen=True)
class Logistic(OneVsRest):
    """Two classes and one weight vector, for the second: K is 1."""

    about: ClassVar[Loss] = LOGISTIC

    def targets(self, labels: Array, dtype: Dtype) -> Array:
        return cast(labels, dtype)[:, None]


@dataclass(frozen=True)
class Ridge(LinearHead):
    """Least squares on targets -1 and +1: `ell(z, y) = ||z - t(y)||^2 / 2`, `p = z`; one Newton step is exact."""

    about: ClassVar[Loss] = RIDGE
    steepest: ClassVar[float] = 1.0
    constant_curvature: ClassVar[bool] = True

    @property
    def farthest(self) -> float:
        return math.inf

    def targets(self, labels: Array, dtype: Dtype) -> Array:
        return super().targets(labels, dtype) * 2 - 1

    def predictions(self, outputs: Array) -> Array:
        return outputs

    def losses(self, outputs: Array, labels: Array) -> Array:
        differences = outputs - self.targets(labels, outputs.dtype)
        return 0.5 * (differences * differences).sum(axis=1)

    def slopes(self, predictions: Array) -> Array:
        return namespace(predictions).ones_like(predictions)

    def residual_sup(self, weights: Array) -> float:
        return float(namespace(weights).linalg.matrix_norm(weights, ord=2)) * self.row_bound + math.sqrt(self.n_classes)

    def moment_roundoffs(self, n_rows: int) -> int:
        """Unit roundoffs of the mean square that the mean of `x x'` over so many rows can lose."""
        return n_rows + 64
