"""U-LiRA: a likelihood-ratio attack on each forgotten row by itself.

Half of the models fit a normal law to a row's confidence under unlearned and under retrained models; the attack
guesses, for each model of the other half, whichever is likelier. Per-row figures matter: attacks on the average row
overstate protection. The models differ by the noise alone (source and forget set are fixed), which is what the
certificate speaks of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from expunge.evaluate.score import Score

CONFIDENCE = 0.999
FEWEST_MODELS = 20
LEAST_SPREAD = 1e-12

Confidences = NDArray[np.float64]


@dataclass(frozen=True)
class LikelihoodRatio:
    """Accuracy of the attack: mean over rows, each row's, and a lower bound on the worst row's.

    `worst_lower` holds for all rows together with 99.9 % confidence: Clopper and Pearson, divided among the rows. 0.5
    or less says nothing.
    """

    mean: Score
    rows: NDArray[np.float64]
    worst: float
    worst_lower: float


def likelihood_ratio(unlearned: Confidences, retrained: Confidences) -> LikelihoodRatio | Score:
    """The attack from two arrays of confidences, N models x rows."""
    if len(unlearned) != len(retrained) or len(unlearned) < FEWEST_MODELS:
        return Score.meaningless(
            f"{len(unlearned)} unlearned and {len(retrained)} retrained models: as many of both, and at least "
            f"{FEWEST_MODELS}, are needed"
        )
    if np.ptp(np.concatenate([unlearned, retrained]), axis=0).max() == 0.0:
        return Score.meaningless("all confidences are equal: the attack has nothing to go by")
    half = len(unlearned) // 2
    hits = _guessed(unlearned[half:], unlearned[:half], retrained[:half]).sum(axis=0)
    hits = hits + (~_guessed(retrained[half:], unlearned[:half], retrained[:half])).sum(axis=0)
    tried = 2 * (len(unlearned) - half)
    accuracies: NDArray[np.float64] = hits / tried
    lower = beta.ppf((1.0 - CONFIDENCE) / len(hits), hits, tried - hits + 1)
    lower = np.where(hits == 0, 0.0, lower)
    return LikelihoodRatio(
        Score(float(accuracies.mean()), 0.5 / math.sqrt(tried)), accuracies, float(accuracies.max()), float(lower.max())
    )


def _guessed(values: Confidences, unlearned: Confidences, retrained: Confidences) -> NDArray[np.bool_]:
    """Whether each value is likelier under the unlearned models' normal law."""
    return _log_density(values, unlearned) > _log_density(values, retrained)


def _log_density(values: Confidences, sample: Confidences) -> Confidences:
    spread = np.maximum(sample.std(axis=0), LEAST_SPREAD)
    result: Confidences = -0.5 * ((values - sample.mean(axis=0)) / spread) ** 2 - np.log(spread)
    return result
