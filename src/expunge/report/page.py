"""Pages for people: about a statement, a dossier or a desk, with names for its numbers that need no mathematics."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from functools import cache
from typing import Any

import jinja2
from jinja2 import TemplateError

from expunge import __version__
from expunge.bounds import TERMS
from expunge.bounds.calibration import right_at_most
from expunge.certificate.claim import INSECURE
from expunge.certificate.derive import bound_named
from expunge.certificate.verify import verdict_sentence
from expunge.certificate.wording import next_to_nothing, outside
from expunge.distance import kind_named
from expunge.errors import FileError, OptionError
from expunge.runtime.values import up

STATUS = {
    "proven": "Proven: nothing but checked facts stands behind it.",
    "conditional": "Conditional: true if the facts listed under “assumed” are true. Nobody checked those.",
    "estimated": "Estimated: some number behind it is a heuristic estimate. Do not treat it as a proof.",
}


def status_words(status: object) -> str:
    """What a status means; whatever is unknown raises."""
    if not isinstance(status, str) or status not in STATUS:
        raise OptionError(f"status {status!r}", f"it is one of {', '.join(STATUS)}", "Do not rely on this certificate.")
    return STATUS[status]


@contextlib.contextmanager
def name_errors(what: str) -> Iterator[None]:
    """What cannot be shown as Expunge's own error: a file may hold odd things in fields that no check recomputes."""
    try:
        yield
    except (TemplateError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise FileError(
            f"{what} cannot be shown ({type(error).__name__}: {error})",
            "every field must be there and of its kind (docs/certificate.md)",
            "Use the file as it was written.",
        ) from error


PROVENANCE = {
    "measured": "computed from data that was at hand",
    "derived": "follows from other numbers by a formula",
    "declared": "stated by whoever ran Expunge; not checked",
    "estimated": "a heuristic estimate",
}
FACTS = {
    "n_source": "rows the model was trained on",
    "n_forget": "rows forgotten since training, these included",
    "n_surrogate": "rows of the stand-in data",
    "l2": "regularisation strength",
    "training_residual": "how far from its optimum the starting model was (norm of the gradient)",
    "solver_residual": "what the update left unsolved",
    "rounding": "largest possible arithmetic error",
    "change_mean": "by how much the update changes the stand-in rows' mean gradient",
    "change_eigenvalue": "how much that change varies over stand-in rows, in the direction in which it varies most",
    "change_trace": "how much that change varies over stand-in rows, in all directions together",
    "change_fourth": "how heavy the tails of that change are (its mean fourth power)",
    "change_fourth_eigenvalue": "how heavy its tails are in one direction",
    "change_largest": "largest distance of that change from its mean, seen on a stand-in row",
    "change_longest": "largest such change, seen on a stand-in row",
    "change_supremum": "largest such change that any row can show",
    "longest_row": "longest row of the stand-in data",
    "row_bound": "longest a row can be",
    "directions": "numbers that a row has",
    "sampling_failure": "probability that a sample was unlucky",
    "weight_largest": "most that a stand-in row counts (the mean is 1)",
    "sampled_trace": "how much the weighted change varies, in all directions together",
    "sampled_eigenvalue": "how much the weighted change varies, in the direction in which it varies most",
    "sampled_largest": "largest weighted change seen",
    "alpha": "least curvature of the objective",
    "beta": "largest curvature of the objective",
    "gamma": "how fast its curvature can change",
    "lipschitz": "longest gradient of a row",
    "lipschitz_power": "power with which that length enters (the paper's theorem and corollary differ)",
    "gradient_norm": "length of the forgotten rows' gradient",
    "tv_upper": "total variation between stand-in and source, at most",
    "solver": "what the step left of the retained rows' linearised gradient",
    "shape_ratio": "how the norm of the bound and the shape of the noise compare",
    "reach": "furthest that the update moves the outputs of a row apart",
    "update_curved": "length of the update by the retained rows' curvature",
    "concordance": "how fast curvature can change over the bound's own length",
    "gauge": "length of the update by an ellipsoid around the source's rows",
    "kappa": "how far the outermost source row lies by that ellipsoid",
    "curvature_ratio": "curvature of the retained rows by the norm of the bound",
    "spread": "size of that ellipsoid by the norm of the bound",
    "weight_ratio": "curvature of long rows by the norm of the bound",
    "shape_largest": "steepest direction of the shape of the noise",
    "shape_least": "flattest direction of the shape of the noise",
    "shape_inverse_trace": "sum over directions of the noise's variance at sigma 1",
    "weights_length": "length of the weights before noise",
    "output_noise": "what noise of sigma 1 adds to an output of a typical row",
    "output_spread": "size of the model's own outputs on a typical row",
}
FAILURES = {
    "sampling": "an unlucky sample of rows",
    "eigenvalue": "an unlucky start in measuring how much gradients vary",
    "sequence": "the other models of the same desk",
    "arithmetic": "what float64 makes of the drawing of the noise",
}
LISTED = "These facts were declared, not checked: "
UNDERSCORED = re.compile(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b")


def plain(sentence: object) -> str:
    """A sentence of a certificate with words in place of the names of facts. The file itself keeps its own.

    >>> plain("These facts were declared, not checked: l2, solver_residual.")
    'These facts were declared, not checked: regularisation strength; what the update left unsolved.'
    """
    said = str(sentence)
    if said.startswith(LISTED) and said.endswith("."):
        names = said.removeprefix(LISTED)[:-1].split(", ")
        return LISTED + "; ".join(FACTS.get(name, name) for name in names) + "."
    return UNDERSCORED.sub(lambda found: f"“{FACTS[found[0]]}”" if found[0] in FACTS else found[0], said)


# What a page answers first: what was decided, and what epsilon and delta mean to somebody who guesses.


WEAK = 0.9  # of the time somebody may be right: beyond it a page says that this is little protection


def decision(content: Mapping[str, Any], *, public: bool) -> str:
    """One sentence on what was decided, and what it is not of. A public one is alike whoever left."""
    if public:
        who, verb, them = "Rows", "were", "them"
    else:
        gone, of = int(content["sizes"]["n_forget"]), int(content["sizes"]["n_source"])
        who, verb, them = f"{gone:,} of {of:,} rows", "was" if gone == 1 else "were", "it" if gone == 1 else "them"
    status_words(content["status"])  # an unknown one raises
    right, little = tell_right(content["epsilon"], content["delta"]), next_to_nothing(content["epsilon"])
    alike = (
        f"whoever tries to tell the published model from one that was retrained without {them} is right at most "
        f"{right} of the time, where guessing is right 50 % "
        f"(epsilon {up(content['epsilon'])}, delta {up(content['delta'])})"
    )
    said = {
        "proven": f", and it is proven that {alike}.",
        "conditional": f", and if what is assumed is true, {alike}.",
        "estimated": f", but that {alike} rests on an estimate that nobody can vouch for: this is no guarantee.",
    }[content["status"]]
    if content["noise"]["generator"] == INSECURE:
        little, said = "", " for a test only: its noise is not secret, and it protects nobody."
    beyond = outside(content.get("model", {}).get("preparation"))
    text = f"{little} {who} {verb} taken out of the model{said}".strip()
    return text + (f" This is of the weights: {beyond}" if beyond else "")


def percent(share: float) -> str:
    """A share in percent with one decimal, rounded up: it stands in a promise.

    >>> percent(0.7310585786), percent(0.5), percent(0.99995)
    ('73.2 %', '50 %', '100 %')
    """
    tenths = math.ceil(round(1000.0 * share, 9))
    return f"{tenths / 10:g} %"


def one_in(probability: float) -> str:
    """One in how many, in two digits, rounded down: it stands in a promise.

    >>> one_in(1e-05), one_in(1.6e-05), one_in(0.3)
    ('100,000', '62,000', '3')
    """
    many = Context(prec=2, rounding=ROUND_FLOOR).divide(Decimal(1), Decimal(repr(float(probability))))
    return f"{max(1, int(many)):,}"


def tell_right(epsilon: float, delta: float) -> str:
    """What somebody may say who would have said 50 %.

    >>> tell_right(1.0, 1e-5)
    '73.2 %'
    """
    return percent(right_at_most(epsilon, min(delta, 1.0)))


def is_weak(epsilon: float, delta: float) -> bool:
    """Whether somebody who guesses may be right nearly always.

    >>> is_weak(1.0, 1e-5), is_weak(5.0, 1e-5)
    (False, True)
    """
    return right_at_most(epsilon, min(delta, 1.0)) > WEAK


def terms_of(terms: Mapping[str, float]) -> list[dict[str, Any]]:
    """The terms of a bound with their words and their shares in percent."""
    total = math.fsum(terms.values())
    parts = []
    for name, value in terms.items():
        label, meaning = (TERMS[name].title, TERMS[name].words) if name in TERMS else (name, "")
        share = 100.0 * value / total if total else 0.0
        parts.append({"label": label, "meaning": meaning, "value": value, "share": share})
    return parts


# HTML pages from templates: one file each, no scripts, nothing fetched, everything escaped.


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


def _common(content: Mapping[str, Any], keyid: str | None) -> Json:
    """What both pages of a deletion say alike."""
    kept, law = bound_named(content["bound"]["kind"]).kept, kind_named(content["distance"]["kind"])
    return {
        "kept": kept,
        "stands_in": law.stands_in and not law.is_source,
        "verdict": verdict_sentence(keyid),
        "status_words": status_words(content["status"]),
        "reading": tell_right(content["epsilon"], content["delta"]),
        "reading_of": tell_right,
        "weak": is_weak(content["epsilon"], content["delta"]),
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
    environment.filters |= {"number": _number, "moment": _moment, "promised": up, "one_in": one_in, "plain": plain}
    environment.filters["capitalise"] = lambda text: text[:1].upper() + text[1:]
    return environment


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(version=__version__, **values)


@name_errors("the statement")
def statement_page(
    statement: Mapping[str, Any],
    *,
    number: int | None = None,
    composition: Json | None = None,
    limit: float | None = None,
    keyid: str | None = None,
) -> str:
    """The public page of one published model, from its statement; it may be handed out with the model."""
    return _render(
        "statement.html",
        statement=statement,
        number=number,
        composition=composition,
        limit=limit,
        keyid=keyid,
        decision=decision(statement, public=True),
        estimated=[STAND_IN] if statement["distance"]["provenance"] == "estimated" else [],
        **_common(statement, keyid),
    )


@name_errors("the certificate")
def run_page(
    certificate: Mapping[str, Any],
    *,
    number: int | None = None,
    requests: Sequence[Json] = (),
    composition: Json | None = None,
    limit: float | None = None,
    keyid: str | None = None,
) -> str:
    """The full page of one published model, from its dossier. Not for publication: its numbers tell who left."""
    bound = certificate["bound"]
    facts = {
        kind: [
            (name, FACTS.get(name, NO_WORDS), entry["value"])
            for name, entry in bound["inputs"].items()
            if entry["provenance"] == kind
        ]
        for kind in PROVENANCE
    }
    estimated = [f"{meaning}: {_number(value)}" for _, meaning, value in facts["estimated"]]
    return _render(
        "run.html",
        certificate=certificate,
        number=number,
        requests=requests,
        composition=composition,
        limit=limit,
        keyid=keyid,
        parts=terms_of(bound["terms"]),
        facts=facts,
        estimated=[*estimated, *([STAND_IN] if certificate["distance"]["provenance"] == "estimated" else [])],
        provenance_words=PROVENANCE,
        failure_words=FAILURES,
        decision=decision(certificate, public=False),
        public_decision=decision(certificate, public=True),
        **_common(certificate, keyid),
    )


@name_errors("the desk")
def desk_page(
    status: Json,
    requests: Sequence[Json],
    models: Sequence[Json],
    *,
    total: int,
    pages: Mapping[int, str],
) -> str:
    """The desk's own page: requests with their references, models, what is left. Not for publication."""
    return _render(
        "desk.html",
        status=status,
        requests=requests,
        models=models,
        total=total,
        pages=pages,
    )
