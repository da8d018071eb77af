"""Facts that contradict one another, or that no run of Expunge states: each rule's name says what must be so.

Rules allow for the rounding of honest facts. `docs/certificate.md` lists them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from expunge.bounds.deposit import EXACT, LONG_ROWS, PLAIN, RANGE, ROUTES, way_of
from expunge.bounds.deposit_surrogate import sigmoid_bend, softmax_bend, together
from expunge.bounds.ellipsoid import drawing_delta
from expunge.bounds.paper import SIZE_CONVENTIONS
from expunge.bounds.retained import FEWEST_SAMPLED_ROWS
from expunge.bounds.scale import EXACT as UNROUNDED
from expunge.bounds.scale import LEVELS, POLICY, is_power_of_four
from expunge.certificate.check import POSSIBLE, Check
from expunge.certificate.claim import (
    EIGENVALUE_SHARE,
    FORM,
    GENERATORS,
    LARGEST_EPSILON,
    MOST_PLANNED,
    MOST_ROUTES,
    OLD_SCHEMAS,
    SAMPLING_SHARE,
    SIZE_NAMES,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    STEPS,
    Claim,
    Json,
    deposit_facts,
    due_failures,
    kept_failures,
)
from expunge.certificate.derive import BOUNDS
from expunge.certificate.dossier import number
from expunge.certificate.model_file import FLOATS
from expunge.errors import ExpungeError
from expunge.record import (
    LOGISTIC,
    LOSSES,
    MOST_ROWS,
    ONE_VS_REST,
    RIDGE,
    SOFTMAX,
    TANGENT,
    Loss,
    are_class_weights,
    loss_named,
)
from expunge.runtime.checks import LARGEST, SMALLEST
from expunge.runtime.strict_json import is_digest

SLACK = 1e-6  # relative: what float64, and float32 rows, may change of a moment
SMALL = 1e-300  # absolute: where squares leave float64
LOST = 1e-8  # of the square of the mean: what cancellation adds to second moments that are far below it


@dataclass(frozen=True)
class Stated:
    """A certificate's content and its claim."""

    content: Json
    claim: Claim

    def __getitem__(self, name: str) -> float:
        """A fact's value."""
        return self.claim.facts[name].value

    def has(self, name: str) -> bool:
        return name in self.claim.facts

    @property
    def old(self) -> bool:
        """Whether it is of schema 1 or 2."""
        return self.claim.schema in OLD_SCHEMAS

    @property
    def residual(self) -> bool:
        return self.claim.bound == "residual"

    @property
    def paper(self) -> bool:
        return self.claim.bound == "paper"

    @property
    def kept(self) -> bool:
        """Whether a deposit was kept of the source."""
        return self.claim.bound == "deposit"

    @property
    def beside(self) -> bool:
        """Whether surrogate rows stand beside a deposit."""
        return self.kept and self.claim.distance.law.stands_in

    @property
    def linear(self) -> bool:
        """Whether weights are a matrix, one row a class."""
        return not self.loss.one_vector

    @cached_property
    def loss(self) -> Loss:
        return loss_named(self.content["model"]["loss"])

    @property
    def sequence(self) -> Json | None:
        """The place in a series, where there is one."""
        place: Json | None = self.content["data"].get("sequence")
        return place

    @property
    def planned(self) -> int:
        return 1 if self.sequence is None else int(self.sequence["planned"])

    @property
    def n_retain(self) -> float:
        return self["n_source"] - self["n_forget"]

    @property
    def row_rounding(self) -> float:
        """What float64 may have changed of one row's change: the bound's own rounding, for each retained row.

        A deposit's is of the mean already.
        """
        return 2.0 * self["rounding"] / (1.0 if self.kept else self.n_retain)

    @property
    def longest(self) -> float:
        """The largest change seen; schemas 1 and 2 state only how far from the mean it can be."""
        return self["change_longest"] if self.has("change_longest") else self["change_largest"] + self["change_mean"]


def at_most(smaller: float, larger: float, more: float = 0.0) -> bool:
    """`smaller <= larger`, up to rounding and `more`."""
    return smaller <= larger * (1.0 + SLACK) + more + SMALL


@dataclass(frozen=True)
class Rule:
    """Something that every certificate of this library satisfies. Its name says what, `why` what is wrong if not."""

    name: str
    why: str
    holds: Callable[[Stated], bool]
    applies: Callable[[Stated], bool] | None = None

    def check(self, stated: Stated) -> Check | None:
        """None where it says nothing of such a certificate; what cannot be read does not hold."""
        try:
            if self.applies is not None and not self.applies(stated):
                return None
            holds = bool(self.holds(stated))
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, ExpungeError):
            return Check(self.name, "unreadable", True, f"{self.why}, or it is not there to be read", POSSIBLE)
        return Check(self.name, holds, True, self.why if holds else self.why + _stated(self.why, stated), POSSIBLE)


def _stated(why: str, stated: Stated) -> str:
    """The values of what a sentence names, to go with it."""
    named = {"epsilon": stated.claim.epsilon, "delta": stated.claim.delta}
    named |= {name: fact.value for name, fact in stated.claim.facts.items()}
    values = [f"{word} {named[word]:.6g}" for word in dict.fromkeys(re.findall(r"\w+", why)) if word in named]
    return f"; stated: {', '.join(values)}" if values else ""


# Rules on what is promised and on what is spent of delta: as issuing allows it, and as it spends.


EARLY_SHARES = (0.2, 1e-3)  # of delta, for sampling and eigenvalue: what the first certificates of schema 1 spent


def _due(stated: Stated) -> bool:
    """Whether the failures are those that issuing spends, of this schema."""
    claim = stated.claim
    if stated.kept:
        return _alike(claim.failures, kept_failures(claim.delta, claim.distance))
    if claim.bound != "residual":
        return not claim.failures
    possible_shares = [(SAMPLING_SHARE, EIGENVALUE_SHARE)]
    if claim.schema == OLD_SCHEMAS[0]:
        possible_shares.append(EARLY_SHARES)
    averaged = claim.averaged and not stated.old
    return any(
        _alike(
            claim.failures,
            due_failures(claim.delta, claim.distance, averaged=averaged, planned=stated.planned, shares=shares),
        )
        for shares in possible_shares
    )


def _alike(given: Mapping[str, float], due: Mapping[str, float]) -> bool:
    return given.keys() == due.keys() and all(math.isclose(given[k], due[k], rel_tol=1e-9) for k in due)


def _sampling_spent(stated: Stated) -> bool:
    """The term was computed with what is spent on it; without a sample nothing is. Beside a deposit routes share it."""
    spent = stated.claim.failures.get("sampling", 0.0)
    return (spent / MOST_ROUTES if stated.beside else spent) == stated["sampling_failure"]


BUDGET = (
    Rule(
        "epsilon is one that can be asked for",
        f"Expunge issues certificates for epsilon from {SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}",
        lambda c: (SMALLEST if c.old else SMALLEST_EPSILON) <= c.claim.epsilon <= LARGEST_EPSILON,
    ),
    Rule(
        "delta is one that can be asked for",
        f"Expunge issues certificates for delta from {SMALLEST_DELTA:g} to below 1",
        lambda c: SMALLEST_DELTA <= c.claim.delta < 1.0,
    ),
    Rule(
        "no failure probability is negative",
        "one that is would make up for what the others spend",
        lambda c: all(value >= 0.0 for value in c.claim.failures.values()),
    ),
    Rule(
        "failures have the names of what is spent",
        "probability is spent on sampling, eigenvalue, sequence and arithmetic only",
        lambda c: set(c.claim.failures) <= {"sampling", "eigenvalue", "sequence", "arithmetic"},
    ),
    Rule(
        "less is spent than there is",
        "the failure probabilities leave nothing of delta",
        lambda c: math.fsum(c.claim.failures.values()) < c.claim.delta,
    ),
    Rule("failures are the shares that issuing spends", "other shares of delta are spent than Expunge spends", _due),
    Rule(
        "the sampling term was computed with what is spent on it",
        "sampling_failure is not the failure probability stated for sampling",
        _sampling_spent,
        lambda c: c.residual or c.beside,
    ),
    Rule(
        "only a single published model of a converged step is averaged",
        "delta is an average for one model alone whose step leaves nothing that varies with the surrogate, and for "
        "such a one it is",
        lambda c: c.claim.averaged == (c.planned == 1 and c.content["step"]["kind"] == "converged" and not c.kept),
        lambda c: not c.old,
    ),
    Rule(
        "float64 makes less of the noise than is spent on it",
        "epsilon is too large for this delta: more may be lost when noise is drawn than is set aside",
        lambda c: drawing_delta(c.claim.n_parameters, c.claim.epsilon) <= c.claim.failures["arithmetic"],
        lambda c: c.kept,
    ),
)


# Rules on the training, the step, and where each fact is said to come from.


UNIT_ROUNDOFF = 2.0**-53
CARRIED = ("derived", "declared", "estimated")  # what a residual carried in a series of schemas 1 and 2 may be
MEASURED = (
    *("n_forget", "n_surrogate", "solver_residual", "change_mean", "change_eigenvalue", "change_trace"),
    *("change_fourth", "change_fourth_eigenvalue", "change_largest", "change_longest", "longest_row", "directions"),
    *("gradient_norm", "solver", "shape_ratio", "reach", "update_curved", "concordance", "gauge", "kappa"),
    *(
        "curvature_ratio",
        "spread",
        "weight_ratio",
        "shape_largest",
        "shape_least",
        "shape_inverse_trace",
        "weights_length",
    ),
    *("output_noise", "output_spread"),
)
DERIVED = ("change_supremum", "change_each", "change_together", "sampling_failure", "tv_upper")
OF_THE_RECORD = (
    *("n_source", "l2", "row_bound"),
    *("weight_largest", "sampled_trace", "sampled_eigenvalue", "sampled_largest"),
)
CONSTANTS = ("alpha", "beta", "lipschitz", "gamma", "lipschitz_power")


def _come_from(stated: Stated, names: tuple[str, ...], provenance: object) -> bool:
    facts = stated.claim.facts
    return all(facts[name].provenance == provenance for name in names if name in facts)


def _residual_known(stated: Stated) -> bool:
    """The training's residual is the record's, or measured anew on the source; schemas 1 and 2 carried it."""
    told = stated.claim.facts["training_residual"].provenance
    if stated.claim.distance.is_source:
        return told == "measured"
    carried = stated.old and stated.sequence is not None and stated.sequence["position"] > 1
    return told in CARRIED if carried else told == stated.content["model"]["record"]


def _row_bound(stated: Stated) -> bool:
    model = stated.content["model"]
    max_norm = number(model["max_norm"])
    bound = math.sqrt(max_norm**2 + 1.0) if model["bias"] else max_norm
    return math.isclose(number(model["row_bound"]), bound, rel_tol=1e-9)


def _least_rounding(stated: Stated) -> bool:
    """Two gradients over the surrogate lose at least this, whatever the weights."""
    if stated.loss not in (SOFTMAX, RIDGE):
        return stated["rounding"] > 0.0
    least = stated.n_retain * UNIT_ROUNDOFF * stated["row_bound"] * stated["n_surrogate"]
    return stated["rounding"] > 0.0 and at_most(least, stated["rounding"])


def _least_training(stated: Stated) -> bool:
    """A measured residual counts what float64 lost of the gradient over the source."""
    if stated.loss not in (SOFTMAX, RIDGE):
        return stated["training_residual"] > 0.0
    least = UNIT_ROUNDOFF * stated["row_bound"] * stated["n_source"]
    return stated["training_residual"] > 0.0 and at_most(least, stated["training_residual"])


def _in_range(value: object) -> bool:
    return type(value) in (int, float) and SMALLEST <= number(value) <= LARGEST


TRAINING = (
    Rule(
        "before and after are different models",
        "the published model has the digest of the one before noise",
        lambda c: c.content["model"]["before"] != c.content["model"]["after"],
    ),
    Rule(
        "the digests are digests",
        "model.after.sha256 or model.encoder is no SHA-256",
        lambda c: (
            is_digest(c.content["model"]["after"]["sha256"]) and is_digest(c.content["model"].get("encoder", "0" * 64))
        ),
    ),
    Rule(
        "l2 and max_norm are ones that can be trained with",
        f"they lie between {SMALLEST:g} and {LARGEST:g}",
        lambda c: (
            _in_range(c.content["model"]["l2"]) and (not c.loss.convex or _in_range(c.content["model"]["max_norm"]))
        ),
    ),
    Rule(
        "the row bound follows from max_norm and bias",
        "row_bound is max_norm, or with a bias the root of its square plus 1",
        _row_bound,
        lambda c: c.loss.convex,
    ),
    Rule(
        "directions are features, and the bias",
        "directions is not the number of a row's features, constant feature included",
        lambda c: c["directions"] == c.content["sizes"]["features"] + int(c.content["model"]["bias"]),
        lambda c: c.has("directions"),
    ),
    Rule(
        "float64 rounds",
        "rounding is less than float64 loses of two gradients over the surrogate",
        _least_rounding,
        lambda c: c.residual,
    ),
    Rule(
        "a measured training residual counts what float64 lost",
        "training_residual is less than float64 loses of a gradient over the source",
        _least_training,
        lambda c: c.residual and c.claim.facts["training_residual"].provenance == "measured",
    ),
    Rule(
        "the bound charges what the step left",
        "solver_residual is below step.residual",
        lambda c: at_most(number(c.content["step"]["residual"]), c["solver_residual"]),
        lambda c: c.residual and not c.old and c.content["step"]["kind"] != "newton",
    ),
    Rule(
        "a step that was not made changes nothing",
        "step.pull says that no update was made, and change_supremum is above 0",
        lambda c: c["change_supremum"] == 0.0,
        lambda c: c.residual and c.content["step"].get("pull", 0.0) is None,
    ),
    Rule(
        "the paper's bound is of one Newton step",
        "step.kind is another",
        lambda c: c.content["step"]["kind"] == "newton",
        lambda c: c.paper,
    ),
    Rule(
        "the paper's step had a positive definite system",
        "step.positive_definite is not true, and the bound is for such steps only",
        lambda c: c.content["step"]["positive_definite"] is True,
        lambda c: c.paper and c.loss.convex,
    ),
    Rule(
        "the paper's constants are such",
        "alpha, beta and L are above 0, the power of L is 1 or 2",
        lambda c: min(c["alpha"], c["beta"], c["lipschitz"]) > 0.0 and c["lipschitz_power"] in (1, 2),
        lambda c: c.paper,
    ),
)

ORIGINS = (
    Rule(
        "facts of the training come from where the record does",
        "n_source, l2, row_bound or weights are said to be known otherwise than model.record",
        lambda c: _come_from(c, OF_THE_RECORD, c.content["model"]["record"]),
    ),
    Rule(
        "the training residual comes from where the record does",
        "it is measured with the source at hand, else as model.record says",
        _residual_known,
        lambda c: c.residual,
    ),
    Rule(
        "facts of the rows are measured",
        "what Expunge measures is said to come from elsewhere",
        lambda c: _come_from(c, MEASURED, "measured"),
    ),
    Rule(
        "what follows is derived",
        "what follows by a formula is said to come from elsewhere",
        lambda c: _come_from(c, DERIVED, "derived"),
    ),
    Rule(
        "rounding is declared where it is not derived",
        "what a network loses is declared, what a linear model loses derived",
        lambda c: _come_from(c, ("rounding",), "derived" if c.loss.rounding_derived else "declared"),
    ),
    Rule(
        "the paper's constants are declared",
        "nothing measures them",
        lambda c: _come_from(c, CONSTANTS, "declared"),
        lambda c: c.paper,
    ),
)


# Moments that no data can have: rules on the residual bound's `change_*` and on weights.


def _residual(stated: Stated) -> bool:
    """Also of surrogate rows beside a deposit, where f is how the gradient bends, and lengths are a matrix's."""
    return stated.residual or stated.beside


def _plain(stated: Stated) -> bool:
    return _residual(stated) and not stated.claim.distance.matched


def _weighted(stated: Stated) -> bool:
    return _residual(stated) and stated.claim.distance.matched


def _knows_longest(stated: Stated) -> bool:
    return _residual(stated) and stated.has("change_longest")


def _least_together(stated: Stated) -> float:
    """What self-concordance lets a share of the retained rows bend together, for one output."""
    return together(deposit_facts(stated.claim.facts, stated.claim.convention), 1)


def _lost(stated: Stated) -> float:
    return LOST * stated["change_mean"] ** 2


def _effective(stated: Stated) -> float:
    return number(stated.content["data"]["effective_surrogate_rows"])


CHANGES = (
    Rule(
        "rows that differ from their mean have a variance",
        "change_largest is above 0 although change_trace is 0",
        lambda c: c["change_trace"] > 0.0 or c["change_largest"] ** 2 == 0.0,
        _residual,
    ),
    Rule(
        "no mean square exceeds the largest square",
        "change_trace is above the square of change_largest",
        lambda c: at_most(c["change_trace"], c["change_largest"] ** 2),
        _residual,
    ),
    Rule(
        "the largest square is no more than all squares together",
        "the square of change_largest is above n_surrogate times change_trace",
        lambda c: at_most(c["change_largest"] ** 2, c["n_surrogate"] * c["change_trace"]),
        _plain,
    ),
    Rule(
        "no eigenvalue exceeds the trace",
        "change_eigenvalue is above change_trace",
        lambda c: at_most(c["change_eigenvalue"], c["change_trace"]),
        _residual,
    ),
    Rule(
        "the largest eigenvalue is at least their mean",
        "change_eigenvalue is below change_trace over the number of weights",
        lambda c: at_most(c["change_trace"], c["change_eigenvalue"] * c.claim.n_parameters, _lost(c)),
        _residual,
    ),
    Rule(
        "a mean fourth power is at least the square of the mean square",
        "change_fourth is below the square of change_trace",
        lambda c: at_most(c["change_trace"] ** 2, c["change_fourth"]),
        _residual,
    ),
    Rule(
        "a mean fourth power is at most the largest square times the mean square",
        "change_fourth is above the square of change_largest times change_trace",
        lambda c: at_most(c["change_fourth"], c["change_largest"] ** 2 * c["change_trace"]),
        _residual,
    ),
    Rule(
        "the fourth moment's eigenvalue is at most the largest square times the covariance's",
        "change_fourth_eigenvalue is above the square of change_largest times change_eigenvalue",
        lambda c: at_most(c["change_fourth_eigenvalue"], c["change_largest"] ** 2 * c["change_eigenvalue"]),
        _residual,
    ),
    Rule(
        "the fourth moment's largest eigenvalue is at least their mean",
        "change_fourth_eigenvalue is below change_fourth over the number of weights",
        lambda c: at_most(
            c["change_fourth"],
            c["change_fourth_eigenvalue"] * c.claim.n_parameters,
            2.0 * LOST * (c.longest**2 + c["change_mean"] ** 2) * c["change_trace"],
        ),
        _residual,
    ),
    Rule(
        "the mean is no longer than the longest change",
        "change_mean is above change_longest",
        lambda c: at_most(c["change_mean"], c["change_longest"]),
        _knows_longest,
    ),
    Rule(
        "the mean square about zero is at most the longest change's square",
        "change_trace and the square of change_mean add up to more than the square of change_longest",
        lambda c: at_most(c["change_trace"] + c["change_mean"] ** 2, c["change_longest"] ** 2),
        _knows_longest,
    ),
    Rule(
        "no row is farther from the mean than both are long",
        "change_largest is above change_longest and change_mean together",
        lambda c: at_most(c["change_largest"], c["change_longest"] + c["change_mean"]),
        _knows_longest,
    ),
    Rule(
        "no row is longer than the mean and the way to it",
        "change_longest is above change_largest and change_mean together",
        lambda c: at_most(c["change_longest"], c["change_largest"] + c["change_mean"]),
        _knows_longest,
    ),
    Rule(
        "no row changes more than any row can",
        "change_longest is above change_supremum",
        lambda c: at_most(c["change_longest"], c["change_supremum"], c.row_rounding),
        _knows_longest,
    ),
    Rule(
        "the mean is no longer than any change can be",
        "change_mean is above change_supremum",
        lambda c: at_most(c["change_mean"], c["change_supremum"], c.row_rounding),
        _residual,
    ),
    Rule(
        "no row is farther from the mean than any row can be",
        "change_largest is above change_supremum and change_mean together",
        lambda c: at_most(c["change_largest"], c["change_supremum"] + c["change_mean"], c.row_rounding),
        _residual,
    ),
    Rule(
        "no surrogate row is longer than rows can be",
        "longest_row is above row_bound",
        lambda c: at_most(c["longest_row"], c["row_bound"]),
        _residual,
    ),
    Rule(
        "no retained row bends more than any row can",
        "change_each is above change_supremum",
        lambda c: at_most(c["change_each"], c["change_supremum"]),
        lambda c: c.beside,
    ),
    Rule(
        "rows together bend as far as one output's can",
        "change_together is below what reach and curvature_ratio allow",
        lambda c: at_most(_least_together(c), c["change_together"]),
        lambda c: c.beside,
    ),
)

WEIGHTS = (
    Rule(
        "rows that were not weighted all count (effective_surrogate_rows)",
        "classes were not matched, and another number of rows than n_surrogate is said to count",
        lambda c: at_most(abs(_effective(c) - c["n_surrogate"]), 0.0, 1e-9 * c["n_surrogate"]),
        lambda c: not c.claim.distance.matched and "effective_surrogate_rows" in c.content["data"],
    ),
    Rule(
        "only rows of linear models are weighted",
        "classes are said to be matched for a model that knows no weights of rows",
        lambda c: c.linear,
        lambda c: c.claim.distance.matched,
    ),
    Rule(
        "the largest weight is at least the mean of all",
        "weight_largest is below 1",
        lambda c: at_most(1.0, c["weight_largest"]),
        _weighted,
    ),
    Rule(
        "no row weighs more than all together",
        "weight_largest is above n_surrogate",
        lambda c: at_most(c["weight_largest"], c["n_surrogate"]),
        _weighted,
    ),
    Rule(
        "weights let no more rows count than there are",
        "effective_surrogate_rows is above n_surrogate",
        lambda c: at_most(_effective(c), c["n_surrogate"]),
        _weighted,
    ),
    Rule(
        "weights let no fewer rows count than the largest of them allows",
        "effective_surrogate_rows is below n_surrogate over weight_largest",
        lambda c: at_most(c["n_surrogate"], c["weight_largest"] * _effective(c)),
        _weighted,
    ),
    Rule(
        "enough rows count for their moments to mean something",
        f"fewer than {FEWEST_SAMPLED_ROWS} surrogate rows, or weights that let fewer count",
        lambda c: at_most(
            FEWEST_SAMPLED_ROWS, c["n_surrogate"] / (c["weight_largest"] if c.claim.distance.matched else 1.0)
        ),
        lambda c: _residual(c) and c.claim.distance.samples_rows,
    ),
    Rule(
        "a weighted change is at most the largest weight times the largest change",
        "sampled_largest is above weight_largest times change_largest",
        lambda c: at_most(c["sampled_largest"], c["weight_largest"] * c["change_largest"]),
        _weighted,
    ),
    Rule(
        "a weighted mean square is at most the largest weight times the mean square",
        "sampled_trace is above weight_largest times change_trace",
        lambda c: at_most(c["sampled_trace"], c["weight_largest"] * c["change_trace"]),
        _weighted,
    ),
    Rule(
        "no weighted mean square exceeds the largest weighted square",
        "sampled_trace is above the square of sampled_largest",
        lambda c: at_most(c["sampled_trace"], c["sampled_largest"] ** 2),
        _weighted,
    ),
    Rule(
        "weights cannot hide the variance",
        "sampled_trace is below what the square of change_trace over that of change_largest allows",
        lambda c: at_most(c["change_trace"] ** 2, c["sampled_trace"] * c["change_largest"] ** 2),
        _weighted,
    ),
    Rule(
        "no weighted eigenvalue exceeds its trace",
        "sampled_eigenvalue is above sampled_trace",
        lambda c: at_most(c["sampled_eigenvalue"], c["sampled_trace"]),
        _weighted,
    ),
    Rule(
        "the largest weighted eigenvalue is at least their mean",
        "sampled_eigenvalue is below sampled_trace over the number of weights",
        lambda c: at_most(
            c["sampled_trace"], c["sampled_eigenvalue"] * c.claim.n_parameters, c["weight_largest"] * _lost(c)
        ),
        _weighted,
    ),
)


# Rules on deposits: numbers of a region and of a shape that no deposit has, and what only a deposit may say.


GRID = 2.0**-9  # that rows are rounded to where the noise takes its shape from them
TRIED = 4.0
N_LEVELS = 6  # of noise with a deposit: which of them was taken tells less than three bits
QUADRATIC = (RIDGE, TANGENT)
CURVE = {SOFTMAX.name: 0.5, ONE_VS_REST.name: 0.25, LOGISTIC.name: 0.25}  # the largest eigenvalue of C(p); others 1
USED = {  # the numbers of a route beside those that all have
    RANGE: ("reach", "update_curved", "concordance", "curvature_ratio"),
    LONG_ROWS: ("reach", "update_curved", "gauge", "kappa", "curvature_ratio", "spread", "weight_ratio"),
    PLAIN: ("reach", "update_curved", "curvature_ratio"),
    EXACT: (),
}
ABOVE = (
    "concordance",
    "gauge",
    "kappa",
    "curvature_ratio",
    "spread",
    "weight_ratio",
)  # what is used of them is above 0


def _way(stated: Stated) -> str:
    """The route, whatever the order of its remainder."""
    return way_of(stated.claim.convention)


def _numbers_of_the_route(stated: Stated) -> bool:
    used = USED[_way(stated)]
    others = {name for names in USED.values() for name in names} - set(used)
    return all(stated[name] == 0.0 for name in others) and all(stated[name] > 0.0 for name in used if name in ABOVE)


def _largest_curvature(stated: Stated) -> float:
    """Of a mean Hessian: `C(p)` times the square of the longest row."""
    return CURVE.get(stated.loss.name, 1.0) * stated["row_bound"] ** 2


def _longest(stated: Stated) -> float:
    """Of a row as the noise's shape sees it: rounded to a grid, a bias included."""
    return stated["row_bound"] + GRID * math.sqrt(stated.content["sizes"]["features"] + 1)


def _largest_hessian(stated: Stated) -> float:
    return _largest_curvature(stated) + stated["l2"]


def _free(stated: Stated) -> bool:
    return bool(stated.content["model"].get("free_bias", False))


def _matrix(stated: Stated) -> bool:
    """Trace, largest and least eigenvalue of an inverse."""
    largest, least, trace = (stated[f"shape_{name}"] for name in ("largest", "least", "inverse_trace"))
    weights = stated.claim.n_parameters
    ordered = 0.0 < least <= largest
    return ordered and at_most(weights / largest, trace) and at_most(trace, weights / least)


def _shape_of_rows(stated: Stated) -> bool:
    """`c G^t + reg` of the retained rows, up to a power of four: no larger than they allow, no smaller than l2."""
    l2 = number(stated["l2"])
    largest = CURVE.get(stated.loss.name, 1.0) * _longest(stated) ** 2 + l2
    small = at_most(stated["shape_largest"], 4.0 * TRIED * largest)
    return (
        is_power_of_four(stated["shape_largest"])
        and small
        and (_free(stated) or at_most(l2 / TRIED, stated["shape_least"]))
    )


def _ratio(stated: Stated) -> bool:
    """M is at most a Hessian, so M_0 over it at least as much as their least eigenvalues say; on the plain route M is
    I."""
    ratio = stated["shape_ratio"]
    if _way(stated) == PLAIN:
        return at_most(stated["shape_largest"] / (4.0 * TRIED), ratio) and at_most(ratio, stated["shape_largest"])
    return at_most(stated["shape_least"] / _largest_hessian(stated) / TRIED, ratio)


def _reach(stated: Stated) -> bool:
    """A variance is at most a quarter of the square of the range, in every class that is a model of its own."""
    classes = stated.content["sizes"]["classes"] if stated.loss == ONE_VS_REST else 1
    longest = 2.0 * 0.5 * math.sqrt(classes) * stated["reach"]  # twice: what H' may be off by
    if _way(stated) == LONG_ROWS:
        return at_most(stated["reach"], stated["kappa"] * stated["gauge"]) and at_most(
            stated["update_curved"], stated["kappa"] * longest
        )
    return at_most(stated["update_curved"], longest)


def _long_rows(stated: Stated) -> bool:
    """`H_2 <= kappa^2 H`, and `e' H e` is at most a quarter of the largest squared range."""
    square = stated["kappa"] ** 2
    return at_most(stated["weight_ratio"], TRIED * square * stated["curvature_ratio"]) and at_most(
        stated["curvature_ratio"], TRIED * square * stated["spread"]
    )


def _step_charged(stated: Stated) -> bool:
    """In the dual norm of M, which is at most the Hessian; on the plain route as it is."""
    residual = number(stated.content["step"]["residual"])
    return at_most(
        residual if _way(stated) == PLAIN else residual / math.sqrt(_largest_hessian(stated)), stated["solver"]
    )


def _least_bend(stated: Stated) -> float:
    """The bound on one row's `||c||` is no smaller, whatever row has this range: differences are `sqrt 2` lengths."""
    if stated.loss == SOFTMAX:
        return softmax_bend(stated["reach"], stated["reach"] / math.sqrt(2.0))
    return sigmoid_bend(stated["reach"], stated["reach"])


def _least_supremum(stated: Stated) -> float:
    return _least_bend(stated) * stated["row_bound"] / math.sqrt(_largest_hessian(stated))


def _least_each(stated: Stated) -> float:
    farthest = stated["concordance"] / (math.sqrt(2.0) if stated.loss == SOFTMAX else 1.0)
    return min(_least_bend(stated) * farthest, stated["change_supremum"])


def _step_made(stated: Stated) -> bool:
    step = stated.content["step"]
    return step["kind"] == ("converged" if stated.beside else "newton") and step["positive_definite"] is True


def _declared(stated: Stated) -> bool:
    distance = stated.claim.distance
    return distance.provenance == "declared" and not distance.is_source


def _rounded(stated: Stated) -> bool:
    """The gradient over the source alone loses so much."""
    least = UNIT_ROUNDOFF * stated["row_bound"] * stated["n_source"]
    least = least if _way(stated) == PLAIN else least / math.sqrt(_largest_hessian(stated))
    return stated["rounding"] > 0.0 and at_most(least, stated["rounding"])


def _outputs(stated: Stated) -> bool:
    """A row as long as rows can be, along the direction with most noise; a constant feature along that with least."""
    noise = stated["output_noise"]
    most = at_most(noise, _longest(stated) / math.sqrt(stated["shape_least"]))
    seen = 0.5 if stated.loss == SOFTMAX else 1.0  # of two classes half is common to both, and no output sees it
    constant = seen / stated["shape_largest"] if stated.content["model"]["bias"] else 0.0
    return noise > 0.0 and most and at_most(constant, noise**2)


def _fixed_c(stated: Stated) -> bool:
    """Of the retained rows; before this deletion it was that of more of them, at most all there were."""
    constant, before = (number(stated.content["model"][name]) for name in ("fixed_c", "l2"))
    own = math.isclose(stated["l2"] * constant * stated.n_retain, 1.0, rel_tol=1e-9)
    return own and stated.n_retain * (1.0 - 1e-9) <= 1.0 / (before * constant) <= stated["n_source"] * (1.0 + 1e-9)


def _class_weights(stated: Stated) -> bool:
    weights = stated.content["model"].get("class_weights")
    if weights is None:
        return "class_weights" not in stated.content["model"]
    alone = stated.kept and not stated.beside
    return alone and isinstance(weights, list) and are_class_weights(weights, stated.content["sizes"]["classes"])


def _levels(stated: Stated) -> bool:
    count, kind = stated.content["noise"]["rehearsed_rows"], stated.claim.scale.kind
    if kind in (UNROUNDED, POLICY):
        return count is None
    return kind == LEVELS and count == N_LEVELS and is_power_of_four(stated.content["sigma"])


KEPT_WORDS = (
    Rule(
        "the route to the region is known",
        f"a deposit's region is found by one of {', '.join(ROUTES)}",
        lambda c: not c.kept or c.claim.convention in ROUTES,
    ),
    Rule(
        "only a deposit has a free intercept or a fixed C",
        "model.free_bias or model.fixed_c: without a deposit every weight is regularised, with one l2 for any rows",
        lambda c: c.kept or not {"free_bias", "fixed_c"} & set(c.content["model"]),
    ),
    Rule(
        "only a deposit has class weights, one for each class, none above 1",
        "model.class_weights are of another number, not above 0, above 1, or of no deposit",
        _class_weights,
    ),
    Rule(
        "only a bias is free",
        "model.free_bias is true where it is there, and there is a bias",
        lambda c: (
            c.content["model"].get("free_bias", True) is True and (not _free(c) or c.content["model"]["bias"] is True)
        ),
    ),
    Rule(
        "only a deposit has levels of noise",
        "noise with a deposit is one of few levels, powers of four, or was set beforehand",
        lambda c: _levels(c) if c.kept else c.claim.scale.kind != LEVELS,
    ),
)

KEPT = tuple(
    Rule(name, why, holds, lambda c: c.kept)
    for name, why, holds in (
        (
            "surrogate rows beside a deposit are those that the bound counts",
            "sizes.n_surrogate is not that of the facts, or above 0 where the deposit alone was enough",
            lambda c: c.content["sizes"]["n_surrogate"] == (c["n_surrogate"] if c.beside else 0),
        ),
        (
            "surrogate rows beside a deposit are at a declared distance",
            "the distance is an estimate, or says that the rows are the source's own",
            lambda c: not c.beside or _declared(c),
        ),
        (
            "surrogate rows beside a deposit are for one model",
            "data.sequence: with a deposit a series is one of the deposit alone",
            lambda c: not c.beside or c.sequence is None,
        ),
        (
            "surrogate rows are measured by a matrix",
            "the route measures in plain length, or its loss does not bend, and surrogate rows have a part in neither",
            lambda c: not c.beside or c.claim.convention in (RANGE, LONG_ROWS),
        ),
        (
            "the row bound of the deposit is the model's",
            "row_bound is not model.row_bound",
            lambda c: math.isclose(c["row_bound"], number(c.content["model"]["row_bound"]), rel_tol=1e-9),
        ),
        (
            "a deposit's step is Newton's, and with surrogate rows a converged one",
            "step.kind is another, or its system was not positive definite",
            _step_made,
        ),
        (
            "quadratic losses go the exact route, and no others",
            "a softmax or a sigmoid bends, a square does not",
            lambda c: (_way(c) == EXACT) == (c.loss in QUADRATIC),
        ),
        (
            "the plain route leaves no weight free",
            "it divides by l2, which a free intercept does not have",
            lambda c: _way(c) != PLAIN or not _free(c),
        ),
        (
            "a route has its own numbers and no others",
            "a number that the route uses is 0, or one that it does not use is not",
            _numbers_of_the_route,
        ),
        (
            "the shape's numbers are those of one matrix",
            "shape_least is at most shape_largest, and shape_inverse_trace between so many of either",
            _matrix,
        ),
        (
            "the shape is that of a regularised Hessian",
            "shape_largest is more than rows allow, or shape_least less than the regulariser",
            _shape_of_rows,
        ),
        (
            "rows that leave shrink the matrix by no more than their share",
            "shape_ratio is below what is retained of the source, or on the plain route not about shape_largest",
            _ratio,
        ),
        (
            "the reach covers the update",
            "update_curved, or reach itself, is more than reach, kappa and gauge allow",
            lambda c: _way(c) == EXACT or _reach(c),
        ),
        (
            "the range route's matrix is the Hessian's, shrunk by its range",
            "curvature_ratio is below e to the power of reach",
            lambda c: _way(c) != RANGE or at_most(math.exp(min(c["reach"], 700.0)), c["curvature_ratio"]),
        ),
        (
            "long rows weigh no more than kappa allows",
            "weight_ratio, curvature_ratio and spread cannot belong to one matrix with this kappa",
            lambda c: _way(c) != LONG_ROWS or _long_rows(c),
        ),
        (
            "some row bends as far as its reach lets it",
            "change_supremum is below what reach and the longest row allow",
            lambda c: not c.beside or at_most(_least_supremum(c), c["change_supremum"]),
        ),
        (
            "a retained row bends as far as its reach lets it",
            "change_each is below what reach and concordance allow, and below change_supremum",
            lambda c: not c.beside or _way(c) != RANGE or at_most(_least_each(c), c["change_each"]),
        ),
        (
            "the region charges what the step left",
            "solver is below step.residual in the norm of the route",
            _step_charged,
        ),
        (
            "float64 rounds what was kept",
            "rounding is less than float64 loses of the gradient over the source",
            _rounded,
        ),
        (
            "noise moves outputs as far as its shape allows",
            "output_noise is more than a row's length allows, or less than a constant feature has",
            _outputs,
        ),
        (
            "l2 is that of the fixed C",
            "l2 is not 1/(C n) for the retained rows",
            lambda c: "fixed_c" not in c.content["model"] or _fixed_c(c),
        ),
    )
)


# Facts that contradict one another, or that no run of Expunge states: each rule's name says what must be so.


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
