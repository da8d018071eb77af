"""The step with every number its region needs, and the claim that they make."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from expunge.bounds.scale import Scale
from expunge.certificate.claim import GENERATORS, Claim, Fact, Json, PublicNote, beyond_closed_form
from expunge.certificate.derive import Derived, derive
from expunge.certificate.wording import next_to_nothing
from expunge.distance import Distance
from expunge.noise import Noise
from expunge.request.door import Request
from expunge.request.past import Past
from expunge.solve.outcome import Step

NO_UPDATE = (
    "no update was made: with this surrogate every update had a larger bound, so the noise alone covers the forgotten "
    "rows"
)
NOT_NEEDED = "the surrogate given has no part in this: with the deposit alone the noise is no larger"


@dataclass(frozen=True)
class Measured:
    """The step, and every number the region needs. Private: `step.update` is the model before noise.

    `distance` is the declared one, or what was estimated for this step, with the evidence in `estimate`. With a deposit
    `route` is how its region was found, `scale` the noise's, one of few, and `kept` the deposit of what is retained.
    """

    step: Step
    facts: dict[str, Fact]
    failures: dict[str, float]
    distance: Distance
    estimate: Json | None = None
    route: str | None = None
    scale: Scale | None = None
    kept: Any = None

    def shaped(self, noise: Noise) -> Noise:
        """The noise with the matrix of its shape, where it has one: that of the retained rows. No certificate has
        it."""
        return noise if self.kept is None else replace(noise, shape=self.kept.ellipsoid)


def claim_of(request: Request, measured: Measured, generator: str = GENERATORS[0]) -> Claim:
    """Everything the certificate's numbers follow from."""
    promise, head = request.promise, request.head
    beyond = not head.about.convex or (promise.paper and beyond_closed_form(measured.facts, head.constants(0.0)))
    return Claim(
        epsilon=promise.epsilon,
        delta=promise.delta,
        bound=promise.bound,
        facts=measured.facts,
        distance=measured.distance,
        failures=measured.failures,
        n_parameters=head.n_parameters,
        generator=generator,
        convention=measured.route or promise.sizes,
        tuned=beyond,
        encoder=None if request.record.encoder is None else request.record.encoder_trained or "unknown",
        preparation=request.record.preparation,
        weighted=request.record.class_weights is not None,
        averaged=measured.route is None and promise.averaged,
        scale=measured.scale or promise.scale,
        others=0 if promise.series is None else promise.series.others,
    )


def step_kind(request: Request, measured: Measured) -> str:
    """How the step was made: with a deposit alone it is Newton's, whatever was given beside it."""
    alone = measured.route is not None and not measured.distance.law.stands_in
    return "newton" if alone else str(request.promise.step)


def notes_of(request: Request, measured: Measured) -> tuple[str, ...]:
    """What is odd about the data but not an error, a step that was not made, and a surrogate that was not needed.

    First of all, that an epsilon is so large that it promises next to nothing.
    """
    little = next_to_nothing(request.promise.epsilon)
    made = math.isfinite(measured.step.pull) or not request.head.about.convex
    spared = request.surrogate is not None and not measured.distance.law.stands_in
    first = (PublicNote(little),) if little else ()
    return (*first, *request.notes, *(() if made else (NO_UPDATE,)), *((NOT_NEEDED,) if spared else ()))


def foresee(request: Request, measured: Measured) -> tuple[Claim, Derived]:
    """What `certify` would claim and derive, without drawing noise or refusing."""
    claim = claim_of(request, measured)
    return claim, derive(claim)


def handed_on(request: Request) -> Past:
    """PRIVATE: what has been forgotten once these rows are gone too, for the next of a series."""
    counts = torch.bincount(request.forget.labels.cpu(), minlength=len(request.record.classes)).tolist()
    past = request.past or Past(torch.zeros_like(request.weights.cpu()), (0,) * len(counts))
    own = len(request.forget) * request.head.gradient(request.weights, request.forget)
    return past.with_rows(own, tuple(counts))
