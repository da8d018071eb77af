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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from expunge.bounds.calibration import power_of_two
from expunge.deposit.matrices import UNIT_ROUNDOFF, Blocks, Gram, factored, inverse_of
from expunge.errors import OptionError
from expunge.heads import Block, LinearHead, Logistic, OneVsRest, Ridge, RowSet, Softmax
from expunge.heads.linear import product_means
from expunge.heads.rows import in_memory
from expunge.record import TrainingRecord

NU = (0.0, 0.1)  # multiples of the mean eigenvalue that gauges are widened by beyond their noise: which serves differs
GAUGE_MU = 1.0  # deviations of its noise that a row with all its entries zero instead moves a gauge by, at most
KAPPA_SLACK = 1.0 + 1e-6  # for rows whose entries are rounded otherwise when they leave
CURVATURE_SIZE = math.sqrt(0.5)  # Frobenius norm of C(p) at most, for softmax; less for a sigmoid
COARSE = 2.0**-44  # of what is left of a feature: sums from which rows left keep no digits below it
LEAST_LENGTH = 2.0**-13  # of the longest of all features: digits of a feature are not kept as if it were shorter
MOST_NUMBERS = 2**23  # third derivatives that are summed over every row
AT_ONCE = 2**20  # products of two features that are made at one time: they stay in cache
ERRORS = ("gradient_error", "curvature_error", "weighted_errors", "third_error")  # of sums
# For a loss: by how much c enters at most (in the root of the sum of squares over its classes), and c's own derivative
SIGMOID_SIZES = (1.0 / (6.0 * math.sqrt(3.0)), 0.125)
SOFTMAX_SIZES = (2.0 * math.sqrt(2.0), 7.0)


@dataclass(frozen=True, repr=False)
class Gauge:
    """`Q = factor factor'`, d x d, and a power of two, `kappa^2`, that no source row's `x' Q^-1 x` is above: frozen."""

    factor: Tensor
    kappa: float

    @cached_property
    def inverse(self) -> Tensor:
        """Of the factor."""
        return inverse_of(self.factor)

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

    def on(self, device: torch.device) -> Sums:
        return replace(
            self,
            gradient=self.gradient.to(device),
            curvature=self.curvature.on(device),
            weighted=tuple(each.on(device) for each in self.weighted),
            third=None if self.third is None else self.third.to(device),
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
            # own - other = 1, so that this is T + other (T - T_U): the largest of all
            i, j, k = (lengths[part.to(lengths.device)] for part in threes(len(lengths)))
            third = _on_grid(torch.lerp(self.third, gone.third, -other), i * j * k)
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
            return less(error, theirs, float(one.values.norm()) + float(other.values.norm()), coarse_error(new))

        classes, width = made.gradient.shape
        size, third = float(lengths_of(made.curvature, width).norm()), 0.0
        if self.third is not None and gone.third is not None and made.third is not None:
            # no three classes are there more than six times
            rounded = 0.5 * COARSE * math.sqrt(6 * len(made.third)) * size**3
            third = less(self.third_error, gone.third_error, whole_size(self.third) + whole_size(gone.third), rounded)
        gradients = float(self.gradient.norm() + gone.gradient.norm())
        weighted = (self.weighted_errors, gone.weighted_errors, self.weighted, gone.weighted, made.weighted)
        return {
            "gradient_error": less(
                self.gradient_error, gone.gradient_error, gradients, 0.5 * COARSE * math.sqrt(classes) * size
            ),
            "curvature_error": of_matrix(
                self.curvature_error, gone.curvature_error, self.curvature, gone.curvature, made.curvature
            ),
            "weighted_errors": tuple(of_matrix(*each) for each in zip(*weighted, strict=True)),
            "third_error": third,
        }


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
    """By how much that changes a matrix at most, in norm; of one that it was done to, since when a length may be half
    of what it was."""
    return 2.0 * COARSE * float(_lengths(matrix).square().sum(dim=1).max())


def lengths_of(matrix: Blocks, width: int) -> Tensor:
    """For each feature a power of two, of the size of what is left of it: the root of the curvature's own."""
    return _lengths(matrix).reshape(-1, width).amax(dim=0)


def _lengths(matrix: Blocks) -> Tensor:
    """Row by row of each block; of features that hardly any row has something in not below what rounding leaves there
    of somebody who had."""
    least = max(float(matrix.diagonal.max()) * LEAST_LENGTH**2, 2.0**-1000)
    return torch.exp2(torch.ceil(torch.log2(matrix.diagonal.clamp(min=least)) / 2.0))


def _on_grid(values: Tensor, sizes: Tensor) -> Tensor:
    """Multiples of `COARSE` times these sizes, in place: they are powers of two, so that nothing else is rounded."""
    return values.div_(sizes).div_(COARSE).round_().mul_(COARSE).mul_(sizes)


def _rounded_up(error: float) -> float:
    """To a power of two: to the last digit it would tell the mean square of the source's rows, and so of who left."""
    return power_of_two(error)


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
    plain, largest = replace(head, l2=0.0), rows.largest_weight
    squares = _mean_power(rows, 2) * largest
    curvature_error = _curvature_error(plain, weights, rows, squares)
    return Sums(
        len(rows),
        plain.gradient(weights, rows),
        mean_curvature(plain, weights, rows),
        tuple(mean_curvature(plain, weights, rows, gauge) for gauge in gauges),
        _rounded_up(plain.rounding(weights, rows) * max(1.0, largest)),
        _rounded_up(curvature_error),
        tuple(
            _rounded_up((curvature_error + 3.0 * gauge.lost * CURVATURE_SIZE * squares) * gauge.kappa**2)
            for gauge in gauges
        ),
        third_of(plain, weights, rows) if third else None,
        _rounded_up(third_error(plain, weights, rows)) if third else 0.0,
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
    weights = torch.tensor(record.class_weights, dtype=torch.float64, device=held.device)
    return replace(held, weights=weights[held.labels])


def require_equal(record: TrainingRecord) -> None:
    """Refuse weights by class where a surrogate is given with a deposit: its rows would need the same weights."""
    if record.class_weights is not None:
        raise OptionError(
            "a surrogate with the deposit of a model that has class weights",
            "surrogate rows are taken to count alike",
            "Leave surrogate and distance out: the deposit alone is enough.",
        )


def _mean_power(rows: RowSet, power: int) -> float:
    """Mean of `||x||^power`."""
    total = torch.zeros((), dtype=torch.float64, device=rows.device)
    for block in rows.blocks():
        total += block.features.double().norm(dim=1).pow(power).sum()
    return float(rows.total(total)) / len(rows)


def is_joint(head: LinearHead) -> bool:
    """Whether the loss couples the classes."""
    return isinstance(head, Softmax)


def _weighted(rows: RowSet, gauge: Gauge | None) -> Iterator[Block]:
    """Blocks in float64, each row weighted by `x' Q^-1 x` too where there is a gauge."""
    for block in rows.blocks():
        features, weights = block.features.double(), block.weights
        if gauge is not None:
            squares = gauge.squares(features)
            weights = squares if weights is None else squares * weights
        yield replace(block, features=features, weights=weights)


def mean_curvature(head: LinearHead, weights: Tensor, rows: RowSet, gauge: Gauge | None = None) -> Blocks:
    """Mean of `h(x)`, or of `x' Q^-1 x h(x)`."""
    if is_joint(head):
        blocks = ((each, head.predictions(each.features @ weights.T).T) for each in _weighted(rows, gauge))
        total = product_means(rows, blocks, head.curvature_entries, head.n_classes)[None]
        return Blocks((total + total.mT) / 2, joint=True)
    quadratic, width = isinstance(head, Ridge), weights.shape[1]
    n_blocks = 1 if quadratic else len(weights)
    total = torch.zeros((n_blocks, width, width), dtype=torch.float64, device=weights.device)
    for block in _weighted(rows, gauge):
        features = block.features
        outputs = features @ weights.T
        # `p (1 - p)` of a sigmoid, to full relative accuracy
        slopes = features.new_ones((len(features), 1)) if quadratic else outputs.sigmoid() * (-outputs).sigmoid()
        shares = block.weighted(slopes, 0)
        for index in range(n_blocks):
            total[index].addmm_((features * shares[:, index : index + 1]).T, features)
    total = rows.total(total) / len(rows)
    return Blocks((total + total.mT) / 2, joint=False)


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
    gauges = []
    for widened in NU[:count]:
        factor = factored(Blocks(noisy[None], joint=False).plus(least + widened * square / width))
        if factor is None:  # noise longer than nearly all is
            continue
        gauge = Gauge(factor[0], 0.0)
        squares = (gauge.squares(block.features.double()) for block in rows.blocks() if len(block))
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


def third_of(head: LinearHead, weights: Tensor, rows: RowSet) -> Tensor:
    """The mean over these rows: a line for every three classes or weight vector, a column for every three features."""
    vectors, width = weights.shape
    alike = isinstance(head, Softmax) and vectors == 2  # the four numbers of a row are one, and its opposite
    n_summed = 1 if alike else n_lines(head, vectors)
    total = torch.zeros((n_summed, folded_size(width)), dtype=torch.float64, device=weights.device)
    one, other = torch.tril_indices(width, width, device=weights.device)
    some = max(1, AT_ONCE // len(one))
    for block in rows.blocks():
        features = block.features.double()
        outputs = features @ weights.T
        shares = block.weighted(_cumulants(outputs) if isinstance(head, Softmax) else _second_slopes(outputs), 0)
        shares = shares[:, :n_summed]
        for start in range(0, len(features), some):
            part, own = features[start : start + some], shares[start : start + some]
            pairs, begin = part[:, one] * part[:, other], 0
            for index in range(width):  # those of three whose first is this one go with all pairs up to it
                size = (index + 1) * (index + 2) // 2
                total[:, begin : begin + size].addmm_((own * part[:, index, None]).T, pairs[:, :size])
                begin += size
    mean = rows.total(total).div_(len(rows))
    return torch.cat([mean, -mean, mean, -mean]) if alike else mean


def _second_slopes(outputs: Tensor) -> Tensor:
    """`s'' = s (1 - s)(1 - 2 s)`, each factor to full relative accuracy."""
    return torch.sigmoid(outputs) * torch.sigmoid(-outputs) * -torch.tanh(outputs / 2.0)


def _cumulants(outputs: Tensor) -> Tensor:
    """`E[(e_j - p_j)(e_k - p_k)(e_l - p_l)]` for one class drawn by p, j >= k >= l."""
    chances = torch.softmax(outputs, dim=1)
    others = chances.sum(dim=1, keepdim=True) - chances
    first, second, third = (part.to(outputs.device) for part in threes(outputs.shape[1]))
    p, q, r = chances[:, first], chances[:, second], chances[:, third]
    upper, lower = first == second, second == third
    value = torch.where(lower, q * (2.0 * q - 1.0), 2.0 * q * r)  # the last two are one class, or none are
    value = torch.where(upper, r * (2.0 * p - 1.0), value)  # the first two are
    return p * torch.where(upper & lower, others[:, first] * (1.0 - 2.0 * p), value)


def third_error(head: LinearHead, weights: Tensor, rows: RowSet) -> float:
    """Upper bound on what float64 makes of it, as a form: |T[a, u, u]| for a and u of length 1.

    As for the Hessian: a sum of k terms in any order is off by at most (k + 1) units times the mean of their sizes,
    outputs by `(d + 1) u ||W|| ||x||`, and c by at most so much times that.
    """
    size, change = sizes_of(head)
    of_sum = (len(rows) + 64) * size
    of_link = 8.0 * change * math.sqrt(len(weights)) * (weights.shape[1] + 64)
    of_link *= 1.0 + float(weights.norm()) * head.row_bound
    return UNIT_ROUNDOFF * _mean_power(rows, 3) * rows.largest_weight * (of_sum + of_link)


def copy_error(head: LinearHead, weights: Tensor) -> float:
    """By how much a row's third derivatives change for each unit that a copy of it is away."""
    (size, change), bound = sizes_of(head), head.row_bound
    return change * float(torch.linalg.matrix_norm(weights, 2)) * bound**3 + 3.0 * size * bound**2


def along(third: Tensor, update: Tensor, *, joint: bool) -> Blocks:
    """`T[u]`, the matrix by which the Hessian changes along u but for what is of second order in u: of every weight
    vector by itself, or of all classes together."""
    classes, width = update.shape
    places, first, second = (part.to(update.device) for part in _places(width))
    lines = [[k] * 3 for k in range(classes)]
    if joint:
        lines = torch.stack(threes(classes), dim=1).tolist()
    folded = update.new_zeros((classes, classes if joint else 1, len(first)))
    # a line as a feature by a pair of features; the next takes the place of the last
    form, where = third.new_empty(places.shape), places.reshape(-1)
    for numbers, line in zip(third, lines, strict=True):
        torch.index_select(numbers, 0, where, out=form.view(-1))
        vectors = sorted(set(line))
        for vector, made in zip(vectors, update[vectors] @ form, strict=True):
            one, other = line[: line.index(vector)] + line[line.index(vector) + 1 :]
            for pair in {(one, other), (other, one)} if joint else {(one, 0)}:
                folded[pair] += made
    values = update.new_empty((*folded.shape[:2], width, width))
    values[..., first, second] = values[..., second, first] = folded
    if not joint:
        return Blocks(values[:, 0], joint=False)
    whole = values.transpose(1, 2).reshape(1, classes * width, classes * width)
    return Blocks(whole, joint=True)


def pull(third: Tensor, update: Tensor, *, joint: bool) -> Tensor:
    """`T[u, u]/2`, K x d."""
    return 0.5 * along(third, update, joint=joint).product(update)


def pull_error(third: Tensor, update: Tensor, error: float) -> float:
    """Upper bound on the error of a pull, in length: of the third derivatives, and of the product."""
    terms = update.numel() ** 2 + 32
    return 0.5 * (error + terms * UNIT_ROUNDOFF * whole_size(third)) * float(update.norm()) ** 2


def whole_size(third: Tensor) -> float:
    """At least the root of the sum of squares of all entries: none is there more than six times six."""
    return 6.0 * float(third.norm())


def folded_size(width: int) -> int:
    """How many of three are kept."""
    return width * (width + 1) * (width + 2) // 6


@lru_cache(maxsize=8)
def threes(width: int) -> tuple[Tensor, Tensor, Tensor]:
    """`i >= j >= k`, in the order of i, j and k."""
    first, second = torch.tril_indices(width, width)
    third = torch.cat([torch.arange(int(j) + 1) for j in second])
    return first.repeat_interleave(second + 1), second.repeat_interleave(second + 1), third


@lru_cache(maxsize=8)
def _places(width: int) -> tuple[Tensor, Tensor, Tensor]:
    """For i and the pair `j >= k`, d x d(d + 1)/2: where the three are among those kept; and the pairs."""
    first, second = torch.tril_indices(width, width)
    third = torch.arange(width)[:, None].expand(width, len(first))
    low, middle, high = torch.stack([third, first.expand_as(third), second.expand_as(third)]).sort(dim=0).values
    return high * (high + 1) * (high + 2) // 6 + middle * (middle + 1) // 2 + low, first, second
