"""Columns of a table as arrays: a label column and feature columns, checked."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from expunge.errors import DataError, FileError
from expunge.runtime.memory import require_fits

Array = NDArray[Any]
LABEL_COLUMNS = ("y", "label")
LONGEST_LABEL = 1_000  # characters


def table_columns(
    schema: pa.Schema, path: Path, label: str | None, columns: Sequence[str] | None
) -> tuple[str, tuple[str, ...]]:
    """The label column and the feature columns: those named, or all others."""
    there = schema.names
    known = set(there)
    column = label if label is not None else next((name for name in LABEL_COLUMNS if name in known), None)
    if column is None or column not in known:
        raise no_label(path, label, there)
    if len(known) != len(there):
        raise FileError(f"{path} has two columns of one name", "column names must differ", "Rename one of them.")
    names = tuple(name for name in there if name != column) if columns is None else tuple(columns)
    unknown = [name for name in names if name not in known or name == column]
    if unknown:
        raise FileError(
            f"{path} has no feature column {unknown[0]!r}",
            "every column named must be there",
            f"The columns are {columns_shown(there)}.",
        )
    if not names:
        raise DataError(
            f"{path} has only the label column {column!r}", "at least one feature column is needed", "Add the features."
        )
    numbers = [name for name in pandas_index(schema) if name in names]
    if numbers and columns is None:
        raise FileError(
            f"{path}: column {numbers[0]!r} is the index of a pandas frame",
            "features are columns",
            "Write it with reset_index(drop=True); if it is a feature or the label, with reset_index().",
        )
    return column, names


def no_label(name: Path | str, label: str | None, there: Sequence[str], bare: bool = False) -> FileError:
    """The error for a label column that is not there, or was not named; the columns are listed once.

    `bare`: the first line looks like data.
    """
    close = None if label is None else nearest(label, there)
    shown, remedy = (
        columns_shown(there),
        f"Did you mean --label {close}?" if close else "Name it with --label (label=).",
    )
    if label is not None:
        remedy = (
            f"{remedy} The columns are {shown}."
            if close
            else f"Name it with --label (label=); the columns are {shown}."
        )
    return FileError(
        f"{name} has no column {label!r}" if label is not None else f"{name} has columns {shown}, and none is called y",
        "a label column is needed",
        remedy + (" The first line looks like data: a file without a header is read with --no-header." if bare else ""),
    )


def nearest(name: str, there: Sequence[str]) -> str | None:
    """The name that is written most alike, if any is.

    >>> nearest("defualt", ["age", "default"])
    'default'
    """
    folded = {each.casefold(): each for each in there}
    found = difflib.get_close_matches(name.casefold(), folded, 1, 0.6)
    return folded[found[0]] if found else None


def columns_shown(there: Sequence[str], most: int = 14, longest: int = 40) -> str:
    """Names of columns in a line: all of few; of many the first, and the last, which is often the label.

    >>> columns_shown([f"f{place}" for place in range(40)], 4)
    'f0, f1, f2 ... f39 (40 columns)'
    """
    names = [name if len(name) <= longest else name[: longest - 3] + "..." for name in there]
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} ... {names[-1]} ({len(names):,} columns)"


def pandas_index(schema: pa.Schema) -> list[str]:
    """Columns that were an index, by what pandas writes beside a table; those it named itself are known by name."""
    try:
        written = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        index = written.get("index_columns", []) if isinstance(written, dict) else []
    except (ValueError, RecursionError):
        return []
    own = [name for name in index if isinstance(name, str)] if isinstance(index, list) else []
    return [name for name in own if not name.startswith("__index_level_")]


def list_lengths(table: pa.Table, names: Sequence[str]) -> dict[str, int]:
    """How many features each column of lists has, of a table whose rows have as many."""
    lists = [name for name in names if is_list(table.schema.field(name).type)]
    return {name: int(pa.compute.list_value_length(table[name])[0].as_py()) for name in lists}


def feature_names(names: Sequence[str], lengths: Mapping[str, int]) -> tuple[str, ...]:
    """What the features of these columns are called; those of a column of lists by their place in it.

    >>> feature_names(["age", "pixels"], {"pixels": 2})
    ('age', 'pixels[0]', 'pixels[1]')
    """
    named: list[str] = []
    for name in names:
        named += [f"{name}[{place}]" for place in range(lengths[name])] if name in lengths else [name]
    return tuple(named)


def table_arrays(table: pa.Table, path: Path, column: str, names: Sequence[str]) -> tuple[Array, Array]:
    """Features (float64) and labels. A feature column of lists, all of one length, gives as many features."""
    require_filled(table, path, [*names, column])
    return _features(table, path, names), label_array(table, path, column)


def require_filled(table: pa.Table, path: Path, names: Sequence[str]) -> None:
    """Refuse columns with empty cells."""
    for name in names:
        coded = pa.types.is_dictionary(table.schema.field(name).type)
        empty = table[name].null_count + sum(chunk.dictionary.null_count for chunk in table[name].chunks if coded)
        if empty:
            raise DataError(
                f"{path}: column {name!r} has {empty:,} empty cells",
                "every cell needs a value",
                "Fill them in or drop those rows, as was done for training.",
            )


def require_types(schema: pa.Schema, path: Path, column: str, names: Sequence[str]) -> None:
    """Refuse columns that are neither numbers nor, for the label, text: before they are read."""
    for name in names:
        kind = schema.field(name).type
        require_numbers(kind.value_type if is_list(kind) else kind, name, path)
    require_label(schema.field(column).type, path, column)


def require_numbers(kind: pa.DataType, name: str, path: Path) -> None:
    """Refuse a column whose values are no numbers."""
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"{path}: column {name!r} holds {kind}",
            "features must be numbers",
            "Encode it as numbers the way it was encoded for training, or drop it.",
        )


def require_label(kind: pa.DataType, path: Path, column: str) -> None:
    """Refuse a label column that holds neither numbers nor text."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"{path}: label column {column!r} holds {kind}", "labels are whole numbers or text", "Convert them."
        )


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _features(table: pa.Table, path: Path, names: Sequence[str]) -> Array:
    parts = [(name, table.schema.field(name).type) for name in names]
    if not any(is_list(kind) for _, kind in parts):
        features = np.empty((table.num_rows, len(names)), dtype=np.float64)
        for index, (name, kind) in enumerate(parts):
            features[:, index] = _numbers(table[name], kind, name, path)
        return features
    return np.concatenate([_wide(table, name, kind, path) for name, kind in parts], axis=1)


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type has several features."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _wide(table: pa.Table, name: str, kind: pa.DataType, path: Path) -> Array:
    """A column as rows x features: one feature, or as many as its lists are long."""
    if not is_list(kind):
        return _numbers(table[name], kind, name, path)[:, None]
    lengths = pa.compute.unique(pa.compute.list_value_length(table[name])).to_pylist()
    values = pa.compute.list_flatten(table[name])
    if len(lengths) > 1 or values.null_count:
        raise DataError(
            f"{path}: column {name!r} has lists of {len(lengths)} lengths, or with empty places",
            "all rows need as many features",
            "Pad or drop them as was done for training.",
        )
    return _numbers(values, kind.value_type, name, path).reshape(table.num_rows, -1)


def _numbers(values: pa.ChunkedArray, kind: pa.DataType, name: str, path: Path) -> Array:
    require_numbers(kind, name, path)
    numbers: Array = values.cast(pa.float64(), safe=False).to_numpy()
    return numbers


def label_array(table: pa.Table, path: Path, column: str) -> Array:
    """The labels: numbers, or text as numpy has it, four bytes a character of the longest."""
    require_label(table.schema.field(column).type, path, column)
    labels = table[column].unify_dictionaries().combine_chunks()
    coded = pa.types.is_dictionary(labels.type)
    if is_text(labels.type.value_type if coded else labels.type):
        longest = pa.compute.max(pa.compute.utf8_length(labels.dictionary if coded else labels)).as_py() or 0
        if longest > LONGEST_LABEL:
            raise DataError(
                f"{path}: column {column!r} has a label of {longest:,} characters",
                f"a label is the name of a class, of at most {LONGEST_LABEL:,}",
                "Name the label column with --label, or shorten the names.",
            )
        require_fits(4 * longest * len(labels), path, f"label column {column!r}")
        if not coded:
            return np.array(labels.to_pylist(), dtype=str)
        words = np.array(labels.dictionary.to_pylist(), dtype=str)
        named: Array = words[labels.indices.to_numpy(zero_copy_only=False)]
        return named
    numbers: Array = (labels.cast(labels.type.value_type) if coded else labels).to_numpy(zero_copy_only=False)
    return numbers
