"""Checking a statement: for anybody from the file and the model, for the auditor with the dossier too.

A statement says little, since it may not say who left. What can be recomputed from it is: its digest, its sentences,
its status, the target mu, that its noise is a rung or a policy's, the noise's grid; and of the model its digest, its
shape and type, that its weights are on that grid, and that its record gives nothing away.
"""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path
from typing import Any

from expunge.bounds import Ball
from expunge.bounds.calibration import mu_for
from expunge.bounds.ellipsoid import drawing_delta
from expunge.bounds.scale import LADDER, LEVELS, POLICY, is_level, on_ladder
from expunge.certificate.check import Check, Verdict, require_passed, shown
from expunge.certificate.content import Certificate, digest_of
from expunge.certificate.derive import bound_named, sentences, status_of
from expunge.certificate.facts import SCHEMA, SECRET, Claim, Json, weakest
from expunge.certificate.kept import N_LEVELS
from expunge.certificate.limits import LARGEST_EPSILON, SMALLEST_DELTA, SMALLEST_EPSILON, kept_failures
from expunge.certificate.published import Published, model_check, opened_model, tensor_checks
from expunge.certificate.reading import is_text
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
from expunge.certificate.verify import checks
from expunge.errors import ExpungeError, FileError, VerificationFailed
from expunge.noise import grid_exponent, public_grid
from expunge.record import TrainingRecord, loss_named
from expunge.runtime.checks import LARGEST
from expunge.runtime.strict_json import is_digest

KEYS = {
    *("schema", "status", "epsilon", "delta", "mu", "sigma", "guarantee", "assumptions", "limits", "notes", "bound"),
    *("distance", "noise", "sizes", "model", "dossier", "software", "created", "digest"),
}
NOISE = {
    *("calibration", "averaged", "delta_for_noise", "failures", "grid_exponent", "generator", "choice"),
    *("rehearsed_rows", "rungs"),
}
SHAPED = {"smallest"}  # of noise with a shape: its exact part
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, ExpungeError)


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


def _unreadable(what: str, error: Exception) -> VerificationFailed:
    return VerificationFailed(
        f"the {what} cannot be recomputed ({type(error).__name__}: {error})",
        "everything it says must be there and possible",
        "Do not rely on it.",
    )


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
            Check("a level is a power of four", choice == POLICY or is_level(sigma), True),
            Check("noise.averaged", content["noise"]["averaged"], False),
            Check("noise.smallest", 0.0 < smallest <= sigma * LARGEST, True),
            Check("noise.grid_exponent", content["noise"]["grid_exponent"], grid_exponent(smallest)),
        ]
    return [
        Check("only a deposit has a free intercept or a fixed C", sorted({*REFERENCE} & set(content["model"])), []),
        Check("the noise was set beforehand or is a rung", choice in (POLICY, LADDER), True),
        Check("sigma is a rung", (choice == POLICY and rehearsed is None) or on_ladder(sigma), True),
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
