"""Results that are refused: a claim that says nothing, a model that is of no use."""

from __future__ import annotations

import math

from torch import Tensor

from expunge.certificate.derive import Derived
from expunge.certificate.facts import Claim
from expunge.errors import UselessModel, VacuousClaim
from expunge.noise import epsilon_for


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
    if derived.delta_at_sigma > claim.delta:
        raise VacuousClaim(
            f"at the classical formula's sigma the true delta is {derived.delta_at_sigma:.3g}",
            f"{claim.delta:g} is to be certified",
            "The formula is proved for epsilon < 1 only; use --bound residual, which calibrates exactly.",
        )
    size, length = float(weights.norm()), derived.noise.length
    if length > size and not force:
        usable = size / length * derived.noise.scale  # the scale at which both are as long
        would_do = (
            f"epsilon {epsilon_for(derived.delta_for_noise, derived.region.radius / usable):.3g} or more"
            if usable
            else "no epsilon"
        )
        largest = max(derived.region.terms, key=lambda name: derived.region.terms[name])
        raise UselessModel(
            f"the noise (norm {length:.3g}) would swamp the weights (norm {size:.3g})",
            f"{would_do} would do at this delta; the largest term of the bound is {largest}",
            "Raise epsilon, try --step balanced, use a closer or larger surrogate, forget fewer rows at once, "
            "train with a larger l2, or insist with --force (force=True).",
        )
