"""Approximate inverses of a Hessian, from its structure, that leave conjugate gradients few iterations.

They change how many iterations a solve takes, never what it converges to. A Hessian is the mean of `C(p) kron x x^T` plus
`l2 I`; what follows differs in which dependence between `C(p)` and `x` is kept. Factors are taken over rows evenly spread.

    KroneckerPreconditioner   mean of C(p)  kron  mean of x x^T      nearly free; exact where C(p) is the same for every row
    ClassBlocks               for each class k, mean of c_k(p) x x^T  K factorisations; rows count where they are undecided
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from expunge.objectives import Curvature, LinearHead, RowSet

SAMPLED_ROWS = 16_384  # enough to shape a preconditioner by
FACTORISING = 1.5  # square matrix products run about this much faster than the thin ones of a Hessian product
ITERATIONS, ITERATIONS_WITH_BLOCKS = 60, 20  # what a solve takes about l2 = 1e-4; see benchmarks/preconditioner.py
BLOCK_COPIES = 2  # as summed over processes, then factorised in place
READING = 4  # a number that is read from memory once costs as much as so many multiplications in cache


class Preconditioner(Protocol):
    """A symmetric positive definite map on K x d matrices, near the inverse of a Hessian."""

    def solve(self, residual: Tensor) -> Tensor: ...


class KroneckerPreconditioner:
    """Inverse of `scale (A kron C + (l2 + shift) I)`: class-averaged curvature A, feature second moment C, factorised once."""

    def __init__(self, curvature: Curvature, scale: float, shift: float = 0.0) -> None:
        factors = [curvature.class_factor().double(), curvature.feature_factor(SAMPLED_ROWS).double()]
        if not all(bool(torch.isfinite(factor).all()) for factor in factors):  # rows whose squares overflow
            factors = [torch.zeros_like(factor) for factor in factors]
        class_values, self.class_vectors = torch.linalg.eigh(factors[0])
        feature_values, self.feature_vectors = torch.linalg.eigh(factors[1])
        spectrum = torch.outer(class_values.clamp(min=0), feature_values.clamp(min=0)) + curvature.objective.l2 + shift
        self.inverse_spectrum = 1.0 / (scale * spectrum)

    def solve(self, residual: Tensor) -> Tensor:
        rotated = self.class_vectors.T @ residual.double() @ self.feature_vectors
        solved: Tensor = self.class_vectors @ (rotated * self.inverse_spectrum) @ self.feature_vectors.T
        return solved.to(residual.dtype)


class ClassBlocks:
    """Inverse of `scale (D_k + (l2 + shift) I)` for each class, `D_k` the mean of `c_k(p) x x^T` (`LinearHead.separated`).

    Where the same change of every class's outputs changes nothing (softmax), the mean over classes of a residual is no
    business of the blocks: the Hessian is `scale (l2 + shift)` there.
    """

    def __init__(self, curvature: Curvature, scale: float, shift: float = 0.0) -> None:
        self.centred = curvature.objective.shift_invariant
        self.flat = scale * (curvature.objective.l2 + shift)
        blocks = curvature.class_blocks(SAMPLED_ROWS).double()
        if not bool(torch.isfinite(blocks).all()):  # rows whose squares overflow
            blocks.zero_()
        blocks.mul_(scale).diagonal(dim1=1, dim2=2).add_(self.flat)
        for block in blocks:  # one by one: no second copy of them all
            factor, failed = torch.linalg.cholesky_ex(block)
            block.copy_(torch.eye(len(block)).to(block) / self.flat if bool(failed) else torch.cholesky_inverse(factor))
        self.inverses = blocks

    def solve(self, residual: Tensor) -> Tensor:
        given = residual.double()
        mean = given.mean(dim=0, keepdim=True) if self.centred else torch.zeros_like(given[:1])
        solved = torch.bmm(self.inverses, (given - mean)[:, :, None])[:, :, 0]
        if self.centred:
            solved = solved - solved.mean(dim=0, keepdim=True) + mean / self.flat
        return solved.to(residual.dtype)


def blocks_pay(objective: LinearHead, rows: RowSet) -> bool:
    """Whether blocks save more than forming them costs, counted in multiplications, and fit beside the rows.

    With more weights than rows they would be larger than the set, and made of too few rows each.
    """
    entries = objective.n_classes * objective.n_features**2
    if objective.constant_curvature or objective.n_parameters > len(rows):
        return False
    if not rows.affords(BLOCK_COPIES * 8 * entries):
        return False
    forming = entries * (min(len(rows), SAMPLED_ROWS) + objective.n_features) / FACTORISING
    product = 2.0 * len(rows) * objective.n_parameters
    with_blocks = forming + ITERATIONS_WITH_BLOCKS * (product + READING * entries)
    return with_blocks < ITERATIONS * product


def precondition(curvature: Curvature, scale: float, shift: float = 0.0) -> Preconditioner:
    """Whichever is the cheaper, the solve included."""
    kind = ClassBlocks if blocks_pay(curvature.objective, curvature.rows) else KroneckerPreconditioner
    return kind(curvature, scale, shift)
