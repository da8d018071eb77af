"""Rows put into the order of a model's columns, by the names that both have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from expunge.errors import DataError
from expunge.record import TrainingRecord
from expunge.rows.files import EncodedRows, encoder_of
from expunge.rows.names import INDEX, frame_names, frame_values, index_column, is_frame, names_of, order_of
from expunge.rows.preparation import Preparation
from expunge.rows.prepare import as_labels, as_table
from expunge.rows.raw_tables import raw_frame
from expunge.rows.streams import Chunk, IteratorStream, OrderedStream, Share, Stream


def in_order(rows: Any, wanted: tuple[str, ...] | None, width: int, name: str) -> Any:
    """The rows with their columns in the order wanted: (features, labels), features alone, or a stream.

    Refuses columns that lack, are too many or have other names. Where one of the two has no names, rows stay as they
    are: `width` columns, matched by position.
    """
    names = names_of(rows)
    if names is None:
        return rows
    if wanted is None:
        index = [column for column in names if INDEX.fullmatch(column)]
        if index and len(names) != width:
            raise index_column(index, name, f"the model takes {width} columns, and these are {len(names)}")
        return rows
    order = order_of(names, wanted, name)
    if order is None:
        return rows
    if isinstance(rows, Stream):
        return OrderedStream(rows, order, wanted)
    values, labels = rows if isinstance(rows, tuple) else (rows, None)
    table = as_table(values, name)[:, torch.from_numpy(order)]
    put_right = table if isinstance(values, Tensor) else table.numpy()
    if not isinstance(rows, tuple):
        return put_right
    return EncodedRows(put_right, labels, encoder_of(rows), wanted, getattr(rows, "encoder_trained", None))


def by_record(rows: Any, record: TrainingRecord | None, width: int, name: str) -> Any:
    """The same for a model's record: columns of a table that it has a preparation for become features first."""
    if record is None:
        return in_order(rows, None, width, name)
    return in_order(prepared_rows(rows, record, name), record.features, width, name)


def prepared_rows(rows: Any, record: TrainingRecord, name: str) -> Any:
    """Every data frame made into features, where the record has a preparation; plain arrays are features already.

    A frame whose columns have the features' names is no exception: those of a table of numbers are called as its
    columns are. The label column of training may be in the frame, and counts where no labels are given beside it.
    """
    if isinstance(rows, Stream):
        _refuse_unprepared(rows, record, name)
        return RecordStream(rows, record) if isinstance(rows, IteratorStream) else rows
    if record.table is None:
        return rows
    _refuse_unprepared(rows, record, name)
    frame, labels = rows if isinstance(rows, tuple) else (rows, None)
    if not is_frame(frame):
        return rows
    made, raw = Preparation.of(record.table), raw_frame(frame, name)
    features = made.features(raw)
    if labels is None:
        labels = made.labels(raw) if made.label in raw.columns else None
    elif not isinstance(labels, Tensor):
        labels = as_labels(labels, len(features), name)
    return EncodedRows(features, labels, None, made.feature_names)


def _refuse_unprepared(rows: Any, record: TrainingRecord, name: str) -> None:
    """Refuse columns that were read from a table as they are, for a model that has them prepared."""
    if record.table is not None and getattr(rows, "unprepared", False):
        raise DataError(
            f"{name}: columns of a table as they are",
            "the model was trained on columns that were prepared, and its record says how",
            "Read one file with the model's preparation (read_data(path, preparation=model.record.table)), or give a "
            "data frame; folders of Parquet files cannot be prepared: put them together in one.",
        )


class RecordStream(Stream):
    """A function's blocks, of which those that are frames are prepared, and matched by name, as a record says."""

    def __init__(self, stream: IteratorStream, record: TrainingRecord) -> None:
        self.stream, self.record = stream, record
        self.name, self.encoder, self.encoder_trained = stream.name, stream.encoder, stream.encoder_trained
        self.labelled, self.own_rows = stream.labelled, stream.own_rows

    def chunks(self, share: Share) -> Iterator[Chunk]:
        for values, labels in self.stream.chunks(share):
            if not is_frame(values):
                yield values, labels
                continue
            made = by_record((values, labels), self.record, len(frame_names(values)), self.name)
            yield frame_values(made[0], self.name) if is_frame(made[0]) else made[0], made[1]


def plain(rows: EncodedRows, name: str) -> EncodedRows:
    """The same as arrays that can be stored: features of a data frame, and its labels."""
    features, labels = rows
    if is_frame(features):
        features = frame_values(features, name)
    if labels is not None and not isinstance(labels, Tensor) and np.asarray(labels).dtype.kind == "O":
        labels = as_labels(labels, len(labels), name)
    return rows.with_arrays(features, labels)
