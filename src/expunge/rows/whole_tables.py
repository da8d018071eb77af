"""Tables read whole, as features and labels: columns of numbers, or those that a preparation makes into numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from expunge.errors import DataError, FileError
from expunge.rows.parquet_pages import Wanted, opened, require_bearable
from expunge.rows.preparation import Preparation
from expunge.rows.raw_tables import read_raw
from expunge.rows.tables import feature_names, list_lengths, require_types, table_arrays, table_columns
from expunge.rows.text_tables import is_text_table, not_a_table, numbered, open_text
from expunge.rows.wide_csv import is_wide, read_wide
from expunge.runtime.memory import out_of_memory

Array = NDArray[Any]
Read = tuple[Array, Array, tuple[str, ...]]  # features, labels, what the features are called


@dataclass(frozen=True)
class Layout:
    """Of a table: its label column, the columns that are features (all others), and what they are called."""

    label: str | None = None
    columns: Sequence[str] | None = None
    header: bool = True
    names: Sequence[str] | None = None


def read_table(path: Path, layout: Layout) -> Read:
    """A table whose feature columns are numbers."""
    return _text_table(path, layout) if is_text_table(path) else _parquet_table(path, layout)


def read_prepared(
    path: Path, label: str | None, columns: Sequence[str] | None, content: Mapping[str, Any], labelled: bool = True
) -> Read:
    """A table's rows as the columns of a model's table became features; its label column is known from then."""
    if columns is not None:
        raise FileError(
            f"{path}: --columns {','.join(columns)}",
            "the model has a preparation, which names its columns",
            "Leave --columns out.",
        )
    prepared = Preparation.of(dict(content))
    raw = read_raw(path, known=prepared.names or None)
    features = prepared.features(raw)
    there = labelled or (label or prepared.label) in raw.columns
    labels = prepared.labels(raw, label) if there else np.empty(0)
    return features, labels, prepared.feature_names


def _text_table(path: Path, layout: Layout) -> Read:
    text = open_text(path)
    names = None if layout.header else tuple(layout.names or numbered(len(text.first)))
    try:
        if is_wide(text.extent) and names is None:
            features, labels, named = read_wide(path, layout.label, layout.columns, text.separator, text.content)
            return features, labels, named
        table = pa.csv.read_csv(
            text.source,
            read_options=pa.csv.ReadOptions(block_size=min(max(1 << 20, text.size), 1 << 30), column_names=names),
            parse_options=pa.csv.ParseOptions(delimiter=text.separator),
        )
        return _split(table, path, layout)
    except (pa.ArrowException, ValueError) as error:
        raise out_of_memory(error) or not_a_table(path, text.separator, error) from error


def _parquet_table(path: Path, layout: Layout) -> Read:
    metadata = opened(path)
    schema = pa.parquet.ParquetFile(path, metadata=metadata).schema_arrow
    column, names = table_columns(schema, path, layout.label, layout.columns)
    require_types(schema, path, column, names)
    wanted = Wanted.of(schema, column, names)
    require_bearable(path, metadata, wanted)
    text = sorted(wanted.text) or None
    file = pa.parquet.ParquetFile(path, metadata=metadata, read_dictionary=text)
    return _split(file.read() if layout.columns is None else file.read(columns=[*names, column]), path, layout)


def _split(table: pa.Table, path: Path, layout: Layout) -> Read:
    column, names = table_columns(table.schema, path, layout.label, layout.columns)
    if table.num_rows == 0:
        raise DataError(f"{path} has no rows", "at least one is needed", "Check how the file was written.")
    features, labels = table_arrays(table, path, column, names)
    return features, labels, feature_names(names, list_lengths(table, names))
