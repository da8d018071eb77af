"""Rows put into the order of a model's columns, by the names that both have."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from expunge.data.files import EncodedRows, encoder_of
from expunge.data.names import INDEX, frame_values, index_column, is_frame, names_of, order_of
from expunge.data.prepare import as_labels, as_table
from expunge.data.streams import OrderedStream, Stream


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


def plain(rows: EncodedRows, name: str) -> EncodedRows:
    """The same as arrays that can be stored: features of a data frame, and its labels."""
    features, labels = rows
    if is_frame(features):
        features = frame_values(features, name)
    if labels is not None and not isinstance(labels, Tensor) and np.asarray(labels).dtype.kind == "O":
        labels = as_labels(labels, len(labels), name)
    return rows.with_arrays(features, labels)
