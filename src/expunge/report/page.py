"""HTML pages from templates: one file each, no scripts, nothing fetched, everything escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jinja2

from expunge import __version__
from expunge.certificate.check import verdict_sentence
from expunge.certificate.derive import bound_named
from expunge.distance.kinds import kind_named
from expunge.report.answers import checked_names, decision, is_weak, one_in, reading
from expunge.report.chart import noise_curve, stacked
from expunge.report.words import FACTS, FAILURES, PROVENANCE, plain, showing, status_words
from expunge.runtime.rounding import up

Json = dict[str, Any]
STAND_IN = "The distance between stand-in and source."
NO_WORDS = "a number of a bound that this version has no words for"


def _number(value: float) -> str:
    """A number for reading: four digits, thousands apart.

    >>> _number(12345), _number(0.000123456)
    ('12,345', '0.0001235')
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _moment(value: str) -> str:
    """A time for reading.

    >>> _moment("2026-11-15T11:12:30+00:00")
    '2026-11-15 11:12 UTC'
    """
    return value[:16].replace("T", " ") + " UTC"


def _common(content: Mapping[str, Any], keyid: str | None, organisation: str | None, model_name: str | None) -> Json:
    """What both pages of a deletion say in the same """
    kept, law = bound_named(content["bound"]["kind"]).kept, kind_named(content["distance"]["kind"])
    return {
        "kept": kept,
        "beside": kept and law.stands_in,
        "stands_in": law.stands_in and not law.is_source,
        "verdict": verdict_sentence(keyid),
        "status_words": status_words(content["status"]),
        "reading": reading(content["epsilon"], content["delta"]),
        "reading_of": reading,
        "weak": is_weak(content["epsilon"], content["delta"]),
        "version": __version__,
        **checked_names(organisation, model_name),
    }


@cache
def _environment() -> jinja2.Environment:
    """Templates are compiled once, not for every page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("expunge.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    environment.filters["moment"] = _moment
    environment.filters["promised"] = up
    environment.filters["one_in"] = one_in
    environment.filters["capitalise"] = lambda text: text[:1].upper() + text[1:]
    environment.filters["plain"] = plain
    return environment


@showing("the statement")
def statement_page(
    statement: Mapping[str, Any],
    *,
    number: int | None = None,
    composition: Json | None = None,
    limit: float | None = None,
    keyid: str | None = None,
    organisation: str | None = None,
    model_name: str | None = None,
) -> str:
    """The public page of one published model, from its statement; it may be handed out with the model.

    `organisation` and `model_name` are shown as they are given: they are in no file that is verified.
    """
    return (
        _environment()
        .get_template("statement.html")
        .render(
            statement=statement,
            number=number,
            composition=composition,
            limit=limit,
            keyid=keyid,
            decision=decision(statement, public=True),
            estimated=[STAND_IN] if statement["distance"]["provenance"] == "estimated" else [],
            **_common(statement, keyid, organisation, model_name),
        )
    )


@showing("the certificate")
def run_page(
    certificate: Mapping[str, Any],
    *,
    number: int | None = None,
    requests: Sequence[Json] = (),
    composition: Json | None = None,
    limit: float | None = None,
    accuracy: Mapping[str, float | None] | None = None,
    keyid: str | None = None,
    organisation: str | None = None,
    model_name: str | None = None,
) -> str:
    """The full page of one published model, from its dossier. Not for publication: its numbers tell who left."""
    bound, noise = certificate["bound"], certificate["noise"]
    facts = {
        kind: [
            (name, FACTS.get(name, NO_WORDS), entry["value"])
            for name, entry in bound["inputs"].items()
            if entry["provenance"] == kind
        ]
        for kind in PROVENANCE
    }
    residual = bound["kind"] == "residual"
    estimated = [f"{meaning}: {_number(value)}" for _, meaning, value in facts["estimated"]]
    return (
        _environment()
        .get_template("run.html")
        .render(
            certificate=certificate,
            number=number,
            requests=requests,
            composition=composition,
            limit=limit,
            accuracy=accuracy,
            keyid=keyid,
            parts=stacked(bound["terms"]),
            curve=noise_curve(bound["total"], certificate["epsilon"], noise["delta_for_noise"])
            if residual
            else None,
            facts=facts,
            estimated=[*estimated, *([STAND_IN] if certificate["distance"]["provenance"] == "estimated" else [])],
            provenance_words=PROVENANCE,
            failure_words=FAILURES,
            decision=decision(certificate, public=False),
            public_decision=decision(certificate, public=True),
            **_common(certificate, keyid, organisation, model_name),
        )
    )


@showing("the desk")
def desk_page(
    status: Json,
    requests: Sequence[Json],
    models: Sequence[Json],
    *,
    shown: int,
    total: int,
    pages: Mapping[int, str],
    organisation: str | None = None,
    model_name: str | None = None,
) -> str:
    """The desk's own page: requests with their references, models, what is left. Not for publication."""
    return (
        _environment()
        .get_template("desk.html")
        .render(
            status=status,
            requests=requests,
            models=models,
            shown=shown,
            total=total,
            pages=pages,
            version=__version__,
            **checked_names(organisation, model_name),
        )
    )
