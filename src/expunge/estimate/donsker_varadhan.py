"""Donsker and Varadhan's form of a relative entropy, fitted on rows.

`KL(nu || rho) = sup_T E_nu[T] - log E_rho[exp T]`.

Any function T gives a lower bound, so a fitted T gives a lower bound in the limit of many rows; on k rows it is an
estimate, and none from k rows of rho can be trusted near `log k` (McAllester and Stratos): what rho does less often
than once in k rows is not seen.

T is a small network (`critic.py`). It sees a row in coordinates in which the covariances of both sets are diagonal,
with some of their squares (`coordinates.py`), worked out on training rows. The value reported is that of T, on rho
itself.

The rows are cut into five folds; each reports once, on a network that was trained on nine tenths of the others and
stopped on the last tenth. Features are first standardised by the mean and standard deviation of both sets together,
which changes no relative entropy.

The estimate is low where rho seldom shows what nu often does; `experiments/donsker_varadhan.py` measures by how much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from expunge.errors import OptionError
from expunge.estimate.critic import fit_critic
from expunge.estimate.two_samples import (
    FOLDS,
    TwoSamples,
    checked,
    rows_that_count,
    standardised,
    stop_and_train,
    telling_columns,
)
from expunge.runtime.budget import NO_LIMIT, Budget
from expunge.runtime.progress import Progress, silent

NEAR = 0.5  # of the ceiling


@dataclass(frozen=True)
class DonskerVaradhanLower:
    """Estimate of KL(nu || rho) on rows that trained nothing and stopped nothing.

    A lower bound in the limit of many rows.

    `raw` is as computed; `value` lies between 0 and `ceiling`. `standard_error` is by the delta method, each row of
    nu and rho counted once: `sum w^2 (T - mean)^2 / (sum w)^2` over nu, plus `var(exp T) / mean(exp T)^2 / k` over rho.
    It does not know what no row shows: where exp T has heavy tails under rho it is too small. `ceiling` is the
    logarithm of the rows of rho in the smallest fold. `epochs` and `best_epoch` are those of the fold that ran longest.
    `left_out` features are constant in one set and not in the other, and may make the distance infinite.
    """

    value: float
    raw: float
    standard_error: float
    ceiling: float
    epochs: int
    best_epoch: int
    n_nu: int
    n_rho: int
    left_out: int = 0

    @property
    def saturated(self) -> bool:
        """Features were left out, or value and two standard errors reach half the ceiling: KL may be infinite."""
        return self.left_out > 0 or self.value + 2.0 * self.standard_error >= NEAR * self.ceiling


def donsker_varadhan(
    nu: Tensor,
    rho: Tensor,
    *,
    weights: Tensor | None = None,
    epochs: int = 500,
    learning_rate: float = 1e-4,
    width: int = 128,
    batch: int = 500,
    patience: int = 30,
    seed: int = 0,
    budget: Budget = NO_LIMIT,
    folds: list[float] | None = None,
    progress: Progress = silent,
) -> DonskerVaradhanLower:
    """Estimate KL of the distribution of the rows `nu` (the surrogate) relative to that of the rows `rho` (the source).

    `weights` are non-negative, one a row of nu, and count in every mean over nu; only their proportions matter.
    `patience` is how many epochs may pass without a better value on the stopping rows; each fold has its share of the
    `budget`. The value of each fold is appended to `folds`. The seed only shapes an estimate.
    """
    _require_options(epochs, learning_rate, width, batch, patience)
    nu, weights = rows_that_count(nu, weights)
    nu, rho, left_out = telling_columns(*checked(nu, rho))
    nu, rho = standardised(nu, rho)
    generator = torch.Generator().manual_seed(seed)
    nu_folds = torch.randperm(len(nu), generator=generator).to(nu.device).tensor_split(FOLDS)
    rho_folds = torch.randperm(len(rho), generator=generator).to(rho.device).tensor_split(FOLDS)
    ceiling = math.log(min(len(fold) for fold in rho_folds))
    reports: list[tuple[float, float]] = []
    lengths: list[tuple[int, int]] = []
    for i in range(FOLDS):
        mine = budget.part(1.0 / (FOLDS - i))
        others = [(i + j) % FOLDS for j in range(1, FOLDS)]
        nu_stop, nu_train = stop_and_train(torch.cat([nu_folds[j] for j in others]))
        rho_stop, rho_train = stop_and_train(torch.cat([rho_folds[j] for j in others]))
        fitted = fit_critic(
            TwoSamples(nu[nu_train], weights[nu_train], rho[rho_train]),
            TwoSamples(nu[nu_stop], weights[nu_stop], rho[rho_stop]),
            width,
            (epochs, learning_rate, batch, patience),
            generator,
            _telling(progress, lengths[:], epochs, mine),
            mine,
        )
        reports.append(fitted.report(TwoSamples(nu[nu_folds[i]], weights[nu_folds[i]], rho[rho_folds[i]])))
        lengths.append((fitted.epochs, fitted.best_epoch))
    raw = sum(value for value, _ in reports) / FOLDS
    if folds is not None:
        folds += [value for value, _ in reports]
    error = math.sqrt(sum(variance for _, variance in reports)) / FOLDS
    return DonskerVaradhanLower(
        min(max(0.0, raw), ceiling), raw, error, ceiling, *max(lengths), len(nu), len(rho), left_out
    )


def _telling(progress: Progress, lengths: list[tuple[int, int]], epochs: int, budget: Budget) -> Progress:
    """The progress of one fold as that of all: folds to come are taken to be as long as those that are done."""
    before, to_come = sum(length for length, _ in lengths), FOLDS - 1 - len(lengths)

    def advance(stage: str, done: int, _total: int | None) -> None:
        fitting = budget.fitting(done, epochs)
        each = max(length for length, _ in lengths) if lengths else fitting
        progress(stage, before + done, before + max(done, min(each, fitting)) + to_come * each)

    return advance


def _require_options(epochs: int, learning_rate: float, width: int, batch: int, patience: int) -> None:
    if min(epochs, width, batch, patience) < 1 or not 0.0 < learning_rate < math.inf:
        raise OptionError(
            f"{epochs} epochs at learning rate {learning_rate}, width {width}, batch {batch}, patience {patience}",
            "each must be above 0, and the learning rate finite",
            "The paper uses 500 epochs at 1e-4.",
        )
