"""Region, noise, status and sentences from the facts alone: what a certificate says is decided here and nowhere else.

To issue a certificate `mechanism.py` calls `derive`; to check one `rules.py`, beside this file, calls it again with the
facts read from the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from expunge.bounds import (
    Ball,
    PaperConstants,
    Region,
    curvature_bound,
    deposit_bound,
    paper_bound,
    retained_bound,
)
from expunge.bounds.calibration import Calibration, sigma_classical, sigma_for
from expunge.bounds.region import Shape
from expunge.certificate.claim import SIZE_NAMES, Claim, curvature_facts, deposit_facts, ellipsoid_of, retained_facts
from expunge.certificate.wording import assumptions, guarantee, limits
from expunge.errors import OptionError
from expunge.noise import Noise, choose_noise, delta_at, effective_region, needed_scale


@dataclass(frozen=True)
class Bound:
    """A way to a region: how it follows from a claim, how noise is calibrated to it, whether facts can prove it.

    `calibrate` gives the noise's scale for a radius, and `calibration` is its name. `shape` is what lengths are
    measured by; None for plain lengths. `kept`: a deposit was kept, with the retained rows' own sums.
    """

    name: str
    region: Callable[[Claim], Region]
    calibration: str
    calibrate: Calibration
    provable: bool
    shape: Callable[[Claim], Shape] | None = None
    kept: bool = False

    @property
    def rows(self) -> bool:
        """Whether surrogate rows were measured, and may be samples."""
        return self.provable and not self.kept


def _residual_region(claim: Claim) -> Region:
    return retained_bound(retained_facts(claim.facts), claim.distance, averaged=claim.averaged)


def _paper_region(claim: Claim) -> Region:
    values = {name: fact.value for name, fact in claim.facts.items()}
    power = int(values["lipschitz_power"])
    constants = PaperConstants(values["alpha"], values["beta"], values["lipschitz"], values["gamma"], power)
    return paper_bound(
        constants,
        **{name: int(values[name]) for name in SIZE_NAMES},
        gradient_norm=values["gradient_norm"],
        tv=values["tv_upper"],
        sizes=claim.convention,
    )


def _curvature_region(claim: Claim) -> Region:
    return curvature_bound(curvature_facts(claim.facts), claim.distance, averaged=claim.averaged)


def _deposit_region(claim: Claim) -> Region:
    return deposit_bound(deposit_facts(claim.facts, claim.convention))


def _ellipsoid(claim: Claim) -> Shape:
    return ellipsoid_of(claim.facts, claim.n_parameters)


RESIDUAL = Bound("residual", _residual_region, "analytic", sigma_for, provable=True)
PAPER = Bound("paper", _paper_region, "classical", sigma_classical, provable=False)
DEPOSIT = Bound("deposit", _deposit_region, "analytic", sigma_for, provable=True, shape=_ellipsoid, kept=True)
CURVATURE = Bound("curvature", _curvature_region, "analytic", sigma_for, provable=True, shape=_ellipsoid)
BOUNDS = {bound.name: bound for bound in (RESIDUAL, PAPER, DEPOSIT, CURVATURE)}


def bound_named(name: object) -> Bound:
    """The bound of that name; whatever is unknown raises."""
    if not isinstance(name, str) or name not in BOUNDS:
        raise OptionError(f"bound {name!r}", f"it must be one of {', '.join(BOUNDS)}", "Choose one of them for bound.")
    return BOUNDS[name]


@dataclass(frozen=True)
class Conclusion:
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


def derive(claim: Claim) -> Conclusion:
    """Region, noise, status and sentences from the facts alone."""
    bound, region = bound_named(claim.bound), derive_region(claim)
    spent = math.fsum(claim.failures.values())
    remaining = claim.delta - spent
    noise, required = None, math.inf
    if math.isfinite(region.radius):
        region, noise, required = choose_noise(region, claim.epsilon, remaining, bound.calibrate, claim.scale)
    if noise is None or not math.isfinite(required) or not math.isfinite(noise.scale):
        return Conclusion(region, None, math.inf, remaining, 1.0, "none", "", (), ())
    return Conclusion(
        effective_region(region, claim.epsilon, remaining, required),
        noise,
        required,
        remaining,
        delta_at(region, claim.epsilon, remaining, noise.scale) + spent,
        status_of(claim, region.provenance),
        *sentences(claim, noise.scale),
        averaged=region,
    )


def sentences(claim: Claim, sigma: float) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Guarantee, assumptions and limits, in words."""
    bound = bound_named(claim.bound)
    return (
        guarantee(claim, sigma, kept=bound.kept),
        assumptions(claim, provable=bound.provable),
        limits(claim, kept=bound.kept),
    )


def derive_region(claim: Claim) -> Region:
    """Where the retrained weights can be, without what the noise's grid adds; infinite where facts allow no less."""
    bound = bound_named(claim.bound)
    try:
        region = bound.region(claim)
    except (OverflowError, ZeroDivisionError):
        region = Region(claim.bound, {"total": math.inf})
    shape = Ball(claim.n_parameters) if bound.shape is None else bound.shape(claim)
    return replace(region, shape=shape, provenance=claim.provenance)


def held_region(claim: Claim) -> Region:
    """The region without a tail: it holds the retrained weights but for a probability of delta. To compare with truth.

    Noise that is averaged over the tail may be less than this region would need.
    """
    return derive_region(claim).held(claim.delta - math.fsum(claim.failures.values()))


def rank_of(claim: Claim) -> float:
    """What updates are ranked by: the noise that their regions need, at an epsilon of 1 whatever is asked for.

    So the update, and with it a plan's measurements, is the same for every epsilon.
    """
    region, spent = derive_region(claim), math.fsum(claim.failures.values())
    return needed_scale(region, 1.0, claim.delta - spent) if math.isfinite(region.radius) else math.inf


def status_of(claim: Claim, provenance: str) -> str:
    """What a claim is worth whose weakest fact has this provenance.

    Rows that are given as the source can be made to pass every check that their own values allow: no proof.
    """
    if provenance == "estimated" or claim.tuned:
        return "estimated"
    distance, provable = claim.distance, bound_named(claim.bound).provable
    conditional = provenance == "declared" or distance.samples_rows or distance.is_source or not provable
    return "conditional" if conditional else "proven"
