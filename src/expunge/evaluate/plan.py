"""Before you act: what a deletion would cost at several epsilons and declared distances.

Everything is computed as `unlearn` would, up to the noise, which is not drawn: the sigma foreseen is the sigma used.
Accuracy is measured on the surrogate, with noise that is thrown away afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from expunge.bounds.calibration import deletions_left
from expunge.deposit.evidence import reach_of
from expunge.deposit.file import Deposit
from expunge.door import ask
from expunge.errors import OptionError, Refused, VacuousClaim
from expunge.evaluate.case import make_rows
from expunge.evaluate.metrics import classify
from expunge.evidence import foresee
from expunge.heads import Rows
from expunge.heads.rows import evenly
from expunge.mechanism import measure
from expunge.model import LinearModel
from expunge.noise import Noise
from expunge.request.promise import HERE, NOTHING_DECLARED, Declared, Execution, Promise
from expunge.request.request import Request
from expunge.request.sets import FORCED, SURROGATE, is_labelled
from expunge.rows.columns import prepare_frames
from expunge.runtime.arrays import Array, double, norm, to_numpy
from expunge.runtime.progress import Progress, silent
from expunge.surrogate import rehearse, scale_of

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
DISTANCES = ("same", "chi2:0.01", "chi2:0.1", "chi2:1")
DRAWS = 8
MOST_ROWS = 4096  # of the surrogate, for predicting accuracy


@dataclass(frozen=True)
class Outlook:
    """One (distance, epsilon): `noise_share` is the noise's norm over the weights', with a declared curvature what it
    adds to an output over the outputs' own size; above 1 `unlearn` refuses.

    `deletions` counts deletions like this one, published each, until the noise would swamp the weights. `noise` is what
    is recommended for --noise: as for so many rows, whoever they are, rehearsed on surrogate rows; None where these are
    too few.
    """

    distance: str
    epsilon: float
    delta: float
    total: float
    sigma: float
    noise_share: float
    accuracy: float | None
    deletions: int
    refused: bool
    noise: float | None


@dataclass(frozen=True)
class Plan:
    """The frontier, for each declared distance and epsilon.

    `notes` are what a certificate would say of the data; one that begins with FORCED is a refusal to come.
    """

    n_source: int
    n_forget: int
    n_surrogate: int
    accuracy_before: float | None
    outlooks: tuple[Outlook, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan(
    model: LinearModel,
    forget: tuple[Any, Any],
    surrogate: tuple[Any, Any] | Any,
    *,
    delta: float,
    epsilons: Sequence[float] = EPSILONS,
    distances: Sequence[Any] = DISTANCES,
    progress: Progress = silent,
    match_classes: bool = False,
    step: str | None = None,
    bound: str = "residual",
    curvature: float | str | None = None,
    declared: Declared = NOTHING_DECLARED,
    execution: Execution = HERE,
    insecure_test_seed: int | None = None,
) -> Plan:
    """The frontier of epsilon against noise and accuracy; most options are those of `unlearn`."""
    if not epsilons or not distances:
        raise OptionError(
            "no epsilon or no distance",
            "at least one of each is needed",
            "Give --epsilon and --distance (epsilons=, distances=).",
        )
    if model.record is not None:
        surrogate = prepare_frames(surrogate, model.record, SURROGATE)
    labelled = is_labelled(surrogate)
    outlooks: list[Outlook] = []
    shown: Rows | None = None
    notes: dict[str, None] = {}
    for index, distance in enumerate(distances):
        progress("Distances", index, len(distances))
        options: dict[str, Any] = {"step": step, "bound": bound, "match_classes": match_classes, "curvature": curvature}
        promise = Promise(epsilons[0], delta, distance, force=True, **options)
        request = ask(model, forget, surrogate, promise, declared=declared, execution=execution)
        notes |= dict.fromkeys(request.notes)
        shown = evenly(request.surrogate, MOST_ROWS) if labelled and shown is None else shown
        enough = 2 * len(request.forget) <= min(request.n_surrogate, request.n_source)
        try:
            measured = measure(request, seed=insecure_test_seed)
            trial = rehearse(request, len(request.forget), measure, seed=insecure_test_seed) if enough else None
        except VacuousClaim as refusal:
            if distance is distances[-1] and not outlooks:
                raise
            notes[f"refused with {distance}: {refusal.found}"] = None
            continue
        length, updated = norm(request.weights), request.weights + measured.step.update
        for epsilon in epsilons:
            asked = _with_epsilon(request, epsilon)
            _, derived = foresee(asked, measured)
            radius = derived.region.radius
            noise = None if derived.noise is None else measured.shaped(derived.noise)
            share = math.inf if noise is None or length == 0.0 else noise.length / length
            if noise is not None and measured.retained.shape is not None:  # long, where no output sees it
                share = noise.scale * measured.facts["output_noise"].value / measured.facts["output_spread"].value
            more = deletions_left(radius, derived.region.terms.get("training", 0.0), share)
            outlooks.append(
                Outlook(
                    distance=str(request.distance),
                    epsilon=epsilon,
                    delta=delta,
                    total=radius,
                    sigma=derived.sigma,
                    noise_share=share,
                    accuracy=None if shown is None or noise is None else _accuracy(shown, updated, noise),
                    deletions=0 if share > 1.0 or more is None else more + 1,
                    refused=share > 1.0 or any(note.startswith(FORCED) for note in request.notes),
                    noise=None if trial is None else scale_of(_with_epsilon(trial[0], epsilon), trial[1]),
                )
            )
    before = None if shown is None else _accuracy(shown, request.weights)
    return Plan(request.n_source, request.n_forget, request.n_surrogate, before, tuple(outlooks), tuple(notes))


def _accuracy(rows: Rows, weights: Array, noise: Noise | None = None) -> float:
    """Mean share of these rows that are classified as labelled, over a few draws of noise of this size."""
    features, labels, models = to_numpy(double(rows.features)), to_numpy(rows.labels), [to_numpy(weights)]
    if noise is not None:
        generator = np.random.default_rng(1)  # not the noise that protects: nothing of this is published
        draws = (noise.shape.sample(noise.scale, generator) for _ in range(DRAWS))
        models = [models[0] + draw.reshape(weights.shape) for draw in draws]
    return float(np.mean([np.mean(classify(features @ at.T) == labels) for at in models]))


# With a deposit: the region does not depend on epsilon; the noise is the smallest level that covers it at the mu of
# (epsilon, delta). Accuracy is measured on rows that somebody gives.


@dataclass(frozen=True)
class DepositOutlook:
    """One epsilon: `output_share` is what the noise adds to an output over the outputs' own size.

    `refused` says why `unlearn` would not do it, where it would not; nothing else is known then but the region.
    """

    epsilon: float
    sigma: float | None
    output_share: float | None
    accuracy: float | None
    refused: str | None


@dataclass(frozen=True)
class DepositPlan:
    """`total` is the radius that the rows need, `reach` how much of the deposit's that uses; both None where none is.

    `forgotten` counts the rows that have left the deposit before.
    """

    n_rows: int
    n_forget: int
    forgotten: int
    delta: float
    total: float | None
    reach: float | None
    accuracy_before: float | None
    outlooks: tuple[DepositOutlook, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan_deposit(
    deposit: Deposit,
    forget: tuple[Any, Any],
    *,
    delta: float,
    epsilons: Sequence[float] = EPSILONS,
    model: LinearModel | None = None,
    test: tuple[Any, Any] | None = None,
    execution: Execution = HERE,
    progress: Progress = silent,
) -> DepositPlan:
    """What forgetting these rows would cost at each epsilon; they are looked up in the deposit, and stay in it."""
    if not epsilons:
        raise OptionError("no epsilon", "at least one is needed", "Give --epsilon (epsilons=).")
    promise = Promise(epsilons[0], delta, force=True)
    asked = ask(model, forget, None, promise, deposit=deposit, execution=execution)
    shown = None if test is None else make_rows(test, deposit.model, deposit.record, "the test set")
    outlooks, total, used = [], math.inf, math.inf
    for index, epsilon in enumerate(epsilons):
        progress("Epsilons", index, len(epsilons))
        request = _with_epsilon(asked, epsilon)
        try:
            measured = measure(request)
        except Refused as refusal:
            outlooks.append(DepositOutlook(epsilon, None, None, None, refusal.found))
            continue
        _, derived = foresee(request, measured)
        retained = measured.retained.deposit
        assert retained is not None
        assert derived.noise is not None  # what has none is refused while it is measured
        share = derived.sigma * retained.output_noise / max(retained.output_spread, 1e-300)
        noise = replace(derived.noise, scale=derived.sigma, shape=retained.ellipsoid)
        updated = request.weights + measured.step.update
        accuracy = None if shown is None else _accuracy(shown, updated, noise)
        loud = "more noise than signal in the outputs" if share > 1.0 else None
        outlooks.append(DepositOutlook(epsilon, derived.sigma, share, accuracy, loud))
        reach = reach_of(measured.facts, str(measured.retained.route), retained.levels[-1] * derived.mu)
        total, used = min(total, derived.region.radius), min(used, reach)
    finite = math.isfinite(total)
    return DepositPlan(
        n_rows=deposit.numbers.n_rows,
        n_forget=len(asked.forget),
        forgotten=deposit.numbers.forgotten,
        delta=delta,
        total=total if finite else None,
        reach=used if finite else None,
        accuracy_before=None if shown is None else _accuracy(shown, deposit.reference_weights),
        outlooks=tuple(outlooks),
        notes=asked.notes,
    )


def _with_epsilon(request: Request, epsilon: float) -> Request:
    return replace(request, promise=replace(request.promise, epsilon=epsilon))
