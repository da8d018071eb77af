"""Facts that contradict one another, or that no run of Expunge states: each rule's name says what must be so.

A forger has this code, and redoes everything that follows from the facts; here the facts are held against each other.
Rules allow for the rounding of honest ones. `docs/certificate.md` lists them.
"""

from __future__ import annotations

from expunge.bounds.paper import SIZE_CONVENTIONS
from expunge.certificate.check import Check
from expunge.certificate.derive import BOUNDS
from expunge.certificate.facts import GENERATORS, SIZE_NAMES, Claim, Json
from expunge.certificate.kept import KEPT, KEPT_WORDS
from expunge.certificate.limits import FORM, MOST_PLANNED, STEPS
from expunge.certificate.model_file import FLOATS
from expunge.certificate.moments import CHANGES, WEIGHTS
from expunge.certificate.origins import ORIGINS, TRAINING
from expunge.certificate.spending import BUDGET
from expunge.certificate.stated import Rule, Stated
from expunge.record import LOSSES, MOST_ROWS


def possible(content: Json, claim: Claim) -> list[Check]:
    """What the rules say of a certificate; of one whose words are unknown or whose numbers are none, only that."""
    stated = Stated(content, claim)
    compared = _checks(WORDS, stated)
    return compared if not all(check.passed for check in compared) else compared + _checks(CONTRADICTIONS, stated)


def _checks(rules: tuple[Rule, ...], stated: Stated) -> list[Check]:
    return [check for check in (rule.check(stated) for rule in rules) if check is not None]


def _whole(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_ROWS


def _whole_sizes(stated: Stated) -> bool:
    inputs = stated.content["bound"]["inputs"]
    counted = [inputs[name]["value"] for name in (*SIZE_NAMES, "directions") if name in inputs]
    return all(map(_whole, [*counted, *stated.content["sizes"].values()]))


def _class_counts(stated: Stated) -> bool:
    counts, sizes = stated.content["data"]["class_counts"], stated.content["sizes"]
    counted = sizes["n_source" if stated.old else "n_retain"]
    return len(counts) == sizes["classes"] and all(map(_whole, counts)) and sum(counts) == counted


def _scaled(stated: Stated) -> bool:
    """Rows of classes that do not count are left out of the surrogate, not of the count."""
    scaled = stated.content["data"]["rows_scaled_to_max_norm"]
    few = scaled["forget"] <= stated["n_forget"]
    few = few and (stated.claim.distance.matched or scaled["surrogate"] <= stated.content["sizes"]["n_surrogate"])
    return _whole(scaled["forget"]) and _whole(scaled["surrogate"]) and few


def _place(stated: Stated) -> bool:
    place = stated.sequence or {}
    planned, position = place["planned"], place["position"]
    return type(planned) is type(position) is int and 1 <= position <= planned <= MOST_PLANNED


def _before(stated: Stated) -> bool:
    """Every earlier model of the series forgot at least a row; the first has none before it.

    A deposit may have lost rows before its series began.
    """
    place = stated.sequence or {}
    earlier, position = place["forgotten_before"], place["position"]
    few = earlier < stated["n_forget"] and earlier >= position - 1
    return _whole(earlier) and few and (position > 1 or earlier == 0 or stated.kept)


def _others(stated: Stated) -> bool:
    declared = (stated.sequence or {})["another_person"]
    return _whole(declared) and 1 <= declared <= stated["n_forget"] and not stated.kept


WORDS = (
    Rule("the bound is known", "it names a bound that Expunge does not have", lambda c: c.claim.bound in BOUNDS),
    Rule(
        "the distance is one that the bound can have",
        "that a deposit was kept goes with the deposit's bound, which alone uses it",
        lambda c: c.claim.distance.law.stands_in or c.kept,
    ),
    Rule(
        "the form of the bound is known",
        f"the residual bound of this schema is that of the {FORM}",
        lambda c: c.content["bound"].get("form") == (FORM if (c.residual or c.kept) and not c.old else None),
    ),
    Rule(
        "the loss is known",
        "it names a loss that Expunge does not have",
        lambda c: c.content["model"]["loss"] in LOSSES,
    ),
    Rule(
        "the step is one that Expunge makes",
        f"the step is none of {', '.join(STEPS)}",
        lambda c: c.content["step"]["kind"] in STEPS,
    ),
    Rule(
        "the convention of sizes is known",
        "the paper's bound weights the surrogate's Hessian by the size of source or surrogate",
        lambda c: (
            c.claim.convention in SIZE_CONVENTIONS if c.paper else c.kept or "convention" not in c.content["bound"]
        ),
    ),
    Rule(
        "the type of the weights is known",
        "weights are stored as no such numbers",
        lambda c: c.content["model"]["dtype"] in FLOATS,
    ),
    Rule(
        "the generator of the noise is known",
        "noise was drawn from no such generator",
        lambda c: c.claim.generator in GENERATORS,
    ),
    Rule(
        "the record is measured or declared",
        "a training record is nothing else",
        lambda c: c.content["model"]["record"] in ("measured", "declared"),
    ),
    Rule(
        "there is a bias or there is none",
        "model.bias is neither true nor false, or true for weights that are one vector",
        lambda c: type(c.content["model"]["bias"]) is bool and (c.linear or not c.content["model"]["bias"]),
    ),
    Rule("sizes are whole numbers", "a count of rows, classes, features or weights is not whole", _whole_sizes),
    Rule(
        "no fact is negative",
        "a fact is below 0",
        lambda c: all(fact.value >= 0.0 for fact in c.claim.facts.values()),
    ),
    *KEPT_WORDS,
)

SIZES = (
    Rule("some rows were forgotten", "n_forget is 0", lambda c: c["n_forget"] >= 1),
    Rule("some rows are retained", "n_forget is not below n_source", lambda c: c["n_forget"] < c["n_source"]),
    Rule("the surrogate has rows", "n_surrogate is 0", lambda c: c["n_surrogate"] >= 1, lambda c: c.has("n_surrogate")),
    Rule(
        "there are classes to tell apart, and features",
        "a classifier has at least two classes and one feature",
        lambda c: c.content["sizes"]["classes"] >= (2 if c.loss.convex else 1) and c.content["sizes"]["features"] >= 1,
    ),
    Rule(
        "the source has as many rows as the source",
        "the rows given are said to be the source's own, and are not as many",
        lambda c: c["n_surrogate"] == c["n_source"],
        lambda c: c.claim.distance.is_source and c.loss.convex,
    ),
    Rule(
        "class counts are those of the classes and add up",
        "there is one for each class, none is negative, and together they are the rows they count",
        _class_counts,
        lambda c: c.claim.distance.matched,
    ),
    Rule(
        "no more rows were scaled than there are",
        "data.rows_scaled_to_max_norm counts more rows than were given",
        _scaled,
        lambda c: "rows_scaled_to_max_norm" in c.content["data"],
    ),
    Rule("the place in the series is one of those planned", "data.sequence names a place that is not", _place,
         lambda c: c.sequence is not None),
    Rule(
        "rows forgotten before fit the place in the series",
        "data.sequence.forgotten_before is not what earlier models of the series can have forgotten",
        _before,
        lambda c: c.sequence is not None and not c.old,
    ),
    Rule(
        "rows declared another person's are some of those forgotten",
        "data.sequence.another_person counts none or more than n_forget, or a deposit decided",
        _others,
        lambda c: c.sequence is not None and "another_person" in c.sequence,
    ),
    Rule(
        "only the residual bound has a series",
        "the paper's bound is of one deletion",
        lambda c: c.residual or c.kept,
        lambda c: c.sequence is not None,
    ),
)  # fmt: skip

CONTRADICTIONS = (*BUDGET, *SIZES, *TRAINING, *ORIGINS, *CHANGES, *WEIGHTS, *KEPT)
RULES = (*WORDS, *CONTRADICTIONS)
