"""Rules on deposits: numbers of a region and of a shape that no deposit has, and what only a deposit may say.

Eigenvalues are bounded from above or below by whoever measures, a trial factor at a time: `TRIED` is as far off as the
last trial can be.
"""

from __future__ import annotations

import math

from expunge.bounds.deposit import EXACT, LONG_ROWS, PLAIN, RANGE, ROUTES, way_of
from expunge.bounds.deposit_surrogate import sigmoid_bend, softmax_bend
from expunge.bounds.scale import EXACT as UNROUNDED
from expunge.bounds.scale import LEVELS, POLICY, is_level
from expunge.certificate.reading import number
from expunge.certificate.stated import Rule, Stated, at_most
from expunge.record import LOGISTIC, ONE_VS_REST, RIDGE, SOFTMAX, TANGENT, are_class_weights

UNIT_ROUNDOFF = 2.0**-53
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
    return is_level(stated["shape_largest"]) and small and (_free(stated) or at_most(l2 / TRIED, stated["shape_least"]))


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
    return kind == LEVELS and count == N_LEVELS and is_level(stated.content["sigma"])


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
        "only a deposit has class weights, one for each class, and the largest is 1",
        "model.class_weights are of another number, not above 0, not relative to the largest, or of no deposit",
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
