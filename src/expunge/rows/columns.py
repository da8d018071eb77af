"""Columns matched by name: rows put into the order of a model's columns, frames made into features as its record says.

Matched by position, a column in another place would be another feature, and every number after it wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from expunge.errors import DataError
from expunge.record import TrainingRecord, names_problem
from expunge.rows.arrays import Array
from expunge.rows.features import as_labels, as_table
from expunge.rows.files import EncodedRows, encoder_of
from expunge.rows.preparation import INDEX, Preparation
from expunge.rows.streams import Chunk, Stream
from expunge.rows.tables import frame_names, frame_table, frame_values, is_frame, show_columns
from expunge.runtime.arrays import is_tensor, put, to_numpy


def names_of(rows: object) -> tuple[str, ...] | None:
    """Names of the feature columns, where these rows know them: of a file, a stream, a data frame."""
    known = getattr(rows, "feature_names", None)  # of EncodedRows and streams
    if isinstance(known, tuple):
        return known
    values = rows[0] if isinstance(rows, tuple) and len(rows) == 2 else rows
    return frame_names(values) if is_frame(values) else None


def require_names(names: Sequence[str], name: str) -> tuple[str, ...]:
    """The names, if a record can keep them and none is that of pandas' row numbers."""
    problem = names_problem(names)
    if problem is not None:
        raise DataError(
            f"{name}: {problem}",
            "columns are matched by their names later, so these are kept with the model",
            "Rename the columns, or save the rows as .npz, which names none.",
        )
    index = [column for column in names if INDEX.fullmatch(column)]
    if index:
        raise _index_error(index, name, "a model is not to be trained on row numbers")
    return tuple(names)


def order_of(names: Sequence[str], wanted: Sequence[str], name: str) -> Array | None:
    """Where each wanted column is among the names; None if they are in order. Refuses any that lack or are too many."""
    if tuple(names) == tuple(wanted):
        return None
    here, there = set(names), set(wanted)
    missing, extra = [each for each in wanted if each not in here], [each for each in names if each not in there]
    index = [column for column in extra if INDEX.fullmatch(column)]
    if index and not missing and len(index) == len(extra):
        raise _index_error(index, name, "the model was not trained on it")
    if missing or extra or len(here) != len(names):
        both = [_list_names("no column", missing)] * bool(missing) + [_list_names("extra column", extra)] * bool(extra)
        raise DataError(
            f"{name} has {' and '.join(both) or 'two columns of one name'}",
            f"the model was trained on {len(wanted)} columns: {show_columns(wanted)}",
            "Give the columns of training under their names of then, in any order, and no others.",
        )
    places = {column: place for place, column in enumerate(names)}
    return np.array([places[column] for column in wanted], dtype=np.int64)


def order_columns(rows: Any, wanted: tuple[str, ...] | None, width: int, name: str) -> Any:
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
            raise _index_error(index, name, f"the model takes {width} columns, and these are {len(names)}")
        return rows
    order = order_of(names, wanted, name)
    if order is None:
        return rows
    if isinstance(rows, Stream):
        return rows.mapped(lambda values, labels: (values[:, order], labels), wanted)
    values, labels = rows if isinstance(rows, tuple) else (rows, None)
    table = as_table(values, name)
    ordered = table[:, put(order, table)]
    ordered = ordered if is_tensor(values) else to_numpy(ordered)
    if not isinstance(rows, tuple):
        return ordered
    return EncodedRows(ordered, labels, encoder_of(rows), wanted, getattr(rows, "encoder_trained", None))


def match_record(rows: Any, record: TrainingRecord | None, width: int, name: str) -> Any:
    """Rows as a model's record takes them: frames made into features, columns in its order (see `order_columns`)."""
    if record is None:
        return order_columns(rows, None, width, name)
    return order_columns(prepare_frames(rows, record, name), record.features, width, name)


def prepare_frames(rows: Any, record: TrainingRecord, name: str) -> Any:
    """Every data frame made into features, where the record has a preparation; plain arrays are features already.

    A frame whose columns have the features' names is no exception: those of a table of numbers are called as its
    columns are. The label column of training may be in the frame, and counts where no labels are given beside it.
    """
    if record.table is not None and getattr(rows, "unprepared", False):
        raise DataError(
            f"{name}: columns of a table as they are",
            "the model was trained on columns that were prepared, and its record says how",
            "Read one file with the model's preparation (read_data(path, preparation=model.record.table)), or give a "
            "data frame; folders of Parquet files cannot be prepared: put them together in one.",
        )
    if isinstance(rows, Stream):
        # only a caller's blocks may be frames
        return rows.mapped(partial(_match_chunk, record=record, name=rows.name)) if rows.own_rows else rows
    frame, labels = rows if isinstance(rows, tuple) else (rows, None)
    if record.table is None or not is_frame(frame):
        return rows
    preparation, table = Preparation.of(record.table), frame_table(frame, name)
    features = preparation.features(table)
    if labels is None:
        labels = preparation.labels(table) if preparation.label in table.names else None
    elif not is_tensor(labels):
        labels = as_labels(labels, len(features), name)
    return EncodedRows(features, labels, None, preparation.feature_names)


def _match_chunk(values: Any, labels: Any, record: TrainingRecord, name: str) -> Chunk:
    """A block of a stream, prepared and matched by name where it is a frame."""
    if not is_frame(values):
        return values, labels
    values, labels = match_record((values, labels), record, len(frame_names(values)), name)
    return (frame_values(values, name) if is_frame(values) else values), labels


def to_arrays(rows: EncodedRows, name: str) -> EncodedRows:
    """Rows as arrays that can be stored: features of a data frame, and labels that pandas holds as objects."""
    features, labels = rows
    if is_frame(features):
        features = frame_values(features, name)
    if labels is not None and not is_tensor(labels) and np.asarray(labels).dtype.kind == "O":
        labels = as_labels(labels, len(labels), name)
    return rows.with_arrays(features, labels)


def _index_error(index: Sequence[str], name: str, required: str) -> DataError:
    return DataError(
        f"{name}: {_list_names('column', index)}, which looks like the row numbers that pandas writes",
        required,
        "Write the file without them (index=False in to_csv and to_parquet, or reset_index(drop=True) before); if it "
        "is a feature, give it a name.",
    )


def _list_names(what: str, names: Sequence[str]) -> str:
    return f"{what}{'s' if len(names) > 1 else ''} {show_columns([repr(name) for name in names], 8)}"
