"""Rows put into the order of a model's columns, by the names that both have."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from expunge.data.files import EncodedRows, encoder_of
from expunge.data.names import INDEX, frame_names, frame_values, index_column, is_frame, names_of, order_of
from expunge.data.preparation import Preparation
from expunge.data.prepare import as_labels, as_table
from expunge.data.raw_tables import raw_frame
from expunge.data.streams import OrderedStream, Stream
from expunge.record import TrainingRecord


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
    """Rows of a data frame with the columns of training made into features; others, and ready ones, as they are.

    A frame that is given alone may have the label column in it.
    """
    if record.table is None or isinstance(rows, Stream):
        return rows
    frame, labels = rows if isinstance(rows, tuple) else (rows, None)
    if not is_frame(frame) or set(frame_names(frame)) == set(record.features or ()):
        return rows
    made, raw = Preparation.of(record.table), raw_frame(frame, name)
    features = made.features(raw)
    if not isinstance(rows, tuple):
        if made.label not in raw.columns:
            return EncodedRows(features, None, None, made.feature_names)
        labels = made.labels(raw)
    elif labels is not None and not isinstance(labels, Tensor):
        labels = as_labels(labels, len(features), name)
    return EncodedRows(features, labels, None, made.feature_names)


def plain(rows: EncodedRows, name: str) -> EncodedRows:
    """The same as arrays that can be stored: features of a data frame, and its labels."""
    features, labels = rows
    if is_frame(features):
        features = frame_values(features, name)
    if labels is not None and not isinstance(labels, Tensor) and np.asarray(labels).dtype.kind == "O":
        labels = as_labels(labels, len(labels), name)
    return rows.with_arrays(features, labels)
