"""Results that are refused: a claim that says nothing, a model that is of no use."""

from __future__ import annotations

import math

from torch import Tensor

from expunge.bounds.ellipsoid import drawing_delta
from expunge.bounds.scale import LADDER, POLICY, on_ladder, rung_above
from expunge.certificate.derive import Derived, bound_named
from expunge.certificate.facts import Claim
from expunge.errors import BeyondPolicy, UselessModel, VacuousClaim
from expunge.noise import epsilon_hiding


def refuse_unsound(claim: Claim, derived: Derived, weights: Tensor, force: bool) -> None:
    """Refuse a claim that says nothing and, unless forced, noise that swamps the weights."""
    if derived.noise is None or not math.isfinite(derived.noise.scale):
        terms = ", ".join(name for name, value in derived.region.terms.items() if not math.isfinite(value))
        raise VacuousClaim(
            f"the bound is infinite ({terms})",
            "a certificate needs a finite one",
            "For the paper's bound n alpha must exceed m beta; use --bound residual, a smaller forget set or a larger "
            "l2.",
        )
    if not derived.enough:
        raise BeyondPolicy(
            "this request needs more noise than was set beforehand",
            "the noise is the same for everybody, since its size would tell who left",
            "Retrain without the rows; for the next model set more noise, as for more rows (see expunge plan).",
        )
    if derived.delta_at_sigma > claim.delta:
        raise VacuousClaim(
            f"at the classical formula's sigma the true delta is {derived.delta_at_sigma:.3g}",
            f"{claim.delta:g} is to be certified",
            "The formula is proved for epsilon < 1 only; use --bound residual, which calibrates exactly.",
        )
    if bound_named(claim.bound).kept:
        _refuse_loud(claim, derived, force)
        return
    size, length = float(weights.norm()), derived.noise.length
    if length > size and not force:
        usable = size / length * derived.noise.scale  # the scale at which both are as long
        if claim.scale.kind == LADDER and usable:
            usable = rung_above(usable) if on_ladder(usable) else rung_above(usable) / 2.0
        would_do = (
            f"epsilon {epsilon_hiding(derived.averaged or derived.region, derived.delta_for_noise, usable):.3g} or more"
            if usable
            else "no epsilon"
        )
        if claim.scale.kind == POLICY:
            would_do = f"a noise of {usable:.3g} or less, if that is enough,"
        largest = max(derived.region.terms, key=lambda name: derived.region.terms[name])
        raise UselessModel(
            f"the noise (norm {length:.3g}) would swamp the weights (norm {size:.3g})",
            f"{would_do} would do at this delta; the largest term of the bound is {largest}",
            "Raise epsilon, try --step balanced (step='balanced'), use a closer or larger surrogate, forget "
            "fewer rows at once, "
            "train with a larger l2, or insist with --force (force=True).",
        )


def _refuse_loud(claim: Claim, derived: Derived, force: bool) -> None:
    """Refuse an epsilon that what may be lost of delta in a draw is multiplied with too often, and noise with a shape
    that would drown the outputs.

    Its weights may be long where no output sees them.
    """
    lost, spent = drawing_delta(claim.n_parameters, claim.epsilon), claim.failures["arithmetic"]
    if lost > spent:
        raise VacuousClaim(
            f"float64 may make {lost:.3g} of delta {claim.delta:g} when the noise is drawn",
            f"at most {spent:.3g} may go there",
            "Raise delta, or lower epsilon.",
        )
    noise, spread = derived.sigma * claim.facts["output_noise"].value, claim.facts["output_spread"].value
    if noise > spread and not force:
        raise UselessModel(
            f"the noise would move a typical output by {noise:.3g}, and the outputs themselves are about {spread:.3g}",
            "more noise than signal is of no use",
            "Raise epsilon, forget fewer rows at once, give a surrogate beside the deposit, or insist with --force "
            "(force=True).",
        )
