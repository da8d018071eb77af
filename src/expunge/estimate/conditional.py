"""The conditional part of the KL between surrogate and source (the paper's Proposition 4.5).

    mean over surrogate rows (x, y) of  log p_S(y|x) - log p_D(y|x)

p_D is the trained model's probability, p_S that of a model of the same kind trained on the surrogate. Cross-fitted:
each row is judged by a surrogate model that was trained on the other folds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from expunge.errors import DataError
from expunge.heads import LinearHead, Rows
from expunge.runtime.budget import NO_LIMIT, Budget
from expunge.runtime.progress import Progress, silent
from expunge.train import minimise

FOLDS = 5
TOLERANCE = 1e-6  # gradient norm of a fold's model: far below what its rows' randomness moves it by


@dataclass(frozen=True)
class ConditionalDivergence:
    """Mean log ratio and its standard error; infinite where the trained model rules out a label that occurs.

    Neither an upper nor a lower bound on the KL of the conditionals: p_S falls short of the surrogate's own conditional
    (too small), and p_D stands for the source's, which it only approximates (either way).
    """

    value: float
    standard_error: float
    folds: int
    n_rows: int


def conditional_divergence(
    objective: LinearHead,
    weights: Tensor,
    surrogate: Rows,
    *,
    folds: int = FOLDS,
    seed: int = 0,
    budget: Budget = NO_LIMIT,
    progress: Progress = silent,
) -> ConditionalDivergence:
    """Cross-fitted mean log ratio; only for losses that are minus a log probability (softmax).

    Once the `budget` is spent the folds to come are left out: their rows are not judged, and `n_rows` says how many
    were.
    """
    rows = len(surrogate)
    if not 2 <= folds <= rows // 2:
        raise DataError(f"{rows} surrogate rows for {folds} folds", "two rows a fold are needed", "Add surrogate rows.")
    generator = torch.Generator().manual_seed(seed)
    fold = (torch.randperm(rows, generator=generator) % folds).to(surrogate.features.device)
    judged: list[Tensor] = []
    start = None
    for index in range(folds):
        progress("Models on the surrogate", index, folds)
        held = fold == index
        trained = minimise(objective, _subset(surrogate, ~held), start=start, tolerance=TOLERANCE)
        start = trained
        found = _losses(objective, weights, surrogate, held) - _losses(objective, trained, surrogate, held)
        each = torch.ones_like(found) if surrogate.weights is None else surrogate.weights[held]
        judged.append(torch.stack([found, each]))
        if budget.spent:
            break
    progress("Models on the surrogate", len(judged), len(judged))
    ratios, each = torch.cat(judged, dim=1)
    rows = len(ratios)
    if bool((ratios == math.inf).any()):
        return ConditionalDivergence(math.inf, math.inf, len(judged), rows)
    if not bool(torch.isfinite(ratios).all()):
        raise DataError(
            "a log ratio of the two models' probabilities is not a number",
            "finite logits are needed",
            "Check the model's weights; values this large are not from training.",
        )
    each = each / each.mean()
    mean = float((each * ratios).mean())
    error = float((each * (ratios - mean)).square().sum().sqrt()) / rows
    return ConditionalDivergence(mean, error, len(judged), rows)


def _subset(rows: Rows, chosen: Tensor) -> Rows:
    """Some of the rows, their weights brought back to mean 1."""
    weights = None if rows.weights is None else rows.weights[chosen] / rows.weights[chosen].mean()
    return replace(rows, features=rows.features[chosen], labels=rows.labels[chosen], weights=weights)


def _losses(objective: LinearHead, weights: Tensor, rows: Rows, chosen: Tensor) -> Tensor:
    return objective.losses(rows.features[chosen].double() @ weights.T, rows.labels[chosen])
