"""Symmetric matrices of weights by weights, in blocks, and bounds on their eigenvalues that are certain.

Softmax couples all weights: one block of K d x K d. One-vs-rest has K blocks of d x d; a ridge head one, which serves
every class. Weights are K x d matrices; a block sees its part of them as a vector.

An eigenvalue is found by Lanczos' iteration and then PROVED: a Cholesky factorisation in float64 that runs to its end
shows that a matrix is positive definite but for `(q + 4) u trace` (Rump 2006), which is taken off beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

UNIT_ROUNDOFF = 2.0**-53
STEPS = 12  # of Lanczos' iteration
CLOSE = 1.0 + 2.0**-7  # how far above what was found a bound is tried first
TRIES = 60
NOTHING_NEW = 1e-10  # of the length of an image: below it no direction is left
SMALL = 256  # rows of a block up to which all eigenvalues are found at once
PANELS = 16  # that a product of triangular factors is made in


@dataclass(frozen=True, repr=False)
class Blocks:
    """`values` is b x q x q, symmetric; `joint` where one block holds all K d weights."""

    values: Tensor
    joint: bool

    @property
    def size(self) -> int:
        """Rows of a block."""
        return int(self.values.shape[-1])

    def columns(self, weights: Tensor) -> Tensor:
        """K x d weights as columns that the blocks act on, b x q x k: one block that serves all has one a class."""
        if self.joint:
            return weights.reshape(1, -1, 1)
        return weights.T[None] if len(self.values) == 1 else weights[..., None]

    def from_columns(self, columns: Tensor, like: Tensor) -> Tensor:
        """The way back, K x d."""
        return (columns if self.joint or len(self.values) > 1 else columns.mT).reshape(like.shape)

    def product(self, weights: Tensor) -> Tensor:
        """The matrix times the weights, K x d."""
        return self.from_columns(self.values @ self.columns(weights), weights)

    def form(self, weights: Tensor) -> float:
        """`w' A w`."""
        return float((weights * self.product(weights)).sum())

    def plus(self, other: Tensor | float) -> Blocks:
        """With a number or a vector of numbers added to the diagonal of every block."""
        values = self.values.clone()
        values.diagonal(dim1=-2, dim2=-1).add_(other)
        return Blocks(values, self.joint)

    def combined(self, own: float, other: Blocks, factor: float) -> Blocks:
        """`own A + factor B`."""
        return Blocks((self.values * own).add_(other.values, alpha=factor), self.joint)

    def times(self, factor: float) -> Blocks:
        return Blocks(self.values * factor, self.joint)

    def on(self, device: torch.device) -> Blocks:
        return Blocks(self.values.to(device), self.joint)

    @property
    def diagonal(self) -> Tensor:
        """Of each block, b x q."""
        return self.values.diagonal(dim1=-2, dim2=-1)

    @property
    def largest_entry(self) -> float:
        return float(self.values.abs().max())

    @property
    def frobenius(self) -> float:
        """Of the largest block."""
        return float(self.values.norm(dim=(-2, -1)).max())

    @property
    def trace(self) -> float:
        """Sum of the sizes on the diagonal, of the largest block."""
        return float(self.diagonal.abs().sum(dim=-1).max())

    def row_sum(self) -> float:
        """Upper bound on the largest eigenvalue's size: the largest sum of sizes along a row."""
        return float(self.values.abs().sum(dim=-1).max()) * (1.0 + 2.0**-40)


def factored(matrix: Blocks) -> Tensor | None:
    """Cholesky factors, b x q x q lower triangular; None where there is none."""
    factors, failed = torch.linalg.cholesky_ex(matrix.values)
    finite = torch.isfinite(factors.diagonal(dim1=-2, dim2=-1)).all()
    return None if bool(failed.any()) or not bool(finite) else factors


def cholesky_error(matrix: Blocks) -> float:
    """By how much the product of Cholesky factors in float64 can differ from the matrix, in spectral norm."""
    return 2.0 * (matrix.size + 4) * UNIT_ROUNDOFF * matrix.trace


def is_definite(matrix: Blocks, lost: float = 0.0, *, in_place: bool = False) -> bool:
    """Whether every block is positive definite, for certain; `lost` is what forming it may have changed of it.

    `in_place` changes the diagonal of a matrix that nobody needs afterwards.
    """
    if not in_place:
        matrix = matrix.plus(0.0)
    matrix.diagonal.sub_(cholesky_error(matrix) + lost)
    return factored(matrix) is not None


def square_of(factor: Tensor) -> Tensor:
    """`L L'` of lower triangular factors, symmetric to the last bit, in a sixth of a full product's arithmetic."""
    size = factor.shape[-1]
    step = max(SMALL, -(-size // PANELS))
    product = torch.empty_like(factor)
    for start in range(0, size, step):
        stop = min(start + step, size)
        panel = factor[:, start:, :stop] @ factor[:, start:stop, :stop].mT
        product[:, start:, start:stop] = panel
        product[:, start:stop, start:] = panel.mT
    for start in range(0, size, step):  # a panel's own square is a product of two that may round otherwise
        own = product[:, start : start + step, start : start + step]
        own.copy_(own.tril() + own.tril(-1).mT)
    return product


def inverse_of(factor: Tensor) -> Tensor:
    """Of a lower triangular matrix."""
    unit = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    inverse: Tensor = torch.linalg.solve_triangular(factor, unit, upper=False)
    return inverse


@dataclass(frozen=True)
class Norm:
    """A positive definite matrix M with its factor L, from `M = L L'`."""

    matrix: Blocks
    factor: Tensor

    @classmethod
    def of(cls, matrix: Blocks) -> Norm | None:
        """None where the matrix is not positive definite. A factorisation that runs to its end proves nothing near
        zero: whether it is definite for certain, `least` says."""
        factor = factored(matrix)
        return None if factor is None else cls(matrix, factor)

    def half(self, columns: Tensor) -> Tensor:
        """`L^-1` of columns."""
        solution: Tensor = torch.linalg.solve_triangular(self.factor, columns, upper=False)
        return solution

    def other_half(self, columns: Tensor) -> Tensor:
        """`L'^-1` of columns."""
        solution: Tensor = torch.linalg.solve_triangular(self.factor.mT, columns, upper=True)
        return solution

    def solved(self, gradient: Tensor) -> Tensor:
        """`M^-1 g`; two triangular solves are many times faster on a CPU than torch's `cholesky_solve`."""
        return self.matrix.from_columns(self.other_half(self.half(self.matrix.columns(gradient))), gradient)

    def dual(self, gradient: Tensor) -> float:
        """Certain upper bound on `||g||_{M^-1}`; infinite where the factors say nothing.

        The factors' product L L' is at most `d` from M, hence at most `(1 + d/least) M`, and at least `least - d`; the
        solve is exact for an L whose entries are off by `(q+1) u` of their size.
        """
        error = cholesky_error(self.matrix)
        if not self.least > 2.0 * error:
            return math.inf
        of_solve = 2.0 * (self.matrix.size + 4) * UNIT_ROUNDOFF * math.sqrt(2.0 * self.matrix.trace / self.least)
        size = float(self.half(self.matrix.columns(gradient)).norm())
        return size * math.sqrt(1.0 + error / self.least) * (1.0 + 2.0 * of_solve) * (1.0 + 2.0**-30)

    def most(self, other: Blocks, slack: float = 0.0, below: float = math.inf) -> float:
        """Certain upper bound on `lambda_max(M^-1 (A + slack I))`; infinite where none was found, or none `below`."""

        def image(vectors: Tensor) -> Tensor:
            inner = self.other_half(vectors)
            return self.half(torch.add(other.values @ inner, inner, alpha=slack))

        own, others = self.matrix.frobenius, other.frobenius + slack * math.sqrt(other.size)

        def holds(bound: float) -> bool:
            # what is left may be far smaller than its parts
            lost = slack + 4.0 * UNIT_ROUNDOFF * (bound * own + others)
            return is_definite(self.matrix.combined(bound, other, -1.0), lost, in_place=True)

        return _raised(max(top_of(image, self.factor), 1e-300) * CLOSE, holds, below) * (1.0 + 2.0**-40)

    @cached_property
    def least(self) -> float:
        """Certain lower bound on `lambda_min(M)`; 0 where none was found."""
        top = top_of(lambda vectors: self.other_half(self.half(vectors)), self.factor)
        bound = 1.0 / max(top, 1e-300) / CLOSE
        hopeless = cholesky_error(self.matrix) / 64.0  # a bound so small is lost in what a factorisation may hide
        for attempt in range(TRIES):
            if is_definite(self.matrix.plus(-bound), in_place=True):
                return bound
            if bound <= hopeless:
                break
            bound /= 1.0 + 2.0 ** min(attempt - 6, 1)
        return 0.0


def _raised(bound: float, holds: Callable[[float], bool], below: float = math.inf) -> float:
    """The bound, raised until it holds; infinite where it does not in so many tries, or is not `below`."""
    for attempt in range(TRIES):
        if bound >= below:
            break
        if holds(bound):
            return bound
        bound *= 1.0 + 2.0 ** min(attempt - 6, 1)
    return math.inf


def largest(matrix: Blocks) -> float:
    """Certain upper bound on the largest eigenvalue."""
    start = max(top_of(lambda vectors: matrix.values @ vectors, matrix.values), 1e-300) * CLOSE
    bound = _raised(start, lambda bound: is_definite(matrix.times(-1.0).plus(bound), in_place=True))
    return bound * (1.0 + 2.0**-40) if math.isfinite(bound) else matrix.row_sum()


def top_of(image: Callable[[Tensor], Tensor], like: Tensor) -> float:
    """About the largest eigenvalue over all blocks; of large ones by Lanczos' iteration, fully orthogonalised."""
    blocks, size = like.shape[0], like.shape[-1]
    if size <= SMALL:
        whole = image(torch.eye(size, dtype=like.dtype, device=like.device).expand(blocks, size, size))
        return float(torch.linalg.eigvalsh((whole + whole.mT) / 2).max())
    generator = torch.Generator().manual_seed(0)
    start = torch.randn((blocks, size, 1), dtype=torch.float64, generator=generator).to(like.device)
    basis = start / start.norm(dim=1, keepdim=True)
    tridiagonal = torch.zeros((blocks, STEPS, STEPS), dtype=torch.float64)
    for step in range(STEPS):
        moved = image(basis[:, :, -1:])
        tridiagonal[:, step, step] = (moved * basis[:, :, -1:]).sum(dim=(1, 2)).cpu()
        if step == STEPS - 1:
            break
        size_of_image = moved.norm(dim=1, keepdim=True)
        for _ in range(2):
            moved = moved - basis @ (basis.mT @ moved)
        length = moved.norm(dim=1, keepdim=True)
        more = length > NOTHING_NEW * size_of_image  # else what is left is rounding, and no direction
        off = torch.where(more, length, 0.0)[:, 0, 0].cpu()
        tridiagonal[:, step, step + 1] = tridiagonal[:, step + 1, step] = off
        basis = torch.cat([basis, torch.where(more, moved / length.clamp(min=1e-300), 0.0)], dim=2)
    return float(torch.linalg.eigvalsh(tridiagonal).max())
