"""The only judge: bound, noise, status and sentences from the facts alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from expunge.bounds import ErrorBound, PaperConstants, paper_bound, residual_bound
from expunge.bounds.residual import REVISION, grid_term
from expunge.certificate.facts import INSECURE, SCHEMA, SCHEMAS, SIZE_NAMES, Claim, Fact, residual_facts
from expunge.noise import delta_of, grid_exponent, sigma_classical, sigma_for
from expunge.record import Constants


@dataclass(frozen=True)
class Derived:
    """What follows from a claim."""

    bound: ErrorBound
    sigma: float
    grid_exponent: int
    delta_for_noise: float
    delta_at_sigma: float
    status: str
    guarantee: str
    assumptions: tuple[str, ...]
    limits: tuple[str, ...]

    @property
    def mu(self) -> float:
        return self.bound.total / self.sigma


def derive(claim: Claim) -> Derived:
    """Bound, noise, status and sentences from the facts alone."""
    try:
        base = _bound(claim)
    except (OverflowError, ZeroDivisionError):
        base = ErrorBound(claim.bound, {"total": math.inf})
    spent = math.fsum(claim.failures.values())
    remaining = claim.delta - spent
    if not math.isfinite(base.total):
        return Derived(base, math.inf, 0, remaining, 1.0, "none", "", (), ())
    calibrate = sigma_for if claim.bound == "residual" else sigma_classical
    exponent = grid_exponent(calibrate(base.total, claim.epsilon, remaining))
    bound = base.with_term("grid", grid_term(math.ldexp(1.0, exponent), claim.n_parameters))
    sigma = calibrate(bound.total, claim.epsilon, remaining)
    achieved = delta_of(claim.epsilon, bound.total / sigma)
    status = _status(claim)
    return Derived(
        bound,
        sigma,
        exponent,
        remaining,
        achieved + spent,
        status,
        _guarantee(claim, sigma),
        _assumptions(claim),
        _limits(claim),
    )


def _bound(claim: Claim) -> ErrorBound:
    values = {name: fact.value for name, fact in claim.facts.items()}
    if claim.bound == "residual":
        revision = 1 if claim.schema == SCHEMAS[0] else REVISION
        return residual_bound(residual_facts(claim.facts), claim.distance, revision)
    sizes = {name: int(values[name]) for name in SIZE_NAMES}
    constants = PaperConstants(
        values["alpha"], values["beta"], values["lipschitz"], values["gamma"], int(values["lipschitz_power"])
    )
    return paper_bound(
        constants, **sizes, gradient_norm=values["gradient_norm"], tv=values["tv_upper"], sizes=claim.convention
    )


def _status(claim: Claim) -> str:
    provenances = {fact.provenance for fact in claim.facts.values()} | {claim.distance.provenance}
    if "estimated" in provenances or claim.tuned:
        return "estimated"
    if "declared" in provenances or claim.distance.samples_rows or claim.bound != "residual":
        return "conditional"
    return "proven"


def _guarantee(claim: Claim, sigma: float) -> str:
    return (
        f"The published weights are ({claim.epsilon:g}, {claim.delta:g})-indistinguishable from the weights that retraining without "
        f"the forgotten rows would have given, with Gaussian noise of the same standard deviation {sigma:.6g} added to each, rounded "
        "to the same grid and stored in the same type."
    )


def _assumptions(claim: Claim) -> tuple[str, ...]:
    """What has to be true for the guarantee, in plain words; empty for a proven one."""
    found = []
    declared = sorted(name for name, fact in claim.facts.items() if fact.provenance == "declared")
    if declared:
        found.append("These facts were declared, not checked: " + ", ".join(declared) + ".")
    if claim.distance.provenance == "declared":
        found.append(f"Declared: {claim.distance} between {claim.distance.between} ({claim.distance.meaning}).")
    if claim.distance.provenance == "estimated" and claim.schema == SCHEMA:
        found.append(
            f"NOT KNOWN, ESTIMATED: {claim.distance} ({claim.distance.meaning}). Nothing is guaranteed about the error of this "
            "estimate; the true distance may be larger, and then the guarantee does not hold."
        )
    if claim.distance.matched:
        found.append(
            "Surrogate rows are weighted by class to the source's class counts, and are labelled the way the source was."
        )
    if claim.distance.kind == "means":
        found.append("The source's spread in the gradient's change is the surrogate's.")
    if claim.distance.samples_rows:
        found.append(
            "Source and surrogate rows are independent samples of their populations; trained weights and update are treated as fixed "
            "(they are not quite: the weights depend on the source)."
        )
    if claim.distance.samples_rows and claim.distance.sampling == "seen":
        found.append(
            "The spread and the largest size of the gradient's change seen on the surrogate stand for its population's, among rows no longer than those seen."
        )
    if claim.bound == "paper":
        found.append(
            "Training reached its optimum exactly, and the Hessians of finite sets equal those of their populations."
        )
        found.append("The constants alpha, beta, L and gamma hold for every example.")
    if claim.tuned:
        found.append(
            "FALSE for this model: the constants given are smaller than this loss can have, so the bound may be exceeded."
        )
    return tuple(found)


def _limits(claim: Claim) -> tuple[str, ...]:
    """What the certificate does not prove."""
    found = [
        "It does not prove that the rows given were in the training set, or that they are all that the person contributed.",
        "It does not protect against somebody who holds the model from before as well as this one.",
        "It does not prove that no copy of the earlier model or of the data exists elsewhere.",
        "Its own numbers (sigma, the bound and what entered it) depend on the forgotten rows and carry no noise; share it with those who must check it.",
        "It speaks of this one published model; several published models compose to a weaker guarantee.",
        "It cannot show from the weights alone that the noise was drawn as stated; it binds digests, it is not a proof of execution.",
    ]
    if claim.generator == INSECURE:
        found.insert(0, f"{INSECURE}: the noise was made from a seed for a test; this model protects nobody.")
    return tuple(found)


def beyond_closed_form(facts: Mapping[str, Fact], closed: Constants) -> bool:
    """Whether the paper's constants, as given, promise more than this objective can keep."""
    return (
        facts["alpha"].value > closed.strong_convexity
        or facts["beta"].value < closed.smoothness
        or facts["lipschitz"].value < closed.lipschitz
        or facts["gamma"].value < closed.hessian_lipschitz
        or facts["lipschitz_power"].value < 2
    )


def calibration(bound: str) -> str:
    """How sigma follows from Delta."""
    return "analytic" if bound == "residual" else "classical"
