"""The only judge: region, noise, status and sentences from the facts alone.

To issue a certificate, `mechanism.py` asks it; to check one, `verify.py` asks it again with the facts read from the
file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from expunge.bounds import Ball, PaperConstants, Region, kept_bound, paper_bound, residual_bound, retained_bound
from expunge.bounds.calibration import Calibration, sigma_classical, sigma_for
from expunge.bounds.region import Shape
from expunge.bounds.residual import REVISION
from expunge.certificate.claim import (
    OLD_SCHEMAS,
    SIZE_NAMES,
    Claim,
    beside_facts,
    deposit_facts,
    ellipsoid_of,
    residual_facts,
    retained_facts,
    weakest,
)
from expunge.certificate.wording import limits_of, next_to_nothing, outside
from expunge.errors import OptionError
from expunge.noise import Noise, delta_at, effective, needed, published
from expunge.runtime.rounding import up


@dataclass(frozen=True)
class Bound:
    """A way to a region: how it follows from a claim, how noise is calibrated to it, whether facts can prove it.

    `shape` is what lengths are measured by; `kept`: the retained rows' own sums were kept.
    """

    name: str
    region: Callable[[Claim], Region]
    calibration: str
    scale: Calibration
    provable: bool
    shape: Callable[[Claim], Shape] = lambda claim: Ball(claim.n_parameters)
    kept: bool = False


def _deposit_region(claim: Claim) -> Region:
    beside = beside_facts(claim.facts) if claim.distance.law.stands_in else None
    return kept_bound(deposit_facts(claim.facts, claim.convention), beside, claim.distance)


def _residual_region(claim: Claim) -> Region:
    if claim.schema in OLD_SCHEMAS:
        revision = 1 if claim.schema == OLD_SCHEMAS[0] else REVISION
        return residual_bound(residual_facts(claim.facts), claim.distance, revision)
    return retained_bound(retained_facts(claim.facts), claim.distance, averaged=claim.averaged)


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
        Bound(
            "deposit",
            _deposit_region,
            "analytic",
            sigma_for,
            provable=True,
            shape=lambda claim: ellipsoid_of(claim.facts, claim.n_parameters),
            kept=True,
        ),
    )
}


def bound_named(name: object) -> Bound:
    """The bound of that name; whatever is unknown raises."""
    if not isinstance(name, str) or name not in BOUNDS:
        raise OptionError(f"bound {name!r}", f"it must be one of {', '.join(BOUNDS)}", "Choose one of them for bound.")
    return BOUNDS[name]


SEEN = (
    "What was seen on the surrogate (spread and largest size of the gradient's change) stands for its population. This "
    "was asked for (sampling seen); it fails for categorical rows, rare groups and heavy tails, and then the guarantee "
    "does."
)
FALSE_CONSTANTS = (
    "FALSE for this model: the constants given are smaller than this loss can have, so the bound may be exceeded."
)
MATCHED_TO = (
    "Surrogate rows are weighted by class to the class counts of the retained rows, and are labelled the way the "
    "source was."
)
INDEPENDENT = (
    "Given the forgotten rows and everything published, the retained rows are independent draws of the declared law, "
    "and surrogate rows of theirs; trained weights and update are treated as fixed (they are not quite: the weights "
    "depend on the source, the update on the surrogate)."
)
NOT_CHOSEN = (
    "The forgotten rows were not chosen by somebody who looked at source and surrogate: rows picked along the "
    "direction in which the two differ most can exceed the bound."
)
OWN_MEASURE = (
    "Lengths are measured by the retained rows' own Hessian, which was kept; it depends on those rows, and is treated "
    "as fixed where they are taken for draws."
)
AVERAGED = (
    "delta is an average over the drawing of the data sets: given the data at hand, the probability exceeds k delta "
    "for at most one drawing in k."
)
OWN_ROWS = (
    "The rows given are the source's own. Their number, their class counts, the gradient on them and that the "
    "forgotten rows are among them were checked; rows that were made to pass these checks would pass."
)
OPTIMUM = "Training reached its optimum exactly, and the Hessians of finite sets equal those of their populations."
CONSTANTS = "The constants alpha, beta, L and gamma hold for every example."


@dataclass(frozen=True)
class Derived:
    """What follows from a claim. Without a finite region there is no noise.

    `required` is the scale that the region needs; the noise's own is the one that was chosen, which must not be below.
    `averaged` is the region as the noise was calibrated to it, its tail included; `region` is what that amounts to at
    this epsilon and delta, and at no other.
    """

    region: Region
    noise: Noise | None
    required: float
    delta_for_noise: float
    delta_at_sigma: float
    status: str
    guarantee: str
    assumptions: tuple[str, ...]
    limits: tuple[str, ...]
    averaged: Region | None = None

    @property
    def sigma(self) -> float:
        """The noise's scale; infinite where there is none."""
        return math.inf if self.noise is None else self.noise.scale

    @property
    def mu(self) -> float:
        return self.region.radius / self.sigma

    @property
    def enough(self) -> bool:
        """Whether the noise that was chosen covers the region."""
        return self.noise is not None and self.required <= self.noise.scale


def derive(claim: Claim) -> Derived:
    """Region, noise, status and sentences from the facts alone."""
    bound = bound_named(claim.bound)
    region = region_of(claim)
    spent = math.fsum(claim.failures.values())
    remaining = claim.delta - spent
    if not math.isfinite(region.radius):
        return Derived(region, None, math.inf, remaining, 1.0, "none", "", (), ())
    region, noise, required = published(region, claim.epsilon, remaining, bound.scale, claim.scale)
    if not math.isfinite(required) or not math.isfinite(noise.scale):
        return Derived(region, None, math.inf, remaining, 1.0, "none", "", (), ())
    achieved = delta_at(region, claim.epsilon, remaining, noise.scale)
    return Derived(
        effective(region, claim.epsilon, remaining, required),
        noise,
        required,
        remaining,
        achieved + spent,
        status_of(claim, region.provenance),
        *sentences(claim, noise.scale),
        averaged=region,
    )


def sentences(claim: Claim, sigma: float) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Guarantee, assumptions and limits, in words."""
    little = "" if claim.schema in OLD_SCHEMAS else next_to_nothing(claim.epsilon)
    guarantee = f"{little} {_guarantee(claim, sigma)} {outside(claim.preparation)}".strip()
    return guarantee, _assumptions(claim), limits_of(claim, kept=bound_named(claim.bound).kept)


def region_of(claim: Claim) -> Region:
    """Where the retrained weights can be, without what the noise's grid adds.

    Infinite where the facts allow no less.
    """
    try:
        region = bound_named(claim.bound).region(claim)
    except (OverflowError, ZeroDivisionError):
        region = Region(claim.bound, {"total": math.inf})
    provenance = weakest([claim.distance.provenance, *(fact.provenance for fact in claim.facts.values())])
    return replace(region, shape=bound_named(claim.bound).shape(claim), provenance=provenance)


def held_region(claim: Claim) -> Region:
    """The same without a tail: it holds the retrained weights but for a probability of delta. To set beside the truth.

    Noise that is averaged over the tail may be less than this region would need.
    """
    return region_of(claim).held(claim.delta - math.fsum(claim.failures.values()))


def rank_of(claim: Claim) -> float:
    """What updates are ranked by: the noise that their regions need, at an epsilon of 1 whatever is asked for.

    So the update, and with it a plan's measurements, is the same for every epsilon.
    """
    region, spent = region_of(claim), math.fsum(claim.failures.values())
    return needed(region, 1.0, claim.delta - spent) if math.isfinite(region.radius) else math.inf


def status_of(claim: Claim, provenance: str) -> str:
    """What a claim is worth whose weakest fact has this provenance."""
    if provenance == "estimated" or claim.tuned:
        return "estimated"
    if provenance == "declared" or claim.distance.samples_rows or not bound_named(claim.bound).provable:
        return "conditional"
    # rows given as the source can be made to pass every check that their own values allow
    return "conditional" if claim.distance.is_source and claim.schema not in OLD_SCHEMAS else "proven"


def _guarantee(claim: Claim, sigma: float) -> str:
    epsilon, delta, scale = up(claim.epsilon), up(claim.delta), up(sigma)
    if claim.schema in OLD_SCHEMAS:  # to the nearest, which may promise a little too much
        epsilon, delta, scale = f"{claim.epsilon:g}", f"{claim.delta:g}", f"{sigma:.6g}"
    if bound_named(claim.bound).kept:
        return (
            f"The published weights are ({epsilon}, {delta})-indistinguishable from the weights that retraining "
            "without the forgotten rows would have given (the minimiser of the same objective on the retained rows), "
            "with Gaussian noise added whose covariance is made from the retained rows alone, rounded to the same grid "
            "and stored in the same type."
        )
    return (
        f"The published weights are ({epsilon}, {delta})-indistinguishable from the weights that "
        "retraining without the forgotten rows would have given, with Gaussian noise of the same standard deviation "
        f"{scale} added to each, rounded to the same grid and stored in the same type."
    )


def _assumptions(claim: Claim) -> tuple[str, ...]:
    """What has to be true for the guarantee, in plain words, the most doubtful first; empty for a proven one."""
    if claim.schema in OLD_SCHEMAS:
        return _old_assumptions(claim)
    distance = claim.distance
    declared = sorted(name for name, fact in claim.facts.items() if fact.provenance == "declared")
    sampled = distance.samples_rows and bound_named(claim.bound).provable
    said = {
        SEEN: sampled and distance.sampling == "seen",
        FALSE_CONSTANTS: claim.tuned,
        f"NOT KNOWN, ESTIMATED: {distance.kind if claim.public else distance} ({distance.meaning}). Nothing is "
        "guaranteed about the error of this estimate; the true distance may be larger, and then the guarantee does "
        "not hold.": distance.provenance == "estimated",
        f"Declared: {distance} between {distance.between} ({distance.meaning}); for the source's rows read the rows "
        "that are retained.": distance.provenance == "declared",
        "These facts were declared, not checked: " + ", ".join(declared) + ".": bool(declared),
        claim.said_of_others: claim.others > 0,
        MATCHED_TO: distance.matched,
        str(distance.law.assumption): distance.law.assumption is not None,
        INDEPENDENT: sampled,
        NOT_CHOSEN: sampled,
        OWN_MEASURE: sampled and bound_named(claim.bound).kept,
        AVERAGED: sampled and claim.averaged and distance.sampling == "strict",
        OWN_ROWS: distance.is_source,
        OPTIMUM: not bound_named(claim.bound).provable,
        CONSTANTS: not bound_named(claim.bound).provable,
    }
    return tuple(sentence for sentence, applies in said.items() if applies)


def _old_assumptions(claim: Claim) -> tuple[str, ...]:
    """As certificates of schemas 1 and 2 say it."""
    sentences = []
    declared = sorted(name for name, fact in claim.facts.items() if fact.provenance == "declared")
    if declared:
        sentences.append("These facts were declared, not checked: " + ", ".join(declared) + ".")
    if claim.distance.provenance == "declared":
        sentences.append(f"Declared: {claim.distance} between {claim.distance.between} ({claim.distance.meaning}).")
    if claim.distance.provenance == "estimated" and claim.schema != OLD_SCHEMAS[0]:
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
