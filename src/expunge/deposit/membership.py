"""Whether rows are in what is left of a source, by their hashes: at which precision, and how often."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from expunge.deposit.file import Deposit
from expunge.errors import DataError
from expunge.request.sets import is_labelled, require_encoder
from expunge.rows.columns import match_record, prepare_frames
from expunge.rows.features import as_features, as_labels, require_width
from expunge.rows.hashes import PRECISIONS, Matches, hash_rows, match_hashes

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
class Answer:
    """Of one row, counted from 1: `precision` is the position in PRECISIONS of the finest at which it agrees, or -1.

    `times` says how many rows of the source agree with it there; 0 where none does. A row that is asked for more often
    than it occurs is there as often as it occurs, and then not.
    """

    row: int
    there: bool
    precision: int
    times: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"precision": PRECISIONS[self.precision] if self.there else None}


def answers(deposit: Deposit, rows: Any) -> list[Answer]:
    """One for each row, in order; `rows` are (features, labels) as they were trained on, or a frame with both."""
    record = deposit.record
    if not deposit.of_network:
        rows = prepare_frames(rows, record, NAME)
    if not is_labelled(rows):
        raise DataError(f"{NAME}: no labels", "a row is known by its label too", "Give (features, labels).")
    if deposit.of_network:  # examples as they are before the network, each of any shape
        features, labels = rows
        table = as_features(torch.as_tensor(features).flatten(1), NAME)
    else:
        require_encoder(rows, record, NAME)
        features, labels = match_record(rows, record, deposit.model.n_features, NAME)
        table = as_features(features, NAME)
        require_width(table.shape[1], deposit.model.n_features, NAME)
    words = isinstance(record.classes[0], str)
    if words != (np.asarray(as_labels(labels, len(table), NAME)).dtype.kind == "U"):  # no row could be found
        raise DataError(
            f"{NAME}: labels such as {labels[0]!r}",
            f"the classes are {', '.join(repr(value) for value in record.classes[:5])}",
            "Write the labels as they were at training; --label names their column.",
        )
    found = look_up(deposit, table, labels, NAME).matches
    each = zip(found.row, found.precision, found.times, strict=True)
    return [
        Answer(number, bool(row >= 0), int(precision), int(times))
        for number, (row, precision, times) in enumerate(each, start=1)
    ]
