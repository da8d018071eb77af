"""What is asked of evidence, whatever its kind: four questions, and the claim that the answers make."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from expunge.bounds.calibration import Scale
from expunge.bounds.ellipsoid import Ellipsoid
from expunge.certificate.claim import GENERATORS, Claim, Fact, Json, PublicNote, beyond_closed_form
from expunge.certificate.derive import Conclusion, derive
from expunge.certificate.wording import next_to_nothing
from expunge.distance import Distance
from expunge.noise import Noise
from expunge.request.request import Request
from expunge.solve.linear import Step

if TYPE_CHECKING:
    from expunge.deposit.file import Deposit

NO_UPDATE = (
    "no update was made: with this surrogate every update had a larger bound, so the noise alone covers the forgotten "
    "rows"
)


class Evidence(Protocol):
    """What is known of the retained rows: from rows that resemble the source, from the source, or from a deposit."""

    @property
    def request(self) -> Request:
        """What is asked for."""

    def step(self) -> Step:
        """The update u, and how it was found; worked out once."""

    def facts(self, step: Step) -> dict[str, Fact]:
        """Every number that the region of this step needs, each with where it comes from."""

    def failures(self) -> dict[str, float]:
        """Probabilities spent out of delta, by what they are spent on."""

    def retained(self) -> Retained:
        """What stands for the retained rows."""


@dataclass(frozen=True)
class Retained:
    """What stands for the retained rows: rows at a distance from them, or what a deposit has left.

    `distance` is the declared one, or what was estimated for the step, with the details in `estimate`. `shape` is the
    noise's, with its matrix, where it is no ball. Of a deposit `route` is how its region was found, `scale` the noise
    level that covers it, and `deposit` what is left of it.
    """

    distance: Distance
    estimate: Json | None = None
    shape: Ellipsoid | None = field(default=None, repr=False)
    route: str | None = None
    scale: Scale | None = None
    deposit: Deposit | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Measurement:
    """The four answers. Private: `step.update` is the model before noise."""

    step: Step
    facts: dict[str, Fact]
    failures: dict[str, float]
    retained: Retained

    def shaped(self, noise: Noise) -> Noise:
        """The noise with the matrix of its shape, where it has one: in no certificate, and made of no row that left."""
        return noise if self.retained.shape is None else replace(noise, shape=self.retained.shape)


def build_claim(request: Request, measured: Measurement, generator: str = GENERATORS[0]) -> Claim:
    """Everything the certificate's numbers follow from."""
    promise, head, retained = request.promise, request.head, measured.retained
    beyond = not head.about.convex or (promise.paper and beyond_closed_form(measured.facts, head.constants(0.0)))
    return Claim(
        epsilon=promise.epsilon,
        delta=promise.delta,
        bound=promise.bound,
        facts=measured.facts,
        distance=retained.distance,
        failures=measured.failures,
        n_parameters=head.n_parameters,
        generator=generator,
        convention=retained.route or promise.sizes,
        tuned=beyond,
        encoder=None if request.record.encoder is None else request.record.encoder_trained or "unknown",
        preparation=request.record.preparation,
        weighted=request.record.class_weights is not None,
        averaged=retained.route is None and promise.averaged,
        scale=retained.scale or promise.scale,
        others=0 if promise.series is None else promise.series.others,
    )


def foresee(request: Request, measured: Measurement) -> tuple[Claim, Conclusion]:
    """What `certify` would claim and derive, without drawing noise or refusing."""
    claim = build_claim(request, measured)
    return claim, derive(claim)


def collect_notes(request: Request, measured: Measurement) -> tuple[str, ...]:
    """What is odd but not an error; first of all, that an epsilon is so large that it promises next to nothing."""
    little = next_to_nothing(request.promise.epsilon)
    notes = ((PublicNote(little),) if little else ()) + request.notes
    if math.isinf(measured.step.pull) and request.head.about.convex:
        notes += (NO_UPDATE,)
    return notes
