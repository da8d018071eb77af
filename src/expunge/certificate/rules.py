"""What `expunge verify` checks, in one table: what about, when it applies, left side, relation, right side.

Rules recompute what follows, and name what a slip of arithmetic or two mixed-up files would make contradict one
another. They do not try to keep a forger from writing numbers that could be: only a signature tells. Inequalities
between facts allow for rounding, a relative 1e-6; what is recomputed may differ by 1e-12. A side is the name of a fact,
a dotted path into the file, a plain value, or a `Value` with its own words. Every rule's sentence, and the page of
rules on the site, is made of its row (`python -m expunge.certificate.rules`). `verify.py` says in which order.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from expunge.bounds import Ball
from expunge.bounds.calibration import EXACT as UNROUNDED
from expunge.bounds.calibration import LADDER, LEVELS, POLICY, is_level, is_power_of_four, mu_for
from expunge.bounds.curvature import MOST_TRIES
from expunge.bounds.deposit import EXACT, PLAIN, way_of
from expunge.bounds.ellipsoid import drawing_delta
from expunge.bounds.retained import FEWEST_SAMPLED_ROWS, WEIGHT_FACTS
from expunge.certificate.claim import (
    FORM,
    LARGEST_EPSILON,
    SCHEMA,
    SECRET,
    SIZE_NAMES,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    STATEMENT_SCHEMA,
    STEPS,
    Claim,
    Json,
    beyond_closed_form,
    curvature_failures,
    due_failures,
    kept_failures,
)
from expunge.certificate.derive import Bound, Conclusion, bound_named, derive, sentences, status_of
from expunge.certificate.dossier import LARGEST_NUMBER, Certificate, number
from expunge.certificate.statement import rungs_of, statement_of
from expunge.distance import ROUTES as ESTIMATES
from expunge.distance import tv_upper_from_kl
from expunge.errors import ExpungeError, VerificationFailed
from expunge.noise import grid_exponent, public_grid
from expunge.record import (
    LOGISTIC,
    LOSSES,
    ONE_VS_REST,
    RIDGE,
    SOFTMAX,
    TANGENT,
    Loss,
    TrainingRecord,
    loss_named,
    one_digit,
)
from expunge.runtime.safetensors import Array
from expunge.runtime.strict_json import is_digest
from expunge.runtime.values import LARGEST

UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, ExpungeError)
TOLERANCE = 1e-12  # relative: what another machine's mathematical library may change of what is recomputed
SLACK = 1e-6  # relative: what float64, and float32 rows, may change of a moment
N_LEVELS = 6  # of noise with a deposit: which of them was taken tells less than three bits


# A check: one thing that was looked at, and what to say if it is not so. What should have been there is compared and
# dropped: nobody who asks what is wrong with a forgery is told what to paste.

MOST_SHOWN = 5
FOLLOWS, POSSIBLE, OF_MODEL, DEPOSIT = "follows", "possible", "model", "deposit"  # what a check is about
REQUIRED = {
    POSSIBLE: (
        "what it states must be possible, and no run of Expunge gives this",
        "Do not rely on this certificate: somebody wrote or changed it.",
    ),
    FOLLOWS: ("the file must say what follows from its own numbers", "Do not rely on this certificate."),
    OF_MODEL: (
        "the model must be the one that the certificate was issued for",
        "Give the published model's file as it was written; if it is that one, rely on neither.",
    ),
    DEPOSIT: (
        "the deposits must be the one the rows were taken out of and the one that was left, and the dossier must say "
        "what follows from them",
        "Give the deposits of this deletion, as they were written; if they are, rely on none of these files.",
    ),
}


@dataclass(frozen=True)
class Check:
    """What a certificate claims, and whether it is as `recomputed`, which is not kept; `why` is what to say if not."""

    name: str
    claimed: Any = field(repr=False)
    recomputed: InitVar[Any]
    why: str = ""
    about: str = FOLLOWS
    passed: bool = field(init=False)

    def __post_init__(self, recomputed: Any) -> None:
        object.__setattr__(self, "passed", equal(self.claimed, recomputed))

    @property
    def words(self) -> str:
        """What is wrong, where something is; never what would be right."""
        if self.why or (self.claimed is False and " " in self.name):
            return f"it is not so that {self.name}{self.why and f' ({self.why})'}"
        rest = "is not so of the model" if self.about == OF_MODEL else "does not follow from the rest"
        return f"{self.name} is stated as {shorten(self.claimed)}, which {rest}"


def equal(claimed: Any, recomputed: Any) -> bool:
    """Whether they are the same, floats up to what another machine may change."""
    if isinstance(recomputed, dict):
        same_keys = isinstance(claimed, dict) and claimed.keys() == recomputed.keys()
        return same_keys and all(equal(claimed[key], value) for key, value in recomputed.items())
    if isinstance(recomputed, (list, tuple)):
        return isinstance(claimed, list) and len(claimed) == len(recomputed) and all(map(equal, claimed, recomputed))
    if isinstance(recomputed, float):
        is_number = isinstance(claimed, (int, float)) and not isinstance(claimed, bool)
        near = is_number and abs(claimed) <= LARGEST_NUMBER
        return near and math.isclose(claimed, recomputed, rel_tol=TOLERANCE, abs_tol=0.0)
    return type(claimed) is type(recomputed) and bool(claimed == recomputed)


def require_passed(checks: Sequence[Check]) -> None:
    """Raise, with what is wrong in words, unless every check passed; what is impossible is said first."""
    said = {about: [check.words for check in checks if not check.passed and check.about == about] for about in REQUIRED}
    for about, (required, remedy) in REQUIRED.items():
        if wrong := said[about]:
            more = f"; and {len(wrong) - MOST_SHOWN} more" if len(wrong) > MOST_SHOWN else ""
            everything = tuple(words for part in said.values() for words in part)
            raise VerificationFailed("; ".join(wrong[:MOST_SHOWN]) + more, required, remedy, everything)


def shorten(value: Any) -> str:
    """A claimed value for a message, whatever it is."""
    try:
        text = str(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists in lists in lists
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else text[:77] + "..."


# What rules look at.


@dataclass(frozen=True)
class Inspection:
    """A dossier or a statement with its claim; with a statement the published model (a `ModelFile`) and the dossier."""

    content: Json
    claim: Claim
    model: Any = None
    dossier: Certificate | None = None

    def __getitem__(self, path: str) -> Any:
        """The value of a fact, or what stands at a dotted path of the file."""
        if path in self.claim.facts:
            return self.claim.facts[path].value
        place: Any = self.content
        for key in path.split("."):
            place = place[key]
        return place

    @cached_property
    def conclusion(self) -> Conclusion:
        return derive(self.claim)

    @cached_property
    def made(self) -> Json:
        """The statement that follows from the dossier."""
        assert self.dossier is not None
        return statement_of(self.dossier).content

    @property
    def record(self) -> TrainingRecord:
        """The training record in the published model's file."""
        return self.model.record

    @property
    def loss(self) -> Loss:
        return loss_named(self["model.loss"])

    @property
    def bound(self) -> Bound:
        return bound_named(self.claim.bound)

    @property
    def route(self) -> str:
        """A deposit's, without the order of its remainder."""
        return way_of(self.claim.convention)

    @property
    def sequence(self) -> Json:
        """The place in a series; empty where there is none."""
        return self.content["data"].get("sequence", {})


@dataclass(frozen=True)
class Value:
    """A side of a rule that is worked out, and how its sentence calls it."""

    words: str
    of: Callable[[Inspection], Any]


@dataclass(frozen=True)
class When:
    """When a rule applies, in words and as a condition."""

    words: str
    holds: Callable[[Inspection], bool]


RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "is": equal,
    "is one of": lambda left, right: any(equal(left, each) for each in right),
    "is at most": lambda left, right: left <= right * (1.0 + SLACK),
    "is below": operator.lt,
    "is at least": lambda left, right: left * (1.0 + SLACK) >= right,
}
IS, ONE_OF, AT_MOST, BELOW, AT_LEAST = RELATIONS
Side = Any  # a str is the name of a fact or a path, a Value is worked out, all else is what it is
Row = tuple[Any, ...]  # left, relation, right, and what is wrong where that is not what the sentence says


@dataclass(frozen=True)
class Rule:
    """A row of the table. A row without a relation says with its left side alone what must be so."""

    when: When
    left: Side
    relation: str = ""
    right: Side = True
    note: str = ""  # what is wrong where it does not hold, for a rule that does not say so itself

    @property
    def sentence(self) -> str:
        """The rule in words, as the page of rules lists it."""
        sides = (self.left, self.relation, self.right) if self.relation else (self.left,)
        return " ".join(map(words_of, sides))

    def check(self, seen: Inspection, about: str, prefix: str = "") -> Check:
        """Whether it holds; what cannot be read does not. What is recomputed goes by its own name alone."""
        recomputes = self.relation in ("", IS)
        name = prefix + (words_of(self.left) if recomputes else self.sentence)
        try:
            left, right = value_of(self.left, seen), value_of(self.right, seen)
            if recomputes:
                return Check(name, left, right, self.note, about)
            holds = RELATIONS[self.relation](left, right)
        except UNREADABLE:
            return Check(name, "nothing that can be read", True, self.note or "it is not there to be read", about)
        sides = ((self.left, left), (self.right, right))
        stated = ", ".join(f"{path} {shorten(value)}" for path, value in sides if isinstance(path, str))
        return Check(name, holds, True, self.note or (stated and f"stated: {stated}"), about)


def words_of(side: Side) -> str:
    """A side, or a relation, as a sentence has it."""
    if isinstance(side, (str, Value)):
        return side if isinstance(side, str) else side.words
    if isinstance(side, (tuple, dict, list)):
        return " or ".join(map(str, side)) or "none"
    return str(side).lower() if isinstance(side, bool) else f"{side:g}"


def value_of(side: Side, seen: Inspection) -> Any:
    """The value of a side of a rule, for this file."""
    if isinstance(side, str):
        return seen[side]
    return side.of(seen) if isinstance(side, Value) else side


def rules(table: dict[When, tuple[Row, ...]]) -> tuple[Rule, ...]:
    """The rows of a table as rules."""
    return tuple(Rule(when, *row) for when, rows in table.items() for row in rows)


def run(group: Iterable[Rule], seen: Inspection, about: str, prefix: str = "") -> list[Check]:
    """Check what applies; `prefix` is what the checks' names begin with."""

    def applies(rule: Rule) -> bool:
        try:
            return rule.when.holds(seen)
        except UNREADABLE:
            return True  # and says itself what cannot be read

    return [rule.check(seen, about, prefix) for rule in group if applies(rule)]


# When rules apply, and sides that are worked out.

# fmt: off
ALWAYS = When("", lambda _: True)
KEPT = When("with a deposit", lambda c: c.bound.kept)
NOT_KEPT = When("without a deposit", lambda c: not c.bound.kept)
MOMENTS = When("with a surrogate and not the paper's bound", lambda c: c.bound.rows)
CURVED = When("with a declared curvature", lambda c: c.claim.curvature is not None)
BALL = When("with noise that is the same on every weight", lambda c: c.bound.shape is None)
SHAPED = When("with noise that has a shape", lambda c: c.bound.shape is not None)
# fmt: on


def _failures(seen: Inspection) -> dict[str, float]:
    claim = seen.claim
    if seen.bound.kept:
        return kept_failures(claim.delta)
    due = due_failures if claim.curvature is None else curvature_failures
    averaged, planned = claim.averaged, int(seen.sequence.get("planned", 1))
    return due(claim.delta, claim.distance, averaged=averaged, planned=planned) if seen.bound.provable else {}


def _row_bound(seen: Inspection) -> float:
    max_norm = number(seen["model.max_norm"])
    return math.sqrt(max_norm**2 + 1.0) if seen["model.bias"] else float(max_norm)


def _l2(seen: Inspection, rows: float) -> float:
    """The l2 that so many rows have: a fixed C is shared by fewer, l2 itself stays as it is."""
    model = seen["model"]
    return 1.0 / (number(model["fixed_c"]) * rows) if "fixed_c" in model else float(number(model["l2"]))


def _least_length(seen: Inspection) -> float:
    """How long a vector of length 1 is at least as gradients are measured."""
    return 1.0 if seen.claim.curvature is None else math.sqrt(number(seen["curvature_least"]))


def _published_rows(seen: Inspection) -> int:
    return one_digit(max(1, int(seen["sizes.n_retain"])))


def _from_elsewhere(seen: Inspection) -> list[str]:
    """Facts with another provenance than Expunge gives them."""
    record = seen["model.record"]
    known = dict.fromkeys(("n_source", "l2", "row_bound", "training_residual", *WEIGHT_FACTS), record)
    known |= dict.fromkeys(("change_supremum", "sampling_failure", "tv_upper"), "derived")
    known |= dict.fromkeys(("alpha", "beta", "lipschitz", "gamma", "lipschitz_power", "curvature"), "declared")
    known["rounding"] = "derived" if seen.loss.rounding_derived else "declared"
    if seen.claim.distance.is_source:
        known["training_residual"] = "measured"
    return sorted(name for name, fact in seen.claim.facts.items() if fact.provenance != known.get(name, "measured"))


def _only_a_deposit(seen: Inspection) -> list[str]:
    levels = {"levels"} if seen.claim.scale.kind == LEVELS else set()
    return sorted(({"free_bias", "fixed_c", "weighted", "class_weights"} & set(seen["model"])) | levels)


def _is_of_levels(seen: Inspection) -> bool:
    count, kind = seen["noise.rehearsed_rows"], seen["noise.choice"]
    if kind in (UNROUNDED, POLICY):
        return count is None
    return bool(kind == LEVELS and equal(count, N_LEVELS) and is_power_of_four(seen["sigma"]))


def _sizes(seen: Inspection) -> Json:
    facts = seen.claim.facts
    sizes: Json = {name: int(facts[name].value) if name in facts else 0 for name in SIZE_NAMES}
    named = {name: int(number(seen[f"sizes.{name}"])) for name in ("classes", "features")}
    return {**sizes, "n_retain": sizes["n_source"] - sizes["n_forget"], "parameters": _parameters(seen), **named}


def _parameters(seen: Inspection) -> int:
    width = int(number(seen["sizes.features"])) + int(seen["model.bias"] is True)
    return seen.loss.weight_rows(int(number(seen["sizes.classes"]))) * width


def _tuned(seen: Inspection) -> bool:
    """Whether the loss has other constants; one that is not convex has none."""
    if seen.loss.constants is None:
        return True
    l2, row_bound, classes = (number(seen[path]) for path in ("model.l2", "model.row_bound", "sizes.classes"))
    return beyond_closed_form(seen.claim.facts, seen.loss.constants(l2, int(classes), row_bound, 0.0))


def _is_text(seen: Inspection) -> bool:
    notes, software = seen["notes"], seen["software"]
    kinds = isinstance(notes, list) and isinstance(software, dict) and "expunge" in software
    return kinds and all(isinstance(text, str) for text in (*notes, *software.values(), seen["created"]))


def _named(*paths: str) -> Row:
    """A digest alone says which file is meant: without one the file would be of no model, and pass beside any."""
    return (Value(f"{' and '.join(paths)} are digests", lambda c: all(is_digest(c[path]) for path in paths)),)


def off_grid(values: Array, exponent: int) -> int:
    """How many values are no multiples of 2^exponent.

    A multiple that a narrower type had to round is one still: rounded numbers have fewer digits, not finer ones. So the
    check is exact for every type; but float16 and bfloat16 have so few digits that nearly all of theirs pass.

    >>> off_grid(np.array([0.75, 0.5, 0.25]), -1)
    2
    """
    scaled = np.ldexp(values.astype(np.float64), -exponent)
    return int(np.count_nonzero(scaled != np.rint(scaled)))


def _of_record(name: str, of: Callable[[TrainingRecord], Any]) -> Row:
    """What the record says too is the same; what a statement is silent on, the record may not have."""
    return Value(f"model.{name}", lambda c: c["model"].get(name)), IS, Value("the record's", lambda c: of(c.record))


# The table. A dossier's facts first: what follows is worked out only from facts that can be.

# fmt: off
COMMON: tuple[Row, ...] = (  # to dossier and statement
    ("noise.delta_for_noise", IS, Value("delta less what is spent", lambda c: (
        c["delta"] - math.fsum(c["noise.failures"].values())))),
    ("noise.calibration", IS, Value("the bound's", lambda c: c.bound.calibration)),
    ("noise.generator", ONE_OF, SECRET, "the noise is not secret: whoever knows its seed can take it off"),
    ("status", IS, Value("what the weakest fact is worth", lambda c: status_of(c.claim, c.claim.provenance))),
    ("guarantee", IS, Value("what follows, word for word", lambda c: sentences(c.claim, c["sigma"])[0])),
    ("assumptions", IS, Value("what follows, word for word", lambda c: sentences(c.claim, c["sigma"])[1])),
    ("limits", IS, Value("what follows, word for word", lambda c: sentences(c.claim, c["sigma"])[2])),
    ("distance.meaning", IS, Value("the kind's, word for word", lambda c: c.claim.distance.meaning)),
    (Value("notes, software and created are text", _is_text),),
)
ASKED: tuple[Row, ...] = (
    ("epsilon", AT_LEAST, SMALLEST_EPSILON),
    ("epsilon", AT_MOST, LARGEST_EPSILON),
    ("delta", AT_LEAST, SMALLEST_DELTA),
    ("delta", BELOW, 1.0),
    (Value("either rows stand in for the source, or a deposit was kept", lambda c: (
        c.claim.distance.law.stands_in != c.bound.kept)),),
)
# what a loss without l2 on every weight, weights of classes and levels need; the other bounds do not hold with them
ONLY_A_DEPOSIT: Row = (Value("what only a deposit has", _only_a_deposit), IS, [])
DRAWN: Row = (Value("what float64 makes of the noise", lambda c: drawing_delta(c.claim.n_parameters, c.claim.epsilon)),
              AT_MOST, "noise.failures.arithmetic")
OF_LEVELS: Row = (
    Value("noise with a deposit is one of six levels, powers of four, or was set beforehand", _is_of_levels),)

FACTS = rules({
    ALWAYS: (
        ("schema", ONE_OF, (SCHEMA,)),
        ("model.loss", ONE_OF, LOSSES),
        ("step.kind", ONE_OF, STEPS),
        _named("model.before.sha256", "model.after.sha256"),
        *ASKED,
        ("noise.failures", IS, Value("what issuing spends of delta", _failures)),
        ("noise.averaged", IS, Value("true for a single model of a converged step, without a deposit", lambda c: (
            c.sequence.get("planned", 1) == 1 and c["step.kind"] == "converged" and not c.bound.kept))),
        ("n_forget", AT_LEAST, 1),
        ("n_forget", BELOW, "n_source"),
        (Value("facts that come from elsewhere than Expunge has them", _from_elsewhere), IS, []),
    ),
    When("for a convex loss", lambda c: c.loss.convex): (
        ("model.row_bound", IS, Value("model.max_norm, and the constant feature of a bias", _row_bound)),
    ),
    When("with another bound than the paper's", lambda c: c.bound.provable): (
        ("bound.form", ONE_OF, (FORM,)),
        (Value("the loss is convex", lambda c: c.loss.convex),),
        ("l2", IS, Value("model.l2, or what a fixed C makes of it for the retained rows",
                         lambda c: _l2(c, c["n_source"] - c["n_forget"]))),
        ("row_bound", IS, "model.row_bound"),
    ),
    When("with a surrogate, after another step than the paper's", lambda c: (
        MOMENTS.holds(c) and c["step.kind"] != "newton")): (("step.residual", AT_MOST, "solver_residual"),),
    When("with the source's own rows", lambda c: c.claim.distance.is_source and c.loss.convex): (
        ("n_surrogate", IS, "n_source"),
    ),
    MOMENTS: (
        ("sampling_failure", IS, Value("what is spent on sampling, or a share of it for each try", lambda c: (
            c.claim.failures.get("sampling", 0.0) / (1 if c.claim.curvature is None else MOST_TRIES)))),
        ("directions", IS, Value("the features, and one for a bias",
                                 lambda c: c["sizes.features"] + int(c["model.bias"]))),
        ("change_longest", AT_MOST, Value("change_supremum, and what float64 lost of a row", lambda c: (
            c["change_supremum"] + 2.0 * c["rounding"] / (c["n_source"] - c["n_forget"]) / _least_length(c)))),
        ("longest_row", AT_MOST, "row_bound"),
    ),
    When("where rows are sampled", lambda c: MOMENTS.holds(c) and c.claim.distance.samples_rows): (
        (Value("n_surrogate over the largest weight", lambda c: (
            c["n_surrogate"] / (c["weight_largest"] if c.claim.distance.matched else 1.0))),
         AT_LEAST, FEWEST_SAMPLED_ROWS),
    ),
    When("with matched classes", lambda c: c.claim.distance.matched): (
        (Value("the sum of data.class_counts", lambda c: sum(c["data.class_counts"])), IS,
               Value("the retained rows", lambda c: c["n_source"] - c["n_forget"])),),
    When("in a series", lambda c: bool(c.sequence)): (
        ("data.sequence.position", AT_MOST, "data.sequence.planned"),
        ("data.sequence.forgotten_before", BELOW, "n_forget"),
    ),
    NOT_KEPT: (ONLY_A_DEPOSIT,),
    KEPT: (
        OF_LEVELS,
        (Value("quadratic losses, and no others, go the exact route", lambda c: (
            (c.route == EXACT) == (c.loss in (RIDGE, TANGENT)))),),
        (Value("the plain route, which divides by l2, leaves no weight free", lambda c: (
            c.route != PLAIN or "free_bias" not in c["model"])),),
    ),
    SHAPED: (
        DRAWN,
        ("shape_least", AT_MOST, "shape_largest"),
    ),
    CURVED: (
        ("curvature", AT_MOST, Value("half of the smallest ratio that halves of the surrogate showed", lambda c: (
            0.5 * c["curvature_seen"]))),
        ("curvature_seen", AT_MOST, 1.0),
        (Value("a loss of which is known how fast rows flatten", lambda c: (
            c["model.loss"] in (SOFTMAX.name, LOGISTIC.name, ONE_VS_REST.name, RIDGE.name))),),
    ),
})

FOLLOWING = rules({
    ALWAYS: (
        ("bound.terms", IS, Value("what the facts give", lambda c: dict(c.conclusion.region.terms))),
        ("bound.total", IS, Value("their sum, rounded up", lambda c: c.conclusion.region.radius)),
        ("noise.required", IS, Value("the noise that the region needs", lambda c: c.conclusion.required)),
        ("sigma", IS, Value("the noise that was chosen", lambda c: c.conclusion.sigma)),
        (Value("the noise that was chosen is enough", lambda c: c.conclusion.enough), "", True, "the bound needs more"),
        ("noise.mu", IS, Value("bound.total over sigma", lambda c: c.conclusion.mu)),
        ("noise.delta_at_sigma", IS, Value("what the noise reaches", lambda c: c.conclusion.delta_at_sigma)),
        (Value("delta is not exceeded", lambda c: c.conclusion.delta_at_sigma <= c.claim.delta),),
        ("noise.grid_exponent", IS, Value("the grid of this sigma", lambda c: (
            c.conclusion.noise and c.conclusion.noise.grid_exponent))),
        ("sizes", IS, Value("what facts and model give", _sizes)),
        *COMMON,
        (Value("the distance is declared, or there is evidence of its estimate", lambda c: (
            "estimate" in c.content or c.claim.distance.law.provenances != ("estimated",))),),
    ),
    When("with the paper's bound for a convex loss", lambda c: c.claim.bound == "paper" and c.loss.convex): (
        ("tv_upper", IS, Value("what the distance allows", lambda c: float(c.claim.distance.tv_upper))),
    ),
    When("with the paper's bound", lambda c: c.claim.bound == "paper"): (
        ("bound.tuned", IS, Value("whether the loss can have other constants", _tuned)),
    ),
    When("with evidence of an estimate", lambda c: "estimate" in c.content): (
        ("distance.provenance", ONE_OF, ("estimated",)),
        ("distance.kind", IS, Value("that of the route", lambda c: ESTIMATES[c["estimate.route"]])),
    ),
    When("with an estimated KL", lambda c: "estimate" in c.content and c["estimate.route"] == "kl"): (
        ("distance.value", IS, Value("what estimate.kl.upper allows", lambda c: (
            tv_upper_from_kl(math.inf if c["estimate.kl.upper"] is None else number(c["estimate.kl.upper"])))),),
    ),
    When("where the published record is repeated", lambda c: "published" in c["model"]): (
        ("model.published.n_source", IS, Value("the retained rows to one digit", _published_rows)),
        ("model.published.l2", IS, Value("model.l2, or what a fixed C makes of it",
                                         lambda c: _l2(c, _published_rows(c)))),
        (Value("model.published.max_norm is model.max_norm, or none", lambda c: (
            c["model.published.max_norm"] in (c["model.max_norm"], LARGEST))),),
    ),
})

STATEMENT = rules({
    ALWAYS: (
        ("schema", ONE_OF, (STATEMENT_SCHEMA,)),
        _named("model.sha256", "model.before", "dossier"),
        *ASKED,
        ("mu", IS, Value("the most that delta allows", lambda c: mu_for(c["epsilon"], c["noise.delta_for_noise"]))),
        *COMMON,
        ("sizes.parameters", IS, Value("classes times features, bias included", _parameters)),
    ),
    BALL: (
        ("noise.grid_exponent", IS, Value("the grid of this sigma", lambda c: (
            public_grid(c["sigma"], Ball(c.claim.n_parameters), c["mu"])))),
    ),
    SHAPED: (
        ("noise.failures.arithmetic", IS, Value("what is set aside for drawing the noise", lambda c: (
            kept_failures(c.claim.delta)["arithmetic"]))),
        DRAWN,
        ("noise.grid_exponent", IS, Value("the grid of the smallest", lambda c: grid_exponent(c["noise.smallest"]))),
    ),
    NOT_KEPT: (
        ONLY_A_DEPOSIT,
        ("noise.choice", ONE_OF, (POLICY, LADDER), "the noise was set beforehand or is a rung"),
        (Value("sigma is a rung, a power of two, where nobody set it", lambda c: (
            (c["noise.choice"] == POLICY and c["noise.rehearsed_rows"] is None) or is_level(c["sigma"]))),),
        ("noise.rungs", IS, Value("those of l2 and sizes", lambda c: (
            rungs_of(c.content, c["noise.choice"], c["noise"].get("smallest"))))),
    ),
    KEPT: (
        ("noise.failures", IS, Value("what issuing spends of delta", _failures)),
        ("noise.choice", ONE_OF, (LEVELS, POLICY), "the noise is a level or was set beforehand"),
        ("noise.rungs", IS, "noise.rehearsed_rows"),
        OF_LEVELS,
        ("noise.averaged", IS, False),
    ),
})

PUBLISHED_MODEL = rules({
    When("of any model but a whole network", lambda c: bool(c.model.tensors)): (
        (Value("the model has a record", lambda c: c.record is not None),),
        (Value("the shape of the weights", lambda c: (
            [c["sizes.parameters"]] if c.loss.one_vector
            else [c.loss.weight_rows(c["sizes.classes"]), c["sizes.features"]])),
         IS, Value("the file's", lambda c: list(c.model.weight.shape))),
        (Value("the type of the weights", lambda c: [c["model.dtype"]]), IS,
         Value("the file's", lambda c: sorted({tensor.dtype for tensor in c.model.tensors}))),
        (Value("the weights are on the noise's grid", lambda c: (
            sum(off_grid(tensor.values, c["noise.grid_exponent"]) for tensor in c.model.tensors) == 0)), "", True,
         "some are no multiples of 2^grid_exponent: they were not noised as stated, or changed since"),
    ),
    When("where the model has a record", lambda c: c.record is not None): (
        (Value("the model has its noise", lambda c: c.record.noised and c.record.residual is None), "", True,
         "its record says that none was added: this is the trained model, not the published one"),
        (Value("the model's record has no counts or weights of classes", lambda c: (
            c.record.class_counts is None and c.record.class_weights is None)), "", True, "they would say who left"),
        ("sizes.classes", IS, Value("the record's", lambda c: len(c.record.classes))),
        *(_of_record(name, operator.attrgetter(name))
          for name in ("l2", "loss", "max_norm", "n_source", "bias", "encoder", "preparation", "fixed_c")),
        _of_record("free_bias", lambda record: record.free_bias or None),
        _of_record("record", lambda record: record.provenance),
        _of_record("encoder_trained_on_source", lambda it: it.encoder and (it.encoder_trained or "unknown")),
    ),
})

LINKS = rules({ALWAYS: (
    (Value("the dossier is the one the statement names", lambda c: c["dossier"] == c.made["dossier"]),),
    (Value("the statement follows from the dossier", lambda c: equal(c.content, c.made)),),
)})
# fmt: on

TABLE = {
    f"Facts of a dossier (`{SCHEMA}`) that fit one another": FACTS,
    "What follows in a dossier": FOLLOWING,
    f"What follows in a statement (`{STATEMENT_SCHEMA}`)": STATEMENT,
    "The published model, with `--model`": PUBLISHED_MODEL,
    "Statement and dossier, with `--dossier`": LINKS,
}


def list_rules() -> str:
    """The table in words, as the site has it on a page (docs/make_site.py)."""
    lines = []
    for title, group in TABLE.items():
        lines += [f"{title}:", ""]
        for words in dict.fromkeys(rule.when.words for rule in group):
            same = "; ".join(rule.sentence for rule in group if rule.when.words == words)
            lines.append(f"* {words}: {same}" if words else f"* {same}")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(list_rules())
