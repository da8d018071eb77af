"""Could the certificate be wrong? Lower confidence bounds on mu and epsilon from many runs of the mechanism.

On a task whose retrained weights are known, the mechanism is run many times, and retraining plus noise of the stated
sigma as often. A test that tells the two apart with false positive rate FPR and false negative rate FNR shows

    mu      >= Phi^-1(1 - FPR) - Phi^-1(FNR)                                            (Dong, Roth and Su)
    epsilon >= max( ln((1 - delta - FPR)/FNR), ln((1 - delta - FNR)/FPR) )              (Kairouz, Oh and Viswanath)

Upper confidence bounds of both rates (Clopper and Pearson) make these lower confidence bounds. Statistic and threshold
are chosen on one half of the runs and the rates taken from the other, so that choosing costs no confidence. If the
bound exceeds the mu that the claimed (epsilon, delta) allows, the certificate is false. If not, nothing is proven: an
audit can only find fault. It finds most where the bound is tight, for which `tasks.tight_task` is made.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import beta

from expunge.bounds.calibration import mu_for
from expunge.bounds.ellipsoid import Ellipsoid
from expunge.bounds.region import Shape
from expunge.errors import OptionError
from expunge.evidence.measured import Measured
from expunge.mechanism import certify, hand_over, judge
from expunge.noise import Noise, RandomBytes, add_noise, rounded_sum, seeded_bytes
from expunge.request.door import Request
from expunge.request.subject import LinearSubject
from expunge.runtime.progress import Progress, silent

RUNS = 20_000  # a side; half of them fix the threshold
FEWEST_RUNS = 200
CONFIDENCE = 0.999
THRESHOLDS = 400
TOLERANCE = 1e-9  # of mu: what the claim itself is rounded by

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Lower:
    """Lower confidence bounds on mu and epsilon, and the test they come from."""

    mu: float
    epsilon: float
    statistic: str
    threshold: float
    larger_is_unlearned: bool
    false_positive_upper: float
    false_negative_upper: float
    runs: int
    confidence: float


@dataclass(frozen=True)
class Audit:
    """Claimed against observed. `contradicted` means that, with this confidence, the claim is false.

    `bound` and `true_distance` are lengths as the noise's shape measures them.
    """

    epsilon: float
    delta: float
    mu_claimed: float
    sigma: float
    bound: float = field(repr=False)
    true_distance: float = field(repr=False)
    lower: Lower

    @property
    def contradicted(self) -> bool:
        return self.lower.mu > self.mu_claimed * (1.0 + TOLERANCE) or self.lower.epsilon > self.epsilon

    @property
    def sentence(self) -> str:
        """The outcome in one line."""
        if self.contradicted:
            return f"CONTRADICTED: the claim is false, with {100 * self.lower.confidence:g} % confidence"
        return "not contradicted: no fault was found, which is not a proof that there is none"


def clopper_pearson_upper(count: NDArray[np.int64] | int, total: int, failure: float) -> Values:
    """Upper confidence bound on a probability of which `count` of `total` were seen; fails with probability `failure`.

    >>> round(float(clopper_pearson_upper(0, 100, 0.05)), 6) == round(1 - 0.05 ** (1 / 100), 6)
    True
    """
    seen = np.asarray(count)
    with np.errstate(invalid="ignore"):
        upper: Values = np.where(seen >= total, 1.0, beta.ppf(1.0 - failure, seen + 1, np.maximum(total - seen, 1)))
    return upper


def mu_lower(false_positive: Values, false_negative: Values) -> Values:
    """`Phi^-1(1 - FPR) - Phi^-1(FNR)`, at least 0.

    >>> float(mu_lower(np.array(0.5), np.array(0.5)))
    0.0
    """
    with np.errstate(invalid="ignore"):
        mu: Values = np.fmax(0.0, -ndtri(false_positive) - ndtri(false_negative))
    return mu


def epsilon_lower(false_positive: Values, false_negative: Values, delta: float) -> Values:
    """`max(ln((1 - delta - FPR)/FNR), ln((1 - delta - FNR)/FPR))`, at least 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.log(1.0 - delta - false_positive) - np.log(false_negative)
        second = np.log(1.0 - delta - false_negative) - np.log(false_positive)
    epsilon: Values = np.fmax(0.0, np.fmax(first, second))
    return epsilon


def lower_bound(
    unlearned: Mapping[str, Values], retrained: Mapping[str, Values], delta: float, confidence: float = CONFIDENCE
) -> Lower:
    """Bounds from named statistics of runs of both sides; even runs choose, odd runs count."""
    runs = min(len(values) for values in [*unlearned.values(), *retrained.values()])
    if runs < FEWEST_RUNS:
        raise OptionError(f"{runs} runs a side", f"at least {FEWEST_RUNS} are needed", f"{RUNS:,} are usual.")
    failure = (1.0 - confidence) / 2.0  # one half for each rate
    chosen: tuple[float, str, float, bool] | None = None
    for name in unlearned:
        for larger in (True, False):
            first, second = unlearned[name][::2], retrained[name][::2]
            threshold, value = _best_threshold(first, second, larger, failure)
            if chosen is None or value > chosen[0]:
                chosen = (value, name, threshold, larger)
    assert chosen is not None
    _, name, threshold, larger = chosen
    first, second = unlearned[name][1::2], retrained[name][1::2]
    missed = int(np.sum(first < threshold)) if larger else int(np.sum(first > threshold))
    alarms = int(np.sum(second >= threshold)) if larger else int(np.sum(second <= threshold))
    positive = clopper_pearson_upper(alarms, len(second), failure)
    negative = clopper_pearson_upper(missed, len(first), failure)
    return Lower(
        float(mu_lower(positive, negative)),
        float(epsilon_lower(positive, negative, delta)),
        name,
        threshold,
        larger,
        float(positive),
        float(negative),
        len(first),
        confidence,
    )


def _best_threshold(unlearned: Values, retrained: Values, larger: bool, failure: float) -> tuple[float, float]:
    """The threshold with the largest bound on mu, and that bound, among both sides' quantiles and their middles."""
    sign = 1.0 if larger else -1.0
    own, other = np.sort(sign * unlearned), np.sort(sign * retrained)
    pooled = np.concatenate([own, other])
    quantiles = np.unique(np.quantile(pooled, np.linspace(0.0, 1.0, THRESHOLDS), method="nearest"))
    candidates = np.sort(np.concatenate([quantiles, 0.5 * (quantiles[1:] + quantiles[:-1])]))
    missed = np.searchsorted(own, candidates, "left")
    alarms = len(other) - np.searchsorted(other, candidates, "left")
    bounds = mu_lower(
        clopper_pearson_upper(alarms, len(other), failure), clopper_pearson_upper(missed, len(own), failure)
    )
    equal = np.flatnonzero(bounds == bounds.max())
    best = int(equal[(len(equal) - 1) // 2])  # not the edge: the other runs spread a little further
    return sign * float(candidates[best]), float(bounds[best])


# Runs of both sides ---------------------------------------------------------------------------------------------


def unlearned_runs(
    request: Request, measured: Measured, runs: int, *, seed: int | None = None, progress: Progress = silent
) -> Values:
    """Weights that the mechanism published in `runs` runs: the real `hand_over`, noise and all, once a run.

    What it is handed is judged once: it is the same in each run.

    With a `seed` each run has a seed of its own and the audit can be repeated; without one the noise comes from the
    operating system, as in earnest.
    """
    published, judged = [], judge(request, measured, insecure=seed is not None)
    for run in range(runs):
        if run % 500 == 0:
            progress("Mechanism", run, runs)
        own = None if seed is None else seed * 2**32 + run  # no two runs of two audits share a seed
        published.append(hand_over(request, measured, *judged, insecure_test_seed=own).model.matrix().numpy())
    progress("Mechanism", runs, runs)
    return np.stack(published)


def noised_runs(weights: Values, sigma: float, exponent: int, runs: int, *, seed: int | None = None) -> Values:
    """`runs` models of these weights plus noise, by the mechanism's own sampler and on its grid, all at once."""
    repeated = np.broadcast_to(weights, (runs, *weights.shape))
    draw: RandomBytes | None = None if seed is None else seeded_bytes(seed)
    return add_noise(repeated, sigma, exponent) if draw is None else add_noise(repeated, sigma, exponent, draw)


def shaped_runs(weights: Values, noise: Noise, runs: int, *, seed: int | None = None) -> Values:
    """The same with noise that has a shape, one after the other."""
    draw: RandomBytes = os.urandom if seed is None else seeded_bytes(seed)
    smallest, made = noise.shape.smallest(noise.scale), []
    for _ in range(runs):
        rest = noise.shape.rest(noise.scale, draw)
        assert rest is not None
        made.append(rounded_sum(weights.reshape(-1) + rest.reshape(-1), smallest, noise.grid_exponent, draw))
    return np.stack(made).reshape(runs, *weights.shape)


def seen_by(shape: Shape | None, differences: Values) -> Values:
    """Differences of weights, flat, in coordinates in which noise of this shape is alike in every direction."""
    flat = differences.reshape(len(differences), -1)
    return shape.whitened(flat) if isinstance(shape, Ellipsoid) else flat


def statistics(models: Values, updated: Values, retrained: Values, shape: Shape | None = None) -> dict[str, Values]:
    """What the audit tells models apart by.

    `projection` on the line from retrained to updated weights, as the noise's shape sees it, is the best test there is
    for the mechanism as stated (Neyman and Pearson). The others find noise that is not as stated: `distance` to the
    retrained weights, over all of them, and `nearest`, the weight closest to its value before noise, which is 0 if any
    weight got none.
    """
    flat = seen_by(shape, models - retrained)
    direction = seen_by(shape, (updated - retrained)[None])[0]
    length = float(np.linalg.norm(direction))
    direction = direction / length if length > 0 else np.ones_like(direction) / math.sqrt(len(direction))
    return {
        "projection": flat @ direction,
        "distance": np.linalg.norm(flat, axis=1),
        "nearest": np.abs(models - updated).reshape(len(models), -1).min(axis=1),
    }


@dataclass(frozen=True)
class Evidence:
    """Statistics of runs of both sides, by name."""

    unlearned: dict[str, Values]
    retrained: dict[str, Values]


def collect(
    request: Request,
    measured: Measured,
    retrained: torch.Tensor,
    runs: int,
    *,
    seed: int | None = None,
    progress: Progress = silent,
) -> Evidence:
    """Run the mechanism `runs` times, and retraining plus noise as often."""
    updated = (request.weights + measured.step.update).cpu().numpy()
    goal = retrained.cpu().numpy()
    drawn = judge(request, measured, insecure=seed is not None)[1].noise
    assert drawn is not None
    noise, other = measured.shaped(drawn), None if seed is None else seed + 1
    models = unlearned_runs(request, measured, runs, seed=seed, progress=progress)
    if isinstance(noise.shape, Ellipsoid):
        references = shaped_runs(goal, noise, runs, seed=other)
    else:
        references = noised_runs(goal, noise.scale, noise.grid_exponent, runs, seed=other)
    assert isinstance(request.subject, LinearSubject)
    stored = torch.from_numpy(references).to(request.subject.dtype).double().numpy()
    return Evidence(*(statistics(side, updated, goal, noise.shape) for side in (models, stored)))


def join(parts: Sequence[Evidence]) -> Evidence:
    """Runs of several parts as one."""
    sides = []
    for side in ("unlearned", "retrained"):
        names = getattr(parts[0], side)
        sides.append({name: np.concatenate([getattr(part, side)[name] for part in parts]) for name in names})
    return Evidence(*sides)


def require_confidence(confidence: float) -> None:
    """Refuse a confidence that nothing could be said with."""
    if not 0.5 < confidence < 1.0:
        raise OptionError(f"confidence {confidence}", "it must lie between 0.5 and 1", "0.999 is usual.")


def conclude(
    request: Request,
    measured: Measured,
    retrained: torch.Tensor,
    evidence: Evidence,
    *,
    confidence: float = CONFIDENCE,
) -> Audit:
    """What the runs show. The claim is the (epsilon, delta) asked for, not the certificate's own mu."""
    require_confidence(confidence)
    certificate = certify(
        request, measured, insecure_test_seed=0
    ).certificate  # its sigma and bound; the model is dropped
    spent = math.fsum(certificate.content["noise"]["failures"].values())
    updated = request.weights + measured.step.update
    shape = None if request.deposit is None else request.deposit.ellipsoid
    away = seen_by(shape, (updated - retrained).cpu().numpy()[None])
    return Audit(
        request.guarantee.epsilon,
        request.guarantee.delta,
        mu_for(request.guarantee.epsilon, request.guarantee.delta - spent),
        certificate.sigma,
        certificate.total,
        float(np.linalg.norm(away)),
        lower_bound(evidence.unlearned, evidence.retrained, request.guarantee.delta, confidence),
    )


def audit(
    request: Request,
    measured: Measured,
    retrained: torch.Tensor,
    *,
    runs: int = RUNS,
    confidence: float = CONFIDENCE,
    seed: int | None = None,
    progress: Progress = silent,
) -> Audit:
    """Run the mechanism `runs` times against retraining plus noise as often, and say what that shows."""
    evidence = collect(request, measured, retrained, runs, seed=seed, progress=progress)
    return conclude(request, measured, retrained, evidence, confidence=confidence)
