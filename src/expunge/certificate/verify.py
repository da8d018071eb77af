"""Checking a certificate: recompute everything that can be recomputed from its file alone, and compare.

A certificate is hostile until checked: facts are read strictly, and whatever cannot be is a `VerificationFailed`.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from expunge.bounds import ResidualFacts
from expunge.bounds.residual import FEWEST_SAMPLED_ROWS, WEIGHT_FACTS
from expunge.certificate.content import Certificate, digest_of
from expunge.certificate.derive import beyond_closed_form, bound_named, derive
from expunge.certificate.facts import GENERATORS, SCHEMAS, SIZE_NAMES, Claim, Fact, Json
from expunge.certificate.model_file import read_model_file
from expunge.distance import Distance
from expunge.distance.estimation import ROUTES
from expunge.distance.inequalities import tv_upper_from_kl
from expunge.errors import ExpungeError, VerificationFailed
from expunge.record import Loss, loss_named
from expunge.runtime.memory import require_fits
from expunge.runtime.paths import readable

TOLERANCE = 1e-12  # what another machine's mathematical library may change
LARGEST_NUMBER = 1e300


@dataclass(frozen=True)
class Check:
    """One thing that was recomputed."""

    name: str
    claimed: Any
    recomputed: Any

    @property
    def passed(self) -> bool:
        return _equal(self.claimed, self.recomputed)


def _equal(claimed: Any, recomputed: Any) -> bool:
    if isinstance(recomputed, dict):
        return (
            isinstance(claimed, dict)
            and claimed.keys() == recomputed.keys()
            and all(_equal(claimed[k], v) for k, v in recomputed.items())
        )
    if isinstance(recomputed, (list, tuple)):
        return isinstance(claimed, list) and len(claimed) == len(recomputed) and all(map(_equal, claimed, recomputed))
    if isinstance(recomputed, float):
        number = isinstance(claimed, (int, float)) and not isinstance(claimed, bool) and abs(claimed) <= LARGEST_NUMBER
        return number and math.isclose(claimed, recomputed, rel_tol=TOLERANCE, abs_tol=0.0)
    return type(claimed) is type(recomputed) and bool(claimed == recomputed)


def claim_of(content: Json) -> Claim:
    """The facts a certificate states, read strictly."""
    bound = content["bound"]
    distance = dict(content["distance"])
    distance.pop("meaning")
    facts = {
        name: Fact(_number(entry["value"]), _provenance(entry["provenance"])) for name, entry in bound["inputs"].items()
    }
    distance_of = Distance(**distance)
    if content["schema"] == SCHEMAS[0] and (
        distance_of.matched or distance_of.law.first_schema > 1 or "estimate" in content
    ):
        raise ValueError("schema 1 knew neither weighted rows nor estimates")
    needed = {field.name for field in fields(ResidualFacts)} - (set() if distance_of.matched else set(WEIGHT_FACTS))
    if bound["kind"] == "residual" and set(facts) != needed:
        raise KeyError("bound.inputs")
    generator = content["noise"]["generator"]
    if generator not in GENERATORS:
        raise ValueError(f"generator {generator!r}")
    if not facts["n_forget"].value < facts["n_source"].value:
        raise ValueError(f"{facts['n_forget'].value} rows forgotten of {facts['n_source'].value}")
    if not _number(content["epsilon"]) > 0.0 or not 0.0 < _number(content["delta"]) < 1.0:
        raise ValueError(f"epsilon {content['epsilon']}, delta {content['delta']}")
    return Claim(
        epsilon=_number(content["epsilon"]),
        delta=_number(content["delta"]),
        bound=bound["kind"],
        facts=facts,
        distance=distance_of,
        failures={name: _number(value) for name, value in content["noise"]["failures"].items()},
        n_parameters=int(_number(content["sizes"]["parameters"])),
        generator=generator,
        convention=bound.get("convention", "source"),
        tuned=bool(bound.get("tuned", False)),
        schema=content["schema"],
    )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LARGEST_NUMBER:
        raise ValueError(f"{value!r} is not a number from 0 to {LARGEST_NUMBER:g}")
    return value


def _provenance(value: Any) -> str:
    if value not in ("derived", "measured", "declared", "estimated"):
        raise ValueError(f"provenance {value!r}")
    return str(value)


def checks(certificate: Certificate) -> list[Check]:
    """Everything that can be recomputed from the file alone."""
    content = certificate.content
    try:
        claim = claim_of(content)
        derived = derive(claim)
        compared = [Check("digest", content["digest"], digest_of(content))]
        terms = content["bound"]["terms"]
        compared += [
            Check(f"bound.terms.{name}", terms.get(name), value) for name, value in derived.region.terms.items()
        ]
        compared += [
            Check("bound.terms", sorted(terms), sorted(derived.region.terms)),
            Check("bound.total", content["bound"]["total"], derived.region.radius),
            Check("sigma", content["sigma"], derived.sigma),
            Check("noise.mu", content["noise"]["mu"], derived.mu),
            Check("noise.delta_for_noise", content["noise"]["delta_for_noise"], derived.delta_for_noise),
            Check("noise.delta_at_sigma", content["noise"]["delta_at_sigma"], derived.delta_at_sigma),
            Check(
                "noise.grid_exponent", content["noise"]["grid_exponent"], derived.noise and derived.noise.grid_exponent
            ),
            Check("delta is not exceeded", derived.delta_at_sigma <= claim.delta < 1.0, True),
            Check("failure probabilities", _failures_are_due(claim), True),
            Check("status", content["status"], derived.status),
            Check("guarantee", content["guarantee"], derived.guarantee),
            Check("assumptions", content["assumptions"], derived.assumptions),
            Check("limits", content["limits"], derived.limits),
            Check("distance.meaning", content["distance"]["meaning"], claim.distance.meaning),
            Check("sizes", content["sizes"], _sizes(claim, content)),
            Check("noise.calibration", content["noise"]["calibration"], bound_named(claim.bound).calibration),
            Check("model.after.sha256", _is_digest(content["model"]["after"]["sha256"]), True),
            *_step_checks(claim, content),
            Check(
                "l2", content["model"]["l2"], claim.facts["l2"].value if "l2" in claim.facts else content["model"]["l2"]
            ),
            Check("noise is secret", claim.generator, GENERATORS[0]),
            *_weight_checks(claim, content),
            *_estimate_checks(claim, content),
        ]
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        ZeroDivisionError,
        RecursionError,
        ExpungeError,
    ) as error:
        raise VerificationFailed(
            f"the certificate cannot be recomputed ({type(error).__name__}: {error})",
            "every fact must be there and possible",
            "Do not rely on it.",
        ) from error
    return compared


def _failures_are_due(claim: Claim) -> bool:
    """Whether the sampling step spends the probability its term was computed with, and no more than delta is spent."""
    if claim.bound != "residual":
        return not claim.failures
    sampled = claim.failures.get("sampling", 0.0)
    agrees = sampled == claim.facts["sampling_failure"].value if claim.distance.samples_rows else sampled == 0.0
    needs_eigenvalue = claim.distance.needs_eigenvalue
    return agrees and (claim.failures.get("eigenvalue", 0.0) > 0.0) == needs_eigenvalue


def _sizes(claim: Claim, content: Json) -> Json:
    """The sizes as they follow from the facts and from the model's shape."""
    sizes: Json = {name: int(claim.facts[name].value) for name in SIZE_NAMES}
    classes, features = (int(_number(content["sizes"][name])) for name in ("classes", "features"))
    width = features + int(content["model"]["bias"] is True)
    sizes["n_retain"] = sizes["n_source"] - sizes["n_forget"]
    rows = 1 if loss_named(content["model"]["loss"]).one_vector else classes
    return sizes | {"parameters": rows * width, "classes": classes, "features": features}


def _weight_checks(claim: Claim, content: Json) -> list[Check]:
    """What weights of mean 1, none above q, can do to sums over s rows (Cauchy and Schwarz for the lower limits)."""
    rows = claim.facts["n_surrogate"].value
    if not claim.distance.matched:
        effective = content["data"].get("effective_surrogate_rows", float(rows))
        return [Check("data.effective_surrogate_rows", effective, float(rows))]
    effective = _number(content["data"]["effective_surrogate_rows"])
    compared = [Check("sum of class counts", sum(content["data"]["class_counts"]), content["sizes"]["n_source"])]
    if claim.bound != "residual":
        return compared
    value = {name: fact.value for name, fact in claim.facts.items()}
    q, few = value["weight_largest"], 1.0 + 1e-9
    trace, eigenvalue, largest = (value[f"sampled_{name}"] for name in ("trace", "eigenvalue", "largest"))
    possible = {
        "weight_largest": q * few >= 1.0 and q <= rows * few,
        "effective rows": rows <= q * effective * few and effective <= rows * few,
        "sampled_largest": largest <= q * value["change_largest"] * few,
        "sampled_trace": trace <= q * value["change_trace"] * few
        and trace <= largest**2 * few
        and value["change_trace"] ** 2 <= trace * value["change_largest"] ** 2 * few,
        "sampled_eigenvalue": eigenvalue <= trace * few and trace <= eigenvalue * claim.n_parameters * few,
    }
    if claim.distance.samples_rows:
        possible["rows that count"] = rows / q * few >= FEWEST_SAMPLED_ROWS
    return compared + [Check(f"{name} is possible", holds, True) for name, holds in possible.items()]


def _estimate_checks(claim: Claim, content: Json) -> list[Check]:
    """Evidence of an estimate goes with an estimated distance; a total variation follows from the KL stated there."""
    if "estimate" not in content:
        return [Check("evidence of the estimate", claim.distance.law.provenances != ("estimated",), True)]
    route = content["estimate"]["route"]
    compared = [
        Check("distance.provenance", claim.distance.provenance, "estimated"),
        Check("distance.kind", claim.distance.kind, ROUTES[route]),
    ]
    if route == "kl":
        upper = content["estimate"]["kl"]["upper"]
        kl = math.inf if upper is None else _number(upper)
        compared.append(Check("distance.value", content["distance"]["value"], tv_upper_from_kl(kl)))
    return compared


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _step_checks(claim: Claim, content: Json) -> list[Check]:
    """What the certificate says twice must agree; whether the paper's constants can be true is worked out anew."""
    loss = loss_named(content["model"]["loss"])
    if claim.bound == "residual":
        compared = [
            Check("step.residual", content["step"]["residual"], claim.facts["solver_residual"].value),
            Check("model.row_bound", content["model"]["row_bound"], claim.facts["row_bound"].value),
            Check("the loss is convex", loss.convex, True),
        ]
        if not loss.rounding_derived:
            compared += [
                Check("rounding is declared", claim.facts["rounding"].provenance, "declared"),
                Check("model.max_norm", content["model"]["max_norm"], claim.facts["row_bound"].value),
            ]
        return compared
    if loss.constants is None:  # not convex: no constants can be true of it
        return [Check("bound.tuned", claim.tuned, True)]
    l2, row_bound = (_number(content["model"][name]) for name in ("l2", "row_bound"))
    closed = loss.constants(l2, int(_number(content["sizes"]["classes"])), row_bound, 0.0)
    return [
        Check("bound.tuned", claim.tuned, beyond_closed_form(claim.facts, closed)),
        Check("tv_upper", claim.facts["tv_upper"].value, claim.distance.tv_upper),
    ]


def verify(certificate: Certificate, model: str | Path | None = None) -> list[Check]:
    """Recompute what can be recomputed, with the model's digest where its file is given; raises if anything differs."""
    compared = checks(certificate)
    if model is not None:
        stated = certificate.content["model"]
        digest = _model_digest(model, loss_named(stated["loss"]))
        compared.append(Check("model.after.sha256", stated["after"]["sha256"], digest))
    failed = [check for check in compared if not check.passed]
    if failed:
        shown = "; ".join(
            f"{check.name}: says {_short(check.claimed)}, is {_short(check.recomputed)}" for check in failed[:5]
        )
        raise VerificationFailed(
            shown, "the file must say what follows from its own numbers", "Do not rely on this certificate."
        )
    return compared


def _model_digest(path: str | Path, loss: Loss) -> str:
    """Of a linear model's file, which must be one; of any other the bytes are enough."""
    if not loss.one_vector:
        return read_model_file(path).sha256
    location = readable(Path(path))
    require_fits(location.stat().st_size, location, "the model")
    return hashlib.sha256(location.read_bytes()).hexdigest()


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
