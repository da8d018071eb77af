"""What a page answers first: what was decided, and what epsilon and delta mean to somebody who guesses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any

from expunge.bounds.guessing import right_at_most
from expunge.certificate.facts import INSECURE
from expunge.certificate.provisos import next_to_nothing, outside
from expunge.errors import OptionError
from expunge.report.words import status_words
from expunge.runtime.rounding import up

LONGEST_NAME = 200
WEAK = 0.9  # of the time somebody may be right: beyond it a page says that this is little protection


def decision(content: Mapping[str, Any], *, public: bool) -> str:
    """One sentence on what was decided, and what it is not of. A public one is the same whoever left."""
    beyond = outside(content.get("model", {}).get("preparation"))
    return _decided(content, public=public) + (f" This is of the weights: {beyond}" if beyond else "")


def _decided(content: Mapping[str, Any], *, public: bool) -> str:
    if public:
        who, verb, them = "Rows", "were", "them"
    else:
        gone, of = int(content["sizes"]["n_forget"]), int(content["sizes"]["n_source"])
        who, verb, them = f"{gone:,} of {of:,} rows", "was" if gone == 1 else "were", "it" if gone == 1 else "them"
    status_words(content["status"])  # an unknown one raises
    if content["noise"]["generator"] == INSECURE:
        return f"{who} {verb} taken out of the model for a test only: its noise is not secret, and it protects nobody."
    right, little = reading(content["epsilon"], content["delta"]), next_to_nothing(content["epsilon"])
    alike = (
        f"whoever tries to tell the published model from one that was retrained without {them} is right at most "
        f"{right} of the time, where guessing is right 50 %"
    )
    numbers = f"(epsilon {up(content['epsilon'])}, delta {up(content['delta'])})"
    if content["status"] == "proven":
        said = f"{who} {verb} taken out of the model, and it is proven that {alike} {numbers}."
    elif content["status"] == "conditional":
        said = f"{who} {verb} taken out of the model, and if what is assumed is true, {alike} {numbers}."
    else:
        said = (
            f"{who} {verb} taken out of the model, but that {alike} {numbers} rests on an estimate that nobody can "
            "vouch for: this is no guarantee."
        )
    return f"{little} {said}".strip()


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


def reading(epsilon: float, delta: float) -> str:
    """What somebody may say who would have said 50 %.

    >>> reading(1.0, 1e-5)
    '73.2 %'
    """
    return percent(right_at_most(epsilon, min(delta, 1.0)))


def is_weak(epsilon: float, delta: float) -> bool:
    """Whether somebody who guesses may be right nearly always.

    >>> is_weak(1.0, 1e-5), is_weak(5.0, 1e-5)
    (False, True)
    """
    return right_at_most(epsilon, min(delta, 1.0)) > WEAK


def checked_name(name: str | None, option: str) -> str | None:
    """A name for a page, as it was given: one line that can be read."""
    if name is None:
        return None
    if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise OptionError(
            f"{option} {name[:LONGEST_NAME]!r}",
            f"one line of at most {LONGEST_NAME} printable characters is needed",
            f"Give a name, or leave {option} out.",
        )
    return name.strip()


def checked_names(organisation: str | None, model_name: str | None) -> dict[str, Any]:
    """Both names that a page can show, by the names of its parameters."""
    return {
        "organisation": checked_name(organisation, "--organisation"),
        "model_name": checked_name(model_name, "--model-name"),
    }
