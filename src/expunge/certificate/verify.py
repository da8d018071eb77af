"""Checking a certificate: hold its facts against each other, recompute what follows from them, and compare.

A certificate is hostile until checked: facts are read strictly, and whatever cannot be is a `VerificationFailed`.
"""

from __future__ import annotations

import math
from pathlib import Path

from expunge.certificate.check import Check, Verdict, require_passed, shown
from expunge.certificate.content import Certificate, digest_of
from expunge.certificate.derive import Derived, bound_named, derive
from expunge.certificate.facts import OLD_SCHEMAS, SECRET, SIZE_NAMES, Claim, Json, beyond_closed_form
from expunge.certificate.possible import possible
from expunge.certificate.published import published_checks
from expunge.certificate.reading import claim_of, is_text, number
from expunge.distance.estimation import ROUTES
from expunge.distance.inequalities import tv_upper_from_kl
from expunge.errors import ExpungeError, VerificationFailed
from expunge.record import loss_named, one_digit
from expunge.runtime.checks import LARGEST
from expunge.runtime.strict_json import is_digest

__all__ = ["Check", "Verdict", "checks", "claim_of", "found_since", "verify"]

UNREADABLE = (
    *(KeyError, TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError, RecursionError),
    ExpungeError,
)
EARLY_EPSILON = 1e-6


def verify(certificate: Certificate, model: str | Path | None = None) -> Verdict:
    """Check all that can be checked, with the published model where its file is given; raises if anything is wrong."""
    compared = checks(certificate)
    if model is not None and all(check.passed for check in compared):
        compared += _model_checks(certificate.content, model)
    require_passed(compared)
    return Verdict(compared, certificate.status, found_since=found_since(certificate.content))


def _model_checks(content: Json, model: str | Path) -> list[Check]:
    try:
        return published_checks(content, model)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise _unreadable(error) from error


def checks(certificate: Certificate) -> list[Check]:
    """Everything that can be checked from the file alone; what follows is recomputed only from possible facts."""
    content = certificate.content
    try:
        compared = [Check("digest", content["digest"], digest_of(content))]
        claim = claim_of(content)
        compared += possible(content, claim)
        if all(check.passed for check in compared[1:]):
            compared += recomputed(content, claim, derive(claim))
    except UNREADABLE as error:
        raise _unreadable(error) from error
    return compared


def _unreadable(error: Exception) -> VerificationFailed:
    return VerificationFailed(
        f"the certificate cannot be recomputed ({type(error).__name__}: {error})",
        "every fact must be there and possible",
        "Do not rely on it.",
    )


def recomputed(content: Json, claim: Claim, derived: Derived) -> list[Check]:
    """What follows from the facts, beside what the file says."""
    noise, terms = content["noise"], content["bound"]["terms"]
    return [
        *(Check(f"bound.terms.{name}", terms.get(name), value) for name, value in derived.region.terms.items()),
        Check("bound.terms", sorted(terms), sorted(derived.region.terms)),
        Check("bound.total", content["bound"]["total"], derived.region.radius),
        Check("sigma", content["sigma"], derived.sigma),
        Check("noise.mu", noise["mu"], derived.mu),
        Check("noise.delta_for_noise", noise["delta_for_noise"], derived.delta_for_noise),
        Check("noise.delta_at_sigma", noise["delta_at_sigma"], derived.delta_at_sigma),
        Check("noise.grid_exponent", noise["grid_exponent"], derived.noise and derived.noise.grid_exponent),
        Check(
            "delta is not exceeded",
            derived.delta_at_sigma <= claim.delta < 1.0,
            True,
            "at this sigma it is",
        ),
        Check("noise.calibration", noise["calibration"], bound_named(claim.bound).calibration),
        Check("status", content["status"], derived.status),
        Check("guarantee", content["guarantee"], derived.guarantee),
        Check("assumptions", content["assumptions"], derived.assumptions),
        Check("limits", content["limits"], derived.limits),
        Check("distance.meaning", content["distance"]["meaning"], claim.distance.meaning),
        Check("sizes", content["sizes"], _sizes(claim, content)),
        Check(
            "noise is secret",
            claim.generator in SECRET,
            True,
            f"{shown(claim.generator)}: it was made from a seed for a test, and whoever knows the seed can take it off",
        ),
        *_repeated(claim, content),
        *_estimate_checks(claim, content),
        *([] if claim.schema in OLD_SCHEMAS else _dossier_checks(content, derived)),
    ]


def _dossier_checks(content: Json, derived: Derived) -> list[Check]:
    """What schema 3 added: noise that was chosen, and what is public."""
    notes, few = content["notes"], "the noise that was chosen does not cover the bound"
    return [
        Check("noise.required", content["noise"]["required"], derived.required),
        Check("the noise that was chosen is enough", derived.enough, True, few),
        Check("public notes are notes", all(note in notes for note in content["public_notes"]), True),
        Check("the nonce is 32 bytes", is_digest(content["nonce"]), True, "nonce is not 64 hexadecimal digits"),
        Check("notes, software and created are text", is_text(content), True),
        Check("model.before is a digest", is_digest(content["model"]["before"]["sha256"]), True),
        *(_published_checks(content) if "published" in content["model"] else ()),
    ]


def _published_checks(content: Json) -> list[Check]:
    """What the published model's record says follows from the rest: else the model could be of another l2."""
    model, said = content["model"], content["model"]["published"]
    rows = one_digit(max(1, int(content["sizes"]["n_retain"])))
    l2 = number(model["l2"]) if "fixed_c" not in model else 1.0 / (number(model["fixed_c"]) * rows)
    return [
        Check("model.published.n_source", said["n_source"], rows),
        Check("model.published.l2", said["l2"], l2),
        Check("model.published.max_norm", said["max_norm"] in (model["max_norm"], LARGEST), True),
    ]


def _sizes(claim: Claim, content: Json) -> Json:
    """The sizes as they follow from the facts and from the model's shape."""
    sizes: Json = {name: int(claim.facts[name].value) if name in claim.facts else 0 for name in SIZE_NAMES}
    classes, features = (int(number(content["sizes"][name])) for name in ("classes", "features"))
    width = features + int(content["model"]["bias"] is True)
    sizes["n_retain"] = sizes["n_source"] - sizes["n_forget"]
    rows = loss_named(content["model"]["loss"]).weight_rows(classes)
    return sizes | {"parameters": rows * width, "classes": classes, "features": features}


def _retained_l2(claim: Claim, model: Json) -> float:
    """A fixed C is shared by fewer rows; l2 stays as it is."""
    if "fixed_c" not in model:
        return number(model["l2"])
    return 1.0 / (number(model["fixed_c"]) * (claim.facts["n_source"].value - claim.facts["n_forget"].value))


def _repeated(claim: Claim, content: Json) -> list[Check]:
    """What the certificate says twice must agree; whether the paper's constants can be true is worked out anew."""
    loss, model = loss_named(content["model"]["loss"]), content["model"]
    if claim.bound == "residual":
        compared = [
            Check("model.row_bound", model["row_bound"], claim.facts["row_bound"].value),
            Check("model.l2", model["l2"], claim.facts["l2"].value),
            Check("model.loss is convex", loss.convex, True, "the residual bound needs a convex loss"),
        ]
        if claim.schema in OLD_SCHEMAS:
            compared.append(Check("step.residual", content["step"]["residual"], claim.facts["solver_residual"].value))
        return compared
    if bound_named(claim.bound).kept:
        return [
            Check("model.loss is convex", loss.convex, True, "the deposit's bound needs a convex loss"),
            Check("l2 is that of the retained rows", claim.facts["l2"].value, _retained_l2(claim, model)),
        ]
    if loss.constants is None:  # not convex: no constants can be true of it
        return [Check("bound.tuned", claim.tuned, True)]
    l2, row_bound = (number(model[name]) for name in ("l2", "row_bound"))
    closed = loss.constants(l2, int(number(content["sizes"]["classes"])), row_bound, 0.0)
    return [
        Check("bound.tuned", claim.tuned, beyond_closed_form(claim.facts, closed)),
        Check("tv_upper", claim.facts["tv_upper"].value, claim.distance.tv_upper),
    ]


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
        kl = math.inf if upper is None else number(upper)
        compared.append(Check("distance.value", content["distance"]["value"], tv_upper_from_kl(kl)))
    return compared


def found_since(content: Json) -> tuple[str, ...]:
    """What was found since certificates of an earlier schema were issued, as far as it concerns this one."""
    if content["schema"] not in OLD_SCHEMAS:
        return ()
    claim = claim_of(content)
    distance, sampled = claim.distance, claim.distance.samples_rows and claim.bound == "residual"
    said = {
        "The surrogate stands for the forgotten rows too, which the update was made from. With many directions and "
        "few rows the bound was found exceeded; schema 3 lets it stand for the retained rows alone.": sampled,
        "Sampling seen rests on an assumption that fails for categorical rows, rare groups and heavy tails; there the "
        "bound was found exceeded far more often than stated.": sampled and distance.sampling == "seen",
        "Forgotten rows chosen by somebody who looked at source and surrogate can exceed the bound; that they were "
        "not is an assumption which the certificate does not state.": sampled,
        "Its status calls it proven. That the rows given were the source's own was checked by their number, class "
        "counts and gradient, and rows can be made to pass that: read it as conditional.": distance.is_source
        and content["status"] == "proven",
        "With a KL and strict sampling, schema 1 took a reach that is a trifle too small.": sampled
        and content["schema"] == OLD_SCHEMAS[0]
        and (distance.kind, distance.sampling) == ("kl", "strict"),
        f"Below an epsilon of {EARLY_EPSILON:g} the noise was calibrated wrongly.": claim.epsilon < EARLY_EPSILON,
        "It is not for the public: its numbers, and the digest of the model before, tell who left.": True,
    }
    return tuple(sentence for sentence, applies in said.items() if applies)
