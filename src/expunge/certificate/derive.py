"""The only judge: region, noise, status and sentences from the facts alone.

To issue a certificate, `mechanism.py` asks it; to check one, `verify.py` asks it again with the facts read from the
file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from expunge.bounds import Ball, PaperConstants, Region, paper_bound, residual_bound
from expunge.bounds.residual import REVISION
from expunge.certificate.facts import INSECURE, SCHEMA, SCHEMAS, SIZE_NAMES, Claim, Fact, residual_facts, weakest
from expunge.errors import OptionError
from expunge.noise import Calibration, Noise, calibrated, delta_of, sigma_classical, sigma_for
from expunge.record import Constants


@dataclass(frozen=True)
class Bound:
    """A way to a region: how it follows from a claim, how noise is calibrated to it, whether facts can prove it."""

    name: str
    region: Callable[[Claim], Region]
    calibration: str
    scale: Calibration
    provable: bool


def _residual_region(claim: Claim) -> Region:
    revision = 1 if claim.schema == SCHEMAS[0] else REVISION
    return residual_bound(residual_facts(claim.facts), claim.distance, revision)


def _paper_region(claim: Claim) -> Region:
    values = {name: fact.value for name, fact in claim.facts.items()}
    sizes = {name: int(values[name]) for name in SIZE_NAMES}
    constants = PaperConstants(
        values["alpha"], values["beta"], values["lipschitz"], values["gamma"], int(values["lipschitz_power"])
    )
    return paper_bound(
        constants, **sizes, gradient_norm=values["gradient_norm"], tv=values["tv_upper"], sizes=claim.convention
    )


BOUNDS = {
    bound.name: bound
    for bound in (
        Bound("residual", _residual_region, "analytic", sigma_for, provable=True),
        Bound("paper", _paper_region, "classical", sigma_classical, provable=False),
    )
}


def bound_named(name: object) -> Bound:
    """The bound of that name; whatever is unknown raises."""
    if not isinstance(name, str) or name not in BOUNDS:
        raise OptionError(f"bound {name!r}", f"it must be one of {', '.join(BOUNDS)}", "Choose one of them for bound.")
    return BOUNDS[name]


@dataclass(frozen=True)
class Derived:
    """What follows from a claim. Without a finite region there is no noise."""

    region: Region
    noise: Noise | None
    delta_for_noise: float
    delta_at_sigma: float
    status: str
    guarantee: str
    assumptions: tuple[str, ...]
    limits: tuple[str, ...]

    @property
    def sigma(self) -> float:
        """The noise's scale; infinite where there is none."""
        return math.inf if self.noise is None else self.noise.scale

    @property
    def mu(self) -> float:
        return self.region.radius / self.sigma


def derive(claim: Claim) -> Derived:
    """Region, noise, status and sentences from the facts alone."""
    bound = bound_named(claim.bound)
    region = region_of(claim)
    spent = math.fsum(claim.failures.values())
    remaining = claim.delta - spent
    if not math.isfinite(region.radius):
        return Derived(region, None, remaining, 1.0, "none", "", (), ())
    region, noise = calibrated(region, claim.epsilon, remaining, bound.scale)
    achieved = delta_of(claim.epsilon, region.radius / noise.scale)
    return Derived(
        region,
        noise,
        remaining,
        achieved + spent,
        _status(claim, region),
        _guarantee(claim, noise.scale),
        _assumptions(claim),
        _limits(claim),
    )


def region_of(claim: Claim) -> Region:
    """Where the retrained weights can be, without what the noise's grid adds.

    Infinite where the facts allow no less.
    """
    try:
        region = bound_named(claim.bound).region(claim)
    except (OverflowError, ZeroDivisionError):
        region = Region(claim.bound, {"total": math.inf})
    provenance = weakest([claim.distance.provenance, *(fact.provenance for fact in claim.facts.values())])
    return replace(region, shape=Ball(claim.n_parameters), provenance=provenance)


def _status(claim: Claim, region: Region) -> str:
    if region.provenance == "estimated" or claim.tuned:
        return "estimated"
    if region.provenance == "declared" or claim.distance.samples_rows or not bound_named(claim.bound).provable:
        return "conditional"
    return "proven"


def _guarantee(claim: Claim, sigma: float) -> str:
    return (
        f"The published weights are ({claim.epsilon:g}, {claim.delta:g})-indistinguishable from the weights that "
        "retraining without the forgotten rows would have given, with Gaussian noise of the same standard deviation "
        f"{sigma:.6g} added to each, rounded to the same grid and stored in the same type."
    )


def _assumptions(claim: Claim) -> tuple[str, ...]:
    """What has to be true for the guarantee, in plain words; empty for a proven one."""
    sentences = []
    declared = sorted(name for name, fact in claim.facts.items() if fact.provenance == "declared")
    if declared:
        sentences.append("These facts were declared, not checked: " + ", ".join(declared) + ".")
    if claim.distance.provenance == "declared":
        sentences.append(f"Declared: {claim.distance} between {claim.distance.between} ({claim.distance.meaning}).")
    if claim.distance.provenance == "estimated" and claim.schema == SCHEMA:
        sentences.append(
            f"NOT KNOWN, ESTIMATED: {claim.distance} ({claim.distance.meaning}). Nothing is guaranteed about the "
            "error of this estimate; the true distance may be larger, and then the guarantee does not hold."
        )
    if claim.distance.matched:
        sentences.append(
            "Surrogate rows are weighted by class to the source's class counts, and are labelled the way the source "
            "was."
        )
    if claim.distance.law.assumption is not None:
        sentences.append(claim.distance.law.assumption)
    if claim.distance.samples_rows:
        sentences.append(
            "Source and surrogate rows are independent samples of their populations; trained weights and update are "
            "treated as fixed (they are not quite: the weights depend on the source)."
        )
    if claim.distance.samples_rows and claim.distance.sampling == "seen":
        sentences.append(
            "The spread and the largest size of the gradient's change seen on the surrogate stand for its "
            "population's, among rows no longer than those seen."
        )
    if not bound_named(claim.bound).provable:
        sentences.append(
            "Training reached its optimum exactly, and the Hessians of finite sets equal those of their populations."
        )
        sentences.append("The constants alpha, beta, L and gamma hold for every example.")
    if claim.tuned:
        sentences.append(
            "FALSE for this model: the constants given are smaller than this loss can have, so the bound may be "
            "exceeded."
        )
    return tuple(sentences)


def _limits(claim: Claim) -> tuple[str, ...]:
    """What the certificate does not prove."""
    sentences = [
        "It does not prove that the rows given were in the training set, or that they are all that the person "
        "contributed.",
        "It does not protect against somebody who holds the model from before as well as this one.",
        "It does not prove that no copy of the earlier model or of the data exists elsewhere.",
        "Its own numbers (sigma, the bound and what entered it) depend on the forgotten rows and carry no noise; "
        "share it with those who must check it.",
        "It speaks of this one published model; several published models compose to a weaker guarantee.",
        "It cannot show from the weights alone that the noise was drawn as stated; it binds digests, it is not a "
        "proof of execution.",
    ]
    if claim.generator == INSECURE:
        sentences.insert(0, f"{INSECURE}: the noise was made from a seed for a test; this model protects nobody.")
    return tuple(sentences)


def beyond_closed_form(facts: Mapping[str, Fact], closed: Constants) -> bool:
    """Whether the paper's constants, as given, promise more than this objective can keep."""
    return (
        facts["alpha"].value > closed.strong_convexity
        or facts["beta"].value < closed.smoothness
        or facts["lipschitz"].value < closed.lipschitz
        or facts["gamma"].value < closed.hessian_lipschitz
        or facts["lipschitz_power"].value < 2
    )
