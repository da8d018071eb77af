"""A claim read from a certificate's content: strict about kinds and names, with no opinion on whether it can be."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from expunge.bounds import ResidualFacts, RetainedFacts
from expunge.bounds.residual import WEIGHT_FACTS
from expunge.bounds.scale import CHOICES, EXACTLY, SET, Scale
from expunge.certificate.check import LARGEST_NUMBER
from expunge.certificate.facts import (
    BESIDE_FACTS,
    OLD_SCHEMAS,
    OUTPUT_FACTS,
    OWN_FACTS,
    SHAPE_FACTS,
    WEAKEST_LAST,
    Claim,
    Fact,
    Json,
)
from expunge.certificate.provisos import ENCODERS
from expunge.distance import Distance
from expunge.record import prepared_by

PAPER_FACTS = (
    *("n_source", "n_forget", "n_surrogate", "alpha", "beta", "lipschitz", "gamma", "lipschitz_power"),
    *("gradient_norm", "tv_upper"),
)


def claim_of(content: Json) -> Claim:
    """The facts a certificate states."""
    bound, noise, old = content["bound"], content["noise"], content["schema"] in OLD_SCHEMAS
    stated = dict(content["distance"])
    stated.pop("meaning")
    distance = Distance(**stated)
    if content["schema"] == OLD_SCHEMAS[0] and (
        distance.matched or distance.law.first_schema > 1 or "estimate" in content
    ):
        raise ValueError("schema 1 knew neither weighted rows nor estimates")
    facts = {
        name: Fact(number(entry["value"]), _provenance(entry["provenance"])) for name, entry in bound["inputs"].items()
    }
    _require_names(set(facts), bound["kind"], distance, old)
    return Claim(
        epsilon=number(content["epsilon"]),
        delta=number(content["delta"]),
        bound=bound["kind"],
        facts=facts,
        distance=distance,
        failures={str(name): number(value) for name, value in noise["failures"].items()},
        n_parameters=int(number(content["sizes"]["parameters"])),
        generator=noise["generator"],
        convention=bound.get("convention", "source"),
        tuned=_yes_or_no(bound.get("tuned", False)),
        averaged=not old and _yes_or_no(noise["averaged"]),
        encoder=encoder_word(content["model"]),
        preparation=preparation_word(content["model"]),
        weighted="class_weights" in content["model"],
        scale=EXACTLY if old else _scale(content),
        others=0 if old else _others(content),
        schema=content["schema"],
    )


def _require_names(given: set[str], bound: object, distance: Distance, old: bool) -> None:
    """Refuse facts that are missing or that the bound does not know."""
    needed = given  # of a bound that is not known, which is said elsewhere
    weights = set(WEIGHT_FACTS) if distance.matched else set()
    if bound == "paper":
        needed = set(PAPER_FACTS)
    if bound == "deposit":
        needed = {*OWN_FACTS, "n_source", "n_forget", "row_bound", *SHAPE_FACTS, *OUTPUT_FACTS}
        needed |= ({*BESIDE_FACTS} | weights) if distance.law.stands_in else set()
    if bound == "residual":
        known = fields(ResidualFacts if old else RetainedFacts)
        needed = {field.name for field in known if field.default is MISSING} | weights
    odd = sorted(given ^ needed)
    if odd:
        raise KeyError("bound.inputs lacks or adds " + ", ".join(odd))


def number(value: Any) -> float:
    """A finite number that is not absurdly large."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST_NUMBER:
        raise ValueError(f"{value!r} is not a number of at most {LARGEST_NUMBER:g}")
    return value


def _scale(content: Json) -> Scale:
    """How the noise's scale was chosen; a policy's is the one that was published."""
    choice, rehearsed = content["noise"]["choice"], content["noise"]["rehearsed_rows"]
    if choice not in CHOICES:
        raise ValueError(f"choice {choice!r}")
    if rehearsed is not None and choice not in SET:
        raise ValueError(f"a scale by {choice} that was rehearsed")
    return Scale(choice, content["sigma"] if choice in SET else None, rehearsed)


def _others(content: Json) -> int:
    """Rows that were declared another person's; a whole number where any is stated."""
    stated = content["data"].get("sequence", {}).get("another_person", 0)
    if type(stated) is not int:
        raise ValueError(f"another_person {stated!r}")
    return stated


def encoder_word(model: Json) -> str | None:
    """Whether the encoder was trained on the source, where there is one."""
    said = str(model.get("encoder_trained_on_source", "unknown"))
    if said not in ENCODERS:
        raise ValueError(f"encoder_trained_on_source {said!r}")
    return said if "encoder" in model else None


def preparation_word(model: Json) -> str | None:
    """Where the rows' preparation was learnt, and by which steps, where there was one."""
    said = model.get("preparation")
    if "preparation" in model and prepared_by(said) is None:
        raise ValueError(f"preparation {said!r}")
    return said


def _provenance(value: Any) -> str:
    if not isinstance(value, str) or value not in WEAKEST_LAST:
        raise ValueError(f"provenance {value!r}")
    return value


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is not true or false")
    return value


def is_text(content: Json) -> bool:
    """Whether what a page repeats is text: notes, versions by the name of the software, the time of issue."""
    notes, software = content["notes"], content["software"]
    return (
        isinstance(notes, list)
        and isinstance(software, dict)
        and "expunge" in software
        and all(isinstance(text, str) for text in (*notes, *software.values(), content["created"]))
    )
