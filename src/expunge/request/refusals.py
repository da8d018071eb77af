"""Results that are refused: a claim that says nothing, a model that is of no use."""

from __future__ import annotations

import math

from torch import Tensor

from expunge.bounds.calibration import epsilon_for, mu_for
from expunge.bounds.ellipsoid import drawing_delta
from expunge.bounds.scale import LADDER, POLICY, is_level, level_above
from expunge.certificate.claim import ARITHMETIC_SHARE, MEANINGFUL_EPSILON, Claim
from expunge.certificate.derive import Conclusion, bound_named
from expunge.errors import BeyondPolicy, UselessModel, VacuousClaim
from expunge.noise import epsilon_hiding
from expunge.runtime.values import up


def refuse_unsound(claim: Claim, derived: Conclusion, weights: Tensor, force: bool) -> None:
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
            usable = level_above(usable) if is_level(usable) else level_above(usable) / 2.0
        enough = (
            epsilon_hiding(derived.averaged or derived.region, derived.delta_for_noise, usable) if usable else math.inf
        )
        less = f"set a noise of {usable:.3g} or less, if that is enough, " if claim.scale.kind == POLICY else ""
        more = f"raise epsilon to {up(enough, 3)} or more, " if not less and enough <= MEANINGFUL_EPSILON else ""
        largest = max(derived.region.terms, key=lambda name: derived.region.terms[name])
        raise UselessModel(
            f"the noise (norm {length:.3g}) would swamp the weights (norm {size:.3g})",
            f"more noise than weights is of no use; the largest term of the bound is {largest}",
            "Forget fewer rows at once, use a closer or larger surrogate, try --step balanced (step='balanced'), train "
            f"with a larger l2, keep a deposit of the next source (expunge deposit), {less}{more}or insist with "
            "--force (force=True).",
        )


def _refuse_loud(claim: Claim, derived: Conclusion, force: bool) -> None:
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
            "Forget fewer rows at once, give a surrogate beside the deposit, train with a larger l2 next time, "
            f"{_more(claim, noise / spread)}or insist with --force (force=True).",
        )


def _more(claim: Claim, times: float) -> str:
    """The larger epsilon at which noise is so many times smaller, as a last remedy; none that would mean nothing."""
    delta = claim.delta * (1.0 - ARITHMETIC_SHARE)
    if mu_for(MEANINGFUL_EPSILON, delta) < times * mu_for(claim.epsilon, delta):
        return ""
    enough = epsilon_for(delta, times * mu_for(claim.epsilon, delta))
    return f"raise epsilon to {up(enough, 3)} or more, "
