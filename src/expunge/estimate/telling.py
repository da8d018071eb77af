"""Whether an estimate from samples tells anything: where it does not, there is no number, but a reason.

Samples stand for the source only if the chains have mixed; a relative entropy from rows is only one if it is not at the
limit of what so many rows can show, and if the parts of the rows that each gave one agree.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from expunge.estimate.donsker_varadhan import DonskerVaradhanLower
from expunge.estimate.langevin import Diagnostics

TELLS_NOTHING = "this tells nothing"
FEWEST_SAMPLES = 100.0  # effective ones
FAILED = -2.0  # standard errors: a relative entropy is not below 0
DISAGREEMENT = 3.0  # standard errors that the folds' own spread may be of the mean
LEAST_DISAGREEMENT = 0.1
INSTEAD = (
    "Compare parts of the surrogate that differ as the source may (years, sites, devices): expunge distance --by.",
    "Declare a distance that can be defended (--distance chi2:... at unlearn), with a margin.",
    "Where the source still exists, keep a deposit of it (expunge deposit): then no distance is needed.",
)


@dataclass(frozen=True)
class Verdict:
    """What keeps the samples from telling, in sentences; nothing does where there are none."""

    reasons: tuple[str, ...] = ()

    @property
    def tells(self) -> bool:
        return not self.reasons


NOTHING_AGAINST = Verdict()


def of_chains(found: Diagnostics) -> list[str]:
    """What keeps samples from standing for the density they were drawn from."""
    reasons = []
    if not found.converged:
        reasons.append(
            f"the chains have not mixed (split R-hat {found.r_hat:.3f}, at most 1.1 is needed; drift of norms "
            f"{found.drift:+.2f} sd): give more time (--minutes), or another --support"
        )
    if found.effective_samples < FEWEST_SAMPLES:
        reasons.append(
            f"the chains count as {found.effective_samples:,.0f} independent samples, and {FEWEST_SAMPLES:g} are needed"
        )
    return reasons


def of_entropy(found: DonskerVaradhanLower, folds: Sequence[float]) -> list[str]:
    """What keeps an estimate from rows from being a relative entropy; `folds` are the values of its parts."""
    reasons = []
    if found.left_out:
        reasons.append(
            f"{found.left_out} features are constant in one of the two sets only: the KL may be infinite, and total "
            "variation 1"
        )
    elif found.saturated:
        reasons.append(
            f"the two sets hardly overlap: the network reached {found.value:.2f} of at most {found.ceiling:.2f} that "
            "so many rows can show, so that the KL may be infinite, and total variation 1"
        )
    if found.raw < FAILED * found.standard_error and found.raw < -LEAST_DISAGREEMENT:
        reasons.append(f"the network found less than nothing ({found.raw:.3g}), which no KL is: a fit that failed")
    if len(folds) > 1:
        spread = statistics.stdev(folds) / math.sqrt(len(folds))
        if spread > max(LEAST_DISAGREEMENT, DISAGREEMENT * found.standard_error):
            each = ", ".join(f"{value:.2g}" for value in folds)
            reasons.append(f"parts of the rows disagree on the KL of features: {each}")
    return reasons
