"""For the auditor who has the deposits: the facts of a dossier worked out anew from what is left of the source.

From the deposit of what is retained alone: the step, the region by every route, the shape's numbers, the radius the
noise was taken from, and that the published weights are where that noise puts them; where surrogate rows had a part in
it, from them too. `succession.py` adds what the deposit from before shows.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from scipy.stats import chi2
from torch import Tensor

from expunge.bounds.calibration import mu_for
from expunge.bounds.deposit import LONG_ROWS, PLAIN, DepositFacts, way_of
from expunge.bounds.deposit import LOST as ARITHMETIC
from expunge.bounds.ellipsoid import EXACT_SHARE
from expunge.bounds.region import DRAWING, ROUND_UP
from expunge.bounds.scale import LEVELS
from expunge.certificate.claim import Json, route_failure
from expunge.certificate.derive import bound_named
from expunge.certificate.dossier import Certificate, read_claim
from expunge.certificate.model_file import read_published
from expunge.certificate.rules import DEPOSIT, Check, require_passed
from expunge.certificate.verify import checks
from expunge.deposit.beside import Asked, begun_beside, found_beside, region_of, stated_of
from expunge.deposit.blocks import (
    UNIT_ROUNDOFF,
)
from expunge.deposit.contents import Deposit
from expunge.deposit.overlooking import looked_over, seen_checks
from expunge.deposit.routes import Found, found
from expunge.deposit.succession import succession_checks
from expunge.distance import Distance
from expunge.errors import FileError, OptionError, VerificationFailed
from expunge.model import read_model
from expunge.record import loss_named

ALIKE = 1e-6  # relative: what another machine's linear algebra may change of a fact
NEAR = 1.05  # how far above the eigenvalue itself a bound on it may be
MOST_LOST = 1e-3  # relative: what an ill-conditioned shape may change of a fact, and rounding of a bound on it
UNLIKELY = 1e-9  # of noise as stated, to be taken for noise that is not
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError)


def verify_deposits(
    dossier: Certificate,
    after: Deposit,
    before: Deposit | None = None,
    forget: Any = None,
    model: str | Path | None = None,
    surrogate: Any = None,
) -> list[Check]:
    """Check a dossier with the deposit of what is retained, and the one before; raises if anything differs.

    What follows from the dossier by itself is checked too: the deposits do not show it. With the published model's
    file, also that it lies where the noise puts it; with the rows that were forgotten, that the one deposit is the
    other without them. Where surrogate rows had a part in it they are needed.
    """
    content, alone = dossier.content, checks(dossier)
    if forget is not None and after.of_network:
        raise OptionError(
            "forgotten examples of a network's tangent weights",
            "their rows cannot be worked out from files alone",
            "Leave --forget out: everything else is checked.",
        )
    try:
        _require_kept(content)
        distance = read_claim(content).distance
        _require_surrogate(distance, surrogate)
        compared: list[Check] = []
        if surrogate is None:
            result = found_again(content, distance, after)
        else:
            result, compared = found_again_beside(content, distance, after, surrogate, forget)
        compared += deposit_checks(content, after, result)
        if model is not None and result is not None and all(check.passed for check in compared):
            compared += published_checks(content, after, result, model)
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


def _require_kept(content: Json) -> None:
    if not bound_named(content["bound"]["kind"]).kept:
        raise FileError(
            f"the dossier's bound is {content['bound']['kind']!r}",
            "it was issued without a deposit",
            "Leave --deposit and --deposit-after out.",
        )


def _require_surrogate(distance: Distance, surrogate: Any) -> None:
    if distance.law.stands_in == (surrogate is None):
        raise OptionError(
            "no surrogate" if surrogate is None else "a surrogate",
            f"the dossier's region was found with {'one' if surrogate is None else 'none'} beside the deposit",
            "Give --surrogate, the rows that the request was made with." if surrogate is None else "Leave it out.",
        )


def found_again(content: Json, distance: Distance, after: Deposit) -> Found | None:
    """The step and its region anew, of the deposit alone."""
    known = (after.setting, after.sums, after.penalty(after.sums.count), after.shape)
    result = found(*known)
    return result if _as_stated(content, distance, after, result) else found(*known, like=_stated_facts(content))


def found_again_beside(
    content: Json, distance: Distance, after: Deposit, surrogate: Any, forget: Any
) -> tuple[Found | None, list[Check]]:
    """The same with the surrogate rows that it was made with, and what the door would have said to them."""
    rows, compared = looked_over(content, distance, after, surrogate)
    failure = route_failure(content["delta"], distance)
    asked = Asked(rows, distance, after.numbers.n_rows + after.numbers.forgotten, after.numbers.forgotten, failure)
    begun = begun_beside(after, rows)
    answer = found_beside(after, asked, begun=begun)
    if not _as_stated(content, distance, after, None if answer is None else answer.found):
        answer = found_beside(after, asked, begun=begun, like=_stated_facts(content))
    if answer is None:
        return None, compared
    return answer.found, [*compared, *seen_checks(distance, after, answer, forget)]


def _as_stated(content: Json, distance: Distance, after: Deposit, result: Found | None) -> bool:
    radius = None if result is None else region_of(result, distance).radius
    return all(check.passed for check in _route_checks(content, after, result, radius))


def deposit_checks(content: Json, after: Deposit, result: Found | None) -> list[Check]:
    """What the deposit of what is retained says, beside what the dossier does; `result` is step and region anew."""
    distance = read_claim(content).distance
    radius = None if result is None else region_of(result, distance).radius
    return [
        *_same_model(content, after),
        *_shape_checks(content, after),
        *_route_checks(content, after, result, radius),
        *_noise_checks(content, after, radius),
    ]


def about(name: str, claimed: Any, recomputed: Any, why: str = "") -> Check:
    """A check that is about the deposits."""
    return Check(name, claimed, recomputed, why, DEPOSIT)


def close(name: str, claimed: float, recomputed: float, slack: float = 0.0) -> Check:
    """A number that is the same but for rounding."""
    alike = math.isclose(claimed, recomputed, rel_tol=ALIKE, abs_tol=slack)
    return about(name, alike, True, f"the dossier says {claimed:.9g}, the deposit does not")


def _facts(content: Json) -> dict[str, float]:
    return {name: float(fact["value"]) for name, fact in content["bound"]["inputs"].items()}


def _stated_facts(content: Json) -> DepositFacts:
    """The dossier's own, for where several routes are as good as each other."""
    stated = _facts(content)
    names = [each.name for each in fields(DepositFacts) if each.name in stated]
    return DepositFacts(route=content["bound"]["convention"], **{name: stated[name] for name in names})


def _same_model(content: Json, after: Deposit) -> list[Check]:
    record, numbers, head = after.record, after.numbers, after.head
    sizes = {
        "classes": len(record.classes),
        "features": after.model.n_features,
        "parameters": head.n_parameters,
        "n_source": numbers.n_rows + numbers.forgotten,
        "n_forget": numbers.forgotten,
        "n_retain": numbers.n_rows,
    }
    stated = content["model"]
    known = {"loss": record.loss, "max_norm": record.max_norm, "bias": record.bias}
    known |= {"row_bound": record.row_bound, "free_bias": bool(record.free_bias), "fixed_c": record.fixed_c}
    weights = None if record.class_weights is None else list(record.class_weights)
    known |= {"preparation": record.preparation, "class_weights": weights}
    told = {name: stated.get(name) for name in known} | {"free_bias": stated.get("free_bias", False)}
    return [
        *(about(f"deposit: sizes.{name}", content["sizes"].get(name), value) for name, value in sizes.items()),
        *(about(f"deposit: model.{name}", told[name], value) for name, value in known.items()),
    ]


def _shape_checks(content: Json, after: Deposit) -> list[Check]:
    """The shape's numbers, worked out from the second moments of the rows that are left."""
    facts, shape = _facts(content), after.ellipsoid
    known = {"shape_least": shape.least, "shape_inverse_trace": shape.inverse_trace}
    known |= {"output_noise": after.output_noise, "output_spread": after.output_spread}
    condition = shape.largest / shape.least
    lost = min(MOST_LOST, 64.0 * UNIT_ROUNDOFF * condition)
    return [
        about("deposit: row_bound", facts["row_bound"], after.numbers.row_bound),
        about("deposit: shape_largest", facts["shape_largest"], shape.largest),
        close("deposit: shape_least", facts["shape_least"], known.pop("shape_least"), NEAR * shape.least - shape.least),
        *(close(f"deposit: {name}", facts[name], value, lost * value) for name, value in known.items()),
    ]


def _route_checks(content: Json, after: Deposit, result: Found | None, radius: float | None) -> list[Check]:
    """The step and the facts of its region, by the route that gives the smallest."""
    if result is None or radius is None:
        return [about("deposit: a region", None, content["bound"]["convention"], "no route has a finite one")]
    stated, facts = _facts(content), asdict(result.facts)
    route = facts.pop("route")
    facts["l2"] = after.penalty(after.sums.count).l2
    if result.beside is not None:
        facts |= stated_of(result.beside, "weight_largest" in stated)
    # what goes through the inverse of a shape loses as many digits as that has: the frozen one's, or the route's own
    ratio = 1.0 if way_of(route) == PLAIN else max(1.0, facts["shape_ratio"])  # there it is no ratio
    condition = after.ellipsoid.largest / after.ellipsoid.least * ratio
    digits = min(MOST_LOST, 8.0 * UNIT_ROUNDOFF * condition)
    slack = {name: digits * abs(value) for name, value in facts.items()}
    for name, lost in _moved(result.facts, after).items():
        slack[name] += lost
    as_stated = replace(result, facts=replace(result.facts, solver=stated["solver"]))
    by_stated = region_of(as_stated, read_claim(content).distance)
    # what drawing the noise added is left out term by term: beside it a region can be next to nothing
    terms = content["bound"]["terms"]
    total = math.fsum(term for name, term in terms.items() if name != DRAWING.name) * ROUND_UP
    off = digits * by_stated.radius + MOST_LOST * by_stated.terms.get(ARITHMETIC.name, 0.0)
    length = float((after.anchor + result.update).norm()) * (1.0 + 1e-9)
    return [
        about("deposit: route", content["bound"]["convention"], route),
        *(close(f"deposit: {name}", stated[name], value, slack[name]) for name, value in facts.items()),
        close("deposit: weights_length", stated["weights_length"], length, digits * length),
        close("deposit: bound.total is the sum", content["bound"]["total"], math.fsum(terms.values()) * ROUND_UP),
        close("deposit: bound.total", total, by_stated.radius, off),
        about(
            "deposit: bound.total is no less than the region",
            total >= (1.0 - MOST_LOST) * radius,
            True,
            f"the dossier says {total:.9g}",
        ),
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


def _drawn(content: Json) -> float:
    """What drawing the noise added to the region; the dossier's own check is about that."""
    return float(content["bound"]["terms"].get(DRAWING.name, 0.0))


def _noise_checks(content: Json, after: Deposit, radius: float | None) -> list[Check]:
    """The noise covers the region; where it is one of the levels, no smaller one would have.

    Exact noise, which is for audits, is no level.
    """
    noise, sigma = content["noise"], content["sigma"]
    mu = mu_for(content["epsilon"], noise["delta_for_noise"])
    listed: list[Check] = []
    if noise["choice"] == LEVELS:
        listed = [
            about("deposit: noise.rehearsed_rows is the number of levels", noise["rehearsed_rows"], len(after.levels)),
            about("deposit: sigma is one of the levels", sigma in after.levels, True),
        ]
    if radius is None:
        return listed
    shape = replace(after.ellipsoid, weights=_facts(content)["weights_length"])
    smaller = [each for each in after.levels if each < sigma] if noise["choice"] == LEVELS else []
    enough = [each for each in smaller if each * mu >= (radius + shape.drawing(each)) * (1.0 + MOST_LOST)]
    return [
        *listed,
        about("deposit: the noise covers the region", sigma * mu >= (radius + _drawn(content)) / (1.0 + ALIKE), True),
        about("deposit: no smaller level covers the region", enough, []),
    ]


def published_checks(content: Json, after: Deposit, result: Found, path: str | Path) -> list[Check]:
    """The published weights are the updated ones and noise of the shape: as far away as that is, all but surely."""
    weights, dtype = _published(after, path)
    if weights.shape != after.anchor.shape:
        return [about("deposit: the published weights have its shape", False, True)]
    away = whitened(after, weights - after.anchor - result.update)
    sigma, count = content["sigma"], after.anchor.numel()
    stored = float(torch.finfo(dtype).eps) * float(weights.norm())
    rounded = math.sqrt(count) * math.ldexp(1.0, content["noise"]["grid_exponent"])  # no grid is finer than a last one
    slack = (stored + rounded) * math.sqrt(after.ellipsoid.largest)
    low = math.sqrt(chi2.ppf(UNLIKELY, count)) * sigma - slack
    high = math.sqrt(chi2.isf(UNLIKELY, count) * (1.0 + EXACT_SHARE)) * sigma + slack
    return [
        about(
            "deposit: the published weights are where the noise puts them",
            low <= away <= high,
            True,
            "they are not as far from the updated ones as noise of this size puts them",
        )
    ]


def _published(after: Deposit, path: str | Path) -> tuple[Tensor, torch.dtype]:
    """The published weights as a matrix, and the type they are stored in."""
    if not after.of_network:
        model, _ = read_model(path)
        return model.matrix(after.device), model.weight.dtype
    (stored,) = read_published(Path(path), loss_named(after.record.loss)).tensors
    return torch.tensor(stored.values, dtype=torch.float64, device=after.device).reshape(1, -1), torch.float64


def whitened(after: Deposit, difference: Tensor) -> float:
    """`||e||` in the norm of the shape."""
    return float((difference @ after.shape[0]).norm())
