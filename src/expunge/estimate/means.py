"""What the residual bound really needs: `||E_R phi_u - E_S phi_u||`, with samples standing for the retained rows.

No density has to be estimated for it, only two means of one function. The upper value is a bootstrap's: Gaussian
multipliers move both means the way other samples would have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from expunge.heads import LinearHead, Rows

DRAWS = 400
CONFIDENCE = 0.95
BOOTSTRAP_ROWS = 8192  # of one set: enough to learn how its mean varies
DRAW_BLOCK = 64


@dataclass(frozen=True)
class MeansDifference:
    """The difference of means as found, and its upper confidence value.

    It speaks of the samples' own distribution. Whether that is the source's nobody knows, so this bounds nothing.
    """

    value: float
    upper: float
    confidence: float
    n_samples: int
    n_surrogate: int


def means_difference(
    objective: LinearHead,
    weights: Tensor,
    update: Tensor,
    samples: Rows,
    surrogate: Rows,
    *,
    confidence: float = CONFIDENCE,
    draws: int = DRAWS,
    seed: int = 0,
) -> MeansDifference:
    """`||mean over samples - mean over surrogate||` of phi_update."""
    generator = torch.Generator(device=weights.device).manual_seed(seed)
    difference = objective.change_mean(weights, update, samples) - objective.change_mean(weights, update, surrogate)
    moved = difference.reshape(1, -1) + _fluctuations(objective, weights, update, samples, draws, generator)
    moved -= _fluctuations(objective, weights, update, surrogate, draws, generator)
    norms = moved.norm(dim=1)
    value = float(difference.norm())
    upper = max(value, float(torch.quantile(norms, confidence)))
    return MeansDifference(value, upper, confidence, len(samples), len(surrogate))


def _fluctuations(
    objective: LinearHead, weights: Tensor, update: Tensor, rows: Rows, draws: int, generator: torch.Generator
) -> Tensor:
    """Draws x p: what the rows' mean of f would differ by, `sum g_i w_i (f_i - c) / sqrt(r s)` over r of the s rows."""
    used = min(len(rows), BOOTSTRAP_ROWS)
    chosen = torch.randperm(len(rows), generator=generator, device=weights.device)[:used]
    features = rows.features[chosen].double()
    each = torch.ones(used, dtype=torch.float64, device=weights.device)
    if rows.weights is not None:
        each = rows.weights[chosen]
    changes = objective.change(weights, update, features)
    centre = objective.change_mean(weights, update, rows)
    parts = []
    for start in range(0, draws, DRAW_BLOCK):
        count = min(DRAW_BLOCK, draws - start)
        multipliers = torch.randn((count, used), generator=generator, dtype=torch.float64, device=weights.device) * each
        by_class = [(multipliers * changes[:, index]) @ features for index in range(objective.n_classes)]
        total = torch.stack(by_class, dim=1) - multipliers.sum(dim=1)[:, None, None] * centre
        parts.append(total.reshape(count, -1) / math.sqrt(used * len(rows)))
    return torch.cat(parts)
