"""That one deposit is another without some rows: as far as the two show it, and wholly with the rows themselves.

Frozen parts are the same; counts and hashes are fewer; rows lie within the gauges; what left of the curvature is
positive semi-definite and no larger than so many rows can make it, and the gradient likewise. With the forgotten rows
at hand the later deposit is worked out from the earlier one, and compared number by number. The two may differ by what
the later one is charged for taking these rows out, and by nothing of what it inherits: else a series of them could
drift from the truth unseen.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from expunge.certificate.rules import DEPOSIT, Check
from expunge.deposit.asking import as_given
from expunge.deposit.blocks import Blocks, is_definite
from expunge.deposit.contents import Deposit
from expunge.deposit.leaving import charged, left, look_up, summed
from expunge.deposit.shape import GRID, rested
from expunge.deposit.sums import Sums
from expunge.deposit.third import sizes_of
from expunge.heads import Rows
from expunge.heads.rows import in_memory
from expunge.request.rows import rows_of
from expunge.rows.hashes import PRECISIONS

FROZEN = ("schema", "key", "row_bound", "anchor_noise", "kappas", "created", "longest_target")
LEAVES = ("n_source", "class_counts", "weights_sha256")  # of a record: what changes when rows leave
ALIKE = 1e-9  # relative: what float64 may change of a sum
NAME = "the forget set"


def succession_checks(before: Deposit, after: Deposit, forget: Any = None) -> list[Check]:
    """What the two must agree on."""
    compared = [*_frozen(before, after), *_counts(before, after), *_hashes(before, after)]
    if all(check.passed for check in compared):
        compared += [*_own(before), *_gauges(after), *_sums(before, after)]
    if forget is not None and all(check.passed for check in compared):
        compared += _recomputed(before, after, forget)
    return compared


def _about(name: str, claimed: Any, recomputed: Any, why: str = "") -> Check:
    return Check(f"deposits: {name}", claimed, recomputed, why, DEPOSIT)


def _frozen(before: Deposit, after: Deposit) -> list[Check]:
    one, other = asdict(before.numbers), asdict(after.numbers)
    same_gauges = len(before.gauges) == len(after.gauges) and all(
        torch.equal(a.factor, b.factor) for a, b in zip(before.gauges, after.gauges, strict=True)
    )
    return [
        *(_about(f"{name} is frozen", _plain(other[name]), _plain(one[name])) for name in FROZEN),
        _about("the anchor is frozen but for what no row has any more", _same_anchor(before, after), True),
        _about("the record is frozen", _left_in_record(after) == _left_in_record(before), True),
        _about("the gauges are frozen", same_gauges, True, "a factor differs"),
    ]


def _same_anchor(before: Deposit, after: Deposit) -> bool:
    one, other = before.anchor, after.anchor
    if one.shape != other.shape:
        return False
    made = rested(one, after.gram, after.penalty(after.sums.count).diagonal(one)[0])[0]
    return bool(((made - other).norm() <= ALIKE * other.norm()).item())


def _left_in_record(deposit: Deposit) -> dict[str, Any]:
    leaves = LEAVES if deposit.record.fixed_c is None else (*LEAVES, "l2")  # which fewer rows have another of
    return {name: value for name, value in deposit.record.facts().items() if name not in leaves}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _counts(before: Deposit, after: Deposit) -> list[Check]:
    one, other = before.numbers, after.numbers
    gone_rows = one.n_rows - other.n_rows
    by_class = [a - b for a, b in zip(one.class_counts, other.class_counts, strict=True)]
    return [
        _about("rows left", gone_rows >= 1, True, f"{one.n_rows:,} before and {other.n_rows:,} after"),
        _about("forgotten rows are those that left", other.forgotten - one.forgotten, gone_rows),
        _about("the generation is the next", other.generation, one.generation + 1),
        _about("no class has more rows than before", min(by_class) >= 0, True, f"changes are {by_class}"),
        _about("class counts fell by the rows that left", sum(by_class), gone_rows),
    ]


def _hashes(before: Deposit, after: Deposit) -> list[Check]:
    """Every row of the later one is a row of the earlier one, at every precision together, and as often."""
    earlier, later = (Counter(map(bytes, np.concatenate(each.hashes.digests, axis=1))) for each in (before, after))
    strange = sum((later - earlier).values())
    return [
        _about("row hashes are those of before, some gone", strange, 0),
        *(
            _about(f"there is a hash a row at {name}", len(after.hashes.digests[level]), after.numbers.n_rows)
            for level, name in enumerate(PRECISIONS)
        ),
    ]


def _own(before: Deposit) -> list[Check]:
    """What a deposit from which nothing has left shows by itself."""
    if before.numbers.generation:
        return []
    lost = replace(before.head, l2=0.0).rounding(before.anchor, range(before.numbers.n_rows))
    return [_about("the gradient's error is what float64 loses", before.numbers.gradient_error >= lost, True)]


def _sums(before: Deposit, after: Deposit) -> list[Check]:
    """What left is what so many rows can be."""
    count, head = before.numbers.n_rows - after.numbers.n_rows, after.head
    gradient = before.sums.gradient * before.sums.count - after.sums.gradient * after.sums.count
    lost = before.sums.gradient_error * before.sums.count + after.sums.gradient_error * after.sums.count
    longest = count * head.residual_sup(after.anchor) * head.row_bound * (1.0 + ALIKE) + lost
    kept = min(before.sums.count, after.sums.count) / after.sums.count
    compared = [
        _about(
            "what left of the gradient is of so many rows",
            float(gradient.norm()) <= longest,
            True,
            f"it is {float(gradient.norm()):.4g}, of {count:,} rows at most {longest:.4g}",
        ),
        _about(
            "errors do not shrink",
            after.sums.gradient_error >= kept * before.sums.gradient_error * (1.0 - ALIKE)
            and after.sums.curvature_error >= kept * before.sums.curvature_error * (1.0 - ALIKE)
            and after.sums.third_error >= kept * before.sums.third_error * (1.0 - ALIKE)
            and all(
                one >= kept * other * (1.0 - ALIKE)
                for one, other in zip(after.sums.weighted_errors, before.sums.weighted_errors, strict=True)
            ),
            True,
        ),
        _removed("the curvature", before, after, before.sums.curvature, after.sums.curvature, count, 1.0),
        *_third(before, after, count),
        *_moments(before, after, count),
    ]
    pairs = zip(before.gauges, before.sums.weighted, after.sums.weighted, strict=True)
    return compared + [
        _removed(f"the curvature weighted by gauge {index}", before, after, one, other, count, gauge.kappa**2)
        for index, (gauge, one, other) in enumerate(pairs)
    ]


def _removed(
    name: str, before: Deposit, after: Deposit, one: Blocks, other: Blocks, count: int, weight: float
) -> Check:
    """Positive semi-definite, and no larger than so many rows, each at most `weight ||x||^2` in trace a class."""
    removed = one.combined(float(before.sums.count), other, -float(after.sums.count))
    errors = before.sums.count * before.sums.curvature_error + after.sums.count * after.sums.curvature_error
    slack = 4.0 * weight * errors + 1e-12 * before.sums.count * one.largest_entry
    trace = float(removed.values.diagonal(dim1=-2, dim2=-1).sum(dim=-1).max())
    most = count * weight * after.numbers.row_bound**2 * (1.0 + ALIKE) + slack * removed.size
    return _about(
        f"what left of {name} is of so many rows",
        is_definite(removed.plus(slack)) and trace <= most,
        True,
        f"its trace is {trace:.4g}, of {count:,} rows at most {most:.4g}, or it is not positive semi-definite",
    )


def _moments(before: Deposit, after: Deposit, count: int) -> list[Check]:
    """Second moments are whole numbers: what left is of so many rows, and nothing is in fewer rows than none."""
    gone = before.gram.without(after.gram)
    trace = float(gone.mean.diagonal().sum()) if count else 0.0
    # features are rounded to a grid, and rows are no longer than the row bound
    most = (after.numbers.row_bound + GRID * math.sqrt(len(gone.support))) ** 2 * (1.0 + ALIKE)
    outputs = len(after.record.classes) if after.of_network else 1
    counts = torch.stack([gone.support, gone.off])
    return [
        _about(
            "what left of the second moments is of so many rows",
            bool((gone.parts[[0, 2]].diagonal(dim1=-2, dim2=-1) >= 0.0).all()) and trace <= most,
            True,
            f"their trace is {trace:.4g}, of a row at most {most:.4g}",
        ),
        _about(
            "no feature left more rows than had it",
            bool((counts >= 0.0).all()) and bool((counts <= count * outputs).all()),
            True,
        ),
    ]


def _gauges(deposit: Deposit) -> list[Check]:
    """Rows lie within a gauge on average, by the second moments."""
    compared = []
    for index, gauge in enumerate(deposit.gauges):
        farther = GRID * math.sqrt(len(gauge.factor)) * float(gauge.inverse.norm())  # rounded to a grid, at most so
        mean = float(((gauge.inverse @ deposit.gram.mean) * gauge.inverse).sum())
        compared.append(
            _about(
                f"rows lie within gauge {index} on average",
                mean <= (gauge.kappa + farther) ** 2 * (1.0 + ALIKE),
                True,
                f"the mean square is {mean:.4g}, and none may be above {gauge.kappa**2:.4g}",
            )
        )
    return compared


def _within_gauges(deposit: Deposit, rows: Rows) -> list[Check]:
    """Every row that is given lies within every gauge."""
    compared = []
    for index, gauge in enumerate(deposit.gauges):
        farthest = math.sqrt(float(gauge.squares(rows.features.double()).max())) if len(rows) else 0.0
        compared.append(
            _about(
                f"the forgotten rows lie within gauge {index}",
                farthest <= gauge.kappa * (1.0 + 1e-5) + 1e-5,
                True,
                f"one is {farthest:.4g} out, and none may be more than {gauge.kappa:.4g}",
            )
        )
    return compared


def _third(before: Deposit, after: Deposit, count: int) -> list[Check]:
    """Third derivatives, where they are kept: those of both, and what left is of so many rows."""
    one, other = before.sums.third, after.sums.third
    if one is None or other is None:
        return [_about("third derivatives are kept by both or neither", other is None, one is None)]
    removed = float((one * before.sums.count - other * after.sums.count).norm())
    errors = before.sums.count * before.sums.third_error + after.sums.count * after.sums.third_error
    lines = 1.0 if after.sums.curvature.joint else math.sqrt(len(one))
    most = lines * count * sizes_of(after.head)[0] * after.numbers.row_bound**3 * (1.0 + ALIKE) + 4.0 * errors
    return [
        _about(
            "what left of the third derivatives is of so many rows",
            removed <= most + 1e-12 * before.sums.count * float(one.norm()),
            True,
            f"its length is {removed:.4g}, of {count:,} rows at most {most:.4g}",
        )
    ]


def _recomputed(before: Deposit, after: Deposit, forget: Any) -> list[Check]:
    """The later deposit, worked out from the earlier one and the rows that left."""
    given = rows_of(forget, before.model, before.record, torch.float64, before.device, NAME)
    rows = in_memory(given, "what was forgotten")
    gone_rows = before.numbers.n_rows - after.numbers.n_rows
    if len(rows) != gone_rows:
        why = f"{gone_rows:,} left; give those, and with --forget-class the class that was forgotten"
        return [_about("as many rows are given as left", len(rows), gone_rows, why)]
    membership = look_up(before, *as_given(forget, before))
    missing = len(membership.missing)
    if missing:
        return [_about("the forgotten rows were in the deposit before", missing, 0)]
    sums = summed(before, rows)
    made = left(before, rows, membership, charged(before, rows, membership, sums))
    one, other = _without_errors(made), _without_errors(after)
    return [
        _about("the forgotten rows were in the deposit before", missing, 0),
        *_within_gauges(before, rows),
        *(_about(f"without the forgotten rows: {name}", other[name], one[name]) for name in one),
        *(
            _about(f"without the forgotten rows: hashes at {name}", _sorted(after, level), _sorted(made, level))
            for level, name in enumerate(PRECISIONS)
        ),
        _about("without the forgotten rows: the second moments", _equal_moments(made, after), True),
        *_alike(made.sums, after.sums, before.sums.errors_without(sums, made.sums, inherited=0.0)),
    ]


def _equal_moments(one: Deposit, other: Deposit) -> bool:
    pairs = ((getattr(one.gram, name), getattr(other.gram, name)) for name in ("parts", "support", "off"))
    return all(torch.equal(*pair) for pair in pairs)


def _without_errors(deposit: Deposit) -> dict[str, Any]:
    numbers = asdict(deposit.numbers)
    return {name: _plain(numbers[name]) for name in ("n_rows", "forgotten", "generation", "class_counts")}


def _sorted(deposit: Deposit, level: int) -> list[bytes]:
    return sorted(map(bytes, deposit.hashes.digests[level]))


def _alike(one: Sums, other: Sums, lost: tuple[float, float, tuple[float, ...], float]) -> list[Check]:
    """`lost` is what taking the rows out may have changed."""
    of_gradient, of_curvature, of_weighted, of_third = lost

    def close(a: float, b: float) -> bool:
        return math.isclose(a, b, rel_tol=1e-6)

    def near(a: torch.Tensor, b: torch.Tensor, error: float) -> bool:
        return float((a - b).norm()) <= error

    errors = zip(one.weighted, other.weighted, of_weighted, strict=True)
    said, off = "without the forgotten rows: ", "it differs; rows are to be given as they were when they were forgotten"
    return [
        _about(f"{said}the gradient", near(one.gradient, other.gradient, of_gradient), True, off),
        _about(
            f"{said}the curvature",
            near(one.curvature.values, other.curvature.values, of_curvature),
            True,
            off,
        ),
        *(
            _about(f"{said}the curvature weighted by gauge {index}", near(a.values, b.values, e), True, off)
            for index, (a, b, e) in enumerate(errors)
        ),
        _about(
            f"{said}the third derivatives",
            (one.third is None and other.third is None)
            or (one.third is not None and other.third is not None and near(one.third, other.third, of_third)),
            True,
            off,
        ),
        _about(f"{said}the third derivatives' error", close(one.third_error, other.third_error), True),
        _about(f"{said}the gradient's error", close(one.gradient_error, other.gradient_error), True),
        _about(f"{said}the curvature's error", close(one.curvature_error, other.curvature_error), True),
        _about(f"{said}the weighted errors", all(map(close, one.weighted_errors, other.weighted_errors)), True),
    ]
