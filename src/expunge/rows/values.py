"""Cells of a table as numbers, words or labels, whatever they are stored as; and what counts as missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from expunge.errors import DataError
from expunge.rows.tables import LONGEST_LABEL, is_text
from expunge.runtime.memory import require_fits

Array = NDArray[Any]
EMPTY = ("", "?", "na", "n/a", "#n/a", "nan", "null", "nil")  # in any case, spaces around it apart
NO_NUMBER = (*EMPTY, "none", "-", ".", "missing", "unknown")  # in a column of numbers also these
MISSING = "(missing)"  # what a cell without a value is called among categories
DECIMAL_COMMA = r"^[+-]?\d+(,\d+)?$"
WHOLE, WITH_ZEROS = r"^([+-]?\d+)$", r"^([+-]?\d+)\.0+$"
YES, NO = "true", "false"
DATES = (
    r"^\d{4}-\d{1,2}-\d{1,2}([T ]\d{1,2}:\d{2}.*)?$|^\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2})( \d{1,2}:\d{2}.*)?$"
    r"|^\d{4}/\d{1,2}/\d{1,2}( \d{1,2}:\d{2}.*)?$|^\d{1,2}:\d{2}(:\d{2})?$"
)


@dataclass(frozen=True)
class RawTable:
    """Columns as a file or a frame holds them.

    `typed`: their types were chosen by somebody, so that text is text; a CSV file has none. `decimal_comma`: numbers
    may be written as 1,5, since a semicolon stands between cells. `named`: what the columns are called was not said
    by the table itself but by whoever gave it.
    """

    table: pa.Table
    name: str
    typed: bool
    decimal_comma: bool = False
    named: bool = True

    @property
    def columns(self) -> list[str]:
        return list(self.table.column_names)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def numbers(self, column: str) -> Array | None:
        """The column in float64, NaN where there is no value; None if some cell has another."""
        return as_numbers(self.table[column], self.decimal_comma)

    def words(self, column: str) -> Words:
        """The column as words."""
        return as_words(self.table[column])


@dataclass(frozen=True)
class Words:
    """The different words of a column (Arrow's), and for each row the place of its own; -1 where there is none."""

    different: Any
    codes: NDArray[np.int64]

    @property
    def missing(self) -> int:
        return int((self.codes < 0).sum())

    @property
    def longest(self) -> int:
        """Characters of the longest word."""
        return int(pa.compute.max(pa.compute.utf8_length(self.different)).as_py() or 0)

    @property
    def most_frequent(self) -> int:
        """Rows that have the most frequent word, or none."""
        return int(np.bincount(self.codes + 1).max())

    def longer_than(self, limit: int) -> int:
        """Rows whose word has more characters."""
        longer = pa.compute.greater(pa.compute.utf8_length(self.different), limit).to_numpy(zero_copy_only=False)
        return int(np.append(longer.astype(bool), False)[self.codes].sum())

    def listed(self) -> list[str]:
        """The words; ask first how many there are."""
        words: list[str] = self.different.to_pylist()
        return words

    def places(self, wanted: Sequence[str]) -> NDArray[np.int64]:
        """For each row where its word is among those wanted; -1 where it has none, -2 where it is another.

        A whole number that is not among them as it is written may be with a point and zeros, or without: a file of
        1.0 holds the rows that a table of numbers called 1.
        """
        among, own_words = pa.array(wanted, pa.large_string()), self.different.cast(pa.large_string())
        short = pa.compute.replace_substring_regex(own_words, WITH_ZEROS, r"\1")
        long = pa.compute.replace_substring_regex(own_words, WHOLE, r"\1.0")
        tried = [pa.compute.index_in(each, value_set=among) for each in (own_words, short, long)]
        found = pa.compute.coalesce(*tried).fill_null(-2)
        own = np.append(np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.int64), -1)
        places: NDArray[np.int64] = own[self.codes]
        return places


def as_numbers(column: Any, decimal_comma: bool = False) -> Array | None:
    """A column in float64, NaN where a cell has no value or one that is not finite; None where one is no number."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        own, codes = _coded(column)
        found = as_numbers(own, decimal_comma)
        return None if found is None else np.append(found, np.nan)[codes]
    if is_text(kind) or pa.types.is_string_view(kind):
        return _numbers_of_text(column, decimal_comma)
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan)
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or is_yes_or_no(kind) or pa.types.is_decimal(kind)):
        return None
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    return _finite(np.asarray(column.cast(pa.float64(), safe=False).to_numpy(**_copying(column))))


def is_yes_or_no(kind: pa.DataType) -> bool:
    """Whether a column of this type holds true and false."""
    return bool(pa.types.is_boolean(kind))


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, np.nan)


def _copying(column: Any) -> dict[str, bool]:
    return {} if isinstance(column, pa.ChunkedArray) else {"zero_copy_only": False}


def _numbers_of_text(column: Any, decimal_comma: bool) -> Array | None:
    text = pa.compute.utf8_lower(pa.compute.utf8_trim_whitespace(column.cast(pa.large_string())))
    filled = pa.compute.if_else(pa.compute.is_in(text, value_set=pa.array(NO_NUMBER, pa.large_string())), None, text)
    if decimal_comma and pa.compute.all(pa.compute.match_substring_regex(filled, DECIMAL_COMMA)).as_py():
        filled = pa.compute.replace_substring(filled, ",", ".")
    try:
        return _finite(np.asarray(filled.cast(pa.float64()).to_numpy(**_copying(filled))))
    except pa.ArrowInvalid:
        pass
    if pa.compute.all(pa.compute.is_in(filled.drop_null(), value_set=pa.array([YES, NO], pa.large_string()))).as_py():
        return as_numbers(pa.compute.equal(filled, YES))
    return None


def as_words(column: Any) -> Words:
    """A column as words: text without spaces around it; whole numbers without a point; no word where it is empty."""
    kind = column.type
    if not pa.types.is_dictionary(kind):
        column = (_whole(column) if pa.types.is_floating(kind) else column).dictionary_encode()
    own, codes = _coded(column)
    if not is_text(own.type):
        own = (_whole(own) if pa.types.is_floating(own.type) else own).cast(pa.large_string())
    text = pa.compute.utf8_trim_whitespace(own.cast(pa.large_string()))
    empty = pa.compute.is_in(pa.compute.utf8_lower(text), value_set=pa.array(EMPTY, pa.large_string()))
    different, merged = _coded(pa.compute.if_else(empty, pa.scalar(None, pa.large_string()), text).dictionary_encode())
    return Words(different, np.append(merged, -1)[codes])


def _whole(column: Any) -> Any:
    """Floats as whole numbers where all of them are."""
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        return column


def _coded(column: Any) -> tuple[Any, NDArray[np.int64]]:
    """The different values of a coded column, and where each row's is; -1 for none."""
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # of no chunks
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    codes = column.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return column.dictionary, np.asarray(codes, dtype=np.int64)


def is_dates(column: Any, typed: bool) -> bool:
    """Whether a column holds days or times: by its type or, of text, by how every cell is written."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_temporal(kind):
        return True
    if typed or not is_text(kind):
        return False
    text = pa.compute.utf8_trim_whitespace(column)
    lower = pa.compute.utf8_lower(text)
    filled = pa.compute.filter(text, pa.compute.invert(pa.compute.is_in(lower, value_set=pa.array(EMPTY))))
    return len(filled) > 0 and bool(pa.compute.all(pa.compute.match_substring_regex(filled, DATES)).as_py())


def as_labels_of(raw: RawTable, column: str, text: bool | None = None) -> Array:
    """The label column: whole numbers or text. `text` says which, where it is known already."""
    kind = raw.table[column].type
    if pa.types.is_temporal(kind) or pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise DataError(
            f"{raw.name}: label column {column!r} holds {kind}", "labels are whole numbers or text", "Convert them."
        )
    words = raw.words(column)
    if words.missing:
        raise DataError(
            f"{raw.name}: {words.missing:,} of {len(raw):,} rows have no value in the label column {column!r}",
            "every row needs its class",
            "Remove those rows, or name another label column with --label.",
        )
    longest = words.longest
    if longest > LONGEST_LABEL:
        raise DataError(
            f"{raw.name}: column {column!r} has a label of {longest:,} characters",
            f"a label is the name of a class, of at most {LONGEST_LABEL:,}",
            "Name the label column with --label, or shorten the names.",
        )
    typed_text = raw.typed and is_text(kind.value_type if pa.types.is_dictionary(kind) else kind)
    numbers = None if text or (text is None and typed_text) else raw.numbers(column)
    if numbers is None or np.isnan(numbers).any():
        require_fits(4 * longest * len(raw), Path(raw.name), f"label column {column!r}")
        named: Array = np.array(words.listed(), dtype=str)[words.codes]
        return named
    whole = numbers == np.rint(numbers)
    return numbers.astype(np.int64) if whole.all() and (np.abs(numbers) < 2.0**53).all() else numbers
