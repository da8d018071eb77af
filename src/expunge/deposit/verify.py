"""For the auditor who has the deposits: the facts of a dossier worked out anew from what is left of the source.

From the deposit of what is retained alone: the step, its region, the shape's numbers, the radius the noise was taken
from, and that the published weights are where that noise puts them. With the deposit from before, that one is the other
without some rows: what is frozen is the same, counts and hashes are fewer, and what left of each sum is no more than so
many rows can be. With the forgotten rows at hand the later deposit is worked out from the earlier one, and compared
number by number. The two may differ by what the later one is charged for taking these rows out, and by nothing of what
it inherits: else a series of them could drift from the truth unseen.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chi2

from expunge.bounds.calibration import LEVELS, mu_for
from expunge.bounds.deposit import LONG_ROWS, LOST, PLAIN, DepositFacts, way_of
from expunge.bounds.ellipsoid import EXACT_SHARE
from expunge.bounds.region import DRAWING, ROUND_UP
from expunge.certificate.claim import Json
from expunge.certificate.derive import bound_named
from expunge.certificate.dossier import Certificate
from expunge.certificate.rules import DEPOSIT, Check, require_passed
from expunge.certificate.verify import checks
from expunge.deposit.evidence import measured_facts
from expunge.deposit.file import Deposit
from expunge.deposit.matrices import UNIT_ROUNDOFF, rested
from expunge.deposit.membership import as_given, charged_sums, look_up, remove_rows, sum_rows
from expunge.deposit.region import Solution, difference, regions
from expunge.errors import FileError, OptionError, VerificationFailed
from expunge.heads.rows import in_memory
from expunge.model import read_model
from expunge.record import TANGENT, parse_published, published_bytes
from expunge.request.sets import FORGET, rows_of
from expunge.rows.hashes import PRECISIONS
from expunge.runtime.arrays import double, equal, namespace_of, norm, put, size

ALIKE = 1e-6  # relative: what another machine's linear algebra may change of a fact
SAME = 1e-9  # relative: what float64 may change of a sum
NEAR = 1.05  # how far above the eigenvalue itself a bound on it may be
MOST_LOST = 1e-3  # relative: what an ill-conditioned shape may change of a fact, and rounding of a bound on it
UNLIKELY = 1e-9  # of noise as stated, to be taken for noise that is not
EXACTLY = ("n_source", "n_forget", "row_bound", "shape_largest")  # facts that no rounding changes
FROZEN = ("schema", "key", "row_bound", "anchor_noise", "kappas", "created", "longest_target")
LEAVES = ("n_source", "class_counts", "weights_sha256")  # of a record: what changes when rows leave
WITHOUT = "deposits: without the forgotten rows: "
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError)


@np.errstate(all="ignore")  # numbers that somebody made up may overflow: what comes of them is compared
def verify_deposits(
    dossier: Certificate,
    after: Deposit,
    before: Deposit | None = None,
    forget: Any = None,
    model: str | Path | None = None,
) -> list[Check]:
    """Check a dossier with the deposit of what is retained, and the one before; raises if anything differs.

    What follows from the dossier by itself is checked too: the deposits do not show it. With the published model's
    file, also that it lies where the noise puts it; with the rows that were forgotten, that the one deposit is the
    other without them.
    """
    content, alone = dossier.content, checks(dossier)
    if forget is not None and after.of_network:
        raise OptionError(
            "forgotten examples of a network's tangent weights",
            "their rows cannot be worked out from files alone",
            "Leave --forget out: everything else is checked.",
        )
    try:
        if not bound_named(content["bound"]["kind"]).kept:
            raise FileError(
                f"the dossier's bound is {content['bound']['kind']!r}",
                "it was issued without a deposit",
                "Leave --deposit and --deposit-after out.",
            )
        found, like = regions(after.problem, ties=True), _stated_region(content)
        smallest = min(found, key=lambda each: each.facts.size, default=None)
        stated = min(found, key=lambda each: difference(each.facts, like), default=None)
        compared = deposit_checks(content, after, stated, smallest)
        if model is not None and stated is not None and all(check.passed for check in compared):
            compared += published_checks(content, after, stated, model)
        if before is not None:
            compared += succession_checks(before, after, forget)
    except UNREADABLE as error:
        raise VerificationFailed(
            f"dossier and deposits cannot be compared ({type(error).__name__}: {error})",
            "everything they say must be there and possible",
            "Do not rely on them.",
        ) from error
    require_passed(compared)
    require_passed(alone)
    return compared


def _check(name: str, claimed: Any, recomputed: Any, why: str = "") -> Check:
    return Check(name, list(claimed) if isinstance(claimed, tuple) else claimed, recomputed, why, DEPOSIT)


def _holds(name: str, condition: bool, why: str = "") -> Check:
    return Check(name, condition, True, why, DEPOSIT)


def _close(name: str, claimed: float, recomputed: float, slack: float = 0.0) -> Check:
    """A number that is the same but for rounding, and for a slack in its units."""
    alike = math.isclose(claimed, recomputed, rel_tol=ALIKE, abs_tol=slack)
    return _holds(name, alike, f"the dossier says {claimed:.9g}, the deposit does not")


def _facts(content: Json) -> dict[str, float]:
    return {name: float(fact["value"]) for name, fact in content["bound"]["inputs"].items()}


def _stated_region(content: Json) -> DepositFacts:
    """The numbers of the dossier's region: of several that are as small as each other this one is compared."""
    stated = _facts(content)
    names = [each.name for each in fields(DepositFacts) if each.name in stated]
    return DepositFacts(route=content["bound"]["convention"], **{name: stated[name] for name in names})


# With the deposit of what is retained ---------------------------------------------------------------------------------


def deposit_checks(
    content: Json, after: Deposit, result: Solution | None, smallest: Solution | None = None
) -> list[Check]:
    """What the deposit of what is retained says. `result` is step and region anew, by the route that is stated;
    `smallest` is the smallest region there is."""
    compared = model_checks(content, after)
    if result is None:
        why = "no route has a finite one"
        return [*compared, _check("deposit: a region", None, content["bound"]["convention"], why)]
    radius = result.region.radius
    compared += [*region_checks(content, after, result, radius), *noise_checks(content, after, radius)]
    if smallest is not None:
        least = smallest.region.radius
        no_larger = radius <= (1.0 + MOST_LOST) * least + 2.0 * _slack(after, smallest) * least
        compared.append(_holds("deposit: the region is the smallest", no_larger, f"another's radius is {least:.9g}"))
    return compared


def model_checks(content: Json, after: Deposit) -> list[Check]:
    """Sizes, and what the record says of the model."""
    record, numbers = after.record, after.numbers
    names = ("loss", "max_norm", "bias", "row_bound", "fixed_c", "preparation", "class_weights", "free_bias")
    stated = {"free_bias": False, "class_weights": None} | content["model"]
    known = {name: getattr(record, name) for name in names} | {"free_bias": bool(record.free_bias)}
    sizes = {
        "classes": len(record.classes),
        "features": after.model.n_features,
        "parameters": after.head.n_parameters,
        "n_source": numbers.n_rows + numbers.forgotten,
        "n_forget": numbers.forgotten,
        "n_retain": numbers.n_rows,
    }
    return [
        *(_check(f"deposit: sizes.{name}", content["sizes"].get(name), value) for name, value in sizes.items()),
        *(_check(f"deposit: model.{name}", stated.get(name), value) for name, value in known.items()),
    ]


def _slack(after: Deposit, result: Solution) -> float:
    """What goes through the inverse of a shape loses as many digits as that has: the noise's, or the route's own."""
    plain = way_of(result.facts.route) == PLAIN  # there it is no ratio
    ratio = 1.0 if plain else max(1.0, result.facts.shape_ratio)
    return min(MOST_LOST, 8.0 * UNIT_ROUNDOFF * after.ellipsoid.largest / after.ellipsoid.least * ratio)


def region_checks(content: Json, after: Deposit, result: Solution, radius: float) -> list[Check]:
    """The facts, and the region that follows from them."""
    stated, shape, digits = _facts(content), after.ellipsoid, _slack(after, result)
    known = measured_facts(after, result)
    lost = min(MOST_LOST, 64.0 * UNIT_ROUNDOFF * shape.largest / shape.least)
    shares = {"shape_least": NEAR - 1.0, "shape_inverse_trace": lost, "output_noise": lost, "output_spread": lost}
    slack = {name: shares.get(name, digits) * abs(value) for name, value in known.items()}
    for name, moved in _moved(result.facts, after).items():
        slack[name] += moved
    as_stated = replace(result, facts=replace(result.facts, solver=stated["solver"]))
    by_stated = as_stated.region
    # what drawing the noise added is left out term by term: beside it a region can be next to nothing
    terms = content["bound"]["terms"]
    total = math.fsum(term for name, term in terms.items() if name != DRAWING.name) * ROUND_UP
    off = digits * by_stated.radius + MOST_LOST * by_stated.terms.get(LOST.name, 0.0)
    enough = total >= (1.0 - MOST_LOST) * radius
    return [
        _check("deposit: route", content["bound"]["convention"], result.facts.route),
        *(
            _check(f"deposit: {name}", stated[name], float(value))
            if name in EXACTLY
            else _close(f"deposit: {name}", stated[name], value, slack[name])
            for name, value in known.items()
        ),
        _close("deposit: bound.total is the sum", content["bound"]["total"], math.fsum(terms.values()) * ROUND_UP),
        _close("deposit: bound.total", total, by_stated.radius, off),
        _holds("deposit: bound.total is no less than the region", enough, f"the dossier says {total:.9g}"),
    ]


def _moved(facts: DepositFacts, after: Deposit) -> dict[str, float]:
    """What the facts change by where the update does so by its rounding; what a step leaves is itself rounding."""
    lost, way = facts.rounding, way_of(facts.route)
    rows = math.sqrt(2.0) * after.numbers.row_bound if after.setting.shift_free else after.numbers.row_bound
    ratio, reached = facts.curvature_ratio, facts.concordance
    if way == LONG_ROWS:
        ratio, reached = facts.weight_ratio, facts.kappa * math.sqrt(facts.spread)
    elif way == PLAIN:
        lost, reached = lost / facts.l2, rows
    return {
        "solver": facts.rounding,
        "rounding": MOST_LOST * facts.rounding,  # a bound, part of which is rounding as it happened
        "reach": reached * lost,
        "gauge": math.sqrt(facts.spread) * lost,
        "update_curved": math.sqrt(ratio) * lost,
    }


def noise_checks(content: Json, after: Deposit, radius: float) -> list[Check]:
    """The noise covers the region; where it is one of the levels, no smaller one would have.

    Exact noise, which is for audits, is no level.
    """
    noise, sigma, by_level = content["noise"], content["sigma"], content["noise"]["choice"] == LEVELS
    mu = mu_for(content["epsilon"], noise["delta_for_noise"])
    drawing = float(content["bound"]["terms"].get(DRAWING.name, 0.0))  # the dossier's own check is about that
    shape = replace(after.ellipsoid, weights=_facts(content)["weights_length"])
    smaller = [each for each in after.levels if each < sigma] if by_level else []
    enough = [each for each in smaller if each * mu >= (radius + shape.drawing(each)) * (1.0 + MOST_LOST)]
    compared = [
        _holds("deposit: the noise covers the region", sigma * mu >= (radius + drawing) / (1.0 + ALIKE)),
        _check("deposit: no smaller level covers the region", enough, []),
    ]
    if by_level:
        name = "deposit: noise.rehearsed_rows is the number of levels"
        compared.append(_check(name, noise["rehearsed_rows"], len(after.levels)))
        compared.append(_holds("deposit: sigma is one of the levels", sigma in after.levels))
    return compared


def published_checks(content: Json, after: Deposit, result: Solution, path: str | Path) -> list[Check]:
    """The published weights are the updated ones and noise of the shape: as far away as that is, all but surely."""
    if after.of_network:
        location = Path(path)
        (stored,) = parse_published(published_bytes(location, TANGENT), location, TANGENT).tensors
        weights, dtype = put(stored.values.astype(np.float64).reshape(1, -1), after.anchor), after.anchor.dtype
    else:
        model, _ = read_model(path)
        weights, dtype = model.matrix(after.device), model.weight.dtype
    if weights.shape != after.anchor.shape:
        return [_holds("deposit: the published weights have its shape", False)]
    away = after.length(weights - after.anchor - result.update)
    sigma, count = content["sigma"], size(after.anchor)
    rounded = float(namespace_of(dtype).finfo(dtype).eps) * norm(weights)
    on_grid = math.sqrt(count) * math.ldexp(1.0, content["noise"]["grid_exponent"])  # no grid is finer than a last one
    slack = (rounded + on_grid) * math.sqrt(after.ellipsoid.largest)
    low = math.sqrt(chi2.ppf(UNLIKELY, count)) * sigma - slack
    high = math.sqrt(chi2.isf(UNLIKELY, count) * (1.0 + EXACT_SHARE)) * sigma + slack
    why = "they are not as far from the updated ones as noise of this size puts them"
    return [_holds("deposit: the published weights are where the noise puts them", low <= away <= high, why)]


# With the deposit from before -----------------------------------------------------------------------------------------


def succession_checks(before: Deposit, after: Deposit, forget: Any = None) -> list[Check]:
    """What the two must agree on: what is frozen, and counts. Every row of the later one is a row of the earlier one,
    at every precision together, and as often. With the forgotten rows, all else."""
    one, other = before.numbers, after.numbers
    gone, penalty = one.n_rows - other.n_rows, after.penalty(after.sums.count)
    fell = [a - b for a, b in zip(one.class_counts, other.class_counts, strict=True)]
    earlier, later = (Counter(map(bytes, np.concatenate(each.hashes.digests, axis=1))) for each in (before, after))
    hashes = zip(PRECISIONS, after.hashes.digests, strict=True)
    leaves = LEAVES if before.record.fixed_c is None else (*LEAVES, "l2")  # which fewer rows have another of
    first, second = (
        {name: value for name, value in each.record.facts().items() if name not in leaves} for each in (before, after)
    )
    same_gauges = len(before.gauges) == len(after.gauges) and all(
        equal(a.factor, b.factor) for a, b in zip(before.gauges, after.gauges, strict=True)
    )
    same_anchor = before.anchor.shape == after.anchor.shape
    if same_anchor:
        anchor = rested(before.anchor, after.gram, penalty.diagonal(before.anchor)[0])[0]
        same_anchor = norm(anchor - after.anchor) <= SAME * norm(after.anchor)
    compared = [
        *(_check(f"deposits: {name} is frozen", getattr(other, name), getattr(one, name)) for name in FROZEN),
        _holds("deposits: the anchor is frozen but for what no row has any more", same_anchor),
        _holds("deposits: the record is frozen", first == second),
        _holds("deposits: the gauges are frozen", same_gauges, "a factor differs"),
        _holds("deposits: rows left", gone >= 1, f"{one.n_rows:,} before and {other.n_rows:,} after"),
        _check("deposits: forgotten rows are those that left", other.forgotten - one.forgotten, gone),
        _check("deposits: the generation is the next", other.generation, one.generation + 1),
        _holds("deposits: no class has more rows than before", min(fell) >= 0, f"changes are {fell}"),
        _check("deposits: class counts fell by the rows that left", sum(fell), gone),
        _check("deposits: row hashes are those of before, some gone", sum((later - earlier).values()), 0),
        *(_check(f"deposits: there is a hash a row at {name}", len(each), other.n_rows) for name, each in hashes),
    ]
    if forget is not None and all(check.passed for check in compared):
        compared += _recomputed_checks(before, after, forget)
    return compared


def _recomputed_checks(before: Deposit, after: Deposit, forget: Any) -> list[Check]:
    """The later deposit, worked out from the earlier one and the rows that left."""
    dtype = before.anchor.dtype
    rows = in_memory(
        rows_of(forget, before.model, before.record, dtype, before.device, FORGET, sparse=True), "the rows"
    )
    gone = before.numbers.n_rows - after.numbers.n_rows
    if len(rows) != gone:
        why = f"{gone:,} left; give those"
        return [_check("deposits: as many rows are given as left", len(rows), gone, why)]
    membership = look_up(before, *as_given(forget, before))
    compared = [_check("deposits: the forgotten rows were in the deposit before", len(membership.missing), 0)]
    if membership.missing:
        return compared
    for index, gauge in enumerate(before.gauges):
        farthest = math.sqrt(float(gauge.squares(double(rows.features)).max()))
        why = f"one is {farthest:.4g} out, and none may be more than {gauge.kappa:.4g}"
        within = farthest <= gauge.kappa * (1.0 + 1e-5) + 1e-5
        compared.append(_holds(f"deposits: the forgotten rows lie within gauge {index}", within, why))
    anew = remove_rows(before, rows, membership, charged_sums(before, rows, membership, check=False))
    lost = before.sums.errors_without(sum_rows(before, rows), anew.sums, inherited=0.0)
    for name in ("n_rows", "forgotten", "generation", "class_counts"):
        compared.append(_check(WITHOUT + name, getattr(after.numbers, name), getattr(anew.numbers, name)))
    for level, name in enumerate(PRECISIONS):
        told, known = (sorted(map(bytes, each.hashes.digests[level])) for each in (after, anew))
        compared.append(_check(f"{WITHOUT}hashes at {name}", told, known))
    moments = (equal(getattr(anew.gram, n), getattr(after.gram, n)) for n in ("parts", "support", "off"))
    compared.append(_holds(f"{WITHOUT}the second moments", all(moments)))
    one, other = anew.sums, after.sums
    weighted = enumerate(zip(one.weighted, other.weighted, lost["weighted_errors"], strict=True))
    pairs = [
        ("the gradient", one.gradient, other.gradient, lost["gradient_error"]),
        ("the curvature", one.curvature.values, other.curvature.values, lost["curvature_error"]),
        *((f"the curvature weighted by gauge {i}", a.values, b.values, error) for i, (a, b, error) in weighted),
        ("the third derivatives", one.third, other.third, lost["third_error"]),
    ]
    off = "it differs; rows are to be given as they were when they were forgotten"
    for name, own, its, error in pairs:
        alike = own is its is None or (own is not None and its is not None and norm(own - its) <= error)
        compared.append(_holds(WITHOUT + name, alike, off))
    for name, error in one.errors.items():
        alike = bool(np.allclose(error, getattr(other, name), rtol=1e-6, atol=0.0))
        compared.append(_holds(f"{WITHOUT}the {name.replace('_', ' ')}", alike))
    return compared
