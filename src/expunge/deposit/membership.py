"""Whether rows are in what is left of a source, by their hashes; and rows taken out of a deposit, out of every sum."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.bounds.calibration import power_of_two
from expunge.deposit.file import Deposit
from expunge.deposit.matrices import UNIT_ROUNDOFF, Blocks, gram_of, rested, unsure
from expunge.deposit.sums import Sums, by_class, copy_error, sizes_of, sums_of, threes
from expunge.errors import DataError
from expunge.heads import Logistic, OneVsRest, Ridge, Rows, RowSet, Softmax
from expunge.model import from_matrix
from expunge.record import HESSIAN_LIPSCHITZ_FACTOR
from expunge.request.sets import is_labelled, require_encoder
from expunge.rows.columns import match_record, prepare_frames
from expunge.rows.features import as_features, as_labels, require_width
from expunge.rows.hashes import PRECISIONS, Matches, RowHashes, hash_rows, match_hashes
from expunge.runtime.arrays import (
    Array,
    copy,
    double,
    namespace,
    norm,
    put,
    row_lengths,
    to_numpy,
    written_out,
    zeros,
)

# Whether rows are in what is left of a source, by their hashes: at which precision, and how often -------------------

NAME = "the rows to look up"


@dataclass(frozen=True)
class Membership:
    """Which rows were found in the source, at which precision; -1 for one that was not, or not so often.

    `again` are those that are there, and were given more often than that.
    """

    matches: Matches
    again: tuple[int, ...] = ()

    @property
    def missing(self) -> list[int]:
        """Rows that were not found."""
        return [int(row) for row in np.flatnonzero(self.matches.row < 0)]

    def count(self, precision: int) -> int:
        """How many were recognised at this precision."""
        return int(np.count_nonzero(self.matches.precision == precision))


def look_up(deposit: Deposit, features: Any, labels: Any, name: str = "the forget set") -> Membership:
    """Whether these rows, as they were given, are in the source, and as often as they are asked for."""
    given = hash_rows(deposit.key, features, labels, name)
    membership = Membership(match_hashes(given, deposit.hashes))
    if not membership.missing:
        return membership
    # the missing rows that equal one that was found, at any precision
    apart = set(membership.missing)
    known = [{digest.tobytes() for row, digest in enumerate(level) if row not in apart} for level in given.digests]
    both = list(zip(given.digests, known, strict=True))
    again = [row for row in membership.missing if any(level[row].tobytes() in there for level, there in both)]
    return replace(membership, again=tuple(again))


def as_given(rows: Any, deposit: Deposit) -> tuple[Any, Any]:
    """Features in the order of the model's columns, and labels, as they are hashed."""
    ordered = match_record(rows, deposit.record, deposit.model.n_features, "the forget set")
    return ordered[0], ordered[1]


def require_members(membership: Membership) -> None:
    """Refuse rows that were never in the source, or are asked for more often than they occurred."""
    missing = membership.missing
    if not missing:
        return
    one = len(missing) == 1
    rows = f"{len(missing):,} of {len(membership.matches.row):,} rows ({numbered(missing)}) {'is' if one else 'are'}"
    if len(membership.again) == len(missing):
        raise DataError(
            f"{rows} given more often than what is left of the source has {'it' if one else 'them'}",
            "each row leaves once",
            "Give each row as often as it was trained on (expunge member says how often); what was forgotten before is "
            "gone already.",
        )
    raise DataError(
        f"{rows} not in what is left of the source",
        "each row must have been trained on, and leaves once",
        "Check values, columns and labels against what was trained on (expunge member looks each row up); rows that "
        "were forgotten before are gone already.",
    )


def numbered(rows: list[int]) -> str:
    """The first of some rows by their numbers, from 1, for a message."""
    return "row " + ", ".join(str(row + 1) for row in rows[:5]) + (", ..." if len(rows) > 5 else "")


@dataclass(frozen=True)
class RowAnswer:
    """Whether a row, counted from 1, is there; `precision` is the finest it agrees at, as a place in PRECISIONS, or -1.

    `times` says how many rows of the source agree with it there; 0 where none does. A row that is asked for more often
    than it occurs is there as often as it occurs, and then not.
    """

    row: int
    there: bool
    precision: int
    times: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"precision": PRECISIONS[self.precision] if self.there else None}


def answers(deposit: Deposit, rows: Any) -> list[RowAnswer]:
    """One for each row, in order; `rows` are (features, labels) as they were trained on, or a frame with both."""
    record = deposit.record
    if not deposit.of_network:
        rows = prepare_frames(rows, record, NAME)
    if not is_labelled(rows):
        raise DataError(f"{NAME}: no labels", "a row is known by its label too", "Give (features, labels).")
    if deposit.of_network:  # examples as they are before the network, each of any shape
        features, labels = rows
        examples = to_numpy(features)
        table = as_features(examples.reshape(len(examples), -1), NAME)
    else:
        require_encoder(rows, record, NAME)
        features, labels = match_record(rows, record, deposit.model.n_features, NAME)
        table = as_features(features, NAME, sparse=True)
        require_width(table.shape[1], deposit.model.n_features, NAME)
    words = isinstance(record.classes[0], str)
    if words != (np.asarray(as_labels(labels, table.shape[0], NAME)).dtype.kind == "U"):  # no row could be found
        raise DataError(
            f"{NAME}: labels such as {labels[0]!r}",
            f"the classes are {', '.join(repr(value) for value in record.classes[:5])}",
            "Write the labels as they were at training; --label names their column.",
        )
    found = look_up(deposit, table, labels, NAME).matches
    each = zip(found.row, found.precision, found.times, strict=True)
    return [
        RowAnswer(number, bool(row >= 0), int(precision), int(times))
        for number, (row, precision, times) in enumerate(each, start=1)
    ]


# Rows leave a deposit: taken out of every sum, and gone -------------------------------------------------------------
# A copy that was kept in float32 or with six decimals is recognised, and the difference is charged: with `t` the
# distance of copy and original, a row's gradient differs by at most `(||p - t(y)|| + slope ||W|| B) t` and its Hessian
# by at most `(2 B curve + bend ||W|| B^2) t`, where `slope` bounds the link's derivative, `curve` C(p) and `bend` C's;
# third derivatives alike (sums.py).

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
    penalty, matrix = deposit.penalty(sums.count), deposit.anchor
    anchor, lost = rested(matrix, sums.gram, penalty.diagonal(matrix)[0])
    sums = _cleared(_shifted(deposit, sums, lost), sums.gram.unseen)
    classes = Counter(rows.labels.tolist())
    counts = tuple(count - classes[index] for index, count in enumerate(deposit.numbers.class_counts))
    numbers = replace(
        deposit.numbers,
        n_rows=sums.count,
        forgotten=deposit.numbers.forgotten + removed.count,
        generation=deposit.numbers.generation + 1,
        class_counts=counts,
    )
    record = replace(deposit.record, n_source=sums.count, class_counts=counts, l2=penalty.l2)
    model = from_matrix(anchor, bias=record.bias, dtype="float64").with_record(record)
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
    same = put(membership.matches.precision == 0, rows.labels)  # a copy may be on the grid by itself
    sums = replace(sums, gram=replace(sums.gram, off=gram_of(Rows(rows.features[same], rows.labels[same])).off))
    head, weights = deposit.head, deposit.anchor
    slope, curve, bend = SMOOTHNESS[head.name]
    bound, size, each = head.row_bound, float(namespace(weights).linalg.matrix_norm(weights, ord=2)), total / len(rows)
    hessian = 2.0 * bound * curve + bend * size * bound**2
    weighted = []
    for gauge, error in zip(deposit.gauges, sums.weighted_errors, strict=True):
        stretch = norm(gauge.inverse) * (1.0 + gauge.lost)  # a copy is so much farther out for its distance
        steep = stretch * (2.0 * gauge.kappa + stretch * total)
        outside = (1.0 + stretch * total / gauge.kappa) ** 2
        weighted.append(error * outside + each * (gauge.kappa**2 * hessian + steep * curve * bound**2))
    return replace(
        sums,
        gradient_error=sums.gradient_error + each * (head.residual_sup(weights) + slope * size * bound),
        curvature_error=sums.curvature_error + each * hessian,
        weighted_errors=tuple(weighted),
        third_error=sums.third_error + each * copy_error(head, weights) if sums.third is not None else 0.0,
    )


def distances(membership: Membership, rows: Rows) -> NDArray[np.float64]:
    """How far each row can be from its original: nothing where it is the same to the last digit.

    Copy and original round to the same value, so they are at most twice the rounding apart; scaling rows to a norm
    bound brings them no further apart. A network's examples have no copies.
    """
    at, root = membership.matches.precision, math.sqrt(rows.n_features)
    if not at.any():
        return np.zeros(len(at))
    lengths = to_numpy(row_lengths(double(rows.features)))
    away: NDArray[np.float64] = np.where(at == FLOAT32, lengths * 2.0**-23 + SMALLEST_STEP * root, 0.0)
    return np.asarray(np.where(at == SIX_DECIMALS, 1e-6 * root, away) * 1.001)


def _require_sure(deposit: Deposit, rows: Rows, membership: Membership, away: NDArray[np.float64]) -> None:
    """Refuse a copy of which it is not sure to which point of the grid its original was rounded (`Gram`), or in which
    features that has zeros."""
    if deposit.of_network:
        return
    features, at = double(rows.features), membership.matches.precision
    scaled = 4.0 * (features.shape[1] + 8) * UNIT_ROUNDOFF  # to a norm bound, in another order than then
    farthest = put(away, rows.labels) + scaled * row_lengths(features)
    # what rounds to zero is zero in a copy that was rounded, and may be anything that does in its original
    to_zero = np.where(at == FLOAT32, 0.5 * SMALLEST_STEP, np.where(at == SIX_DECIMALS, 0.5e-6, 0.0))
    doubtful: list[int] = []
    for part, values in written_out(features):
        nearly = (values != 0.0) & (abs(values) <= put(to_zero[part], values)[:, None])
        odd = to_numpy(unsure(values, farthest[part]) | nearly.any(axis=1))
        doubtful += (part.start + np.flatnonzero(odd)).tolist()
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
    return replace(
        sums,
        gradient_error=sums.gradient_error + power_of_two(slope * bound * outputs),
        curvature_error=sums.curvature_error + hessian,
        weighted_errors=tuple(error + gauge.kappa**2 * hessian for gauge, error in pairs),
        third_error=sums.third_error
        + (0.0 if sums.third is None else power_of_two(sizes_of(head)[1] * bound**3 * outputs)),
    )


def _cleared(sums: Sums, unseen: Array) -> Sums:
    """With nothing for features that are zero in every row that is left: what rounding left there is of rows that went.

    The loss of what is left does not depend on their weights, so the anchor may have any there: it has none.
    """
    if not len(unseen):
        return sums
    width, xp = sums.gradient.shape[1], namespace(sums.gradient)
    gone = zeros(sums.gradient, (width,), xp.bool)
    gone[unseen] = True

    def without(matrix: Blocks) -> Blocks:
        values, mask = copy(matrix.values), xp.tile(gone, (matrix.size // width,))
        values[:, mask, :] = 0.0
        values[:, :, mask] = 0.0
        return Blocks(values, matrix.joint)

    third = sums.third
    if third is not None:
        first, second, last = (put(part, third) for part in threes(width))
        third = copy(third)
        third[:, gone[first] | gone[second] | gone[last]] = 0.0
    gradient = copy(sums.gradient)
    gradient[:, gone] = 0.0
    return replace(
        sums,
        gradient=gradient,
        curvature=without(sums.curvature),
        weighted=tuple(map(without, sums.weighted)),
        third=third,
    )
