"""Rows of two distributions, nu and rho, checked and made ready for an estimate of their relative entropy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from expunge.errors import DataError

FEWEST = 60  # rows a side: twelve in each fold, below which a standard error means nothing
FOLDS = 5
STOPPING = 0.1  # share of the other folds that decides when to stop
OWN = 0.05  # share of rows from which on a value counts as having a probability of its own


@dataclass(frozen=True)
class TwoSamples:
    """Rows of both distributions, and the weights of those of nu."""

    nu: Tensor
    weights: Tensor
    rho: Tensor


def rows_that_count(nu: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows of nu that count, and their weights: a row of weight zero is no row."""
    if weights is None:
        return nu, torch.ones(len(nu), dtype=torch.float64, device=nu.device)
    if weights.shape != nu.shape[:1] or not bool(torch.isfinite(weights).all()) or not bool((weights >= 0).all()):
        raise DataError(
            f"weights of shape {tuple(weights.shape)} for {len(nu)} rows, or some not finite or below 0",
            "each row of nu needs one finite weight of at least 0",
            "Check how the weights were made.",
        )
    counts = weights > 0
    kept = weights[counts].detach().double()
    return nu[counts], kept / kept.max() if len(kept) else kept


def checked(nu: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """Both sets in float64; refuses what no estimate can be made from."""
    if nu.ndim != 2 or rho.ndim != 2 or nu.shape[1] != rho.shape[1]:
        raise DataError(
            f"rows of shape {tuple(nu.shape)} and {tuple(rho.shape)}",
            "both must be rows x features, with the same features",
            "Prepare both sets in the same way.",
        )
    if min(len(nu), len(rho)) < FEWEST:
        raise DataError(
            f"{len(nu)} rows that count and {len(rho)} rows",
            f"each side needs at least {FEWEST}: the rows are cut in {FOLDS}, and fewer than 12 give no standard error",
            "Use more rows of the surrogate, and draw more samples of the source.",
        )
    if not (bool(torch.isfinite(nu).all()) and bool(torch.isfinite(rho).all())):
        raise DataError("values that are not finite", "every feature must be finite", "Remove or repair those rows.")
    return nu.detach().double(), rho.detach().double()


def telling_columns(nu: Tensor, rho: Tensor) -> tuple[Tensor, Tensor, int]:
    """The columns that a network can tell the sets apart by, and how many others may make the distance infinite.

    A column of one and the same value in both sets says nothing. One that is constant in a single set, at a value that
    is rare in the other, makes the distance infinite unless that value has a probability of its own there, which so few
    rows cannot show; it is left out and counted. Leaving columns out can only lower a relative entropy.
    """
    nu_still, rho_still = (nu == nu[0]).all(dim=0), (rho == rho[0]).all(dim=0)
    same = nu_still & rho_still & (nu[0] == rho[0])
    if bool(same.all()):
        raise DataError(
            "every feature has one and the same value in both sets",
            "there is nothing to tell the sets apart by, and nothing to call them equal by",
            "Use features that vary.",
        )
    in_rho, in_nu = (rho == nu[0]).double().mean(dim=0), (nu == rho[0]).double().mean(dim=0)
    shared = torch.where(nu_still, in_rho, in_nu)  # the constant's share in the other set
    odd = (nu_still | rho_still) & ~same & (shared < OWN)
    kept = ~same & ~odd
    if not bool(kept.any()):
        raise DataError(
            f"all {int(odd.sum())} features that vary are constant in one of the sets",
            "the distance is infinite unless that value is as usual in the other",
            "Use a surrogate, and a support of the sampler, in which they vary.",
        )
    return nu[:, kept], rho[:, kept], int(odd.sum())


def standardised(nu: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """Both sets by the mean and standard deviation of both together, in float32."""
    top = torch.maximum(nu.abs().amax(dim=0), rho.abs().amax(dim=0))  # first: squares of huge values would overflow
    pooled = torch.cat([nu / top, rho / top])
    spread = pooled.std(dim=0)
    still = torch.nonzero(spread <= 1e-12).squeeze(1).tolist()
    if still:
        raise DataError(
            f"a feature varies by less than a part in 10^12 of its size (column {still[0]} of those that vary)",
            "differences that small are rounding",
            "Drop the feature, or subtract its mean before.",
        )
    scaled = ((pooled - pooled.mean(dim=0)) / spread).float()
    return scaled[: len(nu)], scaled[len(nu) :]


def stop_and_train(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to stop by, rows to train on; they come shuffled, fold after fold, so each fold gives its share."""
    every = round(1.0 / STOPPING)
    stopping = torch.arange(len(rows), device=rows.device) % every == 0
    return rows[stopping], rows[~stopping]
