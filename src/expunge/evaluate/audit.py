"""Could the certificate be wrong? Lower confidence bounds on mu and epsilon from many runs of the mechanism.

On a task whose retrained weights are known, the mechanism is run many times, and retraining plus noise of the stated
sigma as often. A test that tells the two apart with false positive rate FPR and false negative rate FNR shows

    mu      >= Phi^-1(1 - FPR) - Phi^-1(FNR)                                            (Dong, Roth and Su)
    epsilon >= max( ln((1 - delta - FPR)/FNR), ln((1 - delta - FNR)/FPR) )              (Kairouz, Oh and Viswanath)

Upper confidence bounds of both rates (Clopper and Pearson) make these lower confidence bounds. Statistic and threshold
are chosen on one half of the runs and the rates taken from the other, so that choosing costs no confidence. An audit
can only find fault: a bound above the claimed mu shows that the certificate is false, one below it proves nothing.

Each part of the bound is needed on some task. `tight_task`'s bound equals the true distance: where no row uses a
feature, what training left undone there, e, stays, and `||w_R - v|| = n/(n-m) ||e||` is the training term.
`sampled_task` has nearly nothing but the sampling term, `single_step_task` the solver's, `deposit_task` the second
order's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import beta

from expunge.bounds.calibration import EXACT, mu_for
from expunge.bounds.ellipsoid import Ellipsoid
from expunge.bounds.region import Shape
from expunge.deposit.make import make_deposit, optimum
from expunge.distance import Distance
from expunge.door import ask
from expunge.errors import OptionError
from expunge.evaluate.case import Labelled, make_rows
from expunge.evaluate.metrics import Values, epsilon_lower
from expunge.evidence import Measurement
from expunge.mechanism import certify, draw, judge, measure
from expunge.model import checked_model
from expunge.noise import Noise, RandomBytes, add_noise, rounded_sum, seeded_bytes
from expunge.request.promise import Declared, Promise
from expunge.request.request import LinearSubject, Request
from expunge.rows.features import to_engine
from expunge.runtime.arrays import Array, Dtype, cast, double, to_numpy
from expunge.runtime.progress import Progress, silent
from expunge.train import minimise, train

RUNS = 20_000  # a side; half of them fix the threshold
FEWEST_RUNS = 200
CONFIDENCE = 0.999
THRESHOLDS = 400
TOLERANCE = 1e-9  # of mu: what the claim itself is rounded by
BATCH = 2_500  # runs a side whose weights are held at once


@dataclass(frozen=True)
class LowerBounds:
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
    lower: LowerBounds

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


def lower_bound(
    unlearned: Mapping[str, Values], retrained: Mapping[str, Values], delta: float, confidence: float = CONFIDENCE
) -> LowerBounds:
    """Bounds from named statistics of runs of both sides; even runs choose, odd runs count."""
    runs = min(len(values) for values in [*unlearned.values(), *retrained.values()])
    if runs < FEWEST_RUNS:
        raise OptionError(f"{runs} runs a side", f"at least {FEWEST_RUNS} are needed", f"{RUNS:,} are usual.")
    failure = (1.0 - confidence) / 2.0  # one half for each rate

    def rates(own: Values, other: Values, thresholds: Values | float) -> tuple[Values, Values]:
        """Upper bounds on FPR and FNR of guessing 'unlearned' at or above a threshold; both samples are sorted."""
        missed = np.searchsorted(own, thresholds, "left")
        alarms = len(other) - np.searchsorted(other, thresholds, "left")
        return clopper_pearson_upper(alarms, len(other), failure), clopper_pearson_upper(missed, len(own), failure)

    def halves(name: str, sign: float, half: int) -> tuple[Values, Values]:
        return np.sort(sign * unlearned[name][half::2]), np.sort(sign * retrained[name][half::2])

    choices = []
    for name in unlearned:
        for sign in (1.0, -1.0):
            sides = halves(name, sign, 0)
            quantiles = np.unique(
                np.quantile(np.concatenate(sides), np.linspace(0.0, 1.0, THRESHOLDS), method="nearest")
            )
            candidates = np.sort(np.concatenate([quantiles, 0.5 * (quantiles[1:] + quantiles[:-1])]))
            bounds = mu_lower(*rates(*sides, candidates))
            equal = np.flatnonzero(bounds == bounds.max())
            best = int(equal[(len(equal) - 1) // 2])  # not the edge: the other runs spread a little further
            choices.append((float(bounds[best]), name, sign, float(candidates[best])))
    _, name, sign, threshold = max(choices, key=lambda choice: choice[0])
    sides = halves(name, sign, 1)
    positive, negative = rates(*sides, threshold)
    mu, epsilon = float(mu_lower(positive, negative)), float(epsilon_lower(positive, negative, delta))
    larger, counted = sign > 0.0, len(sides[0])
    return LowerBounds(
        mu, epsilon, name, sign * threshold, larger, float(positive), float(negative), counted, confidence
    )


# Runs of both sides ---------------------------------------------------------------------------------------------------


def unlearned_runs(
    request: Request, measured: Measurement, runs: int, *, seed: int | None = None, first: int = 0
) -> Values:
    """Weights that the mechanism published in `runs` runs, each drawn by the mechanism itself.

    What is handed over is judged once, being alike in each run. With a `seed` each run has a seed of its own, counted
    from the `first`, and the audit can be repeated; without one the noise comes from the operating system, as in
    earnest.
    """
    assert isinstance(request.subject, LinearSubject)
    derived = judge(request, measured, insecure=seed is not None)[1]
    own = [None if seed is None else seed * 2**32 + first + run for run in range(runs)]  # audits share none
    drawn = np.stack([to_numpy(draw(request, measured, derived, insecure_test_seed=each)[0]) for each in own])
    return _as_stored(drawn, request.subject.dtype)


def _as_stored(weights: Values, dtype: Dtype) -> Values:
    """The weights as a file with this type has them."""
    return to_numpy(double(cast(to_engine(weights, dtype), dtype)))


def noised_runs(weights: Values, noise: Noise, runs: int, *, seed: int | None = None) -> Values:
    """`runs` models of these weights plus this noise, by the mechanism's own sampler and on its grid."""
    source: RandomBytes = os.urandom if seed is None else seeded_bytes(seed)
    smallest, exponent = noise.shape.smallest(noise.scale), noise.grid_exponent
    if not isinstance(noise.shape, Ellipsoid):
        return add_noise(np.broadcast_to(weights, (runs, *weights.shape)), smallest, exponent, source)
    rests = (noise.shape.rest(noise.scale, source) for _ in range(runs))
    made = [rounded_sum((weights.reshape(-1) + rest.reshape(-1)), smallest, exponent, source) for rest in rests]
    return np.stack(made).reshape(runs, *weights.shape)


def whiten(shape: Shape | None, differences: Values) -> Values:
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
    flat = whiten(shape, models - retrained)
    direction = whiten(shape, (updated - retrained)[None])[0]
    length = float(np.linalg.norm(direction))
    direction = direction / length if length > 0 else np.ones_like(direction) / math.sqrt(len(direction))
    return {
        "projection": flat @ direction,
        "distance": np.linalg.norm(flat, axis=1),
        "nearest": np.abs(models - updated).reshape(len(models), -1).min(axis=1),
    }


@dataclass(frozen=True)
class AuditTask:
    """A request, its step and bound, and the retrained weights, which only an audit has."""

    name: str
    request: Request
    measured: Measurement
    retrained: Array

    @property
    def updated(self) -> Array:
        return self.request.weights + self.measured.step.update


def audit(
    task: AuditTask,
    *,
    runs: int = RUNS,
    confidence: float = CONFIDENCE,
    seed: int | None = None,
    progress: Progress = silent,
) -> Audit:
    """Run the mechanism `runs` times against retraining plus noise as often, and say what that shows.

    The claim is the (epsilon, delta) asked for, not the certificate's own mu.
    """
    if not 0.5 < confidence < 1.0:
        raise OptionError(f"confidence {confidence}", "it must lie between 0.5 and 1", "0.999 is usual.")
    request, measured = task.request, task.measured
    assert isinstance(request.subject, LinearSubject)
    certificate = certify(request, measured, insecure_test_seed=0).certificate  # sigma and bound; the model is dropped
    planned = judge(request, measured, insecure=seed is not None)[1].noise
    assert planned is not None
    noise = measured.shaped(planned)
    updated, goal = to_numpy(task.updated), to_numpy(task.retrained)
    sides: tuple[list[dict[str, Values]], list[dict[str, Values]]] = ([], [])
    for start in range(0, runs, BATCH):
        progress(f"Audit {task.name}", start, runs)
        batch = min(BATCH, runs - start)
        unlearned = unlearned_runs(request, measured, batch, seed=seed, first=start)
        other = None if seed is None else seed * 2**32 + 2**31 + start
        retrained = _as_stored(noised_runs(goal, noise, batch, seed=other), request.subject.dtype)
        for side, models in zip(sides, (unlearned, retrained), strict=True):
            side.append(statistics(models, updated, goal, noise.shape))
    progress(f"Audit {task.name}", runs, runs)
    one, two = ({name: np.concatenate([part[name] for part in side]) for name in side[0]} for side in sides)
    epsilon, delta = request.promise.epsilon, request.promise.delta
    mu = mu_for(epsilon, delta - math.fsum(certificate.content["noise"]["failures"].values()))
    away = float(np.linalg.norm(whiten(noise.shape, (updated - goal)[None])))
    lower = lower_bound(one, two, delta, confidence)
    return Audit(epsilon, delta, mu, certificate.sigma, certificate.total, away, lower)


# Tasks ----------------------------------------------------------------------------------------------------------------


def tight_task(
    epsilon: float, delta: float, seed: int = 0, *, n_source: int = 60, n_forget: int = 20, left: float = 0.05
) -> AuditTask:
    """Least squares with an unused last feature, on which training stopped `left` short of the optimum."""
    generator = np.random.default_rng(seed)
    features, labels = _clusters(generator, n_source, 6, 2)
    features[:, -1] = 0.0
    model = train(features, labels, l2=0.1, max_norm=1.0, loss="ridge")
    weights = to_numpy(model.matrix())
    weights[:, -1] += left * np.array([0.6, -0.8])
    request = ask(
        checked_model(weights),
        (features[:n_forget], labels[:n_forget]),
        (features, labels),
        Promise(epsilon, delta, Distance("source", 0.0), force=True, noise=EXACT),
        declared=Declared(n_source, l2=0.1, loss="ridge", max_norm=1.0, training_residual=0.1 * left),
    )
    return _task("tight", request, (features[n_forget:], labels[n_forget:]), seed)


def sampled_task(epsilon: float, delta: float, seed: int = 0) -> AuditTask:
    """Softmax with a surrogate of the same distribution."""
    generator = np.random.default_rng(seed)
    features, labels = _clusters(generator, 500, 5, 3)
    surrogate = _clusters(generator, 500, 5, 3)
    model = train(features[:300], labels[:300], l2=0.05, max_norm=1.0)
    promise = Promise(epsilon, delta, Distance("same", 0.0), force=True, noise=EXACT)
    request = ask(model, (features[:30], labels[:30]), surrogate, promise)
    return _task("sampled", request, (features[30:300], labels[30:300]), seed)


def single_step_task(epsilon: float, delta: float, seed: int = 0) -> AuditTask:
    """Softmax, the source at hand, one Newton step only, a third of the rows forgotten."""
    generator = np.random.default_rng(seed)
    features, labels = _clusters(generator, 150, 5, 3)
    model = train(features, labels, l2=0.02, max_norm=1.0)
    promise = Promise(epsilon, delta, Distance("source", 0.0), step="newton", force=True, noise=EXACT)
    request = ask(model, (features[:50], labels[:50]), (features, labels), promise)
    return _task("single-step", request, (features[50:], labels[50:]), seed)


def deposit_task(
    epsilon: float, delta: float, seed: int = 0, *, n_source: int = 200, one_in: int = 20, n_forget: int = 3
) -> AuditTask:
    """Rows that are all alike, of which few are of the second class, and some of those few are forgotten."""
    features, labels = np.ones((n_source, 1)), (np.arange(n_source) % one_in == 0).astype(int)
    gone = np.flatnonzero(labels == 1)[:n_forget]
    stays = np.setdiff1d(np.arange(n_source), gone)
    kept = make_deposit(train(features, labels, l2=1e-4, max_norm=1.0), (features, labels), seed=seed).deposit
    kept = replace(kept, sums=replace(kept.sums, third=None))  # with third derivatives the bound would be less tight
    promise = Promise(epsilon, delta, force=True, noise=EXACT)
    request = ask(None, (features[gone], labels[gone]), None, promise, deposit=kept)
    return _task("deposit", request, (features[stays], labels[stays]), seed)


TASKS = {"tight": tight_task, "sampled": sampled_task, "single-step": single_step_task, "deposit": deposit_task}


def make_task(name: str, epsilon: float, delta: float, seed: int = 0) -> AuditTask:
    """The task of that name (`tight`, `sampled`, `single-step`, `deposit`)."""
    if name not in TASKS:
        raise OptionError(f"task {name!r}", f"it must be one of {', '.join(TASKS)}", "Choose one of them.")
    return TASKS[name](epsilon, delta, seed)


def _clusters(generator: np.random.Generator, rows: int, width: int, classes: int) -> Labelled:
    """Noisy clusters on the unit sphere, one a class."""
    labels = np.arange(rows) % classes
    features = np.eye(classes, width)[labels] + 0.7 * generator.standard_normal((rows, width))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


def _task(name: str, request: Request, retain: Labelled, seed: int) -> AuditTask:
    """Retraining is by the deposit's objective where there is one: a fixed C is shared by fewer, a bias may be free."""
    if (deposit := request.deposit) is not None:
        rows = make_rows(retain, deposit.model, deposit.record, "the retain set")
        head = replace(deposit.head, l2=0.0)
        retrained = optimum(head, rows, deposit.setting, deposit.penalty(len(rows)))
    else:
        assert isinstance(request.subject, LinearSubject)
        rows = make_rows(retain, request.subject.model, request.record, "the retain set")
        retrained = minimise(request.head, rows, start=request.weights)
    return AuditTask(name, request, measure(request, seed=seed), retrained)
