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

import torch
from torch import Tensor

from expunge.heads.rows import Block, Kept, Rows, RowSet
from expunge.record import LOGISTIC, ONE_VS_REST, RIDGE, SOFTMAX, Constants, Loss

# The Hessian of a linear head over one set: products, the dense matrix, factors for preconditioning ----------------

DENSE_COLUMNS, DENSE_BYTES = 256, 1 << 21  # products of features at a time, and their size: they stay in cache
CLASS_MULTIPLE = 4  # thin matrix products run faster on a multiple of this many rows than on fewer


def padded_height(n_rows: int) -> int:
    """The next multiple of `CLASS_MULTIPLE`."""
    return n_rows + -n_rows % CLASS_MULTIPLE


def padded(matrix: Tensor) -> Tensor:
    """The matrix with rows of zeros appended up to the padded height; in one piece, as products with it are fastest."""
    return torch.nn.functional.pad(matrix, (0, 0, 0, padded_height(len(matrix)) - len(matrix))).contiguous()


def few_at_a_time(device: torch.device) -> bool:
    """Whether small products that stay in cache are faster than half as many large ones: not on a GPU."""
    return device.type == "cpu"


def product_means(
    rows: RowSet, pieces: Iterable[tuple[Block, Tensor]], entries_of: Callable[[Tensor], Tensor], classes: int
) -> Tensor:
    """Mean over the rows of `E kron x x^T`, K d x K d, from each row's values, classes first.

    `entries_of` makes the entries of each row's symmetric K x K matrix E, on and above the diagonal, from its values.
    Only `E_kl x_i x_j` with k <= l and i <= j are summed: a quarter of the entries says it all.
    """
    width, pairs = rows.n_features, torch.triu_indices(classes, classes, device=rows.device)
    total = torch.zeros((pairs.shape[1], width, width), dtype=rows.dtype, device=rows.device)
    together = max(1, DENSE_COLUMNS // width)
    most = max(16, DENSE_BYTES // (together * width * total.element_size()))
    for block, values in pieces:
        if not few_at_a_time(total.device):
            for pair, entry in zip(total, block.weighted(entries_of(values), 1), strict=True):
                pair.addmm_((block.features * entry[:, None]).T, block.features)
            continue
        for start in range(0, len(block), most):
            part = block[start : start + most]
            features = part.features.T.contiguous()  # long rows multiply faster
            entries = part.weighted(entries_of(values[:, start : start + most]), 1)
            for first in range(0, width, together):
                last = min(first + together, width)
                products = (features[first:last, None] * features[None, first:]).reshape(-1, features.shape[1])
                total[:, first:last, first:] += (entries @ products.T).reshape(-1, last - first, width - first)
    quarter = rows.total(total) / len(rows)
    half = quarter.triu() + quarter.triu(1).mT
    matrix = torch.empty((classes, classes, width, width), dtype=rows.dtype, device=rows.device)
    matrix[pairs[0], pairs[1]] = half
    matrix[pairs[1], pairs[0]] = half
    return matrix.transpose(1, 2).reshape(classes * width, classes * width)


class Curvature:
    """The Hessian of `L` over one set at fixed weights: products, the dense matrix, and factors for preconditioning.

    Predictions are kept where the rows allow it, since they are K/d of the data and every product needs them; classes
    first, padded, which is the layout the matrix products are fastest in. Works in the rows' own dtype.
    """

    def __init__(self, objective: LinearHead, weights: Tensor, rows: RowSet) -> None:
        self.objective, self.rows, self.weights = objective, rows, weights.to(rows.dtype)
        height = padded_height(objective.n_classes)
        keep = rows.keeps(height * rows.dtype.itemsize)
        self.predicted = Kept(rows, lambda: ((block,) for block in rows.blocks()), self._predict, height, keep)

    def _predict(self, block: Block) -> Tensor:
        return padded(self.objective.predictions(block.features @ self.weights.T).T)

    def product(self, direction: Tensor) -> Tensor:
        """`H V`, in two matrix products a block and one pass between them."""
        wide = padded(direction)
        total = torch.zeros_like(wide)
        for block, predictions in self.predicted():
            curved = self.objective.curve(predictions, wide @ block.features.T)
            total.addmm_(block.weighted(curved, 1), block.features)
        total = self.rows.total(total)[: len(direction)]
        return total.div_(len(self.rows)).add_(direction, alpha=self.objective.l2)

    def dense(self) -> Tensor:
        """The p x p Hessian, weights in row-major order."""
        objective, classes = self.objective, self.objective.n_classes
        if objective.constant_curvature:
            flat = torch.kron(self.class_factor(), self.feature_factor())
        else:
            pieces = ((block, predictions[:classes]) for block, predictions in self.predicted())
            flat = product_means(self.rows, pieces, objective.curvature_entries, classes)
        flat.diagonal().add_(objective.l2)
        return flat

    def class_factor(self) -> Tensor:
        """Mean of `C(p)` over the rows, K x K."""
        classes = self.objective.n_classes
        total = self.weights.new_zeros((classes, classes))
        for block, predictions in self.predicted():
            weights = block.weighted(predictions.new_ones(len(block)), 0)
            total += self.objective.curvature_sum(predictions[:classes], weights)
        return self.rows.total(total) / len(self.rows)

    def feature_factor(self, most: int | None = None) -> Tensor:
        """Mean of `x x^T` over the rows, d x d; over about `most` of them, evenly spread, where that is enough."""
        width = self.objective.n_features
        total, count = self.weights.new_zeros((width, width)), torch.zeros((), dtype=torch.float64)
        step = 1 if most is None else max(1, len(self.rows) // most)
        for whole in self.rows.blocks():
            block = whole[-(self.rows.n_before + whole.start) % step :: step]
            total.addmm_(block.weighted(block.features, 0).T, block.features)
            count += len(block)
        return self.rows.total(total) / float(self.rows.total(count))


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

    def __init__(self, objective: LinearHead, weights: Tensor, update: Tensor, rows: RowSet) -> None:
        self.objective, self.weights, self.update, self.rows = objective, weights, update, rows
        height = padded_height(objective.n_classes)
        keep = rows.keeps(8 * (height + 1))
        # of ||f||^2: what float64 may lose of ||f - c||^2 where the spread is far below the mean
        self.cancellation = (objective.n_features + objective.n_classes + 64) * 2.0**-52
        self.changes = Kept(rows, self._blocks, self._change, height, keep)
        total = torch.zeros((height, objective.n_features), dtype=torch.float64, device=weights.device)
        for block, features, change in self.changes():
            total.addmm_(block.weighted(change, 1), features)
        self.mean = rows.total(total) / len(rows)
        self.squares = Kept(rows, self.changes, self._square, 1, keep)

    def _blocks(self) -> Iterator[tuple[Block, Tensor]]:
        return ((block, block.features.double()) for block in self.rows.blocks())

    def _change(self, block: Block, features: Tensor) -> Tensor:
        return padded(self.objective.change(self.weights, self.update, features).T)  # classes first, as in Curvature

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
            each = torch.stack((squares.max(), sizes.max(), lengths.max(), twice.max()))
            largest = torch.maximum(largest, each)
        trace, fourth, sampled_trace = (self.rows.total(totals) / len(self.rows)).tolist()
        norm, longest, longest_row, sampled = (math.sqrt(self.rows.largest(value)) for value in largest.tolist())
        return SpreadSums(trace, fourth, norm, longest, longest_row, sampled_trace, sampled)

    def covariance_product(self, direction: Tensor, power: int, fourth: bool) -> Tensor:
        """Mean over rows of `w^power (f - c) <f - c, direction>`, for the fourth moment times `||f - c||^2`."""
        wide = padded(direction)
        centre = (wide * self.mean).sum()
        total = torch.zeros_like(wide)
        off = torch.zeros((), dtype=torch.float64, device=wide.device)
        for block, features, change, *squares in self.squares() if fourth else self.changes():
            along = (wide @ features.T).mul_(change).sum(dim=0).sub_(centre)
            if fourth:
                along *= squares[0]
            for _ in range(power):
                along = block.weighted(along, 0)
            off += along.sum()
            total.addmm_(change * along, features)
        total, off = self.rows.total(total), self.rows.total(off)
        return total.sub_(self.mean * off)[: len(direction)].div_(len(self.rows))


# What all linear heads have in common ------------------------------------------------------------------------------

UNIT_ROUNDOFF = 2.0**-53
DENSE_PARAMETERS = 4096  # above this a dense Hessian is never formed
DENSE_COPIES = 5  # of both sets, as summed, shifted and factorised
DENSE_ADVANTAGE = 8.0  # large matrix products run about this much faster than the thin ones of a Hessian product
EXPECTED_CONJUGATE = 40


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
    def predictions(self, outputs: Tensor) -> Tensor:
        """`link(z)`, rows x K."""

    @abstractmethod
    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row, without the regulariser."""

    @abstractmethod
    def slopes(self, predictions: Tensor) -> Tensor:
        """`c(p)`, classes first, rows of zeros allowed: `C(p) = diag(c)`, or `diag(c) - p p^T` if shift-invariant."""

    @property
    @abstractmethod
    def farthest(self) -> float:
        """How far any two predictions, or a prediction and a target, are apart at most."""

    def targets(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Targets `t(y)`, rows x K."""
        return torch.nn.functional.one_hot(labels, self.n_classes).to(dtype)

    def residual_sup(self, weights: Tensor) -> float:
        """Upper bound on `||p - t||` over all rows and labels."""
        return self.farthest

    # C(p), and what stands for it; classes first -------------------------------------------------------------------

    def curve(self, predictions: Tensor, directions: Tensor) -> Tensor:
        """`C(p) l` for each example's direction `l = V x`; one column an example, rows of zeros allowed."""
        curved = self.slopes(predictions) * directions
        if self.shift_invariant:
            curved.addcmul_(predictions, curved.sum(dim=0, keepdim=True), value=-1.0)
        return curved

    def curvature_entries(self, predictions: Tensor) -> Tensor:
        """Entries of `C(p)` on and above the diagonal, row by row, K (K+1)/2 x examples."""
        first, second = torch.triu_indices(self.n_classes, self.n_classes, device=predictions.device)
        if self.shift_invariant:
            entries = (predictions[first] * predictions[second]).neg_()
        else:
            entries = predictions.new_zeros((len(first), predictions.shape[1]))
        entries[first == second] += self.slopes(predictions)
        return entries

    def curvature_sum(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """Sum over examples of their weight times `C(p)`, K x K."""
        total = torch.diag((self.slopes(predictions) * weights).sum(dim=1))
        return total.sub_((predictions * weights) @ predictions.T) if self.shift_invariant else total

    # Sums over sets ------------------------------------------------------------------------------------------------

    def loss(self, weights: Tensor, rows: RowSet) -> float:
        """`L(W)`: mean loss plus `(l2/2) ||W||^2`."""
        total = torch.zeros((), dtype=torch.float64, device=weights.device)
        for block in rows.blocks():
            outputs = block.features.double() @ weights.T
            total += block.weighted(self.losses(outputs, block.labels), 0).sum()
        return float(rows.total(total)) / len(rows) + 0.5 * self.l2 * float(weights.square().sum())

    def gradient(self, weights: Tensor, rows: RowSet) -> Tensor:
        """Gradient of `L` at `weights`, K x d, float64."""
        total = torch.zeros_like(weights)
        for block in rows.blocks():
            features = block.features.double()
            residuals = self.predictions(features @ weights.T) - self.targets(block.labels, torch.float64)
            total += block.weighted(residuals, 0).T @ features
        return rows.total(total) / len(rows) + self.l2 * weights

    def change(self, weights: Tensor, update: Tensor, features: Tensor) -> Tensor:
        """`link((W+U) x) - link(W x)` for each row; `phi_U(x)` is its outer product with `x`."""
        return self.predictions(features @ (weights + update).T) - self.predictions(features @ weights.T)

    def change_mean(self, weights: Tensor, update: Tensor, rows: RowSet) -> Tensor:
        """Mean of `phi_U` over the rows, K x d, float64."""
        total = torch.zeros_like(weights)
        for block in rows.blocks():
            features = block.features.double()
            total += block.weighted(self.change(weights, update, features), 0).T @ features
        return rows.total(total) / len(rows)

    def change_sup(self, update: Tensor) -> float:
        """Upper bound on `||phi_U(x)|| <= min(steepest ||U x||, farthest) ||x||` over all rows `||x|| <= row_bound`."""
        spectral = float(torch.linalg.matrix_norm(update, 2))
        return min(self.steepest * spectral * self.row_bound, self.farthest) * self.row_bound

    def constants(self, weights_norm: float) -> Constants:
        """Constants in closed form; the gradient's bound holds for weights of norm at most `weights_norm`."""
        assert self.about.constants is not None
        return self.about.constants(self.l2, self.n_classes, self.row_bound, weights_norm)

    def curvature(self, weights: Tensor, rows: RowSet) -> Curvature:
        """The Hessian of `L` over these rows."""
        return Curvature(self, weights, rows)

    def spread(self, weights: Tensor, update: Tensor, rows: RowSet) -> Spread:
        """How `phi_U` spreads over these rows."""
        return Spread(self, weights, update, rows)

    def working(self, rows: Rows, dtype: torch.dtype) -> Rows:
        """The rows in the dtype that linear systems are solved in."""
        return Rows(rows.features.to(dtype), rows.labels)

    def accurate(self, dtype: torch.dtype) -> float:
        """Relative residual that linear systems are solved to where they are solved once."""
        return 1e-10 if dtype == torch.float64 else 1e-5

    def dense_pays(self, rows: RowSet) -> bool:
        """Whether forming and factorising the Hessian takes fewer multiplications than the iterations, and fits."""
        parameters, n_rows = self.n_parameters, len(rows)
        if parameters > DENSE_PARAMETERS or not rows.affords(DENSE_COPIES * 8 * parameters**2):
            return False
        forming = n_rows * self.n_features * parameters * (self.n_classes + 1) / 2
        conjugate = EXPECTED_CONJUGATE * 2 * n_rows * parameters
        return (forming + parameters**3 / 3) / DENSE_ADVANTAGE < conjugate

    def rounding(self, weights: Tensor, rows: Sized) -> float:
        """Upper bound on the float64 rounding error of a mean gradient over these rows, in norm.

        Any order of summing k terms is off by at most (k+1) u times the mean of their norms; the outputs z are off by
        at most (d+1) u ||W|| B in each coordinate, and link is 1-Lipschitz. Weights of mean 1 leave the mean of the
        norms below the same bound; their own roundings are among the 64.
        """
        norm = float(weights.norm()) * self.row_bound
        of_sum = (len(rows) + 64) * self.residual_sup(weights)
        of_link = math.sqrt(self.n_classes) * (self.n_features + 64) * (1.0 + norm)
        return UNIT_ROUNDOFF * self.row_bound * (of_sum + of_link) + 4 * UNIT_ROUNDOFF * self.l2 * float(weights.norm())


# The losses --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Softmax(LinearHead):
    """K >= 2 classes, one weight row a class: `ell(z, y) = logsumexp(z) - z_y`, `p = softmax(z)`.

    >>> import torch
    >>> from expunge.heads.rows import Rows
    >>> head = Softmax(l2=1.0, n_classes=2, n_features=1, row_bound=1.0)
    >>> rows = Rows(torch.ones(4, 1, dtype=torch.float64), torch.tensor([0, 0, 0, 0]))
    >>> head.gradient(torch.zeros(2, 1, dtype=torch.float64), rows).flatten().tolist()
    [-0.5, 0.5]
    """

    about: ClassVar[Loss] = SOFTMAX
    steepest: ClassVar[float] = 0.5
    shift_invariant: ClassVar[bool] = True

    @property
    def farthest(self) -> float:
        return math.sqrt(2.0)

    def predictions(self, outputs: Tensor) -> Tensor:
        return torch.softmax(outputs, dim=1)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return torch.logsumexp(outputs, dim=1) - outputs.gather(1, labels[:, None]).squeeze(1)

    def slopes(self, predictions: Tensor) -> Tensor:
        return predictions


@dataclass(frozen=True)
class OneVsRest(LinearHead):
    """K logistic models in one: `ell(z, y) = sum_k logistic(z_k, y = k)`, `p = sigmoid(z)`."""

    about: ClassVar[Loss] = ONE_VS_REST
    steepest: ClassVar[float] = 0.25

    @property
    def farthest(self) -> float:
        return math.sqrt(self.n_classes)

    def predictions(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        signs = 2.0 * self.targets(labels, outputs.dtype) - 1.0
        return -torch.nn.functional.logsigmoid(signs * outputs).sum(dim=1)

    def slopes(self, predictions: Tensor) -> Tensor:
        return predictions * (1.0 - predictions)


@dataclass(frozen=True)
class Logistic(OneVsRest):
    """Two classes and one weight vector, for the second: K is 1."""

    about: ClassVar[Loss] = LOGISTIC

    def targets(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return labels.to(dtype)[:, None]


@dataclass(frozen=True)
class Ridge(LinearHead):
    """Least squares on targets -1 and +1: `ell(z, y) = ||z - t(y)||^2 / 2`, `p = z`; one Newton step is exact."""

    about: ClassVar[Loss] = RIDGE
    steepest: ClassVar[float] = 1.0
    constant_curvature: ClassVar[bool] = True

    @property
    def farthest(self) -> float:
        return math.inf

    def targets(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return super().targets(labels, dtype) * 2 - 1

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return 0.5 * (outputs - self.targets(labels, outputs.dtype)).square().sum(dim=1)

    def slopes(self, predictions: Tensor) -> Tensor:
        return torch.ones_like(predictions)

    def residual_sup(self, weights: Tensor) -> float:
        return float(torch.linalg.matrix_norm(weights, 2)) * self.row_bound + math.sqrt(self.n_classes)

    def moment_roundoffs(self, n_rows: int) -> int:
        """Unit roundoffs of the mean square that the mean of `x x'` over so many rows can lose."""
        return n_rows + 64
