"""Symmetric matrices of weights by weights, in blocks, and bounds on their eigenvalues that are certain.

Softmax couples all weights: one block of K d x K d. One-vs-rest has K blocks of d x d; a ridge head one, which serves
every class. Weights are K x d matrices; a block sees its part of them as a vector.

An eigenvalue is found by Lanczos' iteration and then PROVED: a Cholesky factorisation in float64 that runs to its end
shows that a matrix is positive definite but for `(q + 4) u trace` (Rump 2006), which is taken off beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from expunge.bounds.calibration import power_of_four
from expunge.bounds.ellipsoid import Ellipsoid
from expunge.errors import DataError, ModelError
from expunge.heads import LinearHead, Ridge, RowSet, Softmax
from expunge.heads.tangent import JacobianRows
from expunge.runtime.arrays import (
    Array,
    Device,
    add_product,
    add_scaled,
    add_sparse_product,
    add_to_diagonal,
    cast,
    cholesky,
    copy,
    double,
    is_double,
    is_sparse,
    namespace,
    namespace_of,
    norm,
    put,
    solve_triangular,
    to_device,
    to_numpy,
    with_values,
    zeros,
)
from expunge.solve.linear import lanczos

UNIT_ROUNDOFF = 2.0**-53
STEPS, NEAR_STEPS = 12, 16  # of Lanczos' iteration, of Davidson's
CLOSE = 1.0 + 2.0**-7  # how far above what was found a bound is tried first
TRIES = 60
SMALL = 256  # rows of a block up to which all eigenvalues are found at once
PANELS = 16  # that a product of triangular factors is made in


@dataclass(frozen=True, repr=False)
class Blocks:
    """`values` is b x q x q, symmetric; `joint` where one block holds all K d weights."""

    values: Array
    joint: bool

    @property
    def size(self) -> int:
        """Rows of a block."""
        return int(self.values.shape[-1])

    def columns(self, weights: Array) -> Array:
        """K x d weights as columns that the blocks act on, b x q x k: one block that serves all has one a class."""
        if self.joint:
            return weights.reshape(1, -1, 1)
        return weights.T[None] if len(self.values) == 1 else weights[..., None]

    def from_columns(self, columns: Array, like: Array) -> Array:
        """Columns as weights again, K x d: what `columns` does, backwards."""
        return (columns if self.joint or len(self.values) > 1 else columns.mT).reshape(like.shape)

    def product(self, weights: Array) -> Array:
        """The matrix times the weights, K x d."""
        return self.from_columns(self.values @ self.columns(weights), weights)

    def form(self, weights: Array) -> float:
        """`w' A w`."""
        return float((weights * self.product(weights)).sum())

    def plus(self, other: Array | float) -> Blocks:
        """With a number or a vector of numbers added to the diagonal of every block."""
        return Blocks(add_to_diagonal(copy(self.values), other), self.joint)

    def combined(self, own: float, other: Blocks, factor: float) -> Blocks:
        """`own A + factor B`."""
        return Blocks(add_scaled(self.values * own, factor, other.values), self.joint)

    def times(self, factor: float) -> Blocks:
        return Blocks(self.values * factor, self.joint)

    def on(self, device: Device) -> Blocks:
        return Blocks(to_device(self.values, device), self.joint)

    @property
    def diagonal(self) -> Array:
        """The diagonal of each block, b x q, to be read."""
        return namespace(self.values).linalg.diagonal(self.values)

    @property
    def largest_entry(self) -> float:
        return float(abs(self.values).max())

    @property
    def frobenius(self) -> float:
        """The Frobenius norm of the largest block."""
        sizes = [norm(each) for each in self.values]
        return sizes[0] if len(sizes) == 1 else float(np.max(sizes))

    @property
    def trace(self) -> float:
        """Sum of the sizes on the diagonal, of the largest block."""
        return float(abs(self.diagonal).sum(axis=-1).max())

    def row_sum(self) -> float:
        """Upper bound on the largest eigenvalue's size: the largest sum of sizes along a row."""
        panels = (self.values[:, start : start + SMALL] for start in range(0, self.size, SMALL))
        return max(float(abs(panel).sum(axis=-1).max()) for panel in panels) * (1.0 + 2.0**-40)


def factored(matrix: Blocks) -> Array | None:
    """Cholesky factors, b x q x q lower triangular; None where there is none."""
    return cholesky(matrix.values)


def cholesky_error(matrix: Blocks) -> float:
    """By how much the product of Cholesky factors in float64 can differ from the matrix, in spectral norm."""
    return 2.0 * (matrix.size + 4) * UNIT_ROUNDOFF * matrix.trace


def is_definite(matrix: Blocks, lost: float = 0.0, *, in_place: bool = False) -> bool:
    """Whether every block is positive definite, for certain; `lost` is what forming it may have changed of it.

    `in_place` uses up a matrix that nobody needs afterwards.
    """
    if not in_place:
        matrix = matrix.plus(0.0)
    add_to_diagonal(matrix.values, -(cholesky_error(matrix) + lost))
    return cholesky(matrix.values, in_place=True) is not None


def square_of(factor: Array) -> Array:
    """`L L'` of lower triangular factors, symmetric to the last bit, in a sixth of a full product's arithmetic."""
    size, xp = factor.shape[-1], namespace(factor)
    step = max(SMALL, -(-size // PANELS))
    product = xp.empty(factor.shape, dtype=factor.dtype, device=factor.device)
    for start in range(0, size, step):
        stop = min(start + step, size)
        panel = factor[:, start:, :stop] @ factor[:, start:stop, :stop].mT
        product[:, start:, start:stop] = panel
        product[:, start:stop, start:] = panel.mT
    for start in range(0, size, step):  # a panel's own square is a product of two that may round otherwise
        own = product[:, start : start + step, start : start + step]
        own[...] = xp.tril(own) + xp.tril(own, k=-1).mT
    return product


def inverse_of(factor: Array) -> Array:
    """The inverse of a lower triangular matrix."""
    return solve_triangular(factor, namespace(factor).eye(len(factor), dtype=factor.dtype, device=factor.device))


@dataclass(frozen=True)
class Norm:
    """A positive definite matrix M with its factor L, from `M = L L'`."""

    matrix: Blocks
    factor: Array

    @classmethod
    def of(cls, matrix: Blocks) -> Norm | None:
        """None where the matrix is not positive definite. A factorisation that runs to its end proves nothing near
        zero: whether it is definite for certain, `least` says."""
        factor = factored(matrix)
        return None if factor is None else cls(matrix, factor)

    @classmethod
    def rough(cls, matrix: Blocks) -> Norm | None:
        """With factors in float32, in half the time: to be refined, and to guess by; float64's where there are none."""
        factor = cholesky(cast(matrix.values, "float32"))
        return cls.of(matrix) if factor is None else cls(matrix, factor)

    def half(self, columns: Array) -> Array:
        """`L^-1` of columns."""
        return double(solve_triangular(self.factor, cast(columns, self.factor.dtype)))

    def other_half(self, columns: Array) -> Array:
        """`L'^-1` of columns."""
        return double(solve_triangular(self.factor.mT, cast(columns, self.factor.dtype), upper=True))

    def solved(self, gradient: Array) -> Array:
        """`M^-1 g`; two triangular solves are many times faster on a CPU than torch's `cholesky_solve`."""
        return self.matrix.from_columns(self.other_half(self.half(self.matrix.columns(gradient))), gradient)

    def dual(self, gradient: Array) -> float:
        """Certain upper bound on `||g||_{M^-1}`; infinite where the factors say nothing.

        The factors' product L L' is at most `d` from M, hence at most `(1 + d/least) M`, and at least `least - d`; the
        solve is exact for an L whose entries are off by `(q+1) u` of their size.
        """
        error = cholesky_error(self.matrix)
        if not self.least > 2.0 * error or not is_double(self.factor.dtype):
            return math.inf
        of_solve = 2.0 * (self.matrix.size + 4) * UNIT_ROUNDOFF * math.sqrt(2.0 * self.matrix.trace / self.least)
        size = norm(self.half(self.matrix.columns(gradient)))
        return size * math.sqrt(1.0 + error / self.least) * (1.0 + 2.0 * of_solve) * (1.0 + 2.0**-30)

    def about(self, other: Blocks, slack: float = 0.0) -> float:
        """About `lambda_max(M^-1 (A + slack I))`, no more than it but for rounding."""

        def image(vectors: Array) -> Array:
            inner = self.other_half(vectors)
            return self.half(add_scaled(other.values @ inner, slack, inner))

        return top_of(image, self.factor)

    def most(self, other: Blocks, slack: float = 0.0, below: float = math.inf) -> float:
        """Certain upper bound on `lambda_max(M^-1 (A + slack I))`; infinite where none was found, or none `below`."""
        own, others = self.matrix.frobenius, other.frobenius + slack * math.sqrt(other.size)

        def holds(bound: float) -> bool:
            # what is left may be far smaller than its parts
            lost = slack + 4.0 * UNIT_ROUNDOFF * (bound * own + others)
            return is_definite(self.matrix.combined(bound, other, -1.0), lost, in_place=True)

        return _raised(max(self.about(other, slack), 1e-300) * CLOSE, holds, below) * (1.0 + 2.0**-40)

    @cached_property
    def least(self) -> float:
        """Certain lower bound on `lambda_min(M)`; 0 where none was found."""
        top = top_of(lambda vectors: self.other_half(self.half(vectors)), self.factor)
        # a bound so small is lost in what a factorisation may hide
        hopeless = 64.0 / max(cholesky_error(self.matrix), 1e-300)
        start = max(top, 1e-300) * CLOSE
        return 1.0 / _raised(start, lambda t: is_definite(self.matrix.plus(-1.0 / t), in_place=True), hopeless)


@dataclass(frozen=True, repr=False)
class Shared:
    """One d x d matrix A for every class. Where classes compete (`joint`), without what is common to them:
    `(I - 11'/K) (x) A`, which is never written out."""

    values: Array
    classes: int
    joint: bool

    @property
    def frobenius(self) -> float:
        return norm(self.values) * (math.sqrt(self.classes - 1.0) if self.joint else 1.0)

    def product(self, columns: Array) -> Array:
        """The matrix times columns, b x q x k."""
        if not self.joint:
            return self.values @ columns
        parts = columns.reshape(self.classes, -1, columns.shape[-1])
        return (self.values @ (parts - parts.mean(axis=0))).reshape(columns.shape)

    def taken_from(self, matrix: Blocks) -> Blocks:
        """A matrix less this one, in place."""
        values, width = matrix.values, len(self.values)
        if not self.joint:
            values -= self.values
            return matrix
        parts = values.reshape(self.classes, width, self.classes, width)
        for one in range(self.classes):
            for other in range(self.classes):
                parts[one, :, other] -= ((1.0 if one == other else 0.0) - 1.0 / self.classes) * self.values
        return matrix


def most_shared(matrix: Blocks, other: Shared, slack: float, near: Norm) -> float:
    """Certain upper bound on `lambda_max(M^-1 (A + slack I))` of a matrix that is not factored, by the factors of one
    near it, which only the first guess depends on; infinite where none was found."""
    own, others = matrix.frobenius, other.frobenius + slack * math.sqrt(matrix.size)

    def holds(bound: float) -> bool:
        # an entry of A is off by three roundings, one of M by one, their difference by one of both
        lost = slack + 6.0 * UNIT_ROUNDOFF * (bound * own + others)
        return is_definite(other.taken_from(matrix.times(bound)), lost, in_place=True)

    return _raised(max(_top_near(matrix, other, near), 1e-300) * CLOSE, holds) * (1.0 + 2.0**-40)


def _top_near(matrix: Blocks, other: Shared, near: Norm) -> float:
    """About `lambda_max(M^-1 A)`: Davidson's iteration, in which what the best direction so far leaves is solved by
    the factors at hand."""
    from scipy.linalg import eigh

    blocks, size, xp = len(matrix.values), matrix.size, namespace(matrix.values)
    vector = put(np.random.default_rng(0).standard_normal((blocks, size, 1)), matrix.values)
    basis = by_other = by_own = zeros(matrix.values, (blocks, size, 0))
    top = 0.0
    for _ in range(min(NEAR_STEPS, size)):
        for _ in range(2):
            vector = vector - basis @ (basis.mT @ vector)
        lengths = xp.linalg.vector_norm(vector, axis=1)[:, None]
        if not bool((lengths > 0.0).all()):
            break
        vector = vector / lengths
        basis = xp.concat([basis, vector], axis=2)
        by_other = xp.concat([by_other, other.product(vector)], axis=2)
        by_own = xp.concat([by_own, matrix.values @ vector], axis=2)
        pencils = (to_numpy(basis.mT @ each) for each in (by_other, by_own))
        try:
            found = [eigh(one + one.T, own + own.T) for one, own in zip(*pencils, strict=True)]
        except np.linalg.LinAlgError:  # nearly singular: what was found before has to do
            break
        values = np.array([each[-1] for each, _ in found])
        best = put(np.stack([each[:, -1:] for _, each in found]), vector)
        top = float(values.max())
        left = by_other @ best - put(values[:, None, None], vector) * (by_own @ best)
        vector = near.other_half(near.half(left))
    return top


def _raised(bound: float, holds: Callable[[float], bool], below: float = math.inf) -> float:
    """The bound, raised until it holds; infinite where it does not in so many tries, or is not `below`."""
    for attempt in range(TRIES):
        if bound >= below:
            break
        if holds(bound):
            return bound
        bound *= 1.0 + 2.0 ** min(attempt - 6, 1)
    return math.inf


def ellipsoid_by(factor: Array, n_parameters: int) -> Ellipsoid | None:
    """The shape `M_0 = L L'` of noise, which these factors define; None where it is not positive definite for certain.

    The part drawn exactly, which is published, hangs on a power of four above the largest eigenvalue.
    """
    matrix = Blocks(square_of(factor), joint=factor.shape[-1] == n_parameters)
    error = cholesky_error(matrix)  # of the product, which is the matrix of the noise exactly
    least = Norm(matrix.plus(-error), factor).least
    if least <= 0.0:
        return None
    squares = math.fsum(norm(inverse_of(each)) ** 2 for each in factor)
    trace = n_parameters // (factor.shape[-1] * len(factor)) * squares * (1.0 + 2.0**-30)
    top = power_of_four(largest(matrix.plus(error)) * (1.0 + 2.0**-20))
    return Ellipsoid(n_parameters, top, least / (1.0 + 2.0**-20), trace, factors=to_numpy(factor))


def largest(matrix: Blocks) -> float:
    """Certain upper bound on the largest eigenvalue."""
    start = max(top_of(lambda vectors: matrix.values @ vectors, matrix.values), 1e-300) * CLOSE
    bound = _raised(start, lambda bound: is_definite(matrix.times(-1.0).plus(bound), in_place=True))
    return bound * (1.0 + 2.0**-40) if math.isfinite(bound) else matrix.row_sum()


def top_of(image: Callable[[Array], Array], like: Array) -> float:
    """About the largest eigenvalue over all blocks: of small ones by all of them, else by Lanczos' iteration."""
    blocks, size, xp = like.shape[0], like.shape[-1], namespace(like)
    if size <= SMALL:
        whole = image(xp.broadcast_to(xp.eye(size, dtype=like.dtype, device=like.device), (blocks, size, size)))
        return float(xp.linalg.eigvalsh((whole + whole.mT) / 2).max())
    start = put(np.random.default_rng(0).standard_normal((blocks, size, 1)), like)
    return lanczos(image, start, STEPS if blocks == 1 else 2 * STEPS)[0]


# The shape of a deposit's noise, from the retained rows alone: their second moments, exactly, and a power of them
# Noise is seen, and with many models or a rare row its covariance is too. So the covariance must be one that somebody
# who has only the retained rows would have drawn from. The Hessian at the anchor is not: the anchor knows who left. The
# second moments `G_R = E_R[x x']` are, if taking rows out of them leaves no trace; so they are sums of whole numbers.
# Every feature is rounded to a fixed grid and split into two parts of 15 bits, whose products add up in float64 without
# any rounding, in whatever order. Then `M_0 = c G_R^t + reg`, the same for every class.

GRID = 2.0**-9  # features are rounded to it, for the shape of the noise alone
OFFSET = 0.0656  # of a step: decimals of four digits, 255ths and 256ths are 1.5e-6 from where rounding turns
HALF = 2.0**15  # two parts of a feature: whole numbers of 15 bits each, sign included
EXACT_BELOW = 2.0**53  # sums of such products are exact in float64
POWER = 0.75  # t: predictions that are sure make the Hessian flatter than the second moments
FEW_FEATURES = 1_000  # up to which that power is taken: it needs all eigenvalues, at every deletion
NEARLY = 1e-9  # of a feature's square: what of it may be left beside others to be looked at as nothing


@dataclass(frozen=True)
class Gram:
    """Exact second moments of `count` rows: `parts` are sums of products of high and high, high and low, low and low
    parts, 3 x d x d; `support` counts the rows in which a feature is not zero, `off` those in which it was rounded."""

    count: int
    parts: Array
    support: Array
    off: Array

    def without(self, gone: Gram) -> Gram:
        """The second moments of the rows that are left, to the last digit."""
        return Gram(self.count - gone.count, self.parts - gone.parts, self.support - gone.support, self.off - gone.off)

    @property
    def mean(self) -> Array:
        """`G_R`, d x d: of features as they were rounded."""
        high, mixed, low = self.parts
        return (high * HALF**2 + mixed * HALF + low) * (GRID**2 / self.count)

    @property
    def is_whole(self) -> bool:
        """Whether these are whole numbers that float64 holds exactly, and counts."""
        xp = namespace(self.parts)
        counts = xp.stack([self.support, self.off])
        return (
            bool((self.parts == xp.round(self.parts)).all() and (counts == xp.round(counts)).all())
            and float(abs(self.parts).max()) < EXACT_BELOW
            and float(counts.min()) >= 0.0
        )

    @property
    def unseen(self) -> Array:
        """The features that are zero in every row, by number."""
        return namespace(self.support).nonzero(self.support == 0.0)[0]

    def on(self, device: Device) -> Gram:
        return Gram(self.count, *(to_device(each, device) for each in (self.parts, self.support, self.off)))


def gram_of(rows: RowSet) -> Gram:
    """The exact second moments of these rows; weights of classes do not enter them."""
    width, xp = rows.n_features, namespace_of(rows.dtype)
    parts = xp.zeros((3, width, width), dtype=xp.float64, device=rows.device)
    support, off = zeros(parts, (width,)), zeros(parts, (width,))
    for block in rows.blocks():
        features = double(block.features)
        if is_sparse(features):
            _add_sparse(features, parts, support, off)
            continue
        high, low = split(features)
        add_product(parts[0], high.T, high)
        mixed = high.T @ low
        parts[1] += mixed + mixed.T
        add_product(parts[2], low.T, low)
        support += (features != 0.0).sum(axis=0)
        off += ((high * HALF + low) * GRID != features).sum(axis=0)
    if isinstance(rows, JacobianRows):  # which a network may give with other last digits when they leave
        off = support
    made = Gram(len(rows), rows.total(parts), rows.total(support), rows.total(off))
    # every sum on the way, of whatever order, is at most the larger of two on the diagonal, or twice that
    if not 2.0 * float(xp.linalg.diagonal(made.parts)[[0, 2]].max()) < EXACT_BELOW:
        raise DataError(
            f"second moments of {len(rows):,} rows that float64 does not hold exactly",
            "rows must be able to leave them without a trace",
            "Scale the features to ordinary size, or keep a deposit of fewer rows (16 million are always few enough).",
        )
    return made


def _add_sparse(features: Array, parts: Array, support: Array, off: Array) -> None:
    """What sparse rows add to second moments: the same whole numbers, since what is not stored is zero on the grid."""
    values, places, width = features.data, features.indices, features.shape[1]
    high, low = split(values)
    upper, lower = with_values(features, high), with_values(features, low)
    for part, left, right in ((0, upper, upper), (1, upper, lower), (1, lower, upper), (2, lower, lower)):
        add_sparse_product(parts[part], left, right)
    support += np.bincount(places[values != 0.0], minlength=width)
    off += np.bincount(places[(high * HALF + low) * GRID != values], minlength=width)


def split(features: Array) -> tuple[Array, Array]:
    """Features on the grid as `high HALF + low`, whole numbers of at most 15 bits; what is longer is cut off.

    >>> high, low = split(np.array([0.002, -100.0, 1e9]))
    >>> (high * HALF + low).tolist()
    [1.0, -51200.0, 536854527.0]
    """
    whole = _whole(features)
    high = namespace(whole).floor((whole + HALF / 2) / HALF)
    return high, whole - high * HALF


def _whole(features: Array) -> Array:
    """Features rounded to the grid, counted in its steps."""
    xp, limit = namespace(features), HALF / 2 - 1
    made = features / GRID
    made += OFFSET
    xp.round(made, out=made)
    return xp.clip(made, min=-limit * HALF - limit, max=limit * HALF + limit, out=made)


def unsure(features: Array, away: Array) -> Array:
    """Rows of which a copy so far away, row by row, may have been rounded to another point of the grid."""
    farther = away[:, None] * (1.0 + 1e-9) + 1e-9 * GRID
    features = double(features)
    return (_whole(features - farther) != _whole(features + farther)).any(axis=1)


def gram_share(head: LinearHead) -> float:
    """c: by how much the second moments enter a Hessian where all classes are as likely."""
    if isinstance(head, Ridge):
        return 1.0
    return 1.0 / head.n_classes if isinstance(head, Softmax) else 0.25


def shape_of(head: LinearHead, gram: Gram, regulariser: Array) -> Array | None:
    """The factor of `M_0`, 1 x d x d lower triangular, one for all classes; None where it is not positive definite.

    `regulariser` is the diagonal of one class.
    """
    exponent = 1.0 if isinstance(head, Ridge) or len(gram.support) > FEW_FEATURES else POWER
    matrix = gram_share(head) * powered(gram.mean, exponent)
    return cholesky(add_to_diagonal(matrix, regulariser)[None])


def powered(moments: Array, exponent: float) -> Array:
    """`tau (G/tau)^t`, tau the mean eigenvalue: the same units whatever the power."""
    scale = float(moments.diagonal().mean())
    if exponent == 1.0 or scale == 0.0:
        return copy(moments)
    xp = namespace(moments)
    values, vectors = xp.linalg.eigh(moments / scale)
    made = (vectors * xp.clip(values, min=0.0) ** exponent) @ vectors.T
    return (made + made.T) * (scale / 2)


def centred_shape(factor: Array, classes: int) -> Array:
    """`M_0` as classes that compete see it, K d x K d: what is common to all of them is none of its business."""
    xp = namespace(factor)
    unit = xp.eye(classes, dtype=factor.dtype, device=factor.device) - 1.0 / classes
    return xp.kron(unit, factor[0] @ factor[0].T)


def unused(gram: Gram) -> Array:
    """Directions that no row has any of, k x d, in whole numbers: a constant less all categories of a column is one.

    Of features alone whose values all lie on the grid: their second moments are those of the rows themselves, so that
    `G v = 0`, in whole numbers, says that `x'v` is zero in every row. What is so but for rounding is left out.
    """
    from scipy.linalg import solve_triangular
    from scipy.linalg.lapack import dpstrf

    exact = to_numpy((gram.off == 0.0) & (gram.support > 0.0)).nonzero()[0]
    none = zeros(gram.off, (0, len(gram.off)))
    if not 1 < len(exact) <= FEW_FEATURES:
        return none
    among = np.ix_(exact, exact)
    moments = to_numpy(gram.mean)[among]
    sizes = np.sqrt(moments.diagonal())
    factor, order, rank, _ = dpstrf(moments / np.outer(sizes, sizes), tol=NEARLY, lower=1)
    basis, rest = order[:rank] - 1, order[rank:] - 1
    if not len(rest):
        return none
    shares = solve_triangular(factor[:rank, :rank], factor[rank:, :rank].T, lower=True, trans="T")
    vectors = np.zeros((len(rest), len(exact)))
    vectors[:, basis] = np.rint(shares * sizes[rest] / sizes[basis, None]).T
    vectors[np.arange(len(rest)), rest] = -1.0
    vectors = vectors[_in_no_row(np.stack([part[among] for part in to_numpy(gram.parts)]), vectors)]
    made = np.zeros((len(vectors), len(gram.off)))
    made[:, exact] = vectors
    return put(made, gram.off)


def _in_no_row(parts: NDArray[np.float64], vectors: NDArray[np.float64]) -> NDArray[np.bool_]:
    """For which vectors v of whole numbers `(high HALF^2 + mixed HALF + low) v` is zero, exactly."""
    small: NDArray[np.bool_] = (np.abs(parts) @ np.abs(vectors.T)).max(axis=(0, 1)) < EXACT_BELOW / 2
    vectors, half = np.where(small[:, None], vectors, 0.0), int(HALF)
    high, mixed, low = (parts @ vectors.T).astype(np.int64)
    mixed, zero = mixed + low // half, low % half == 0
    zero &= (mixed % half == 0) & (high + mixed // half == 0)
    return np.asarray(small & zero.all(axis=0))


def rested(weights: Array, gram: Gram, regulariser: Array) -> tuple[Array, float]:
    """Weights, K x d, with nothing in features and directions that no row has but what the regulariser puts there.

    No row's outputs change, and wherever the optimum of these rows is, it is so too: what else is there is of rows that
    went, or noise. Also by how much rounding leads away from that, in norm.
    """
    made, xp = copy(weights), namespace(weights)
    made[:, put(gram.unseen, weights)] = 0.0
    directions = put(unused(gram), weights)
    if not len(directions):
        return made, 0.0
    steep, lost = directions * regulariser, 0.0
    for _ in range(2):  # the second corrects the rounding of the first
        shares = xp.linalg.solve(steep @ directions.T, steep @ made.T).T
        made = made - shares @ directions
        lost += norm(abs(shares) @ abs(directions)) + norm(made)
    return made, 2.0 * (len(directions) + 2) * UNIT_ROUNDOFF * lost


def not_definite() -> ModelError:
    """Why there can be no deposit of some models."""
    return ModelError(
        "the second moments of the rows, with the regulariser, are not positive definite, as far as float64 can tell",
        "the noise takes its shape from them",
        "Train with a larger l2, or leave out features that are combinations of others.",
    )


def too_small() -> DataError:
    """Why there can be no noise for rows that are nothing where they are rounded for it."""
    return DataError(
        "every feature of every row is zero, or smaller than a thousandth",
        "noise takes its shape from features that are rounded to 1/512",
        "Scale the features to ordinary size; where all rows but such have left, delete the model and its deposit.",
    )
