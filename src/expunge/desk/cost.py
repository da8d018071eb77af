"""What the noise of a desk costs, told when it is opened: by how much outputs move, or accuracy on the surrogate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from expunge.bounds import Ball
from expunge.bounds.calibration import mu_for
from expunge.certificate.limits import ARITHMETIC_SHARE
from expunge.desk.policy import Policy
from expunge.heads.rows import evenly
from expunge.request.door import Request

if TYPE_CHECKING:
    from expunge.evidence.deposit.contents import Deposit

DRAWS = 20  # of noise
MOST_ROWS = 5_000  # of the surrogate, to measure accuracy on
LESS = (
    "set less noise or plan fewer models (expunge plan shows what that costs), use a larger surrogate, train with a "
    "larger l2, or raise an epsilon that is small"
)


def cost_with_deposit(deposit: Deposit, policy: Policy) -> str:
    """By how much the noise moves a typical output, beside the outputs themselves."""
    assert policy.noise is not None
    moved, mu = policy.noise * deposit.output_noise, mu_for(policy.epsilon, policy.delta * (1.0 - ARITHMETIC_SHARE))
    return (
        f"the noise of every model moves a typical output by {moved:.3g}; the outputs themselves are about "
        f"{deposit.output_spread:.3g}. Requests that change the model by more than {policy.noise * mu:.3g} in its "
        f"measure "
        "are refused (expunge plan tells)"
    )


def cost_with_surrogate(request: Request, policy: Policy, labelled: bool) -> str | None:
    """How many surrogate rows are right without the noise and with it; None where that is not known yet."""
    if policy.noise is None:
        return "each request chooses its own noise: what that costs is not known yet (expunge plan shows it)"
    if not labelled:
        return None
    shown = evenly(request.surrogate, MOST_ROWS)
    features, labels = shown.features.cpu().double(), shown.labels.cpu()
    weights, generator = request.weights.cpu(), np.random.default_rng(1)  # nothing of this is published

    def right(at: torch.Tensor) -> float:
        return float(((features @ at.T).argmax(dim=1) == labels).double().mean())

    noise = Ball(weights.numel())
    drawn = [noise.sample(policy.noise, generator).reshape(tuple(weights.shape)) for _ in range(DRAWS)]
    before, after = right(weights), float(np.mean([right(weights + torch.from_numpy(each)) for each in drawn]))
    guessed = float(torch.bincount(labels).max()) / len(labels)
    said = f"of the surrogate's rows {100 * before:.1f} % are right before, and with this noise {100 * after:.1f} %"
    if after > guessed or before <= guessed:
        return said
    return (
        f"{said}; always naming the most frequent class is right in {100 * guessed:.1f} %. Such models are of no use: "
        f"{LESS}"
    )
