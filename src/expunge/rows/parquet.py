"""What a Parquet file would take in memory, from its own headers, before any of it is decoded.

A few hundred bytes can stand for gigabytes: one run of a billion equal values, one page that inflates, one long word
that a dictionary repeats. The footer says how many values there are, but need not tell the truth; the header before
each page is what a reader acts on. Both are read here: the footer by Arrow once its length is known to be bearable, the
pages' headers (Thrift's compact protocol) by this module.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from expunge.errors import FileError
from expunge.record import MOST_NAMES
from expunge.runtime.memory import require_fits, require_room

FOOTER_FACTOR = 60  # bytes in memory for a byte of the footer; 30 were measured with 200,000 short column names
COLUMN_BYTES = 8_000  # that reading a column takes whatever is in it; 6,000 were measured
VALUE_BYTES, NESTED_BYTES = 16, 24  # Arrow's, and ours in float64; with the levels and offsets of lists
MOST_OFTEN, SMALL = 10_000, 1 << 26  # bytes in memory for a byte of the file, beyond 64 MB: tables of zeros have 1,000
HEADER_BYTES = (1 << 12, 1 << 20)  # of a page's header: nearly always; with long statistics
DATA, DICTIONARY, DATA_V2 = 0, 2, 3  # kinds of pages
COUNTS = {DATA: 5, DICTIONARY: 7, DATA_V2: 8}  # the field of a page's header that says how many values are in it
PREFIXES = 7  # the encoding DELTA_BYTE_ARRAY: each text is a part of the one before and a rest


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type has several features."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def open_parquet(path: Path) -> tuple[Any, pa.Schema]:
    """The footer, as Arrow reads it, and the schema; refuses one that is too long, has too many columns, or lies."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 8))
        end = file.read(8)
    if len(end) == 8 and end[4:] == b"PAR1":
        require_room(FOOTER_FACTOR * min(size, struct.unpack("<I", end[:4])[0]), path, "the footer")
    metadata = pa.parquet.read_metadata(path)
    if metadata.num_columns > MOST_NAMES:
        raise FileError(
            f"{path} has {metadata.num_columns:,} columns", f"at most {MOST_NAMES:,} are read", "Save the rows as .npz."
        )
    groups = (metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
    values = metadata.num_columns * max(sum(max(rows, 0) for rows in groups), metadata.num_rows)
    if 8 * values > max(SMALL, MOST_OFTEN * size):
        raise FileError(
            f"{path} declares {8 * values:,} bytes in a file of {size:,}",
            f"a table takes at most {MOST_OFTEN:,} times as much in memory as in its file",
            "The file is made to deceive, or all its columns are constant; write it as .npz.",
        )
    return metadata, pa.parquet.ParquetFile(path, metadata=metadata).schema_arrow


@dataclass(frozen=True)
class ReadColumns:
    """The columns that are to be read: all of them, those of lists, and those of text."""

    names: tuple[str, ...]
    lists: frozenset[str]
    text: frozenset[str]

    @classmethod
    def of(cls, schema: pa.Schema, label: str | None, features: Sequence[str]) -> ReadColumns:
        names = (*features, *(() if label is None else (label,)))
        kinds = {name: schema.field(name).type for name in names}
        plain = {name: kind.value_type if pa.types.is_dictionary(kind) else kind for name, kind in kinds.items()}
        lists = frozenset(name for name in features if is_list(kinds[name]))
        return cls(names, lists, frozenset(name for name, kind in plain.items() if is_text(kind)))

    def value_bytes(self, name: str) -> int:
        return NESTED_BYTES if name in self.lists else VALUE_BYTES


@dataclass(frozen=True)
class Pages:
    """What the pages of one column in one row group hold."""

    values: int
    largest: int  # bytes of a page when inflated
    inflated: int  # bytes of all of them
    prefixed: bool


def require_bearable(path: Path, metadata: Any, wanted: ReadColumns) -> None:
    """Refuse a table that cannot be read whole."""
    require_fits(max(metadata.num_rows, 0) * metadata.num_columns * 8, path, "the table")
    needed = path.stat().st_size + COLUMN_BYTES * metadata.num_columns
    largest = dict.fromkeys(wanted.names, 0)
    for index in range(metadata.num_row_groups):
        for name, pages in column_pages(path, metadata, index, wanted):
            needed += pages.values * wanted.value_bytes(name) + (pages.inflated if name in wanted.text else 0)
            largest[name] = max(largest[name], pages.largest)
    require_room(needed + sum(largest.values()), path, "the table")


def require_group_bearable(path: Path, metadata: Any, index: int, wanted: ReadColumns, rows: int) -> None:
    """Refuse a row group of which `rows` rows at a time cannot be read.

    Of lists nobody knows, before they are decoded, whether a single row holds them all: the whole group counts.
    """
    needed = COLUMN_BYTES * len(wanted.names)
    for name, pages in column_pages(path, metadata, index, wanted):
        counted = pages.values if name in wanted.lists else min(pages.values, rows)
        needed += pages.largest + counted * wanted.value_bytes(name) + (pages.inflated if name in wanted.text else 0)
    require_room(needed, path, f"row group {index}")


def column_pages(path: Path, metadata: Any, index: int, wanted: ReadColumns) -> Iterator[tuple[str, Pages]]:
    """The pages of these columns in one row group; refuses those that hold what the footer does not say."""
    group, size = metadata.row_group(index), path.stat().st_size
    names = set(wanted.names)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for place in range(group.num_columns):
            chunk = group.column(place)
            leaf = chunk.path_in_schema
            name = leaf if leaf in names else next((each for each in wanted.lists if leaf.startswith(each + ".")), None)
            if name is None:
                continue
            pages = _read_pages(file, chunk, size, path, name)
            if pages.values > (group.num_rows if leaf == name else chunk.num_values):
                raise _false_header(path, name, f"its pages hold {pages.values:,} values")
            if pages.prefixed and name in wanted.text:
                raise FileError(
                    f"{path}: column {name!r} is stored as DELTA_BYTE_ARRAY",
                    "a few bytes of that can stand for gigabytes, so it is not read",
                    "Write the column with a dictionary, as Parquet writers do by themselves.",
                )
            yield name, pages
    finally:
        os.close(file)


def _read_pages(file: int, chunk: Any, size: int, path: Path, name: str) -> Pages:
    """All pages that a reader would go over: until there are as many values as the footer says."""
    if chunk.num_values <= 0:
        return Pages(0, 0, 0, False)  # nothing is read of it
    first = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < first:
        first = chunk.dictionary_page_offset
    position, end = first, first + chunk.total_compressed_size
    if not 4 <= first <= end <= size:
        raise _false_header(path, name, f"it lies at {first:,} to {end:,} of {size:,} bytes")
    values = largest = total = 0
    prefixed = False
    while position < end and values < chunk.num_values:
        header, length = _read_header(file, position, path, name)
        kind, inflated, stored = (_number(header, field) for field in (1, 2, 3))
        about = header.get(COUNTS.get(kind, -1))
        count = _number(about, 1) if kind in COUNTS else 0
        if min(inflated, stored, count) < 0:
            raise _false_header(path, name, "a page says no size")
        require_fits(inflated, path, f"a page of column {name!r}")
        if kind == DICTIONARY and count > inflated:
            raise _false_header(path, name, f"a dictionary of {count:,} entries in {inflated:,} bytes")
        largest, total = max(largest, inflated), total + inflated
        if kind in (DATA, DATA_V2):
            values += count
            prefixed = prefixed or _number(about, 4 if kind == DATA_V2 else 2) == PREFIXES
        position += length + stored
    return Pages(values, largest, total, prefixed)


def _number(fields: Any, field: int) -> int:
    """A field that is to be a number; -1 where it is not there."""
    value = fields.get(field) if isinstance(fields, dict) else None
    return value if isinstance(value, int) else -1


def _read_header(file: int, position: int, path: Path, name: str) -> tuple[dict[int, Any], int]:
    for most in HEADER_BYTES:
        content = os.pread(file, most, position)
        try:
            return _read_struct(content, 0, 0)
        except IndexError:
            continue
    raise _false_header(path, name, "a page's header has no end")


def _read_struct(content: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Numbers and structs of a struct in Thrift's compact protocol, by field, and where it ends."""
    fields: dict[int, Any] = {}
    field = 0
    while True:
        head, at = content[at], at + 1
        if head == 0:
            return fields, at
        kind = head & 15
        if head >> 4:
            field += head >> 4
        else:
            field, at = _read_signed(content, at)
        if kind in (1, 2):
            continue
        if kind in (4, 5, 6):
            fields[field], at = _read_signed(content, at)
        elif kind == 8:
            length, at = _read_varint(content, at)
            at += length
            content[at - 1 if length else at]  # an IndexError where it is not there
        elif kind == 12 and depth < 4:
            fields[field], at = _read_struct(content, at, depth + 1)
        elif kind in (3, 7):
            at += 1 if kind == 3 else 8
        else:
            raise ValueError(f"a page header with a field of type {kind}")


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte, at = content[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number without an end")


def _read_signed(content: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(content, at)
    return (value >> 1) ^ -(value & 1), at  # zigzag


def _false_header(path: Path, name: str, what: str) -> FileError:
    return FileError(
        f"{path}: column {name!r}: {what}",
        "headers must tell the truth",
        "The file is damaged or made to deceive; write it again.",
    )
