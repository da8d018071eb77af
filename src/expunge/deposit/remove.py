"""Rows leave a deposit: taken out of every sum, and gone.

A copy that was kept in float32 or with six decimals is recognised, and the difference is charged: with `t` the distance
of copy and original, a row's gradient differs by at most `(||p - t(y)|| + slope ||W|| B) t` and its Hessian by at most
`(2 B curve + bend ||W|| B^2) t`, where `slope` bounds the link's derivative, `curve` C(p) and `bend` C's; third
derivatives alike (sums.py).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expunge.bounds.scale import power_of_two
from expunge.deposit.file import Deposit
from expunge.deposit.matrices import UNIT_ROUNDOFF, Blocks
from expunge.deposit.membership import Membership, numbered
from expunge.deposit.shape import gram_of, rested, unsure
from expunge.deposit.sums import Sums, by_class, copy_error, sizes_of, sums_of, threes
from expunge.errors import DataError
from expunge.heads import Logistic, OneVsRest, Ridge, Rows, RowSet, Softmax
from expunge.model import from_matrix
from expunge.record import HESSIAN_LIPSCHITZ_FACTOR
from expunge.rows.hashes import PRECISIONS, RowHashes

SMALLEST_STEP = 2.0**-149  # of float32, whose steps are relative to the value above that only
SIX_DECIMALS = PRECISIONS.index("six decimals")
FLOAT32 = PRECISIONS.index("float32")
# slope of the link, size of C(p), and by how much C(p) changes with the outputs
SMOOTHNESS = {
    Softmax.about.name: (0.5, 0.5, HESSIAN_LIPSCHITZ_FACTOR),
    OneVsRest.about.name: (0.25, 0.25, 1.0 / (6.0 * math.sqrt(3.0))),
    Logistic.about.name: (0.25, 0.25, 1.0 / (6.0 * math.sqrt(3.0))),
    Ridge.about.name: (1.0, 1.0, 0.0),
}


def remove_rows(deposit: Deposit, rows: Rows, membership: Membership, removed: Sums | None = None) -> Deposit:
    """The deposit of what is retained; refuses copies that say too little of a row. `removed`: see `charged_sums`."""
    if removed is None:
        removed = charged_sums(deposit, rows, membership)
    retained = np.ones(len(deposit.hashes), bool)
    retained[membership.matches.row] = False
    first, second, third = (each[retained] for each in deposit.hashes.digests)
    sums = deposit.sums.without(removed)
    assert sums.gram is not None
    penalty, matrix = deposit.penalty(sums.count), deposit.model.matrix()
    anchor, lost = rested(matrix, sums.gram, penalty.diagonal(matrix)[0])
    sums = _cleared(_shifted(deposit, sums, lost), sums.gram.unseen)
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
    record = replace(deposit.record, n_source=sums.count, class_counts=counts, l2=penalty.l2)
    model = from_matrix(anchor, bias=record.bias, dtype=torch.float64).with_record(record)
    return replace(deposit, model=model, numbers=numbers, sums=sums, hashes=RowHashes((first, second, third)))


def sum_rows(deposit: Deposit, rows: RowSet) -> Sums:
    """The sums over rows as they are given, and what float64 may have changed of them."""
    with_third, weighed = deposit.sums.third is not None, by_class(rows, deposit.record)
    return sums_of(deposit.head, deposit.anchor, weighed, deposit.gauges, third=with_third, gram=gram_of(weighed))


def charged_sums(deposit: Deposit, rows: Rows, membership: Membership, *, check: bool = True) -> Sums:
    """The sums over rows that leave, their errors larger by what copies may have changed."""
    away = distances(membership, rows)
    if check:
        _require_sure(deposit, rows, membership, away)
    sums, total = sum_rows(deposit, rows), float(away.sum())
    if total == 0.0:
        return sums
    assert sums.gram is not None
    same = torch.as_tensor(membership.matches.precision == 0).to(rows.device)  # a copy may be on the grid by itself
    sums = replace(sums, gram=replace(sums.gram, off=gram_of(Rows(rows.features[same], rows.labels[same])).off))
    head, weights = deposit.head, deposit.anchor
    slope, curve, bend = SMOOTHNESS[head.name]
    bound, size, each = head.row_bound, float(torch.linalg.matrix_norm(weights, 2)), total / len(rows)
    hessian = 2.0 * bound * curve + bend * size * bound**2
    weighted = []
    for gauge, error in zip(deposit.gauges, sums.weighted_errors, strict=True):
        stretch = float(gauge.inverse.norm()) * (1.0 + gauge.lost)  # a copy is so much farther out for its distance
        steep = stretch * (2.0 * gauge.kappa + stretch * total)
        outside = (1.0 + stretch * total / gauge.kappa) ** 2
        weighted.append(error * outside + each * (gauge.kappa**2 * hessian + steep * curve * bound**2))
    return sums.with_errors(
        sums.gradient_error + each * (head.residual_sup(weights) + slope * size * bound),
        sums.curvature_error + each * hessian,
        tuple(weighted),
        sums.third_error + each * copy_error(head, weights) if sums.third is not None else 0.0,
    )


def distances(membership: Membership, rows: Rows) -> NDArray[np.float64]:
    """How far each row can be from its original: nothing where it is the same to the last digit.

    Copy and original round to the same value, so they are at most twice the rounding apart; scaling rows to a norm
    bound brings them no further apart. A network's examples have no copies.
    """
    at, root = membership.matches.precision, math.sqrt(rows.n_features)
    if not at.any():
        return np.zeros(len(at))
    lengths = rows.features.double().norm(dim=1).cpu().numpy()
    away: NDArray[np.float64] = np.where(at == FLOAT32, lengths * 2.0**-23 + SMALLEST_STEP * root, 0.0)
    return np.asarray(np.where(at == SIX_DECIMALS, 1e-6 * root, away) * 1.001)


def _require_sure(deposit: Deposit, rows: Rows, membership: Membership, away: NDArray[np.float64]) -> None:
    """Refuse a copy of which it is not sure to which point of the grid its original was rounded (shape.py), or in which
    features that has zeros."""
    if deposit.of_network:
        return
    features, at = rows.features.double(), membership.matches.precision
    scaled = 4.0 * (features.shape[1] + 8) * UNIT_ROUNDOFF  # to a norm bound, in another order than then
    farthest = torch.as_tensor(away).to(features) + scaled * features.norm(dim=1)
    # what rounds to zero is zero in a copy that was rounded, and may be anything that does in its original
    to_zero = np.where(at == FLOAT32, 0.5 * SMALLEST_STEP, np.where(at == SIX_DECIMALS, 0.5e-6, 0.0))
    nearly = (features != 0.0) & (features.abs() <= torch.as_tensor(to_zero).to(features)[:, None])
    doubtful = torch.nonzero(unsure(features, farthest) | nearly.any(dim=1)).reshape(-1).tolist()
    if doubtful:
        raise DataError(
            f"{len(doubtful):,} of {len(rows):,} rows ({numbered(doubtful)}) are rounded copies, too far from what was "
            f"trained on",
            "noise takes its shape from the retained rows, which a row has to leave to the last digit",
            "Give them as they were trained on, with all digits.",
        )


def _shifted(deposit: Deposit, sums: Sums, lost: float) -> Sums:
    """The sums at an anchor that is so far from one with the same outputs, their errors larger by that."""
    if lost == 0.0:
        return sums
    head, bound = deposit.head, deposit.numbers.row_bound
    slope, _, bend = SMOOTHNESS[Ridge.about.name if isinstance(head, Ridge) else head.name]
    outputs = lost * bound
    hessian = power_of_two(bend * bound**2 * outputs)
    pairs = zip(deposit.gauges, sums.weighted_errors, strict=True)
    return sums.with_errors(
        sums.gradient_error + power_of_two(slope * bound * outputs),
        sums.curvature_error + hessian,
        tuple(error + gauge.kappa**2 * hessian for gauge, error in pairs),
        sums.third_error + (0.0 if sums.third is None else power_of_two(sizes_of(head)[1] * bound**3 * outputs)),
    )


def _cleared(sums: Sums, unseen: Tensor) -> Sums:
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
