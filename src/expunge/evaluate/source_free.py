"""An audit for those who cannot retrain: forget rows against fresh rows of the same kind.

If the published model owes nothing to the forget rows, it treats them like rows it never saw. Their losses are compared
by the area under the curve (the chance that a forget row has the smaller loss, 50 % if forgotten) with a permutation
test. The model from before, where it still exists, shows whether there was anything to see: if it treats both alike
too, the audit has no power.

It needs fresh rows drawn as the forget rows were. It looks at the average row, and at one model; it cannot contradict a
certificate, which speaks of each row and of the noise, and passing it proves nothing. It finds forgetting that was
skipped or botched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata
from torch import Tensor

from expunge.certificate.sign import FAILED, PASSED, WARNED
from expunge.evaluate.metrics import FEWEST_ROWS, Score, Values, of_other_classes, row_losses
from expunge.heads import LinearHead, Rows

PERMUTATIONS = 9_999
FOUND, VISIBLE = 0.001, 0.05  # p-values: below the first a trace is found, below the second there was one to be seen
LIMITS = (
    "It compares averages over the forget rows; one person's trace can hide in it.",
    "It holds only if the fresh rows were drawn as the forget rows were.",
    "It looks at one published model; it says nothing about epsilon, and passing it is no proof.",
)


@dataclass(frozen=True)
class SourceFree:
    """Area under the curve after unlearning and, where that model was given, before; p-values for 'above 50 %'."""

    after: Score
    after_p: float | None
    before: Score | None
    before_p: float | None
    limits: tuple[str, ...] = LIMITS

    @property
    def outcome(self) -> str:
        """`FAILED` if a trace was found, `PASSED` if one was visible before and is not now; else nothing is known."""
        if self.after_p is None:
            return WARNED
        if self.after_p <= FOUND:
            return FAILED
        return PASSED if self.before_p is not None and self.before_p <= VISIBLE else WARNED

    @property
    def sentence(self) -> str:
        """The outcome in one line."""
        if self.after_p is None:
            return "meaningless: " + "; ".join(self.after.flags)
        if self.outcome == FAILED:
            return "TRACE FOUND: forget rows still have smaller losses than fresh ones"
        if self.before_p is None:
            return "no trace found; without the model from before it is not known whether one could have been"
        if self.outcome == WARNED:
            return "no trace found, but none was visible before either: this audit has no power here"
        return "no trace found, though one was visible before"


def source_free(
    objective: LinearHead, after: Tensor, forget: Rows, fresh: Rows, *, before: Tensor | None = None, seed: int = 0
) -> SourceFree:
    """The audit of one published model."""
    if of_other_classes(forget.labels.numpy(), fresh.labels.numpy()):
        flawed = Score.meaningless("forget and fresh rows are of other classes")
        return SourceFree(flawed, None, None, None)
    smaller_after = smaller_losses(row_losses(objective, after, forget), row_losses(objective, after, fresh), seed)
    if before is None:
        return SourceFree(*smaller_after, None, None)
    return SourceFree(
        *smaller_after,
        *smaller_losses(row_losses(objective, before, forget), row_losses(objective, before, fresh), seed),
    )


def smaller_losses(forget: Values, fresh: Values, seed: int) -> tuple[Score, float | None]:
    """Chance that a forget row has a smaller loss than a fresh one (ties count half), and the one-sided p-value."""
    if min(len(forget), len(fresh)) < FEWEST_ROWS:
        reason = f"{len(forget)} forget and {len(fresh)} fresh rows: at least {FEWEST_ROWS} of both are needed"
        return Score.meaningless(reason), None
    losses = np.concatenate([forget, fresh])
    if np.ptp(losses) == 0.0:
        return Score.meaningless("all losses are equal"), None
    ranks = rankdata(-losses)
    pairs, least = len(forget) * len(fresh), len(forget) * (len(forget) + 1) / 2
    area = (ranks[: len(forget)].sum() - least) / pairs
    generator = np.random.default_rng(seed)
    above = 0
    for _ in range(PERMUTATIONS):
        drawn = generator.permutation(ranks)[: len(forget)].sum()
        above += bool((drawn - least) / pairs >= area - 1e-12)
    spread = math.sqrt((len(losses) + 1) / (12.0 * pairs))
    return Score(float(area), spread), (1 + above) / (1 + PERMUTATIONS)
