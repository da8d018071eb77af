"""Bounds against truths: what is stated, what happened, and whether chance explains the difference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

import reference
from expunge.bounds.calibration import delta_of
from expunge.certificate.claim import Claim
from expunge.certificate.derive import derive, derive_region
from expunge.evidence import build_claim
from expunge.mechanism import measure
from expunge.runtime.arrays import to_numpy
from soundness.problems import Array, Problem, exact, request_of

EPSILON = 1.0
COUNTABLE = 0.2  # stated probability of failure, large enough to count failures
USUAL = 1e-4  # delta as people set it
TIMES = 100  # a realised delta above so many times the claimed one has at most one chance in so many
CHANCE = 1e-6  # below this, chance does not explain it
# what a delta must be for the failures that are spent out of it to add up to COUNTABLE, today
DELTA_OF_QUANTILES = COUNTABLE / 0.41


@dataclass(frozen=True)
class Outcome:
    """One bound beside the truth. `what`: a `quantile`, the `noise` of a claim (its `realised` delta), or `usual`: both."""

    family: str
    seed: int
    what: str
    stated: float
    bound: float
    truth: float
    uncertainty: float
    realised: float

    @property
    def exceeded(self) -> bool:
        """Whether the retrained weights are farther than the bound says, beyond doubt."""
        return not self.truth - self.uncertainty <= self.bound


def radius_of(claim: Claim, failure: float) -> tuple[float, float]:
    """A distance that is exceeded with at most the probability beside it, which is `failure` where a tail is left to ask."""
    region, spent = derive_region(claim), math.fsum(claim.failures.values())
    tail = getattr(region, "tail", None)
    if tail is None:
        return region.radius, spent
    left = max(failure - spent, 0.1 * failure)
    return region.radius + tail.quantile(left), spent + left


def realised_delta(claim: Claim, truth: float) -> float:
    """The delta of the claim's noise at the true distance; 0 where no noise is enough and the claim is refused."""
    noise = derive(claim).noise
    return 0.0 if noise is None else delta_of(EPSILON, truth / noise.scale)


def outcomes_of(
    family: str, problem: Problem, *, whats: Sequence[str] = ("quantile", "noise", "usual")
) -> Iterator[Outcome]:
    """Everything that is claimed of one problem, beside one exact retraining."""
    trained = exact(problem, slice(None)).weights
    target = exact(problem, problem.kept, start=trained)
    for what in whats:
        yield outcome(family, problem, trained, target, what)


def outcome(family: str, problem: Problem, trained: Array, target: reference.Retrained, what: str) -> Outcome:
    """One claim of a problem, by the way that every request goes."""
    delta = {"quantile": DELTA_OF_QUANTILES, "noise": COUNTABLE, "usual": USUAL}[what]
    request = request_of(problem, trained, delta=delta, epsilon=EPSILON)
    measured = measure(request, seed=problem.seed)
    claim = build_claim(request, measured)
    bound, stated = radius_of(claim, COUNTABLE if what == "quantile" else delta)
    updated = to_numpy(request.weights + measured.step.update).reshape(target.weights.shape)
    truth = float(np.linalg.norm(target.weights - updated))
    realised = 0.0 if what == "quantile" else realised_delta(claim, truth)
    return Outcome(family, problem.seed, what, stated, bound, truth, target.error, realised)


@dataclass(frozen=True)
class Verdict:
    """What was found in one family."""

    family: str
    outcomes: tuple[Outcome, ...]

    def of(self, what: str) -> list[Outcome]:
        return [found for found in self.outcomes if found.what == what]

    def stated(self, what: str) -> float:
        return max((found.stated for found in self.of(what)), default=0.0)

    def exceeded(self, what: str) -> int:
        return sum(found.exceeded for found in self.of(what))

    @property
    def violations(self) -> int:
        """Of all bounds: distances exceeded; for noise, a realised delta above the one that is claimed as an average is none."""
        return self.exceeded("quantile") + self.exceeded("usual") + self.far_above()

    def far_above(self) -> int:
        """Claims at the usual delta whose realised one is more than `TIMES` as large."""
        return sum(found.realised > TIMES * USUAL for found in self.of("usual"))

    @property
    def mean_delta(self) -> float:
        """Mean realised delta where `COUNTABLE` is claimed."""
        return math.fsum(found.realised for found in self.of("noise")) / max(len(self.of("noise")), 1)

    @property
    def closest(self) -> float:
        """Smallest bound over truth, where there was something to bound."""
        ratios = [found.bound / found.truth for found in self.of("quantile") if found.truth > 1e3 * found.uncertainty]
        return min(ratios, default=math.inf)

    def faults(self) -> list[str]:
        """What chance does not explain, in words."""
        found = []
        for what in ("quantile", "usual"):
            exceeded, total, stated = self.exceeded(what), len(self.of(what)), self.stated(what)
            if not explained(exceeded, total, stated):
                found.append(f"{self.family}, {what}: {exceeded} of {total} exceeded, stated {stated:g}")
        if self.mean_delta > COUNTABLE + allowance(len(self.of("noise"))):
            found.append(f"{self.family}: a mean delta of {self.mean_delta:g}, claimed {COUNTABLE:g}")
        if not explained(self.far_above(), len(self.of("usual")), 1.0 / TIMES):
            found.append(f"{self.family}: {self.far_above()} deltas far above the claimed one")
        return found


def explained(count: int, total: int, probability: float) -> bool:
    """Whether so many of `total` are within chance, each having at most this probability.

    >>> explained(20, 100, 0.2), explained(60, 100, 0.2), explained(1, 10, 0.0)
    (True, False, False)
    """
    return count == 0 or float(binom.sf(count - 1, total, min(probability, 1.0))) >= CHANCE


def allowance(total: int) -> float:
    """What a mean of values in [0, 1] exceeds its expectation by with probability `CHANCE` (Hoeffding).

    >>> allowance(0)
    1.0
    """
    return min(1.0, math.sqrt(-math.log(CHANCE) / (2.0 * total))) if total else 1.0
