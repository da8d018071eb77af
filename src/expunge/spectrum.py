"""Moments of the change of gradient `f = phi_u` over the surrogate rows; its covariance is never formed."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from expunge.objectives import Block, LinearHead, RowSet
from expunge.objectives.linear import CLASS_MULTIPLE, padded
from expunge.objectives.rows import Kept

EIGENVALUE_SLACK = 0.02
SAMPLING_SLACK = 0.1  # where the eigenvalue only enters the sampling term's excess, fewer steps are worth more


@dataclass(frozen=True)
class Moments:
    """What the bound needs to know of `f = phi_u` on the surrogate; c is its mean. Rows count by their weights.

    `trace` is the trace of the covariance and `eigenvalue_upper` bounds its largest eigenvalue; `fourth` is the mean of
    `||f - c||^4` and `fourth_eigenvalue_upper` bounds the largest eigenvalue of the mean of `||f - c||^2 (f - c)(f - c)^T`;
    `largest` is the largest `||f - c||` seen; `supremum` bounds `||f||` over every admissible row. `longest_row` is the
    largest norm of a surrogate row. `sampled_*` are what a weighted mean varies by: trace, bound on the largest eigenvalue and
    largest norm of the weight times `f - c`. Without weights they equal trace, `eigenvalue_upper` and `largest`.
    """

    mean_norm: float
    trace: float
    fourth: float
    largest: float
    supremum: float
    eigenvalue_upper: float
    fourth_eigenvalue_upper: float
    longest_row: float
    sampled_trace: float
    sampled_eigenvalue_upper: float
    sampled_largest: float


def lanczos_steps(n_parameters: int, failure: float, slack: float = EIGENVALUE_SLACK) -> int:
    """Steps k after which `lambda_max <= theta_k/(1-slack)` fails with probability at most `failure`.

    Kuczynski and Wozniakowski 1992, Gaussian start: `1.648 sqrt(p) exp(-sqrt(slack) (2k-1))`.

    >>> lanczos_steps(5120, 4e-12, slack=0.05)
    70
    """
    needed = math.log(1.648 * math.sqrt(n_parameters) / failure) / math.sqrt(slack)
    return max(1, math.ceil((needed + 1.0) / 2.0))


def largest_eigenvalue_upper(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    failure: float,
    advance: Callable[[int, int], None] | None = None,
    slack: float = EIGENVALUE_SLACK,
) -> float:
    """Upper bound on the largest eigenvalue of a positive semi-definite map, by Lanczos with full reorthogonalisation.

    `start` must be a standard Gaussian draw, independent of the map. The bound fails with probability at most
    `failure`, unless the Krylov space is exhausted, when it is exact.
    """
    parameters = start.numel()
    steps = lanczos_steps(parameters, failure, slack)
    if parameters <= 2 * steps:
        steps = parameters  # for a little more work the result is exact
    basis = torch.empty((steps, parameters), dtype=torch.float64, device=start.device)
    diagonal, off, largest = [], [], 0.0
    vector = start.reshape(-1) / start.norm()
    exhausted = steps == parameters
    for step in range(steps):
        basis[step] = vector
        image = product(vector.reshape(start.shape)).reshape(-1)
        diagonal.append(float(vector @ image))
        for _ in range(2):
            image = image - basis[: step + 1].T @ (basis[: step + 1] @ image)
        length = float(image.norm())
        if advance is not None:
            advance(step + 1, steps)
        largest = max(largest, abs(diagonal[-1]))
        if length <= 1e-13 * largest or step == steps - 1:
            exhausted = exhausted or step < steps - 1
            break
        off.append(length)
        vector = image / length
    size = len(diagonal)
    tridiagonal = np.diag(diagonal) + np.diag(off[: size - 1], 1) + np.diag(off[: size - 1], -1)
    ritz = max(0.0, float(np.linalg.eigvalsh(tridiagonal)[-1]))
    return ritz * (1.0 + 1e-9) if exhausted else ritz / (1.0 - slack)


def change_moments(
    objective: LinearHead,
    weights: Tensor,
    update: Tensor,
    surrogate: RowSet,
    *,
    failure: float | None,
    heavy: bool,
    slack: float = EIGENVALUE_SLACK,
    seed: int | None = None,
    advance: Callable[[str, int, int | None], None] = lambda stage, done, total: None,
) -> Moments:
    """Moments of `phi_update` over the surrogate. `seed` fixes Lanczos' start for tests; else it is drawn afresh.

    The bounds on eigenvalues fail with probability at most `failure` together. With `failure` None they are not needed,
    and without `heavy` the fourth one is not: larger values that follow from the others stand in for them. They are at
    most 1/(1 - `slack`) too large.
    """
    advance("Moments (rows)", 0, 2 * len(surrogate))
    spread = _Spread(objective, weights, update, surrogate)
    advance("Moments (rows)", len(surrogate), 2 * len(surrogate))
    mean, sums = spread.mean, spread.sums()
    advance("Moments (rows)", 2 * len(surrogate), 2 * len(surrogate))
    trace, largest = sums.trace, sums.largest
    eigenvalue, fourth_eigenvalue, sampled_eigenvalue = trace, largest**2 * trace, sums.sampled_trace
    if failure is not None and trace > 0:
        generator = torch.Generator().manual_seed(secrets.randbits(63) if seed is None else seed)
        runs = 1 + int(heavy) + int(surrogate.has_weights)

        def bounded(stage: str, power: int, fourth: bool = False) -> float:
            drawn = torch.randn(weights.shape, dtype=torch.float64, generator=generator).to(weights.device)
            return largest_eigenvalue_upper(
                lambda direction: spread.covariance_product(direction, power, fourth),
                surrogate.agreed(drawn),
                failure / runs,
                lambda done, total: advance(f"{stage} (rows)", done * len(surrogate), total * len(surrogate)),
                slack,
            )

        hidden = spread.cancellation * (trace + float(mean.square().sum()))
        eigenvalue = min(trace, hidden + bounded("Lanczos, covariance", 1))
        fourth_eigenvalue = largest**2 * eigenvalue
        sampled_eigenvalue = min(sums.sampled_trace, surrogate.largest_weight * eigenvalue)
        if surrogate.has_weights:
            found = bounded("Lanczos, weighted rows", 2)
            sampled_eigenvalue = min(sampled_eigenvalue, surrogate.largest_weight * hidden + found)
        if heavy:
            fourth_eigenvalue = min(fourth_eigenvalue, bounded("Lanczos, fourth moment", 1, fourth=True))
    return Moments(
        mean_norm=float(mean.norm()),
        trace=trace,
        fourth=sums.fourth,
        largest=largest,
        supremum=objective.change_sup(update),
        eigenvalue_upper=eigenvalue,
        fourth_eigenvalue_upper=fourth_eigenvalue,
        longest_row=sums.longest_row,
        sampled_trace=sums.sampled_trace,
        sampled_eigenvalue_upper=sampled_eigenvalue,
        sampled_largest=sums.sampled_largest,
    )


@dataclass(frozen=True)
class _Sums:
    """What one pass over the rows says of `f - c`."""

    trace: float
    fourth: float
    largest: float
    longest_row: float
    sampled_trace: float
    sampled_largest: float


class _Spread:
    """`f - c` of each row; per row only `link((W+U) x) - link(W x)` and `||f - c||^2` are kept, where the rows allow it."""

    def __init__(self, objective: LinearHead, weights: Tensor, update: Tensor, rows: RowSet) -> None:
        self.objective, self.weights, self.update, self.rows = objective, weights, update, rows
        self.height = objective.n_classes + -objective.n_classes % CLASS_MULTIPLE
        keep = rows.keeps(8 * (self.height + 1))
        # of ||f||^2: what float64 may lose of ||f - c||^2 where the spread is far below the mean
        self.cancellation = (objective.n_features + objective.n_classes + 64) * 2.0**-52
        self.changes = Kept(rows, self._blocks, self._change, self.height, keep)
        self.mean = self._mean()
        self.squares = Kept(rows, self.changes, self._square, 1, keep)

    def _blocks(self) -> Iterator[tuple[Block, Tensor]]:
        return ((block, block.features.double()) for block in self.rows.blocks())

    def _change(self, block: Block, features: Tensor) -> Tensor:
        found = torch.zeros((self.height, len(block)), dtype=torch.float64, device=self.weights.device)
        found[: self.objective.n_classes] = self.objective.change(self.weights, self.update, features).T
        return found  # classes first, as in Curvature

    def _mean(self) -> Tensor:
        total = torch.zeros((self.height, self.objective.n_features), dtype=torch.float64, device=self.weights.device)
        for block, features, change in self.changes():
            total.addmm_(block.weighted(change, 1), features)
        return self.rows.total(total) / len(self.rows)

    def _square(self, block: Block, features: Tensor, change: Tensor) -> Tensor:
        """`||f - c||^2`, never too small by rounding."""
        along = (self.mean @ features.T).mul_(change).sum(dim=0)
        sizes = change.square().sum(dim=0) * features.square().sum(dim=1)
        centre = self.mean.square().sum()
        found: Tensor = sizes - 2 * along + centre + self.cancellation * (sizes + centre)
        return found.clamp_(min=0.0)

    def sums(self) -> _Sums:
        totals = torch.zeros(3, dtype=torch.float64, device=self.weights.device)
        largest = torch.zeros(3, dtype=torch.float64, device=self.weights.device)
        for block, features, _, squares in self.squares():
            once = block.weighted(squares, 0)
            twice = block.weighted(once, 0)
            totals += torch.stack((once.sum(), block.weighted(squares.square(), 0).sum(), twice.sum()))
            each = torch.stack((squares.max(), features.square().sum(dim=1).max(), twice.max()))
            largest = torch.maximum(largest, each)
        trace, fourth, sampled_trace = (self.rows.total(totals) / len(self.rows)).tolist()
        norms = [math.sqrt(self.rows.largest(value)) for value in largest.tolist()]
        return _Sums(trace, fourth, norms[0], norms[1], sampled_trace, norms[2])

    def covariance_product(self, direction: Tensor, power: int, fourth: bool) -> Tensor:
        """Mean over rows of `w^power (f - c) <f - c, direction>`, for the fourth moment times `||f - c||^2`; f is not formed."""
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
