"""Before you act: what a deletion would cost at several epsilons and declared distances, and what would help most.

Everything is computed as `unlearn` would, up to the noise, which is not drawn: the sigma foreseen is the sigma used. Accuracy
is measured on the surrogate, with noise that is thrown away afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from expunge.certificate.compose import deletions_left
from expunge.certificate.derive import derive
from expunge.certificate.facts import Claim
from expunge.errors import ExpungeError, OptionError
from expunge.heads import Rows
from expunge.heads.rows import evenly
from expunge.mechanism import Measured, foresee, measure
from expunge.model import LinearModel
from expunge.request.door import Request, make_request
from expunge.request.guarantee import Budget
from expunge.request.rows import is_labelled
from expunge.runtime.progress import Progress, silent

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
DISTANCES = ("same", "chi2:0.01", "chi2:0.1", "chi2:1")
DRAWS = 8
MOST_ROWS = 4096  # of the surrogate, for predicting accuracy


@dataclass(frozen=True)
class Outlook:
    """One (distance, epsilon): `noise_share` is the noise's norm over the weights'; above 1 `unlearn` refuses.

    `deletions` counts deletions like this one, published each, until the noise would swamp the weights.
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


@dataclass(frozen=True)
class Advice:
    """A change, and the noise it would leave as a share of the noise without it."""

    change: str
    share: float


@dataclass(frozen=True)
class Plan:
    """The frontier, for each declared distance and epsilon; `advice` is for the first distance, most helpful first."""

    n_source: int
    n_forget: int
    n_surrogate: int
    accuracy_before: float | None
    outlooks: tuple[Outlook, ...]
    advice: tuple[Advice, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan(
    model: LinearModel | Any,
    forget: tuple[Any, Any],
    surrogate: tuple[Any, Any] | Any,
    *,
    delta: float,
    epsilons: Sequence[float] = EPSILONS,
    distances: Sequence[Any] = DISTANCES,
    progress: Progress = silent,
    insecure_test_seed: int | None = None,
    **options: Any,
) -> Plan:
    """The frontier of epsilon against noise and accuracy; `options` are those of `unlearn`."""
    if not epsilons or not distances:
        raise OptionError(
            "no epsilon or no distance", "at least one of each is needed", "Give --epsilon and --distance."
        )
    labelled = is_labelled(surrogate)
    outlooks: list[Outlook] = []
    advice: tuple[Advice, ...] = ()
    shown: Rows | None = None
    for index, distance in enumerate(distances):
        progress("Distances", index, len(distances))
        request = make_request(
            model, forget, surrogate, epsilon=epsilons[0], delta=delta, distance=distance, **(options | {"force": True})
        )
        measured = measure(request, seed=insecure_test_seed)
        shown = evenly(request.surrogate, MOST_ROWS) if labelled and shown is None else shown
        for epsilon in epsilons:
            outlooks.append(_outlook(replace(request, budget=Budget(epsilon, delta)), measured, shown))
        if index == 0:
            advice = _advice(replace(request, budget=Budget(_middle(epsilons), delta)), measured)
    before = None if shown is None else _accuracy(shown, request.weights, 0.0)
    return Plan(request.n_source, request.n_forget, request.n_surrogate, before, tuple(outlooks), advice)


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _outlook(request: Request, measured: Measured, shown: Rows | None) -> Outlook:
    _, derived = foresee(request, measured)
    norm = float(request.weights.norm())
    noise = derived.sigma * math.sqrt(request.objective.n_parameters)
    share = noise / norm if norm > 0.0 and math.isfinite(noise) else math.inf
    more = deletions_left(derived.bound.total, derived.bound.terms.get("training", 0.0), share)
    finite = math.isfinite(derived.sigma)
    updated = request.weights + measured.step.update
    return Outlook(
        distance=str(request.distance),
        epsilon=request.budget.epsilon,
        delta=request.budget.delta,
        total=derived.bound.total,
        sigma=derived.sigma,
        noise_share=share,
        accuracy=_accuracy(shown, updated, derived.sigma) if shown is not None and finite else None,
        deletions=0 if share > 1.0 or more is None else more + 1,
        refused=share > 1.0 or not finite,
    )


def _accuracy(shown: Rows, weights: torch.Tensor, sigma: float) -> float:
    """Mean share of these rows that are classified as labelled, over a few draws of noise of this size."""
    features, labels = shown.features.cpu().double(), shown.labels.cpu()
    generator = np.random.default_rng(1)  # not the noise that protects: nothing of this is published
    found = []
    for _ in range(DRAWS if sigma > 0.0 else 1):
        noise = torch.from_numpy(generator.normal(size=tuple(weights.shape))) * sigma
        found.append(float(((features @ (weights.cpu() + noise).T).argmax(dim=1) == labels).double().mean()))
    return float(np.mean(found))


def _advice(request: Request, measured: Measured) -> tuple[Advice, ...]:
    """What the bound's own formula says of a larger surrogate, a smaller distance, a larger l2."""
    claim, derived = foresee(request, measured)
    if claim.bound != "residual" or not math.isfinite(derived.sigma):
        return ()
    changes = {
        "twice as many surrogate rows": _with_fact(claim, "n_surrogate", 2 * claim.facts["n_surrogate"].value),
        "twice the l2 at the next training (the model itself changes too)": _with_fact(
            claim, "l2", 2 * claim.facts["l2"].value
        ),
    }
    if claim.distance.value > 0.0:
        changes["half the distance"] = replace(claim, distance=replace(claim.distance, value=claim.distance.value / 2))
    found = []
    for change, changed in changes.items():
        try:
            found.append(Advice(change, derive(changed).sigma / derived.sigma))
        except ExpungeError:
            continue
    return tuple(sorted(found, key=lambda advice: advice.share))


def _with_fact(claim: Claim, name: str, value: float) -> Claim:
    return replace(claim, facts={**claim.facts, name: replace(claim.facts[name], value=value)})
