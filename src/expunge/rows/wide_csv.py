"""CSV files: what one takes in memory, known before it is read, and those with more columns than Arrow reads cheaply.

Arrow takes about eight kilobytes a column, whatever is in it: two gigabytes for a line of 200,000 numbers. Beyond a few
thousand columns lines are read one by one instead, and each becomes one row of numbers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
from numpy.typing import NDArray

from expunge.errors import DataError, FileError
from expunge.record import MOST_NAMES
from expunge.rows.tables import label_array, require_filled, table_columns
from expunge.runtime.memory import require_fits, require_room

COLUMN_BYTES = 10_000  # that Arrow takes for a column; 8,300 were measured
TEXT_COPIES = 3  # the file's bytes, as blocks, as parsed, as text
VALUE_BYTES = 24  # of a number: where its text is, Arrow's own, ours
CELL_BYTES = 120  # of a cell of the line at hand: text of Python and of Arrow
WIDE = 4_000
PART = 1 << 22
Array = NDArray[Any]


@dataclass(frozen=True)
class Extent:
    """How much a CSV file holds at most: separators count, wherever they stand."""

    columns: int
    values: int


def extent(path: Path, separator: str = ",", content: bytes | None = None) -> Extent:
    """Columns and values of a file that can be read; refuses any other before it is.

    `content` is its text where that has been inflated already.
    """
    size = path.stat().st_size if content is None else len(content)
    require_fits(size, path, "the text")
    values = columns = 0
    first, sign = True, separator.encode()
    with path.open("rb") if content is None else io.BytesIO(content) as file:
        while part := file.read(PART):
            values += part.count(sign) + part.count(b"\n")
            if first:
                line, newline, _ = part.partition(b"\n")
                columns += line.count(sign)
                first = not newline
            if columns >= MOST_NAMES:
                raise FileError(
                    f"{path} has more than {MOST_NAMES:,} columns",
                    f"at most {MOST_NAMES:,} are read",
                    "Save the rows as .npz.",
                )
    found = Extent(columns + 1, values + 1)
    per_column = CELL_BYTES if is_wide(found) else COLUMN_BYTES
    require_room(TEXT_COPIES * size + VALUE_BYTES * found.values + per_column * found.columns, path, "the table")
    return found


def is_wide(found: Extent) -> bool:
    """Whether Arrow would take more for its columns than for what is in them."""
    return found.columns > WIDE


def read_wide(
    path: Path, label: str | None, columns: Sequence[str] | None = None, separator: str = ",", content: Any = None
) -> tuple[Array, Array, tuple[str, ...]]:
    """Features, labels and the names of the features, line by line; `content` as in `extent`."""
    raw = path.open("rb") if content is None else io.BytesIO(content)
    with io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
        lines = _lines(file, separator)
        header = next(lines)
        schema = pa.schema([(name, pa.float64()) for name in header])
        column, names = table_columns(schema, path, label, columns)
        place = header.index(column)
        kept = None if columns is None else [header.index(name) for name in names]
        rows, labels = [], []
        for number, cells in enumerate(lines):
            if len(cells) != len(header):
                raise ValueError(f"Row {number}: Expected {len(header)} columns, got {len(cells)}")
            labels.append(cells.pop(place) if kept is None else cells[place])
            rows.append(_numbers(cells if kept is None else [cells[each] for each in kept], path, number))
    if not rows:
        raise DataError(f"{path} has no rows", "at least one is needed", "Check how the file was written.")
    inferred = _inferred(column, labels)
    require_filled(inferred, path, [column])
    return np.stack(rows), label_array(inferred, path, column), names


def _lines(file: io.TextIOWrapper, separator: str) -> Iterator[list[str]]:
    try:
        yield from (cells for cells in csv.reader(file, strict=True, delimiter=separator) if cells)
    except csv.Error as error:
        raise ValueError(str(error)) from error


def _numbers(cells: list[str], path: Path, number: int) -> Array:
    text = pa.compute.utf8_trim_whitespace(pa.array(cells, pa.string()))
    empty = pa.compute.is_in(text, value_set=pa.array(pa.csv.ConvertOptions().null_values))
    if pa.compute.any(empty).as_py():
        place = pa.compute.index(empty, True).as_py()
        raise DataError(
            f"{path}: feature {place} of row {number} is empty",
            "every cell needs a value",
            "Fill them in or drop those rows, as was done for training.",
        )
    try:
        values: Array = text.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{path}: row {number}: {error}", "features must be numbers", "Encode them as they were for training."
        ) from error
    return values


def _inferred(column: str, labels: list[str]) -> pa.Table:
    """The labels as a column of the type that Arrow finds in them."""
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([[column], *([label] for label in labels)])
    return pa.csv.read_csv(io.BytesIO(text.getvalue().encode()))
