"""The step with every number its region needs, and the claim that they make."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from expunge.bounds.region import ROUND_UP
from expunge.certificate.derive import Derived, beyond_closed_form, derive, region_of
from expunge.certificate.facts import GENERATORS, Claim, Fact, Json
from expunge.distance import Distance
from expunge.model import LinearModel, from_matrix
from expunge.request.description import record_after
from expunge.request.door import Request
from expunge.solve.outcome import Step


@dataclass(frozen=True)
class Measured:
    """The step, and every number the region needs. Private: `step.update` is the model before noise.

    `distance` is the declared one, or what was estimated for this step, with the evidence in `estimate`.
    """

    step: Step
    facts: dict[str, Fact]
    failures: dict[str, float]
    distance: Distance
    estimate: Json | None = None


def claim_of(request: Request, measured: Measured, generator: str = GENERATORS[0]) -> Claim:
    """Everything the certificate's numbers follow from."""
    guarantee, head = request.guarantee, request.head
    beyond = not head.about.convex or (guarantee.paper and beyond_closed_form(measured.facts, head.constants(0.0)))
    return Claim(
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        bound=guarantee.bound,
        facts=measured.facts,
        distance=measured.distance,
        failures=measured.failures,
        n_parameters=head.n_parameters,
        generator=generator,
        convention=guarantee.sizes,
        tuned=beyond,
    )


def foresee(request: Request, measured: Measured) -> tuple[Claim, Derived]:
    """What `certify` would claim and derive, without drawing noise or refusing."""
    claim = claim_of(request, measured)
    return claim, derive(claim)


def handed_on(request: Request, measured: Measured) -> LinearModel:
    """PRIVATE: the un-noised v for the next of a series, with `n - m` rows and a residual `G = l2 Delta`.

    Delta is without the grid's term.
    """
    radius = region_of(claim_of(request, measured)).radius
    record = replace(record_after(request), noised=False, residual=request.record.l2 * radius * ROUND_UP)
    updated = (request.weights + measured.step.update).cpu()
    return from_matrix(updated, bias=record.bias, dtype=torch.float64).with_record(record)
