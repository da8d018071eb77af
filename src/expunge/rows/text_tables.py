"""Tables as text: .csv and .tsv, also compressed (.gz), with whatever stands between cells, with a header or without.

How much a file takes is known before it is read: a compressed one is inflated piece by piece, and refused as soon as
it is too much.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from expunge.errors import DataError, FileError
from expunge.rows.values import RawTable
from expunge.rows.wide_csv import TEXT_COPIES, Extent, extent
from expunge.runtime.memory import out_of_memory, require_fits, require_room

TEXT_TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
SEPARATORS = ("\t", ";", "|", ",")  # a comma may stand in a number or a sentence, so it is the last that is tried
SAMPLE = 1 << 16  # bytes that are looked at for what stands between cells
LINES = 50
PART = 1 << 20


@dataclass(frozen=True)
class TextTable:
    """A file's text and how it is laid out."""

    path: Path
    content: bytes | None  # of a compressed file, inflated
    separator: str
    first: tuple[str, ...]
    extent: Extent

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.content is None else len(self.content)

    @property
    def source(self) -> Any:
        """What Arrow reads."""
        return self.path if self.content is None else pa.BufferReader(self.content)


def table_ending(path: Path) -> str:
    """How the name of a file ends, `.csv.gz` as a whole.

    >>> table_ending(Path("Credit.CSV.gz"))
    '.csv.gz'
    """
    endings = [suffix.lower() for suffix in path.suffixes[-2:]]
    return "".join(endings) if endings[-1:] == [".gz"] else "".join(endings[-1:])


def is_text_table(path: Path) -> bool:
    """Whether a file of this name is a table of text."""
    return table_ending(path) in TEXT_TABLES


def open_text(path: Path) -> TextTable:
    """The layout of a file, which is refused where it would take too much memory."""
    content = inflated(path) if path.suffix.lower() == ".gz" else None
    if content is None:
        with path.open("rb") as file:
            sample = file.read(SAMPLE)
    else:
        sample = content[:SAMPLE]
    separator = separator_of(sample)
    found = extent(path, separator, content)
    first = next(iter(_cells(sample, separator)), [])
    return TextTable(path, content, separator, tuple(cell.strip() for cell in first), found)


def inflated(path: Path) -> bytes:
    """A compressed file's text; refuses one that inflates to more than there is room for, before it has done so."""
    parts, total = [], 0
    try:
        with gzip.open(path) as stream:
            while part := stream.read(PART):
                total += len(part)
                require_fits(total, path, "the text")
                require_room(TEXT_COPIES * total, path, "the text")
                parts.append(part)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(
            f"{path} is not a whole .gz file ({error})", "a complete one is needed", "Compress or copy it again."
        ) from error
    if not total:
        raise FileError(f"{path} is empty", "a file with data is needed", "Write it again.")
    return b"".join(parts)


def separator_of(sample: bytes) -> str:
    """What stands between cells: the sign that gives every line as many, and more than one; else a comma.

    >>> separator_of(b"name;income\\nAnna;1,5\\nBen;2,5\\n")
    ';'
    """
    for sign in SEPARATORS:
        widths = {len(cells) for cells in _cells(sample, sign)[:LINES]}
        if len(widths) == 1 and min(widths) > 1:
            return sign
    return ","


def _cells(sample: bytes, separator: str) -> list[list[str]]:
    """The cells of the lines that are whole in a sample, empty lines apart."""
    text = sample.decode("utf-8-sig", errors="replace")
    whole = text if len(sample) < SAMPLE else text[: text.rfind("\n") + 1] or text
    try:
        return [cells for cells in csv.reader(io.StringIO(whole, newline=""), delimiter=separator) if cells]
    except csv.Error:
        return []


def read_text(opened: TextTable, names: Sequence[str] | None = None) -> RawTable:
    """All cells as text; `names` are what the columns of a file without a header are called."""
    path = opened.path
    _require_names(opened, names)
    options = {
        "read_options": pa.csv.ReadOptions(
            block_size=min(max(1 << 20, opened.size), 1 << 30),
            column_names=list(names if names is not None else opened.first),
            skip_rows=0 if names is not None else 1,
        ),
        "parse_options": pa.csv.ParseOptions(delimiter=opened.separator, newlines_in_values=True),
        "convert_options": pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names if names is not None else opened.first, pa.string()),
            strings_can_be_null=False,
        ),
    }
    try:
        table = pa.csv.read_csv(opened.source, **options)
    except (pa.ArrowException, ValueError) as error:
        raise out_of_memory(error) or not_a_table(path, opened.separator, error) from error
    if table.num_rows == 0:
        raise DataError(f"{path} has no rows", "at least one is needed", "Check how the file was written.")
    comma = opened.separator == ";"  # elsewhere a comma between digits may well group thousands
    return RawTable(table, str(path), False, comma, names is None)


def not_a_table(path: Path, separator: str, error: BaseException) -> FileError:
    """The error for text whose lines are not equally long, or not text."""
    sign = {"\t": "a tab"}.get(separator, repr(separator))
    return FileError(
        f"{path} is not a table ({str(error)[:200]}), read with {sign} between cells",
        "a header line and equally long rows are needed",
        "Write it again as CSV, in UTF-8; a file without a header is read with --no-header.",
    )


def _require_names(opened: TextTable, names: Sequence[str] | None) -> None:
    path, width = opened.path, len(opened.first)
    if names is not None and len(names) != width:
        raise DataError(
            f"{path} has {width} columns", f"{len(names)} names were given for them", "Give one name for each column."
        )
    listed = opened.first if names is None else tuple(names)
    twice = next((name for name in listed if listed.count(name) > 1), None) if len(listed) < 5000 else None
    if twice is not None:
        hint = " A file without a header is read with --no-header." if looks_like_data(listed) else ""
        raise FileError(
            f"{path} has two columns of one name, {twice!r}", "column names must differ", f"Rename one of them.{hint}"
        )


def looks_like_data(first: Sequence[str]) -> bool:
    """Whether a first line has a number in it, as a header has not.

    >>> looks_like_data(["39", "State-gov"]), looks_like_data(["age", "job"])
    (True, False)
    """
    return any(_is_number(cell) for cell in first)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def numbered(width: int) -> tuple[str, ...]:
    """What columns without names are called: by their place, from 0."""
    return tuple(str(place) for place in range(width))
