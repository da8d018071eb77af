"""Tables: of CSV and Parquet files and of data frames, each as one Arrow table, whose columns are numbers or words.

How much a file takes is known before it is read: a compressed one is inflated piece by piece, separators of a CSV file
are counted, a Parquet file's own headers are read first; what is too much is refused."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.interchange
import pyarrow.parquet

from expunge.errors import DataError, ExpungeError, FileError
from expunge.record import MOST_NAMES
from expunge.rows.arrays import DAMAGE, Array, damage_error, duplicate_error
from expunge.runtime.files import readable
from expunge.runtime.memory import out_of_memory, require_fits, require_room

CSV, PARQUET = (".csv", ".tsv", ".csv.gz", ".tsv.gz"), (".parquet", ".pq")
TABLES = (*CSV, *PARQUET)
SEPARATORS = ("\t", ";", "|", ",")  # a comma may stand in a number or a sentence, so it is the last that is tried
SAMPLE, LINES = 1 << 16, 50  # bytes and lines that are looked at for what stands between cells
PIECE = 1 << 22  # bytes of a file that are looked at, or inflated, at a time
TEXT_COPIES = 3  # the file's bytes, as blocks, as parsed, as text
CELL_BYTES = 24  # of a number in a CSV file: where its text is, Arrow's own, ours
COLUMN_BYTES = 10_000  # that Arrow takes for a column, whatever is in it; 8,300 were measured
FOOTER_FACTOR = 60  # bytes in memory for a byte of a Parquet file's footer; 30 were measured with 200,000 columns
VALUE_BYTES, NESTED_BYTES = 16, 24  # Arrow's, and ours in float64; with the levels and offsets of lists
MOST_OFTEN, SMALL = 10_000, 1 << 26  # bytes in memory for a byte of the file, beyond 64 MB: tables of zeros have 1,000
DATA, DICTIONARY, DATA_V2 = 0, 2, 3  # kinds of pages
COUNTS = {DATA: 5, DICTIONARY: 7, DATA_V2: 8}  # the field of a page's header that says how many values are in it
PREFIXES = 7  # the encoding DELTA_BYTE_ARRAY: each text is a part of the one before and a rest
MOST_FIELDS = 20  # of a struct in a page's header
LONGEST_LABEL = 1_000  # characters
EMPTY = ("", "?", "na", "n/a", "#n/a", "nan", "null", "nil")  # in any case, spaces around it apart
NO_NUMBER = (*EMPTY, "none", "-", ".", "missing", "unknown")  # in a column of numbers also these
MISSING = "(missing)"  # what a cell without a value is called among categories
DECIMAL_COMMA = r"^[+-]?\d+(,\d+)?$"
WHOLE, WITH_ZEROS = r"^([+-]?\d+)$", r"^([+-]?\d+)\.0+$"
DATES = (
    r"^\d{4}-\d{1,2}-\d{1,2}([T ]\d{1,2}:\d{2}.*)?$|^\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2})( \d{1,2}:\d{2}.*)?$"
    r"|^\d{4}/\d{1,2}/\d{1,2}( \d{1,2}:\d{2}.*)?$|^\d{1,2}:\d{2}(:\d{2})?$"
)
AS_IT_STANDS = "Give the name as it stands in the table."
CHECK_FILE = "Check how the file was written."
FILL = "Fill them in or drop those rows, as was done for training."


@dataclass(frozen=True)
class Table:
    """Columns as a file or a frame holds them.

    `typed`: their types were chosen by somebody, so that text is text; the cells of a CSV file that is read as text
    have none. `decimal_comma`: numbers may be written as 1,5, since a semicolon stands between cells. `has_header`: the
    table itself says what its columns are called.
    """

    arrow: pa.Table
    name: str
    typed: bool
    decimal_comma: bool = False
    has_header: bool = True

    @property
    def names(self) -> list[str]:
        return list(self.arrow.column_names)

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def numbers(self, column: str) -> Array | None:
        """The column in float64, NaN where there is no finite value; None if some cell holds something else."""
        return as_numbers(self.arrow[column], self.decimal_comma)

    def words(self, column: str) -> Words:
        """The column as words."""
        return as_words(self.arrow[column])

    def has_dates(self, column: str) -> bool:
        """Whether the column holds days or times: by its type or, of cells without one, by how each is written."""
        values, kind = self.arrow[column], _plain_type(self.arrow[column].type)
        if pa.types.is_temporal(kind) or self.typed or not is_text(kind):
            return bool(pa.types.is_temporal(kind))
        text = pc.utf8_trim_whitespace(values)
        filled = pc.filter(text, pc.invert(pc.is_in(pc.utf8_lower(text), value_set=pa.array(EMPTY))))
        return len(filled) > 0 and bool(pc.all(pc.match_substring_regex(filled, DATES)).as_py())

    def features(self, columns: Sequence[str]) -> Array:
        """These columns as rows x features; a column of lists, all of one length, gives as many features as that.

        Refuses empty cells and anything but numbers.
        """
        blocks = [self._feature_block(name) for name in columns]
        features = np.empty((len(self), sum(block.shape[1] for block in blocks)))
        place = 0
        for block in blocks:
            features[:, place : place + block.shape[1]] = block
            place += block.shape[1]
        return features

    def _feature_block(self, name: str) -> Array:
        values = self.arrow[name]
        coded = pa.types.is_dictionary(values.type)
        empty = values.null_count + sum(chunk.dictionary.null_count for chunk in values.chunks if coded)
        if empty:
            raise DataError(f"{self.name}: column {name!r} has {empty:,} empty cells", "every cell needs a value", FILL)
        if not self.typed and (numbers := self.numbers(name)) is not None:
            return numbers[:, None]
        if is_list(values.type):
            lengths = pc.unique(pc.list_value_length(values)).to_pylist()
            values = pc.list_flatten(values)
            if len(lengths) > 1 or values.null_count:
                raise DataError(
                    f"{self.name}: column {name!r} has lists of {len(lengths)} lengths, or with empty places",
                    "all rows need as many features",
                    "Pad or drop them as was done for training.",
                )
        require_numbers(values.type, name, self.name)
        return np.asarray(values.cast(pa.float64(), safe=False).to_numpy()).reshape(len(self), -1)

    def feature_names(self, columns: Sequence[str]) -> tuple[str, ...]:
        """What the features of these columns are called; those of lists by their place in it."""
        lists = [name for name in columns if is_list(self.arrow.schema.field(name).type)]
        return name_features(columns, {name: pc.list_value_length(self.arrow[name])[0].as_py() for name in lists})

    def labels(self, column: str, text: bool | None = None) -> Array:
        """The label column: whole numbers or text. `text` says which, where it is known already."""
        values, kind = self.arrow[column], self.arrow[column].type
        require_label(kind, self.name, column)
        if pa.types.is_integer(kind) and not text and not values.null_count:
            return np.asarray(values.to_numpy())
        words = self.words(column)
        if words.missing:
            raise DataError(
                f"{self.name}: {words.missing:,} of {len(self):,} rows have no value in the label column {column!r}",
                "every row needs its class",
                "Remove those rows, or name another label column with --label.",
            )
        if words.longest > LONGEST_LABEL:
            raise DataError(
                f"{self.name}: column {column!r} has a label of {words.longest:,} characters",
                f"a label is the name of a class, of at most {LONGEST_LABEL:,}",
                "Name the label column with --label, or shorten the names.",
            )
        typed_text = self.typed and is_text(_plain_type(kind))
        numbers = None if text or (text is None and typed_text) else self.numbers(column)
        if numbers is None or np.isnan(numbers).any():
            require_fits(4 * words.longest * len(self), Path(self.name), f"label column {column!r}")
            return np.array(words.listed(), dtype=str)[words.codes]
        whole = (numbers == np.rint(numbers)).all() and (np.abs(numbers) < 2.0**53).all()
        return numbers.astype(np.int64) if whole else numbers


@dataclass(frozen=True)
class Words:
    """The different words of a column (Arrow's), and for each row the place of its own; -1 where there is none."""

    different: Any
    codes: Array

    @property
    def missing(self) -> int:
        return int((self.codes < 0).sum())

    @property
    def longest(self) -> int:
        """Characters of the longest word."""
        return int(pc.max(pc.utf8_length(self.different)).as_py() or 0)

    @property
    def most_frequent(self) -> int:
        """Rows that have the most frequent word, or none."""
        return int(np.bincount(self.codes + 1).max())

    def longer_than(self, limit: int) -> int:
        """Rows whose word has more characters."""
        longer = pc.greater(pc.utf8_length(self.different), limit).to_numpy(zero_copy_only=False)
        return int(np.append(longer.astype(bool), False)[self.codes].sum())

    def listed(self) -> list[str]:
        """The words; ask first how many there are."""
        words: list[str] = self.different.to_pylist()
        return words

    def places(self, wanted: Sequence[str]) -> Array:
        """For each row where its word is among those wanted; -1 where it has none, -2 where it is another.

        A whole number that is not among them as it is written may be with a point and zeros, or without: a file of
        1.0 holds the rows that a table of numbers called 1.
        """
        among, words = pa.array(wanted, pa.large_string()), self.different.cast(pa.large_string())
        short = pc.replace_substring_regex(words, WITH_ZEROS, r"\1")
        long = pc.replace_substring_regex(words, WHOLE, r"\1.0")
        places = pc.coalesce(*(pc.index_in(each, value_set=among) for each in (words, short, long))).fill_null(-2)
        own: Array = np.append(np.asarray(places.to_numpy(zero_copy_only=False), dtype=np.int64), -1)
        return own[self.codes]


# Cells ---------------------------------------------------------------------------------------------------------------


def as_numbers(column: Any, decimal_comma: bool = False) -> Array | None:
    """A column in float64, NaN where a cell has no value or one that is not finite; None where one is no number."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        own, codes = _dictionary(column)
        numbers = as_numbers(own, decimal_comma)
        return None if numbers is None else np.append(numbers, np.nan)[codes]
    if is_text(kind):
        return _parse_numbers(column, decimal_comma)
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan)
    if not (is_number(kind) or pa.types.is_decimal(kind)):
        return None
    return _finite(column.cast(pa.uint8()) if pa.types.is_boolean(kind) else column)


def _finite(column: Any) -> Array:
    values = np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    return np.where(np.isfinite(values), values, np.nan)


def _parse_numbers(column: Any, decimal_comma: bool) -> Array | None:
    text = pc.utf8_lower(pc.utf8_trim_whitespace(column.cast(pa.large_string())))
    filled = pc.if_else(pc.is_in(text, value_set=pa.array(NO_NUMBER, pa.large_string())), None, text)
    if decimal_comma and pc.all(pc.match_substring_regex(filled, DECIMAL_COMMA)).as_py():
        filled = pc.replace_substring(filled, ",", ".")
    try:
        return _finite(filled.cast(pa.float64()))
    except pa.ArrowInvalid:
        yes_or_no = pa.array(["true", "false"], pa.large_string())
        if pc.all(pc.is_in(filled.drop_null(), value_set=yes_or_no)).as_py():
            return as_numbers(pc.equal(filled, "true"))
        return None


def as_words(column: Any) -> Words:
    """A column as words: text without spaces around it; whole numbers without a point; no word where it is empty."""

    def without_point(values: Any) -> Any:
        try:
            return values.cast(pa.int64()) if pa.types.is_floating(values.type) else values
        except pa.ArrowInvalid:
            return values  # some have a fraction

    if not pa.types.is_dictionary(column.type):
        column = without_point(column).dictionary_encode()
    own, codes = _dictionary(column)
    text = pc.utf8_trim_whitespace(without_point(own).cast(pa.large_string()))
    empty = pc.is_in(pc.utf8_lower(text), value_set=pa.array(EMPTY, pa.large_string()))
    merged = pc.if_else(empty, pa.scalar(None, pa.large_string()), text).dictionary_encode()
    different, places = _dictionary(merged)
    return Words(different, np.append(places, -1)[codes])


def _dictionary(column: Any) -> tuple[Any, Array]:
    """The different values of a coded column, and where each row's is; -1 for none."""
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # of no chunks
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    codes = column.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return column.dictionary, np.asarray(codes, dtype=np.int64)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type has several features."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers, or true and false."""
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def require_numbers(kind: pa.DataType, name: str, table: str) -> None:
    """Refuse a column whose values, or those of its lists, are no numbers."""
    kind = kind.value_type if is_list(kind) else kind
    if not is_number(kind):
        raise DataError(
            f"{table}: column {name!r} holds {'string' if is_text(kind) else kind}",
            "features must be numbers",
            "Encode it as numbers the way it was encoded for training, or drop it.",
        )


def require_label(kind: pa.DataType, table: str, column: str) -> None:
    """Refuse a label column that holds neither numbers nor text."""
    plain = _plain_type(kind)
    if not (is_text(plain) or is_number(plain) or pa.types.is_decimal(plain) or pa.types.is_null(plain)):
        raise DataError(
            f"{table}: label column {column!r} holds {kind}", "labels are whole numbers or text", "Convert them."
        )


# Names of columns ----------------------------------------------------------------------------------------------------


def choose_label(names: Sequence[str], label: str | None) -> str | None:
    """The label column: the one that is named, or one that is called y or label."""
    return label if label is not None else next((name for name in ("y", "label") if name in names), None)


def choose_columns(
    schema: pa.Schema, path: Path, label: str | None, columns: Sequence[str] | None
) -> tuple[str, tuple[str, ...]]:
    """The label column and the feature columns: those named, or all others."""
    known, names = set(schema.names), schema.names
    target = choose_label(names, label)
    if target is None or target not in known:
        raise label_error(path, label, names)
    if len(known) != len(names):
        raise duplicate_error(path)
    chosen = tuple(name for name in names if name != target) if columns is None else tuple(columns)
    unknown = [name for name in chosen if name not in known or name == target]
    if unknown:
        raise FileError(
            f"{path} has no feature column {unknown[0]!r}",
            "every column named must be there",
            f"The columns are {show_columns(names)}.",
        )
    if not chosen:
        raise DataError(
            f"{path} has only the label column {target!r}", "at least one feature column is needed", "Add the features."
        )
    index = [name for name in _pandas_index(schema) if name in chosen]
    if index and columns is None:
        raise FileError(
            f"{path}: column {index[0]!r} is the index of a pandas frame",
            "features are columns",
            "Write it with reset_index(drop=True); if it is a feature or the label, with reset_index().",
        )
    return target, chosen


def label_error(name: Path | str, label: str | None, names: Sequence[str], bare: bool = False) -> FileError:
    """The error for a label column that is not there, or was not named; `bare`: the first line looks like data."""
    close, shown = None if label is None else nearest(label, names), show_columns(names)
    remedy = f"Did you mean --label {close}?" if close else "Name it with --label (label=)."
    if label is not None:
        remedy = f"{remedy} The columns are {shown}." if close else f"{remedy[:-1]}; the columns are {shown}."
    return FileError(
        f"{name} has no column {label!r}" if label is not None else f"{name} has columns {shown}, and none is called y",
        "a label column is needed",
        remedy + (" The first line looks like data: a file without a header is read with --no-header." if bare else ""),
    )


def require_columns(table: Table, wanted: Sequence[str], what: str, remedy: str = AS_IT_STANDS) -> None:
    """Refuse a table that lacks columns, with the names that are nearest to theirs."""
    missing = [name for name in wanted if name not in table.names]
    if missing:
        raise missing_error(table, missing, what, remedy)


def missing_error(table: Table, missing: Sequence[str], what: str, remedy: str = AS_IT_STANDS) -> ExpungeError:
    """The error for columns that are not there."""
    close = nearest(missing[0], table.names)
    more = f" (nor {len(missing) - 1} more)" if len(missing) > 1 else ""
    hints = [f"Did you mean {close}?"] if close else []
    if not table.typed and table.has_header and looks_like_data(table.names):
        hints.append("The first line looks like data: a file without a header is read with --no-header.")
    return FileError(
        f"{table.name} has no column {missing[0]!r}{more}; its columns are {show_columns(table.names)}",
        what,
        " ".join([*hints, remedy]),
    )


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The name that is written most alike, if any is.

    >>> nearest("defualt", ["age", "default"])
    'default'
    """
    folded = {each.casefold(): each for each in names}
    close = difflib.get_close_matches(name.casefold(), folded, 1, 0.6)
    return folded[close[0]] if close else None


def show_columns(names: Sequence[str], most: int = 14, longest: int = 40) -> str:
    """Names of columns in a line: all of few; of many the first, and the last, which is often the label.

    >>> show_columns([f"f{place}" for place in range(40)], 4)
    'f0, f1, f2 ... f39 (40 columns)'
    """
    short = [name if len(name) <= longest else name[: longest - 3] + "..." for name in names]
    if len(short) <= most:
        return ", ".join(short)
    return f"{', '.join(short[: most - 1])} ... {short[-1]} ({len(short):,} columns)"


def _pandas_index(schema: pa.Schema) -> list[str]:
    """Columns that were an index, by what pandas writes beside a table; those it named itself are known by name."""
    try:
        written = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        index = written.get("index_columns", []) if isinstance(written, dict) else []
    except (ValueError, RecursionError):
        return []
    own = [name for name in index if isinstance(name, str)] if isinstance(index, list) else []
    return [name for name in own if not name.startswith("__index_level_")]


def name_features(names: Sequence[str], lengths: Mapping[str, int]) -> tuple[str, ...]:
    """What the features of these columns are called, of which some hold lists of these lengths.

    >>> name_features(["age", "pixels"], {"pixels": 2})
    ('age', 'pixels[0]', 'pixels[1]')
    """
    named: list[str] = []
    for name in names:
        named += [f"{name}[{place}]" for place in range(lengths[name])] if name in lengths else [name]
    return tuple(named)


def looks_like_data(first: Sequence[str]) -> bool:
    """Whether a first line has a number in it, as a header has not.

    >>> looks_like_data(["39", "State-gov"]), looks_like_data(["age", "job"])
    (True, False)
    """

    def is_float(cell: str) -> bool:
        try:
            float(cell)
        except ValueError:
            return False
        return True

    return any(map(is_float, first))


# Files ---------------------------------------------------------------------------------------------------------------


def table_ending(path: Path) -> str:
    """How the name of a file ends, `.csv.gz` as a whole.

    >>> table_ending(Path("Credit.CSV.gz"))
    '.csv.gz'
    """
    endings = [suffix.lower() for suffix in path.suffixes[-2:]]
    return "".join(endings) if endings[-1:] == [".gz"] else "".join(endings[-1:])


def is_table(path: Path) -> bool:
    """Whether a file of this name is a table."""
    return table_ending(path) in TABLES


def read_table(
    path: Path, *, header: bool = True, names: Sequence[str] | None = None, known: Sequence[str] | None = None
) -> Table:
    """A table's columns of numbers, words and dates, as they are; every cell of a CSV file as text.

    Without a `header` they are called `names`, or by their place from 0. `known` are the columns of the table that a
    model was trained on, where that had no header: a file that does not begin with them is taken to have none either.
    """
    readable(path)
    if table_ending(path) in CSV:
        return _read_csv(path, header, names, text=True, known=known)
    if not header or names is not None:
        raise FileError(
            f"{path}: --no-header", "a Parquet file names its columns itself", "Leave --no-header and --names out."
        )
    try:
        metadata, schema = open_parquet(path)
        if len(set(schema.names)) != len(schema.names):
            raise duplicate_error(path)
        plain = {field.name: field.type for field in schema if _is_plain(field.type)}
        table = _read_parquet(path, metadata, plain)
    except DAMAGE as error:
        raise damage_error(path, error) from error
    for name in schema.names:
        if name not in plain:  # what has no number, word or date stays where it is
            table = table.append_column(name, pa.nulls(table.num_rows))
    return Table(table.replace_schema_metadata(None), str(path), True)


def read_columns(
    path: Path, label: str | None, columns: Sequence[str] | None, header: bool, names: Sequence[str] | None
) -> tuple[Array, Array, tuple[str, ...]]:
    """Features, labels and names of the features of a table whose feature columns are numbers."""
    if table_ending(path) in CSV:
        table = _read_csv(path, header, names, text=False)
        target, chosen = choose_columns(table.arrow.schema, path, label, columns)
    else:
        metadata, schema = open_parquet(path)
        target, chosen = choose_columns(schema, path, label, columns)
        require_types(schema, path, target, chosen)
        kinds = {name: schema.field(name).type for name in (*chosen, target)}
        table = Table(_read_parquet(path, metadata, kinds), str(path), True)
    return table.features(chosen), table.labels(target), table.feature_names(chosen)


def require_types(schema: pa.Schema, path: Path, label: str, columns: Sequence[str]) -> None:
    """Refuse columns that are neither numbers nor, for the label, text: before they are read."""
    for name in columns:
        require_numbers(schema.field(name).type, name, str(path))
    require_label(schema.field(label).type, str(path), label)


# Parquet -------------------------------------------------------------------------------------------------------------
# A few hundred bytes can stand for gigabytes: one run of a billion equal values, one page that inflates, one long word
# that a dictionary repeats. The footer says how many values there are, but need not tell the truth; the header before
# each page is what a reader acts on. So both are looked at before anything is decoded.


def open_parquet(path: Path) -> tuple[Any, pa.Schema]:
    """The footer, as Arrow reads it, and the schema; refuses one that is too long, has too many columns, or lies."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 8))
        end = file.read(8)
    if len(end) == 8 and end[4:] == b"PAR1":
        require_room(FOOTER_FACTOR * min(size, int.from_bytes(end[:4], "little")), path, "the footer")
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


def _read_parquet(path: Path, metadata: Any, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    """Columns of these types, whole."""
    require_fits(max(metadata.num_rows, 0) * metadata.num_columns * 8, path, "the table")
    require_bearable(path, metadata, kinds, range(metadata.num_row_groups))
    file = pa.parquet.ParquetFile(path, metadata=metadata, read_dictionary=text_columns(kinds))
    table = file.read(columns=list(kinds))
    if table.num_rows == 0:
        raise DataError(f"{path} has no rows", "at least one is needed", CHECK_FILE)
    return table


def text_columns(kinds: Mapping[str, pa.DataType]) -> list[str] | None:
    """Columns of text, which are read as codes and a dictionary: a long word is then in memory once."""
    return [name for name, kind in kinds.items() if is_text(_plain_type(kind))] or None


def require_bearable(
    path: Path, metadata: Any, kinds: Mapping[str, pa.DataType], groups: Iterable[int], rows: int | None = None
) -> None:
    """Refuse row groups of which columns of these types cannot be read: whole, or `rows` rows at a time.

    Of lists nobody knows, before they are decoded, whether a single row holds them all: the whole group counts.
    """
    text, size = text_columns(kinds) or [], path.stat().st_size
    lists = [name for name, kind in kinds.items() if is_list(kind)]
    needed = COLUMN_BYTES * len(kinds) + (size if rows is None else 0)
    with path.open("rb") as file:
        for group in map(metadata.row_group, groups):
            for chunk in map(group.column, range(group.num_columns)):
                leaf = chunk.path_in_schema
                name = leaf if leaf in kinds else next((each for each in lists if leaf.startswith(f"{each}.")), None)
                if name is None or chunk.num_values <= 0:
                    continue  # nothing is read of it
                most = chunk.num_values if name in lists else min(group.num_rows, chunk.num_values)
                values, largest, inflated = _measure_pages(
                    file, chunk, most, size, name in text, f"{path}: column {name!r}"
                )
                counted = values if rows is None or name in lists else min(values, rows)
                needed += counted * (NESTED_BYTES if name in lists else VALUE_BYTES)
                needed += largest + (inflated if name in text else 0)
    require_room(needed, path, "the table")


def _measure_pages(file: BinaryIO, chunk: Any, most: int, size: int, text: bool, name: str) -> tuple[int, int, int]:
    """Values, bytes of the largest page and of all pages, inflated, that a reader would go over.

    Refuses pages that hold more than `most` values, which is what the footer says, or lie outside the file.
    """

    def lie(what: str) -> FileError:
        return FileError(
            f"{name}: {what}", "headers must tell the truth", "The file is damaged or made to deceive; write it again."
        )

    first = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < first:
        first = chunk.dictionary_page_offset
    position, end = first, first + chunk.total_compressed_size
    if not 4 <= first <= end <= size:
        raise lie(f"it lies at {first:,} to {end:,} of {size:,} bytes")
    values = largest = total = 0
    while position < end and values < chunk.num_values:
        file.seek(position)
        header = _read_struct(file)
        kind, inflated, stored = (header.get(field, -1) for field in (1, 2, 3))
        about = header.get(COUNTS.get(kind, -1), {})
        if not isinstance(about, dict):
            raise lie("a page says no size")
        count = about.get(1, -1) if kind in COUNTS else 0
        if min(inflated, stored, count) < 0:
            raise lie("a page says no size")
        require_fits(inflated, Path(name), "a page")
        largest, total, position = max(largest, inflated), total + inflated, file.tell() + stored
        if kind == DICTIONARY and count > inflated:
            raise lie(f"a dictionary of {count:,} entries in {inflated:,} bytes")
        if kind in (DATA, DATA_V2):
            values += count
            if text and about.get(4 if kind == DATA_V2 else 2) == PREFIXES:
                raise FileError(
                    f"{name} is stored as DELTA_BYTE_ARRAY",
                    "a few bytes of that can stand for gigabytes, so it is not read",
                    "Write the column with a dictionary, as Parquet writers do by themselves.",
                )
    if values > most:
        raise lie(f"its pages hold {values:,} values")
    return values, largest, total


def _read_struct(file: BinaryIO, depth: int = 0) -> dict[int, Any]:
    """The numbers and structs of a struct in Thrift's compact protocol, by field."""
    fields: dict[int, Any] = {}
    field = 0
    for _ in range(MOST_FIELDS):
        head = file.read(1)[0]
        if head == 0:
            return fields
        step, kind = head >> 4, head & 15
        field = field + step if step else _read_number(file)
        if kind in (4, 5, 6):
            fields[field] = _read_number(file)
        elif kind == 8:
            file.seek(_read_varint(file), os.SEEK_CUR)
        elif kind == 12 and depth < 3:
            fields[field] = _read_struct(file, depth + 1)
        elif kind in (3, 7):
            file.seek(1 if kind == 3 else 8, os.SEEK_CUR)
        elif kind not in (1, 2):
            break
    raise ValueError("a page header that is none")


def _read_number(file: BinaryIO) -> int:
    value = _read_varint(file)
    return (value >> 1) ^ -(value & 1)  # zigzag


def _read_varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("a number without an end")


def _is_plain(kind: pa.DataType) -> bool:
    """Whether a column of this type has one number, word or date a row."""
    kind = _plain_type(kind)
    return is_text(kind) or is_number(kind) or bool(pa.types.is_decimal(kind) or pa.types.is_temporal(kind))


def has_lists(path: Path) -> bool:
    """Whether a Parquet file has columns of lists: they are features already."""
    try:
        return table_ending(path) in PARQUET and any(is_list(field.type) for field in open_parquet(path)[1])
    except (ValueError, OSError, KeyError):
        return False  # reading it says what is wrong


# CSV -----------------------------------------------------------------------------------------------------------------


def _read_csv(
    path: Path, header: bool, names: Sequence[str] | None, *, text: bool, known: Sequence[str] | None = None
) -> Table:
    """All cells, as text or as what Arrow finds in them; refuses a file that would take too much memory."""
    content = _inflate(path) if path.suffix.lower() == ".gz" else None
    with path.open("rb") if content is None else io.BytesIO(content) as stream:
        sample = stream.read(SAMPLE)
        line = sample if b"\n" in sample else sample + stream.readline(50 * MOST_NAMES)
        separator = find_separator(sample)
        stream.seek(0)
        size = _require_csv_bearable(stream, separator, path)
    cells, first_lines = next(_cells(line, separator), ([], 1))
    first = [cell.strip() for cell in cells]
    if known is not None and first != list(known) and len(first) == len(known):
        header, names = False, known
    if header and names is not None:
        raise FileError(
            f"{path}: --names with a header",
            "names are for files without one",
            "Add --no-header if the first line is data; else leave --names out.",
        )
    listed = list(first if header else names or map(str, range(len(first))))
    if len(listed) != len(first):
        raise DataError(
            f"{path} has {len(first)} columns",
            f"{len(listed)} names were given for them",
            "Give one name for each column.",
        )
    if len(set(listed)) < len(listed):
        twice = Counter(listed).most_common(1)[0][0]
        hint = " A file without a header is read with --no-header." if looks_like_data(listed) else ""
        raise duplicate_error(path, twice, f"Rename one of them.{hint}")
    try:
        table = pa.csv.read_csv(
            path if content is None else pa.BufferReader(content),
            read_options=pa.csv.ReadOptions(
                block_size=min(max(1 << 20, size), 1 << 30),
                column_names=listed,
                skip_rows=first_lines if header else 0,
            ),
            parse_options=pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(listed, pa.string()) if text else {}),
        )
    except (pa.ArrowException, ValueError) as error:
        sign = {"\t": "a tab"}.get(separator, repr(separator))
        raise out_of_memory(error) or FileError(
            f"{path} is not a table ({str(error)[:200]}), read with {sign} between cells",
            "a header line and equally long rows are needed",
            "Write it again as CSV, in UTF-8; a file without a header is read with --no-header.",
        ) from error
    if table.num_rows == 0:
        raise DataError(f"{path} has no rows", "at least one is needed", CHECK_FILE)
    # where no semicolon stands between cells, a comma between digits may well group thousands
    return Table(table, str(path), not text, separator == ";", header)


def _inflate(path: Path) -> bytes:
    """A compressed file's text; refuses one that inflates to more than there is room for, before it has done so."""
    pieces, total = [], 0
    try:
        with gzip.open(path) as stream:
            while piece := stream.read(PIECE):
                total += len(piece)
                require_fits(total, path, "the text")
                require_room(TEXT_COPIES * total, path, "the text")
                pieces.append(piece)
    except (OSError, EOFError, zlib.error) as error:
        raise damage_error(path, error) from error
    if not total:
        raise FileError(f"{path} is empty", "a file with data is needed", "Write it again.")
    return b"".join(pieces)


def _require_csv_bearable(stream: BinaryIO, separator: str, path: Path) -> int:
    """The bytes of a text; refuses too many columns, or values, at most: every separator counts, wherever it stands."""
    size, values, columns = 0, 1, 1
    first, sign = True, separator.encode()
    while piece := stream.read(PIECE):
        size += len(piece)
        values += piece.count(sign) + piece.count(b"\n")
        if first:
            line, newline, _ = piece.partition(b"\n")
            columns += line.count(sign)
            first = not newline
        if columns > MOST_NAMES:
            raise FileError(
                f"{path} has more than {MOST_NAMES:,} columns",
                f"at most {MOST_NAMES:,} are read",
                "Save the rows as .npz.",
            )
    require_fits(size, path, "the text")
    require_room(TEXT_COPIES * size + CELL_BYTES * values + COLUMN_BYTES * columns, path, "the table")
    return size


def find_separator(sample: bytes) -> str:
    """What stands between cells: the sign that gives every line as many, and more than one; else a comma.

    >>> find_separator(b"name;income\\nAnna;1,5\\nBen;2,5\\n")
    ';'
    """
    text = sample if len(sample) < SAMPLE else sample[: sample.rfind(b"\n") + 1] or sample
    for sign in SEPARATORS:
        widths = {len(cells) for (cells, _), _ in zip(_cells(text, sign), range(LINES), strict=False)}
        if len(widths) == 1 and min(widths) > 1:
            return sign
    return ","


def _cells(sample: bytes, separator: str) -> Iterator[tuple[list[str], int]]:
    """The cells of the lines of a sample, empty lines apart, with the number of the line in which each row ends."""
    reader = csv.reader(io.StringIO(sample.decode("utf-8-sig", errors="replace"), newline=""), delimiter=separator)
    try:
        yield from ((cells, reader.line_num) for cells in reader if cells)
    except csv.Error:
        return


# Data frames ---------------------------------------------------------------------------------------------------------


def is_frame(values: object) -> bool:
    """Whether these have named columns: a frame of pandas, polars, Arrow or any other library, or a dict of columns."""
    columns = hasattr(values, "columns") and hasattr(values, "__array__")
    return isinstance(values, Mapping) or hasattr(values, "__dataframe__") or columns


def frame_names(frame: Any) -> tuple[str, ...]:
    """The names of its columns."""
    names = getattr(frame, "column_names", None)  # Arrow's; its `columns` are the values
    if not isinstance(names, list):
        names = frame if isinstance(frame, Mapping) else getattr(frame, "columns", None)
    return tuple(map(str, frame.__dataframe__().column_names() if names is None else names))


def frame_table(frame: Any, name: str) -> Table:
    """A data frame's columns as they are: of pandas, polars, Arrow, any other library, or a dict of columns."""
    names = frame_names(frame)
    if len(set(names)) != len(names):
        raise DataError(f"{name} has two columns of one name", "column names must differ", "Rename one of them.")
    try:
        if isinstance(frame, Mapping):
            table = pa.table({str(key): _as_arrow(values) for key, values in frame.items()})
        elif hasattr(frame, "iloc"):  # pandas; its index is no column
            table = pa.Table.from_pandas(frame.rename(columns=str), preserve_index=False)
        elif hasattr(frame, "to_arrow"):  # polars, whose C stream has text of a newer kind
            table = frame.to_arrow()
        else:
            stream = hasattr(frame, "__arrow_c_stream__")
            table = pa.table(frame) if stream else pyarrow.interchange.from_dataframe(frame)
    except DAMAGE as error:
        raise DataError(
            f"{name}: columns that make no table ({str(error)[:200]})",
            "all have one value a row, and each values of one kind: numbers, or text",
            "Convert a column of several kinds, for example with frame[column].astype(str), and check the lengths.",
        ) from error
    return Table(table.replace_schema_metadata(None), name, True)


def _as_arrow(values: Any) -> Any:
    """A column of a dict: an array or a tensor, or anything that can be listed."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    known = isinstance(values, list) or hasattr(values, "__arrow_array__") or hasattr(values, "__array__")
    return pa.array(values if known else list(values))


def frame_values(frame: Any, name: str) -> Array:
    """The columns of a frame as one array; refuses a column that has no numbers, by name."""
    if hasattr(frame, "__array__"):
        array = np.asarray(frame)
        if array.dtype.kind in "fiub":
            return array
    table = frame_table(frame, name)
    return table.features(table.names)
