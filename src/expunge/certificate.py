"""The certificate: what is claimed, every number behind it, and how to check it from the file alone.

The layout is documented in docs/certificate.md. Everything derived (terms, Delta, sigma, delta at sigma, status, the
sentences under `assumptions` and `limits`) is computed by `derive` from the facts; `verification.py` calls the same
function on the facts it reads from a file and compares.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from expunge.bounds import ErrorBound, PaperConstants, ResidualFacts, paper_bound, residual_bound
from expunge.bounds.residual import REVISION, grid_term
from expunge.data.files import not_a_number, readable, without_duplicates
from expunge.data.memory import require_fits
from expunge.distance import Distance
from expunge.errors import FileError
from expunge.noise import delta_of, grid_exponent, sigma_classical, sigma_for
from expunge.objectives import Constants

SCHEMA = "expunge/certificate/2"
SCHEMAS = ("expunge/certificate/1", SCHEMA)  # 1 knew neither row weights nor estimates
INSECURE = "INSECURE-TEST"
GENERATORS = ("operating system", INSECURE)
SIZE_LIMIT = 10_000_000
SIZE_NAMES = ("n_source", "n_forget", "n_surrogate")

Json = dict[str, Any]


@dataclass(frozen=True)
class Fact:
    """A number and where it comes from: `derived`, `measured`, `declared` or `estimated`."""

    value: float
    provenance: str


@dataclass(frozen=True)
class Claim:
    """Everything the certificate's numbers follow from."""

    epsilon: float
    delta: float
    bound: str
    facts: Mapping[str, Fact]
    distance: Distance
    failures: Mapping[str, float]
    n_parameters: int
    generator: str
    convention: str = "source"
    tuned: bool = False
    schema: str = SCHEMA


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


def residual_facts(facts: Mapping[str, Fact]) -> ResidualFacts:
    """The residual bound's numbers without their provenance."""
    values: dict[str, Any] = {
        name: int(fact.value) if name in SIZE_NAMES else fact.value for name, fact in facts.items()
    }
    return ResidualFacts(**values)


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


# The file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Certificate:
    """A certificate's content, as it stands in the file."""

    content: Json

    @property
    def status(self) -> str:
        return str(self.content["status"])

    @property
    def epsilon(self) -> float:
        return float(self.content["epsilon"])

    @property
    def delta(self) -> float:
        return float(self.content["delta"])

    @property
    def sigma(self) -> float:
        return float(self.content["sigma"])

    @property
    def total(self) -> float:
        """Delta: the bound on the distance to the retrained weights."""
        return float(self.content["bound"]["total"])

    @property
    def terms(self) -> dict[str, float]:
        return dict(self.content["bound"]["terms"])

    @property
    def insecure(self) -> bool:
        return bool(self.content["noise"]["generator"] == INSECURE)

    def to_json(self) -> str:
        return json.dumps(self.content, indent=2, allow_nan=False) + "\n"


def digest_of(content: Json) -> str:
    """SHA-256 of the content without its own digest, as JSON with sorted keys and no spaces."""
    bare = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(json.dumps(bare, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()


def build(
    claim: Claim,
    derived: Derived,
    *,
    model: Json,
    sizes: Json,
    step: Json,
    data: Json,
    estimate: Json | None,
    notes: tuple[str, ...],
    software: Json,
    created: str,
) -> Certificate:
    """Lay out the file."""
    content: Json = {
        "schema": claim.schema,
        "status": derived.status,
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "sigma": derived.sigma,
        "guarantee": derived.guarantee,
        "assumptions": list(derived.assumptions),
        "limits": list(derived.limits),
        "notes": list(notes),
        "bound": {
            "kind": claim.bound,
            "total": derived.bound.total,
            "terms": dict(derived.bound.terms),
            "inputs": {name: asdict(fact) for name, fact in claim.facts.items()},
        },
        "distance": asdict(claim.distance) | {"meaning": claim.distance.meaning},
        "noise": {
            "calibration": calibration(claim.bound),
            "mu": derived.mu,
            "delta_for_noise": derived.delta_for_noise,
            "failures": dict(claim.failures),
            "delta_at_sigma": derived.delta_at_sigma,
            "grid_exponent": derived.grid_exponent,
            "generator": claim.generator,
        },
        "sizes": sizes,
        "model": model,
        "step": step,
        "data": data,
        "software": software,
        "created": created,
    }
    if claim.bound == "paper":
        content["bound"] |= {"convention": claim.convention, "tuned": claim.tuned}
    if estimate is not None:
        content["estimate"] = estimate
    content["digest"] = digest_of(content)
    return Certificate(content)


def read_certificate(path: str | Path) -> Certificate:
    """Read a certificate file; refuses what is not one."""
    location = readable(Path(path))
    if location.stat().st_size > SIZE_LIMIT:
        raise FileError(
            f"{location} has {location.stat().st_size:,} bytes",
            f"a certificate has at most {SIZE_LIMIT:,}",
            "Check the path.",
        )
    require_fits(location.stat().st_size, location, "the certificate")
    return parse_certificate(location.read_bytes(), str(location))


def parse_certificate(content: bytes, name: str) -> Certificate:
    """A certificate from the bytes of its file."""
    try:
        loaded = json.loads(content, object_pairs_hook=without_duplicates, parse_constant=not_a_number)
    except (ValueError, RecursionError) as error:
        raise FileError(
            f"{name} is not a certificate ({error})", "JSON is needed", "Use the file as it was written."
        ) from error
    schema = loaded.get("schema") if isinstance(loaded, dict) else None
    if schema not in SCHEMAS:
        raise FileError(
            f"{name} has schema {schema!r}",
            f"this version verifies {' and '.join(SCHEMAS)}",
            "Use the version of Expunge that wrote it, or a later one.",
        )
    return Certificate(loaded)
