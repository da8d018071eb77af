"""Approximate inverses of a Hessian, from its structure, that leave conjugate gradients few iterations.

They change how many iterations a solve takes, never what it converges to. A Hessian is the mean of `C(p) kron x x^T`
plus `l2 I`; what follows differs in which dependence between `C(p)` and `x` is kept. Factors are taken over rows evenly
spread.

    KroneckerPreconditioner  mean of C(p) kron mean of x x^T         nearly free; exact where all C(p) are the same
    ClassBlocks              for each class k, mean of c_k(p) x x^T  K factorisations; rows count where undecided; some
                                                                     rows' C(p) kept whole
    Unconditioned            none                                    for tables so wide, or with so few rows, that d x d
                                                                     matrices would cost more than the iterations
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from expunge.heads import Curvature, LinearHead, RowSet

SAMPLED_ROWS = 16_384  # enough to shape a preconditioner by
COUPLED_ROWS = 1024  # rows whose coupling of classes is kept; see benchmarks/preconditioner.py
FACTORISING = 1.5  # square matrix products run about this much faster than the thin ones of a Hessian product
ITERATIONS, ITERATIONS_WITH_BLOCKS = 60, 15  # what a solve takes about l2 = 1e-4; see benchmarks/preconditioner.py
BLOCK_COPIES = 2  # as summed over processes, then factorised in place
KRONECKER_COPIES = 4  # of a d x d matrix: the sum, in float64, its eigenvectors, room to find them in
FEW_ROWS = 4  # times rows and classes fewer than features: iterations end sooner than a d x d matrix is factorised
WIDE_TABLE, WIDEST = 2_000, 20_000  # features from which that is asked at all, and from which no such matrix is made
READING = 4  # a number that is read from memory once costs as much as so many multiplications in cache


class Preconditioner(Protocol):
    """A symmetric positive definite map on K x d matrices, near the inverse of a Hessian."""

    def solve(self, residual: Tensor) -> Tensor:
        """The map's value."""


class KroneckerPreconditioner:
    """Inverse of `scale (A kron C + (l2 + shift) I)`, factorised once: mean curvature A, second moment C of x."""

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
    """Inverse of `scale (D + (l2 + shift) I - V V^T)`: one block a class, and what couples the classes of a few rows.

    `D_k` is the mean of `c_k(p) x x^T` (`LinearHead.separated`), with `p_k x x^T` for the `coupled` rows whose
    separated form misses most (`LinearHead.coupling`); `V` has a column `p kron x` for each of those, times the root of
    its share of the mean. Such a row then counts with `C(p) = diag(p) - p p^T`, which is positive semidefinite: so is
    the sum. By Woodbury, with `D` for the whole block part,

        inverse = D^-1 + D^-1 V (I - V^T D^-1 V)^-1 V^T D^-1

    Where the same change of every class's outputs changes nothing (softmax), the mean over classes of a residual is no
    business of this: the Hessian is `scale (l2 + shift)` there.
    """

    def __init__(self, curvature: Curvature, scale: float, shift: float = 0.0, coupled: int = COUPLED_ROWS) -> None:
        self.centred = curvature.objective.shift_invariant
        self.flat = scale * (curvature.objective.l2 + shift)
        chosen = curvature.coupled_rows(SAMPLED_ROWS, at_hand(curvature.objective, curvature.rows, coupled))
        blocks = curvature.class_blocks(SAMPLED_ROWS, chosen.index).double()
        self.features, self.columns = chosen.features, chosen.predictions * (scale * chosen.shares).sqrt()[:, None]
        if not bool(torch.isfinite(blocks).all() & torch.isfinite(self.features.square().sum())):  # squares overflow
            blocks.zero_()
            self.features, self.columns = self.features[:0], self.columns[:0]
        whole = self.columns * (scale * chosen.shares).sqrt()[: len(self.columns), None]
        remaining = torch.eye(len(self.features)).to(blocks)
        blocks.mul_(scale).diagonal(dim1=1, dim2=2).add_(self.flat)
        for index, block in enumerate(blocks):  # one by one: no second copy of them all
            block.addmm_((self.features * whole[:, index, None]).T, self.features)
            factor, failed = torch.linalg.cholesky_ex(block)
            if bool(failed):
                factor = torch.eye(len(block)).to(block) * self.flat**0.5
            block.copy_(torch.cholesky_inverse(factor))
            halved = torch.linalg.solve_triangular(
                factor, (self.features * self.columns[:, index, None]).T, upper=False
            )
            remaining.addmm_(halved.T, halved, alpha=-1.0)
        self.inverses = blocks
        self.factor, failed = torch.linalg.cholesky_ex(remaining)
        if bool(failed):  # by rounding alone: the blocks without it are positive definite
            self.features, self.columns, self.factor = self.features[:0], self.columns[:0], self.factor[:0, :0]

    def solve(self, residual: Tensor) -> Tensor:
        right = residual.double()
        mean = right.mean(dim=0, keepdim=True) if self.centred else torch.zeros_like(right[:1])
        solved = self._separately(right - mean)
        if len(self.features):
            outputs = (self.columns * (self.features @ solved.T)).sum(dim=1, keepdim=True)
            solved += self._separately((self.columns * torch.cholesky_solve(outputs, self.factor)).T @ self.features)
        if self.centred:
            solved = solved - solved.mean(dim=0, keepdim=True) + mean / self.flat
        return solved.to(residual.dtype)

    def _separately(self, right: Tensor) -> Tensor:
        return torch.bmm(self.inverses, right[:, :, None])[:, :, 0]


class Unconditioned:
    """`1 / (scale (l2 + shift))`: the inverse where no row reaches."""

    def __init__(self, curvature: Curvature, scale: float, shift: float = 0.0) -> None:
        self.flat = scale * (curvature.objective.l2 + shift)

    def solve(self, residual: Tensor) -> Tensor:
        return residual / self.flat


def too_wide(objective: LinearHead, rows: RowSet) -> bool:
    """Whether a d x d matrix does not fit beside the rows, or costs more than what it saves."""
    width, reached = objective.n_features, len(rows) * objective.n_classes
    if not rows.affords(KRONECKER_COPIES * 8 * width**2) or width > WIDEST:
        return True
    return width > WIDE_TABLE and FEW_ROWS * reached < width


def at_hand(objective: LinearHead, rows: RowSet, coupled: int) -> int:
    """How many rows can be coupled: none where they are shared out, since nothing gathers them, or memory is short."""
    processes = float(rows.total(torch.ones((), dtype=torch.float64)))
    coupled = min(len(rows), coupled)
    numbers = coupled * (2 * coupled + 3 * objective.n_features + objective.n_classes)
    return coupled if processes == 1.0 and rows.affords(8 * (BLOCK_COPIES * block_entries(objective) + numbers)) else 0


def block_entries(objective: LinearHead) -> int:
    """Numbers in the blocks of all classes."""
    return objective.n_classes * objective.n_features**2


def blocks_pay(objective: LinearHead, rows: RowSet) -> bool:
    """Whether blocks save more than forming them costs, counted in multiplications, and fit beside the rows.

    With more weights than rows they would be larger than the set, and made of too few rows each.
    """
    entries = block_entries(objective)
    if objective.constant_curvature or objective.n_parameters > len(rows):
        return False
    coupled = at_hand(objective, rows, COUPLED_ROWS)
    if not rows.affords(BLOCK_COPIES * 8 * entries):
        return False
    forming = entries * (min(len(rows), SAMPLED_ROWS) + objective.n_features + 1.5 * coupled)
    forming += coupled**2 * (objective.n_parameters + coupled / 3)
    product = 2.0 * len(rows) * objective.n_parameters
    applying = READING * (2 * entries + coupled**2) + 2 * coupled * objective.n_parameters
    with_blocks = forming / FACTORISING + ITERATIONS_WITH_BLOCKS * (product + applying)
    return with_blocks < ITERATIONS * product


def precondition(curvature: Curvature, scale: float, shift: float = 0.0) -> Preconditioner:
    """Whichever is the cheaper, the solve included."""
    if blocks_pay(curvature.objective, curvature.rows):
        return ClassBlocks(curvature, scale, shift)
    if too_wide(curvature.objective, curvature.rows):
        return Unconditioned(curvature, scale, shift)
    return KroneckerPreconditioner(curvature, scale, shift)
