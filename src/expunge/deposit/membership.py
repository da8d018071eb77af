"""Whether rows are in what is left of a source, for whoever asks: at which precision, and how often."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from expunge.deposit.contents import Deposit
from expunge.deposit.leaving import look_up
from expunge.errors import DataError
from expunge.request.rows import is_labelled, require_encoder
from expunge.rows.columns import match_record, prepare_frames
from expunge.rows.features import as_features, as_labels, require_width
from expunge.rows.hashes import PRECISIONS

NAME = "the rows to look up"


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
    _require_kind(as_labels(labels, len(table), NAME), record.classes)
    found = look_up(deposit, table, labels, NAME).found
    return [
        Answer(number, bool(row >= 0), int(precision), int(times))
        for number, (row, precision, times) in enumerate(
            zip(found.row, found.precision, found.times, strict=True), start=1
        )
    ]


def _require_kind(labels: Any, classes: tuple[Any, ...]) -> None:
    """Refuse words for labels where classes are numbers, and the other way round: no row could be found."""
    words = isinstance(classes[0], str)
    if words != (np.asarray(labels).dtype.kind == "U"):
        raise DataError(
            f"{NAME}: labels such as {labels[0]!r}",
            f"the classes are {', '.join(repr(value) for value in classes[:5])}",
            "Write the labels as they were at training; --label names their column.",
        )
