"""Rules on the training, the step, and where each fact is said to come from."""

from __future__ import annotations

import math

from expunge.certificate.reading import number
from expunge.certificate.stated import Rule, Stated, at_most
from expunge.record import RIDGE, SOFTMAX
from expunge.runtime.checks import LARGEST, SMALLEST
from expunge.runtime.strict_json import is_digest

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
