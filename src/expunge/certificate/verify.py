"""Checking a certificate: hold its facts against each other, recompute what follows from them, and compare.

A certificate is hostile until checked: facts are read strictly, and whatever cannot be is a `VerificationFailed`.
"""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path
from typing import Any

from expunge.bounds import Ball
from expunge.bounds.calibration import mu_for
from expunge.bounds.ellipsoid import drawing_delta
from expunge.bounds.scale import LADDER, LEVELS, POLICY, is_level, is_power_of_four
from expunge.certificate.check import Check, Verdict, require_passed, shown
from expunge.certificate.claim import (
    LARGEST_EPSILON,
    OLD_SCHEMAS,
    SCHEMA,
    SECRET,
    SIZE_NAMES,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    Claim,
    Json,
    beyond_closed_form,
    kept_failures,
    weakest,
)
from expunge.certificate.derive import Derived, bound_named, derive, sentences, status_of
from expunge.certificate.dossier import Certificate, claim_of, digest_of, is_text, number
from expunge.certificate.model_file import Published, model_check, opened_model, published_checks, tensor_checks
from expunge.certificate.rules import N_LEVELS, possible
from expunge.certificate.statement import (
    DAY,
    MODEL,
    PREPARATION,
    PUBLISHED,
    REFERENCE,
    SERIES,
    SIZES,
    STATEMENT_SCHEMA,
    Statement,
    public_claim,
    rungs_of,
    statement_of,
)
from expunge.distance.declared import ROUTES
from expunge.distance.inequalities import tv_upper_from_kl
from expunge.errors import ExpungeError, FileError, VerificationFailed
from expunge.noise import grid_exponent, public_grid
from expunge.record import TrainingRecord, loss_named, one_digit
from expunge.runtime.checks import LARGEST
from expunge.runtime.strict_json import is_digest

UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, ExpungeError)
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
        raise _unreadable("certificate", error) from error


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
        raise _unreadable("certificate", error) from error
    return compared


def _unreadable(what: str, error: Exception) -> VerificationFailed:
    return VerificationFailed(
        f"the {what} cannot be recomputed ({type(error).__name__}: {error})",
        "everything it says must be there and possible",
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


# Checking a statement: for anybody from the file and the model, for the auditor with the dossier too.


KEYS = {
    *("schema", "status", "epsilon", "delta", "mu", "sigma", "guarantee", "assumptions", "limits", "notes", "bound"),
    *("distance", "noise", "sizes", "model", "dossier", "software", "created", "digest"),
}
NOISE = {
    *("calibration", "averaged", "delta_for_noise", "failures", "grid_exponent", "generator", "choice"),
    *("rehearsed_rows", "rungs"),
}
SHAPED = {"smallest"}  # of noise with a shape: its exact part


def statement_checks(statement: Statement) -> list[Check]:
    """Everything that can be recomputed from the statement alone."""
    content = statement.content
    try:
        claim = public_claim(content)
        guarantee, assumptions, limits = sentences(claim, content["sigma"])
        provenance = weakest([claim.distance.provenance, *(fact.provenance for fact in claim.facts.values())])
        status = status_of(claim, provenance)
        spent = math.fsum(content["noise"]["failures"].values())
        return [
            Check("digest", content["digest"], digest_of(content)),
            Check("keys", sorted(content), sorted(KEYS | ({"series"} if "series" in content else set()))),
            Check("noise", sorted(content["noise"]), sorted(NOISE | (SHAPED if claim_is_shaped(claim) else set()))),
            Check("sizes", sorted(content["sizes"]), sorted(SIZES)),
            Check("schema", content["schema"], STATEMENT_SCHEMA),
            Check("epsilon and delta can be asked for", _can_be_asked(content["epsilon"], content["delta"]), True),
            Check("noise.delta_for_noise", content["noise"]["delta_for_noise"], content["delta"] - spent),
            Check("mu", content["mu"], mu_for(content["epsilon"], content["noise"]["delta_for_noise"])),
            Check("status", content["status"], status),
            Check("guarantee", content["guarantee"], guarantee),
            Check("assumptions", content["assumptions"], assumptions),
            Check("limits", content["limits"], limits),
            Check("distance.meaning", content["distance"]["meaning"], claim.distance.meaning),
            Check("the distance is the bound's", claim.distance.law.stands_in or claim_is_shaped(claim), True),
            Check("noise.calibration", content["noise"]["calibration"], bound_named(claim.bound).calibration),
            Check("noise is secret", claim.generator in SECRET, True),
            *_scale_checks(content, claim),
            *_size_checks(content),
            Check("digests", all(map(is_digest, _digests(content))), True),
            Check("notes, software and created are text", is_text(content), True),
            Check("created is a day", _is_day(content["created"]), True),
            Check("series", sorted(content.get("series", SERIES)), sorted(SERIES)),
        ]
    except UNREADABLE as error:
        raise _unreadable("statement", error) from error


def _can_be_asked(epsilon: float, delta: float) -> bool:
    return SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON and SMALLEST_DELTA <= delta < 1.0


def claim_is_shaped(claim: Claim) -> bool:
    """Whether its noise has a shape, which is not published."""
    return bound_named(claim.bound).kept


def _scale_checks(content: Json, claim: Claim) -> list[Check]:
    """Noise whose size nobody chose for this request, or one of few."""
    choice, sigma, rehearsed = content["noise"]["choice"], content["sigma"], content["noise"]["rehearsed_rows"]
    grid = public_grid(sigma, Ball(claim.n_parameters), content["mu"])
    if claim_is_shaped(claim):
        smallest = content["noise"]["smallest"]
        due = kept_failures(content["delta"], claim.distance)
        lost = drawing_delta(claim.n_parameters, claim.epsilon)
        return [
            Check("float64 makes less of the noise than is spent on it", lost <= due["arithmetic"], True),
            Check("the noise is a level or was set beforehand", choice in (LEVELS, POLICY), True),
            Check("noise.failures", content["noise"]["failures"], due),
            Check("noise.rungs", content["noise"]["rungs"], rehearsed),
            Check("the levels are few", rehearsed, N_LEVELS if choice == LEVELS else None),
            Check("a level is a power of four", choice == POLICY or is_power_of_four(sigma), True),
            Check("noise.averaged", content["noise"]["averaged"], False),
            Check("noise.smallest", 0.0 < smallest <= sigma * LARGEST, True),
            Check("noise.grid_exponent", content["noise"]["grid_exponent"], grid_exponent(smallest)),
        ]
    return [
        Check("only a deposit has a free intercept or a fixed C", sorted({*REFERENCE} & set(content["model"])), []),
        Check("the noise was set beforehand or is a rung", choice in (POLICY, LADDER), True),
        Check("sigma is a rung", (choice == POLICY and rehearsed is None) or is_level(sigma), True),
        Check("noise.rungs", content["noise"]["rungs"], rungs_of(content, choice)),
        Check("noise.grid_exponent", content["noise"]["grid_exponent"], grid),
    ]


def _size_checks(content: Json) -> list[Check]:
    sizes, model = content["sizes"], content["model"]
    rows = loss_named(model["loss"]).weight_rows(sizes["classes"])
    width = sizes["features"] + int(model["bias"] is True)
    known = {"sha256", "before", *MODEL, *PUBLISHED, *PREPARATION, *REFERENCE}
    return [
        Check("model says nothing else", sorted(set(model) - known), []),
        Check("sizes are whole numbers", all(type(sizes[name]) is int and sizes[name] >= 1 for name in SIZES), True),
        Check("rows count by their class or they do not", model.get("weighted", True), True),
        Check("sizes.parameters", sizes["parameters"], rows * width),
        Check("model.l2", model["l2"] > 0.0 and math.isfinite(model["l2"]), True),
    ]


def _is_day(text: str) -> bool:
    return len(text) == DAY and date.fromisoformat(text).isoformat() == text


def _digests(content: Json) -> list[Any]:
    head = content.get("series", {}).get("ledger_head")
    named = [content["model"]["sha256"], content["model"]["before"], content["dossier"]]
    return named if head is None else [*named, head]


def model_checks(statement: Statement, path: str | Path) -> list[Check]:
    """What a statement and a published model must agree on."""
    content, stated = statement.content, statement.content["model"]
    compared, model = opened_model(
        "the model is the one of the statement (model.sha256)", stated["sha256"], stated["loss"], path
    )
    if model is None:
        return compared
    try:
        return [*compared, *_compared_model(content, model)]
    except UNREADABLE as error:
        raise _unreadable("statement", error) from error


def _compared_model(content: Json, model: Published) -> list[Check]:
    record, stated = model.record, content["model"]
    if record is None:
        return [model_check("the model has a record", False, True, "a published model says how it was trained")]
    return [
        model_check(
            "the model has its noise",
            record.noised and record.residual is None,
            True,
            "its record says that none was added: this is the trained model, not the published one",
        ),
        model_check(
            "the model's record has no counts or weights of classes",
            record.class_counts is None and record.class_weights is None,
            True,
            "they would say who left",
        ),
        model_check(
            "the model has the classes of the statement",
            content["sizes"]["classes"],
            len(record.classes),
            f"the statement says {shown(content['sizes']['classes'])}",
        ),
        *(  # a statement that is silent on one of these says something else
            model_check(
                f"the model has the {name} of the statement",
                stated.get(name),
                found,
                f"the statement says {shown(stated[name]) if name in stated else 'nothing'}, its record does not",
            )
            for name, found in _recorded(record).items()
        ),
        *tensor_checks(content, model),
    ]


def _recorded(record: TrainingRecord) -> Json:
    """What a record says, under the names that a statement has for it; None for what there is not."""
    same = ("l2", "loss", "max_norm", "n_source", "bias", "encoder", "preparation", "fixed_c")
    return {
        **{name: getattr(record, name) for name in same},
        "encoder_trained_on_source": None if record.encoder is None else record.encoder_trained or "unknown",
        "free_bias": record.free_bias or None,
        "record": record.provenance,
    }


def dossier_checks(statement: Statement, dossier: Certificate) -> list[Check]:
    """For the auditor: the dossier itself, and that the statement is its public part, keyed digests included."""
    if dossier.content["schema"] != SCHEMA:
        raise FileError(
            f"the dossier has schema {shown(dossier.content['schema'])}",
            f"a statement goes with {SCHEMA}",
            "Give the dossier that was written with the statement.",
        )
    compared = [check.named(f"dossier: {check.name}") for check in checks(dossier)]
    said = statement.content
    try:
        made = statement_of(dossier).content
    except UNREADABLE as error:
        raise _unreadable("dossier", error) from error
    return [
        *compared,
        Check("the dossier is the one the statement names", said["dossier"], made["dossier"]),
        Check("the model before is the dossier's", said["model"]["before"], made["model"]["before"]),
        Check("the statement follows from the dossier", said, made),
    ]


def verify_statement(
    statement: Statement, model: str | Path | None = None, dossier: Certificate | None = None
) -> Verdict:
    """Check a statement, with the model and the dossier where they are at hand; raises if anything differs.

    The verdict is at best consistent: whether the issuer wrote the statement only `expunge.verify_file` can tell, from
    the signed file and the issuer's public key.
    """
    compared = statement_checks(statement)
    if model is not None:
        compared += model_checks(statement, model)
    if dossier is not None:
        compared += dossier_checks(statement, dossier)
    require_passed(compared)
    return Verdict(compared, statement.status)
