"""Rows leave a deposit: looked up by their hashes, taken out of every sum, and gone.

A copy that was kept in float32 or with six decimals is recognised, and the difference is charged: with `t` the distance
of copy and original, a row's gradient differs by at most `(||p - t(y)|| + slope ||W|| B) t` and its Hessian by at most
`(2 B curve + bend ||W|| B^2) t`, where `slope` bounds the link's derivative, `curve` C(p) and `bend` C's; third
derivatives alike (third.py).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expunge.bounds.scale import power_of_two
from expunge.deposit.blocks import UNIT_ROUNDOFF, Blocks
from expunge.deposit.classes import by_class
from expunge.deposit.contents import Deposit
from expunge.deposit.shape import gram_of, rested, unsure
from expunge.deposit.sums import Sums, sums_of
from expunge.deposit.third import copy_error, sizes_of, threes
from expunge.errors import DataError
from expunge.heads import Logistic, OneVsRest, Ridge, Rows, Softmax
from expunge.model import from_matrix
from expunge.record import HESSIAN_LIPSCHITZ_FACTOR
from expunge.rows.hashes import PRECISIONS, Matches, RowHashes, hash_rows, match_hashes

SMALLEST_STEP = 2.0**-149  # of float32, whose steps are relative to the value above that only
# slope of the link, size of C(p), and by how much C(p) changes with the outputs
SMOOTHNESS = {
    Softmax.about.name: (0.5, 0.5, HESSIAN_LIPSCHITZ_FACTOR),
    OneVsRest.about.name: (0.25, 0.25, 1.0 / (6.0 * math.sqrt(3.0))),
    Logistic.about.name: (0.25, 0.25, 1.0 / (6.0 * math.sqrt(3.0))),
    Ridge.about.name: (1.0, 1.0, 0.0),
}


@dataclass(frozen=True)
class Membership:
    """Which rows were found in the source, at which precision; -1 for one that was not, or not so often.

    `again` are those that are there, and were given more often than that.
    """

    found: Matches
    again: tuple[int, ...] = ()

    @property
    def missing(self) -> list[int]:
        """Rows that were not found."""
        return [int(row) for row in np.flatnonzero(self.found.row < 0)]

    def count(self, precision: int) -> int:
        """How many were recognised at this precision."""
        return int(np.count_nonzero(self.found.precision == precision))


def look_up(deposit: Deposit, features: Any, labels: Any, name: str = "the forget set") -> Membership:
    """Whether these rows, as they were given, are in the source, and as often as they are asked for."""
    given = hash_rows(deposit.key, features, labels, name)
    found = Membership(match_hashes(given, deposit.hashes))
    return replace(found, again=_again(given, found.missing)) if found.missing else found


def _again(given: RowHashes, missing: list[int]) -> tuple[int, ...]:
    """The missing rows that equal one that was found, at any precision."""
    apart = set(missing)
    known = [{digest.tobytes() for row, digest in enumerate(level) if row not in apart} for level in given.digests]
    both = list(zip(given.digests, known, strict=True))
    return tuple(row for row in missing if any(level[row].tobytes() in there for level, there in both))


def require_members(membership: Membership) -> None:
    """Refuse rows that were never in the source, or are asked for more often than they occurred."""
    missing = membership.missing
    if not missing:
        return
    named = ", ".join(str(row + 1) for row in missing[:5]) + (", ..." if len(missing) > 5 else "")
    of, are = (
        f"{len(missing):,} of {len(membership.found.row):,} rows (row {named})",
        "is" if len(missing) == 1 else "are",
    )
    if len(membership.again) == len(missing):
        raise DataError(
            f"{of} {are} given more often than what is left of the source has {'it' if are == 'is' else 'them'}",
            "each row leaves once",
            "Give each row as often as it was trained on (expunge member says how often); what was forgotten before is "
            "gone already.",
        )
    raise DataError(
        f"{of} {are} not in what is left of the source",
        "each row must have been trained on, and leaves once",
        "Check values, columns and labels against what was trained on (expunge member looks each row up); rows that "
        "were forgotten before are gone already.",
    )


def summed(deposit: Deposit, rows: Rows) -> Sums:
    """The sums over rows as they are given, and what float64 may have changed of them."""
    kept, counted = deposit.sums.third is not None, by_class(rows, deposit.record)
    return sums_of(deposit.head, deposit.anchor, counted, deposit.gauges, third=kept, gram=gram_of(counted))


def gone(deposit: Deposit, rows: Rows, membership: Membership) -> Sums:
    """The sums over the rows that leave, with what copies of them may have changed."""
    require_sure(deposit, rows, membership)
    return charged(deposit, rows, membership, summed(deposit, rows))


def charged(deposit: Deposit, rows: Rows, membership: Membership, sums: Sums) -> Sums:
    """Sums over rows as they are given, their errors larger by what copies may have changed."""
    away, kept = copied(membership, rows), deposit.sums.third is not None
    if away == 0.0:
        return sums
    assert sums.gram is not None
    same = torch.as_tensor(membership.found.precision == 0).to(rows.device)  # a copy may be on the grid by itself
    sums = replace(sums, gram=replace(sums.gram, off=gram_of(Rows(rows.features[same], rows.labels[same])).off))
    head, weights = deposit.head, deposit.anchor
    slope, curve, bend = SMOOTHNESS[head.name]
    bound, size, each = head.row_bound, float(torch.linalg.matrix_norm(weights, 2)), away / len(rows)
    hessian = 2.0 * bound * curve + bend * size * bound**2
    weighted = []
    for gauge, error in zip(deposit.gauges, sums.weighted_errors, strict=True):
        stretch = float(gauge.inverse.norm()) * (1.0 + gauge.lost)  # a copy is so much farther out for its distance
        steep = stretch * (2.0 * gauge.kappa + stretch * away)
        outside = (1.0 + stretch * away / gauge.kappa) ** 2
        weighted.append(error * outside + each * (gauge.kappa**2 * hessian + steep * curve * bound**2))
    return replace(
        sums,
        gradient_error=sums.gradient_error + each * (head.residual_sup(weights) + slope * size * bound),
        curvature_error=sums.curvature_error + each * hessian,
        weighted_errors=tuple(weighted),
        third_error=sums.third_error + each * copy_error(head, weights) if kept else 0.0,
    )


def require_sure(deposit: Deposit, rows: Rows, membership: Membership) -> None:
    """Refuse a copy of which it is not sure to which point of the grid its original was rounded (shape.py), or in which
    features that has zeros."""
    if deposit.of_network:
        return
    features = rows.features.double()
    scaled = 4.0 * (features.shape[1] + 8) * UNIT_ROUNDOFF  # to a norm bound, in another order than then
    away = torch.as_tensor(_distances(membership, rows)).to(features) + scaled * features.norm(dim=1)
    # what rounds to zero is zero in a copy that was rounded, and may be anything that does in its original
    nearly = (features != 0.0) & (features.abs() <= torch.as_tensor(_nearly_zero(membership)).to(features)[:, None])
    doubtful = torch.nonzero(unsure(features, away) | nearly.any(dim=1)).reshape(-1).tolist()
    if doubtful:
        named = ", ".join(str(row + 1) for row in doubtful[:5]) + (", ..." if len(doubtful) > 5 else "")
        raise DataError(
            f"{len(doubtful):,} of {len(rows):,} rows (row {named}) are rounded copies, too far from what was "
            f"trained on",
            "noise takes its shape from the retained rows, which a row has to leave to the last digit",
            "Give them as they were trained on, with all digits.",
        )


def _nearly_zero(membership: Membership) -> NDArray[np.float64]:
    """Row by row what rounds to zero at the precision that it was recognised at."""
    of_precision = np.zeros(len(PRECISIONS))
    of_precision[PRECISIONS.index("float32")] = 0.5 * SMALLEST_STEP
    of_precision[PRECISIONS.index("six decimals")] = 0.5e-6
    return of_precision[membership.found.precision]


def copied(membership: Membership, rows: Rows) -> float:
    """How far all rows together can be from their originals: nothing where they are the same to the last digit.

    Copy and original round to the same value, so they are at most twice the rounding apart; scaling rows to a norm
    bound brings them no further apart.
    """
    return float(_distances(membership, rows).sum())


def _distances(membership: Membership, rows: Rows) -> NDArray[np.float64]:
    """The same row by row; a network's examples have no copies."""
    at, root = membership.found.precision, math.sqrt(rows.n_features)
    if not at.any():
        return np.zeros(len(at))
    lengths = rows.features.double().norm(dim=1).cpu().numpy()
    narrow, decimal = PRECISIONS.index("float32"), PRECISIONS.index("six decimals")
    away: NDArray[np.float64] = np.where(at == narrow, lengths * 2.0**-23 + SMALLEST_STEP * root, 0.0)
    return np.asarray(np.where(at == decimal, 1e-6 * root, away) * 1.001)


def left(deposit: Deposit, rows: Rows, membership: Membership, removed: Sums) -> Deposit:
    """The deposit of what is retained."""
    kept = np.ones(len(deposit.hashes), bool)
    kept[membership.found.row] = False
    digests = [each[kept] for each in deposit.hashes.digests]
    sums = deposit.sums.without(removed)
    assert sums.gram is not None
    l2, matrix = deposit.penalty(sums.count).l2, deposit.model.matrix()
    anchor, lost = rested(matrix, sums.gram, deposit.penalty(sums.count).diagonal(matrix)[0])
    sums = cleared(shifted(deposit, sums, lost), sums.gram.unseen)
    classes = Counter(rows.labels.tolist())
    counts = tuple(count - classes[index] for index, count in enumerate(deposit.numbers.class_counts))
    if min(counts) < 0:
        raise DataError("more rows of a class than there are", "each row leaves once", "Check the labels.")
    numbers = replace(
        deposit.numbers,
        n_rows=sums.count,
        forgotten=deposit.numbers.forgotten + removed.count,
        generation=deposit.numbers.generation + 1,
        class_counts=counts,
        gradient_error=sums.gradient_error,
        curvature_error=sums.curvature_error,
        weighted_errors=sums.weighted_errors,
        third_error=sums.third_error,
    )
    record = replace(deposit.record, n_source=sums.count, class_counts=counts, l2=l2)
    model = from_matrix(anchor, bias=record.bias, dtype=torch.float64).with_record(record)
    hashes = RowHashes((digests[0], digests[1], digests[2]))
    return replace(deposit, model=model, numbers=numbers, sums=sums, hashes=hashes)


def shifted(deposit: Deposit, sums: Sums, lost: float) -> Sums:
    """The same sums at an anchor that is so far from one with the same outputs, their errors larger by that."""
    if lost == 0.0:
        return sums
    head, bound = deposit.head, deposit.numbers.row_bound
    slope, _, bend = SMOOTHNESS[Ridge.about.name if isinstance(head, Ridge) else head.name]
    outputs = lost * bound
    hessian = power_of_two(bend * bound**2 * outputs)
    third = 0.0 if sums.third is None else power_of_two(sizes_of(head)[1] * bound**3 * outputs)
    return replace(
        sums,
        gradient_error=sums.gradient_error + power_of_two(slope * bound * outputs),
        curvature_error=sums.curvature_error + hessian,
        weighted_errors=tuple(
            error + gauge.kappa**2 * hessian for gauge, error in zip(deposit.gauges, sums.weighted_errors, strict=True)
        ),
        third_error=sums.third_error + third,
    )


def cleared(sums: Sums, unseen: Tensor) -> Sums:
    """With nothing for features that are zero in every row that is left: what rounding left there is of rows that went.

    The loss of what is left does not depend on their weights, so the anchor may have any there: it has none.
    """
    if not len(unseen):
        return sums
    width = sums.gradient.shape[1]
    gone = torch.zeros(width, dtype=torch.bool, device=sums.gradient.device)
    gone[unseen] = True

    def without(matrix: Blocks) -> Blocks:
        values, mask = matrix.values.clone(), gone.repeat(matrix.size // width)
        values[:, mask, :] = 0.0
        values[:, :, mask] = 0.0
        return Blocks(values, matrix.joint)

    third = sums.third
    if third is not None:
        first, second, last = (part.to(third.device) for part in threes(width))
        third = torch.where((gone[first] | gone[second] | gone[last])[None], 0.0, third)
    return replace(
        sums,
        gradient=torch.where(gone[None], 0.0, sums.gradient),
        curvature=without(sums.curvature),
        weighted=tuple(map(without, sums.weighted)),
        third=third,
    )
