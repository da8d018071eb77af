"""Symmetric matrices of weights by weights, in blocks, and bounds on their eigenvalues that are certain.

Softmax couples all weights: one block of K d x K d. One-vs-rest has K blocks of d x d; a ridge head one, which serves
every class. Weights are K x d matrices; a block sees its part of them as a vector.

An eigenvalue is found by Lanczos' iteration and then PROVED: a Cholesky factorisation in float64 that runs to its end
shows that a matrix is positive definite but for `(q + 4) u trace` (Rump 2006), which is taken off beforehand.
"""

from __future__ import annotations

import math
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

    def vectors(self, weights: Tensor) -> Tensor:
        """K x d weights as the blocks see them."""
        return weights.reshape(1, -1) if self.joint else weights

    def columns(self, weights: Tensor) -> Tensor:
        """K x d weights as columns that the blocks act on, b x q x k: one block that serves all has one a class."""
        if self.joint:
            return weights.reshape(1, -1, 1)
        return weights.T[None] if len(self.values) == 1 else weights[..., None]

    def from_columns(self, columns: Tensor, like: Tensor) -> Tensor:
        """The way back, K x d."""
        turned = columns if self.joint or len(self.values) > 1 else columns.mT
        return turned.reshape(like.shape)

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

    def on(self, device: torch.device) -> Blocks:
        """The same on a device."""
        return Blocks(self.values.to(device), self.joint)

    def times(self, factor: float) -> Blocks:
        return Blocks(self.values * factor, self.joint)

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
        return float(self.values.diagonal(dim1=-2, dim2=-1).abs().sum(dim=-1).max())

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


def is_definite(matrix: Blocks, lost: float = 0.0) -> bool:
    """Whether every block is positive definite, for certain; `lost` is what forming it may have changed of it."""
    return factored(matrix.plus(-(cholesky_error(matrix) + lost))) is not None


def passing_is_definite(matrix: Blocks, lost: float = 0.0) -> bool:
    """The same of a matrix that nobody needs afterwards: its diagonal is changed."""
    matrix.diagonal.sub_(cholesky_error(matrix) + lost)
    return factored(matrix) is not None


def solved_by(factor: Tensor, columns: Tensor) -> Tensor:
    """`(L L')^-1` of columns: two triangular solves are many times faster on a CPU than torch's `cholesky_solve`."""
    half = torch.linalg.solve_triangular(factor, columns, upper=False)
    solution: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return solution


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


@dataclass(frozen=True)
class Norm:
    """A positive definite matrix M with its factor."""

    matrix: Blocks
    factor: Tensor

    def dual(self, gradient: Tensor) -> float:
        """Certain upper bound on `||g||_{M^-1}`; infinite where the factors say nothing.

        The factors' product L L' is at most `d` from M, hence at most `(1 + d/least) M`, and at least `least - d`; the
        solve is exact for an L whose entries are off by `(q+1) u` of their size.
        """
        half = torch.linalg.solve_triangular(self.factor, self.matrix.columns(gradient), upper=False)
        error = cholesky_error(self.matrix)
        if not self.least > 2.0 * error:
            return math.inf
        of_solve = 2.0 * (self.matrix.size + 4) * UNIT_ROUNDOFF * math.sqrt(2.0 * self.matrix.trace / self.least)
        return float(half.norm()) * math.sqrt(1.0 + error / self.least) * (1.0 + 2.0 * of_solve) * (1.0 + 2.0**-30)

    def solved(self, gradient: Tensor) -> Tensor:
        """`M^-1 g`."""
        return self.matrix.from_columns(solved_by(self.factor, self.matrix.columns(gradient)), gradient)

    def length(self, weights: Tensor) -> float:
        """`||w||_M`."""
        return math.sqrt(max(0.0, self.matrix.form(weights)))

    def about_most(self, other: Blocks, slack: float = 0.0) -> float:
        """About `lambda_max(M^-1 (A + slack I))`, from below."""

        def image(vectors: Tensor) -> Tensor:
            inner = torch.linalg.solve_triangular(self.factor.mT, vectors, upper=True)
            moved = torch.add(other.values @ inner, inner, alpha=slack)
            outer: Tensor = torch.linalg.solve_triangular(self.factor, moved, upper=False)
            return outer

        return max(top_of(image, self.factor), 1e-300)

    def most(self, other: Blocks, slack: float = 0.0, below: float = math.inf) -> float:
        """Certain upper bound on `lambda_max(M^-1 (A + slack I))`; infinite where none was found, or none `below`."""
        bound = self.about_most(other, slack) * CLOSE
        own, others = self.matrix.frobenius, other.frobenius + slack * math.sqrt(other.size)
        for attempt in range(TRIES):
            if bound >= below:
                return math.inf
            lost = slack + 4.0 * UNIT_ROUNDOFF * (
                bound * own + others
            )  # what is left may be far smaller than its parts
            if passing_is_definite(self.matrix.combined(bound, other, -1.0), lost):
                return bound * (1.0 + 2.0**-40)
            bound *= 1.0 + 2.0 ** min(attempt - 6, 1)
        return math.inf

    @cached_property
    def least(self) -> float:
        """Certain lower bound on `lambda_min(M)`; 0 where none was found."""

        bound = 1.0 / max(top_of(lambda vectors: solved_by(self.factor, vectors), self.factor), 1e-300) / CLOSE
        hopeless = cholesky_error(self.matrix) / 64.0  # a bound so small is lost beside what a factorisation may hide
        for attempt in range(TRIES):
            if passing_is_definite(self.matrix.plus(-bound)):
                return bound
            if bound <= hopeless:
                break
            bound /= 1.0 + 2.0 ** min(attempt - 6, 1)
        return 0.0


def norm_of(matrix: Blocks) -> Norm | None:
    """The matrix with its factor; None where it is not positive definite.

    A factorisation that runs to its end proves nothing near zero: whether it is definite for certain, `least` says.
    """
    factor = factored(matrix)
    return None if factor is None else Norm(matrix, factor)


def largest(matrix: Blocks) -> float:
    """Certain upper bound on the largest eigenvalue."""
    bound = max(top_of(lambda vectors: matrix.values @ vectors, matrix.values), 1e-300) * CLOSE
    for attempt in range(TRIES):
        negative = matrix.times(-1.0)
        negative.diagonal.add_(bound)
        if passing_is_definite(negative):
            return bound * (1.0 + 2.0**-40)
        bound *= 1.0 + 2.0 ** min(attempt - 6, 1)
    return matrix.row_sum()


def top_of(image, like: Tensor) -> float:  # type: ignore[no-untyped-def]
    """About the largest eigenvalue over all blocks; of large ones by Lanczos' iteration, fully orthogonalised."""
    blocks, size = like.shape[0], like.shape[-1]
    if size <= SMALL:
        whole = image(torch.eye(size, dtype=like.dtype, device=like.device).expand(blocks, size, size))
        return float(torch.linalg.eigvalsh((whole + whole.mT) / 2).max())
    generator = torch.Generator().manual_seed(0)
    start = torch.randn((blocks, size, 1), dtype=torch.float64, generator=generator).to(like.device)
    basis = [start / start.norm(dim=1, keepdim=True)]
    steps = min(STEPS, size)
    diagonal = torch.zeros((blocks, steps), dtype=torch.float64)
    beside = torch.zeros((blocks, max(steps - 1, 0)), dtype=torch.float64)
    for step in range(steps):
        moved = image(basis[-1])
        diagonal[:, step] = (moved * basis[-1]).sum(dim=(1, 2)).cpu()
        if step == steps - 1:
            break
        known, size_of_image = torch.cat(basis, dim=2), moved.norm(dim=1, keepdim=True)
        for _ in range(2):
            moved = moved - known @ (known.mT @ moved)
        length = moved.norm(dim=1, keepdim=True)
        more = length > NOTHING_NEW * size_of_image  # else what is left is rounding, and no direction
        beside[:, step] = torch.where(more, length, 0.0)[:, 0, 0].cpu()
        basis.append(torch.where(more, moved / length.clamp(min=1e-300), 0.0))
    tridiagonal = torch.diag_embed(diagonal) + torch.diag_embed(beside, 1) + torch.diag_embed(beside, -1)
    return float(torch.linalg.eigvalsh(tridiagonal).max())
