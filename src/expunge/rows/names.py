"""What feature columns are called: names of files and data frames, and rows put into the order of a model's columns.

Matched by position, a column in another place would be another feature, and every number after it wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.interchange
from numpy.typing import NDArray
from torch import Tensor

from expunge.errors import DataError
from expunge.record import names_problem

INDEX = re.compile(r"(Unnamed: \d+)?|__index_level_\d+__")  # what pandas' row numbers are called in files
SHOWN = 8


def names_of(rows: object) -> tuple[str, ...] | None:
    """Names of the feature columns, where these rows know them: of a file, a stream, a data frame."""
    known = getattr(rows, "feature_names", None)  # of EncodedRows and streams
    if isinstance(known, tuple):
        return known
    values = rows[0] if isinstance(rows, tuple) and len(rows) == 2 else rows
    return frame_names(values) if is_frame(values) else None


def is_frame(values: object) -> bool:
    """Whether these have named columns: a frame of pandas, polars, Arrow or any other library, or a dict of columns."""
    if isinstance(values, (np.ndarray, Tensor, list, tuple)):
        return False
    if isinstance(values, Mapping):
        return True
    return hasattr(values, "__dataframe__") or (hasattr(values, "columns") and hasattr(values, "__array__"))


def frame_names(frame: Any) -> tuple[str, ...]:
    """The names of its columns."""
    if isinstance(frame, Mapping):
        return tuple(str(name) for name in frame)
    named = getattr(frame, "column_names", None)  # Arrow's; its `columns` are the values
    if isinstance(named, list):
        return tuple(str(name) for name in named)
    if hasattr(frame, "columns"):
        return tuple(str(name) for name in frame.columns)
    return tuple(str(name) for name in frame.__dataframe__().column_names())


def frame_values(frame: Any, name: str) -> NDArray[Any]:
    """The columns as one array; refuses a column that has no numbers, by name."""
    if isinstance(frame, Mapping):
        frame = arrow_columns(frame, name)
    elif not hasattr(frame, "__array__"):
        frame = pyarrow.interchange.from_dataframe(frame)
    table = np.asarray(frame)
    if table.dtype.kind in "fiub":
        return table
    names = frame_names(frame)
    columns = [np.asarray(frame[key]) for key in (frame.columns if hasattr(frame, "dtypes") else names)]
    odd = [which for which, column in zip(names, columns, strict=True) if column.dtype.kind not in "fiub"]
    if odd:
        raise DataError(
            f"{name}: {_listed('column', odd)} without numbers, or with empty cells",
            "features must be numbers",
            "Encode such columns as numbers the way it was done for training, fill empty cells in, or drop them.",
        )
    return np.column_stack([column.astype(np.float64) for column in columns])


def arrow_columns(columns: Mapping[Any, Any], name: str) -> pa.Table:
    """A dict of columns as an Arrow table; refuses columns that differ in length, or hold more than a value a row."""
    try:
        return pa.table({str(key): pa.array(_column(values)) for key, values in columns.items()})
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(
            f"{name}: a dict that is no table ({str(error)[:200]})",
            "each column has one value a row, of one kind",
            "Give columns of the same length, for example {'age': [31, 45], 'town': ['A', 'B']}.",
        ) from error


def _column(values: Any) -> Any:
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    if isinstance(values, (list, np.ndarray)) or hasattr(values, "__arrow_array__") or hasattr(values, "__array__"):
        return values
    return list(values)


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
        raise index_column(index, name, "a model is not to be trained on row numbers")
    return tuple(names)


def order_of(names: Sequence[str], wanted: Sequence[str], name: str) -> NDArray[np.int64] | None:
    """Where each wanted column is among the names; None if they are in order. Refuses any that lack or are too many."""
    if tuple(names) == tuple(wanted):
        return None
    here, there = set(names), set(wanted)
    missing, extra = [each for each in wanted if each not in here], [each for each in names if each not in there]
    index = [column for column in extra if INDEX.fullmatch(column)]
    if index and not missing and len(index) == len(extra):
        raise index_column(index, name, "the model was not trained on it")
    if missing or extra or len(here) != len(names):
        both = [_listed("no column", missing)] * bool(missing) + [_listed("extra column", extra)] * bool(extra)
        raise DataError(
            f"{name} has {' and '.join(both) or 'two columns of one name'}",
            f"the model was trained on {len(wanted)} columns: {_names(wanted)}",
            "Give the columns of training under their names of then, in any order, and no others.",
        )
    places = {column: place for place, column in enumerate(names)}
    return np.array([places[column] for column in wanted], dtype=np.int64)


def index_column(index: Sequence[str], name: str, required: str) -> DataError:
    """The error for a column of row numbers."""
    return DataError(
        f"{name}: {_listed('column', index)}, which looks like the row numbers that pandas writes",
        required,
        "Write the file without them (index=False in to_csv and to_parquet, or reset_index(drop=True) before); if it "
        "is a feature, give it a name.",
    )


def _listed(what: str, names: Sequence[str]) -> str:
    return f"{what}{'s' if len(names) > 1 else ''} {_names(names)}"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name[:40]) for name in names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")
