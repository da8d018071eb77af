"""The shape of a deposit's noise: lengths by a matrix `M_0 = L L'` that is made of the retained rows alone.

Noise of scale s has covariance `s^2 M_0^-1 + smallest(s)^2 I`. The first part hides the region; it is drawn in
float64, `s L'^-1 z`. The second is a small part more in every direction, drawn exactly together with the rounding to
the grid, so that no float64 value of the first is ever published. It also hides by how much float64 was off: that is
added to the region (`drawing`). Whoever only checks has the numbers (`EllipsoidNumbers`), not the matrix, which is
private.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from expunge.errors import ModelError

Array = NDArray[np.float64]
EXACT_SHARE = 2.0**-6  # of the smallest variance, drawn exactly on top of the rest
NORMAL_ERROR = 2.0**-44  # by which a normal number made in float64 is off an ideal one, at most,
NORMAL_FAILURE = 2.0**-80  # but for this probability
LONGEST_NORMAL = 14.0  # no normal number made from 128 bits is longer
SOLVE_GOAL = 2.0**-50  # of the noise's length: what a solve may be off by, measured with twice the digits
REFINEMENTS = 10
ROUNDINGS = (REFINEMENTS + 6) * 2.0**-53  # each refinement's, the product's with the scale, the sum's with the weights
TWICE = 2.0**-102  # of the sizes that are added up, for each of them: what a sum with twice the digits loses, at most
MANY = 2048  # rows of a factor, from which on all processors work
TWO_FACTORS = 2.0**27 + 1.0  # splits a float64 into two halves whose products are exact


@dataclass(frozen=True)
class EllipsoidNumbers:
    """What of M_0 enters a certificate: bounds on its eigenvalues, and the trace of its inverse.

    `weights` is an upper bound on the length of the weights that noise is added to, where that is known.
    """

    n_parameters: int
    largest: float
    least: float
    inverse_trace: float
    weights: float = math.inf
    name: str = "ellipsoid"

    def grid_term(self, grid: float) -> float:
        """Nothing: sum and rounding are one exact draw, so the grid only coarsens what both sides publish."""
        return 0.0

    def length(self, scale: float) -> float:
        """Root of the mean square of the noise's plain length."""
        return math.sqrt(scale**2 * self.inverse_trace + self.n_parameters * self.smallest(scale) ** 2)

    def smallest(self, scale: float) -> float:
        """The standard deviation of the part that is drawn exactly."""
        return scale * math.sqrt(EXACT_SHARE / self.largest)

    def drawing(self, scale: float) -> float:
        """How much farther apart float64 can make both models, as a length of the region.

        A draw that is off by t is an ideal one whose exact part has another mean: a step of `t / smallest` in mu, one
        on either side, and steps in mu add up. So the region's radius, which is mu times the scale, grows by
        `2 t scale / smallest`.
        """
        of_normals = scale * math.sqrt(self.n_parameters / self.least) * (NORMAL_ERROR + LONGEST_NORMAL * ROUNDINGS)
        of_solve = scale * math.sqrt(self.inverse_trace) * SOLVE_GOAL
        off = of_normals + of_solve + self.weights * ROUNDINGS
        return 2.0 * off * math.sqrt(self.largest / EXACT_SHARE)

    def rest(self, scale: float, random_bytes: Callable[[int], bytes]) -> Array | None:
        raise ModelError("noise with a shape", "its matrix is in the deposit", "Give the deposit.")

    def sample(self, scale: float, generator: np.random.Generator) -> Array:
        raise ModelError("noise with a shape", "its matrix is in the deposit", "Give the deposit.")


@dataclass(frozen=True)
class Ellipsoid(EllipsoidNumbers):
    """The shape with its matrix: `factors` is b x q x q, lower triangular; one block may serve several parts."""

    factors: Array | None = None

    def rest(self, scale: float, random_bytes: Callable[[int], bytes]) -> Array:
        """`s L'^-1 z`, solved until what is left, measured with twice the digits, is below the goal."""
        normals = normal_numbers(self.n_parameters, random_bytes).reshape(self._parts)
        return scale * np.concatenate([self._solved(*of_one) for of_one in self._shared(normals)]).reshape(-1)

    def sample(self, scale: float, generator: np.random.Generator) -> Array:
        normals = generator.normal(size=self._parts)
        parts = [_backward(factor, own) for factor, own in self._shared(normals)]
        exact = generator.normal(size=self.n_parameters) * self.smallest(scale)
        return scale * np.concatenate(parts).reshape(-1) + exact

    def whitened(self, vectors: Array) -> Array:
        """`L' v` of each row v: lengths by M_0 become plain ones, and the noise beyond its exact part white."""
        assert self.factors is not None
        parts = vectors.reshape(len(vectors), *self._parts)
        return np.asarray((parts[:, :, None, :] @ self.factors).reshape(len(vectors), -1))

    @property
    def _parts(self) -> tuple[int, int]:
        assert self.factors is not None
        size = self.factors.shape[-1]
        return self.n_parameters // size, size

    def _shared(self, normals: Array) -> Iterable[tuple[Array, Array]]:
        """Each factor with the parts that it is for."""
        assert self.factors is not None
        one = len(self.factors) == 1
        return [(self.factors[0], normals)] if one else zip(self.factors, normals[:, None], strict=True)

    def _solved(self, factor: Array, normals: Array) -> Array:
        """`L'^-1 z` for each row z."""
        goal = SOLVE_GOAL * math.sqrt(self.inverse_trace * self.least / self._parts[0])
        solutions, beyond, left = np.zeros_like(normals), np.zeros_like(normals), normals
        for _ in range(REFINEMENTS):
            solutions, lost = two_sum(solutions, _backward(factor, left))
            beyond = beyond + lost
            left = _left(factor, solutions, beyond, normals)
            if float((np.linalg.norm(left, axis=1) + _unseen(factor, solutions)).max()) <= goal:
                return np.asarray(solutions)
        raise ModelError(
            "the noise's shape is too ill-conditioned to draw from",
            "its error must be far below the noise",
            "Train with a larger l2, or leave out features that are combinations of others.",
        )


def _backward(factor: Array, rows: Array) -> Array:
    """`L'^-1 z` for each row z, in float64."""
    return np.asarray(solve_triangular(factor, rows.T, lower=True, trans="T").T)


def _left(factor: Array, solutions: Array, beyond: Array, normals: Array) -> Array:
    """`z - L' (y + beyond)` for each y, with twice the digits of float64, a few columns of L at a time."""
    left, step = np.empty_like(normals), max(1, (1 << 18) // solutions.size)

    def work(start: int) -> None:
        columns = slice(start, start + step)
        transposed = np.ascontiguousarray(factor[start:, columns].T)  # above the diagonal there is nothing
        products, lost = two_product(transposed, solutions[:, None, start:])
        smaller = (lost + transposed * beyond[:, None, start:]).sum(axis=2)
        total, off = exact_sum(products)
        difference, rounded = two_sum(normals[:, columns], -total)
        left[:, columns] = difference + (rounded - off - smaller)

    starts = range(0, len(factor), step)
    if len(factor) < MANY:
        for start in starts:
            work(start)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # numpy lets go of the interpreter in long loops
            list(pool.map(work, starts))
    return left


def _unseen(factor: Array, solutions: Array) -> Array:
    """Upper bounds on what this loses of the length of each.

    With u = 2^-53 and S the sum of the sizes of q products: what they lost is u S, and `beyond`, ten refinements', is
    10 u of the solutions, so adding up both in any order loses 12 q u^2 S; the sums in pairs lose u S at each of log q
    levels, and adding that up less than 4 (q + 64) u^2 S with the last two differences.
    """
    counted = (len(factor) + 64) * TWICE
    return np.asarray(np.linalg.norm(np.abs(solutions) @ np.abs(factor), axis=1) * counted)


def two_sum(first: Array, second: Array) -> tuple[Array, Array]:
    """The sum in float64, and exactly what it lost (Knuth)."""
    total = first + second
    added = total - first
    return total, (first - (total - added)) + (second - added)


def two_product(first: Array, second: Array) -> tuple[Array, Array]:
    """The product in float64, and exactly what it lost (Dekker)."""

    def halves(values: Array) -> tuple[Array, Array]:
        scaled = TWO_FACTORS * values
        high = scaled - (scaled - values)
        return high, values - high

    product = first * second
    (high, low), (other_high, other_low) = halves(first), halves(second)
    return product, ((high * other_high - product) + high * other_low + low * other_high) + low * other_low


def exact_sum(terms: Array) -> tuple[Array, Array]:
    """Sums along the last axis, in pairs, and what they lost."""
    lost = np.zeros(terms.shape[:-1])
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        pairs, off = two_sum(terms[..., :half], terms[..., half : 2 * half])
        lost = lost + off.sum(axis=-1)
        terms = np.concatenate([pairs, terms[..., 2 * half :]], axis=-1)
    return terms[..., 0], lost


def drawing_delta(n_parameters: int, epsilon: float, models: int = 1) -> float:
    """What is charged to delta for normal numbers that are farther off than counted, once for each side.

    >>> drawing_delta(2**20, 0.0, 4) == 2.0**-57
    True
    """
    return (1.0 + math.exp(min(epsilon, 700.0))) * models * n_parameters * NORMAL_FAILURE


def normal_numbers(count: int, random_bytes: Callable[[int], bytes]) -> Array:
    """Normal numbers by Box and Muller's transform: 128 bits for the radius, 64 for the angle.

    The radius is `sqrt(-2 log u)`; above one half the logarithm is that of what is missing to 1, so that short ones
    have all digits too.
    """
    high, low, angles = np.frombuffer(random_bytes(24 * count), dtype="<u8").reshape(3, count)
    small = high < 2**63
    shorter = np.where(small, high, ~high) * 2.0**-64 + (np.where(small, low, ~low) + 0.5) * 2.0**-128
    logarithm = np.where(small, np.log(shorter), np.log1p(-shorter))
    return np.asarray(np.sqrt(-2.0 * logarithm) * np.cos((angles + 0.5) * (2.0**-64 * 2.0 * math.pi)))
