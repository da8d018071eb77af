"""Moments of the change of gradient `f = phi_u` over the surrogate rows; its covariance is never formed."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from expunge.heads.linear import Narrow, SpreadSums
from expunge.runtime.progress import Progress, silent
from expunge.solve.linear import EIGENVALUE_SLACK, lanczos_steps, largest_eigenvalue_upper


@dataclass(frozen=True)
class Moments:
    """What the residual bound needs to know of `f = phi_u` on the surrogate.

    Under the names it has there (`RetainedFacts`).

    c is f's mean; rows count by their weights. The eigenvalues are bounds from above. `sampled_*` are what a weighted
    mean varies by: of the weight times `f - c`. Without weights they equal those of `f - c`.
    """

    change_mean: float
    change_eigenvalue: float
    change_trace: float
    change_fourth: float
    change_fourth_eigenvalue: float
    change_largest: float
    change_longest: float
    change_supremum: float
    longest_row: float
    sampled_trace: float
    sampled_eigenvalue: float
    sampled_largest: float


class Spread(Protocol):
    """How the change of gradient f spreads over a set about its mean c; see `heads/`."""

    mean: Tensor
    cancellation: float
    knows_fourth: bool

    def sums(self) -> SpreadSums:
        """What one pass over the rows says of `||f - c||`."""

    def narrow(self, products: int) -> Narrow | None:
        """A few directions that hold nearly all of the spread, if so many products there are that much cheaper."""

    def covariance_product(self, direction: Tensor, power: int, fourth: bool) -> Tensor:
        """Mean of `w^power (f - c) <f - c, direction>`, for the `fourth` moment times `||f - c||^2`."""


# Over 60 lines: signature and result alone take thirty, and the bounds on eigenvalues share one budget of failure.
def change_moments(
    head: Any,
    weights: Tensor,
    update: Tensor,
    surrogate: Any,
    *,
    failure: float | None,
    heavy: bool,
    slack: float = EIGENVALUE_SLACK,
    seed: int | None = None,
    advance: Progress = silent,
) -> Moments:
    """Moments of `phi_update` over the surrogate. `seed` fixes Lanczos' start; else it is drawn afresh.

    The bounds on eigenvalues fail with probability at most `failure` together. With `failure` None they are not needed,
    and without `heavy` the fourth one is not: larger values that follow from the others stand in for them. They are at
    most 1/(1 - `slack`) too large; that of the covariance, where it is looked for in a few directions of the features
    alone, by what the others can have too, since `lambda_max(C) <= lambda_max(P C P) + lambda_max(P' C P')` for
    complementary projections.
    """
    n_rows = len(surrogate)
    advance("Moments (rows)", 0, 2 * n_rows)
    spread: Spread = head.spread(weights, update, surrogate)
    advance("Moments (rows)", n_rows, 2 * n_rows)
    mean, sums = spread.mean, spread.sums()
    advance("Moments (rows)", 2 * n_rows, 2 * n_rows)
    trace, largest = sums.trace, sums.largest
    eigenvalue, fourth_eigenvalue, sampled_eigenvalue = trace, largest**2 * trace, sums.sampled_trace
    heavy = heavy and spread.knows_fourth
    if failure is not None and trace > 0:
        generator = torch.Generator().manual_seed(secrets.randbits(63) if seed is None else seed)
        runs = 1 + int(heavy) + int(surrogate.has_weights)

        def bounded(stage: str, power: int, fourth: bool = False, narrow: Narrow | None = None) -> float:
            shape = weights.shape if narrow is None else (len(weights), narrow.basis.shape[1])
            drawn = torch.randn(shape, dtype=torch.float64, generator=generator).to(weights.device)
            return largest_eigenvalue_upper(
                (lambda direction: spread.covariance_product(direction, power, fourth))
                if narrow is None
                else narrow.covariance_product,
                surrogate.agreed(drawn),
                failure / runs,
                lambda done, total: advance(f"{stage} (rows)", done * n_rows, total * n_rows),
                slack,
            )

        hidden = spread.cancellation * (trace + float(mean.square().sum()))
        narrow = spread.narrow(lanczos_steps(weights.numel(), failure / runs, slack))
        inside = bounded("Lanczos, covariance", 1, narrow=narrow)
        eigenvalue = min(trace, hidden + inside + (0.0 if narrow is None else narrow.left))
        fourth_eigenvalue = largest**2 * eigenvalue
        sampled_eigenvalue = min(sums.sampled_trace, surrogate.largest_weight * eigenvalue)
        if surrogate.has_weights:
            weighted = surrogate.largest_weight * hidden + bounded("Lanczos, weighted rows", 2)
            sampled_eigenvalue = min(sampled_eigenvalue, weighted)
        if heavy:
            fourth_eigenvalue = min(fourth_eigenvalue, bounded("Lanczos, fourth moment", 1, fourth=True))
    return Moments(
        change_mean=float(mean.norm()),
        change_eigenvalue=eigenvalue,
        change_trace=trace,
        change_fourth=sums.fourth,
        change_fourth_eigenvalue=fourth_eigenvalue,
        change_largest=largest,
        change_longest=sums.longest,
        change_supremum=head.change_sup(update),
        longest_row=sums.longest_row,
        sampled_trace=sums.sampled_trace,
        sampled_eigenvalue=sampled_eigenvalue,
        sampled_largest=sums.sampled_largest,
    )
