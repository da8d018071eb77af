"""Tables: of CSV and Parquet files and of data frames, each as one Arrow table, whose columns are numbers or words.

`open_table` looks at what a file says of itself, `TableFile.read` reads the columns that are needed and no others: each
straight into numbers or coded words, a part at a time, and refused as soon as there is no room for more."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from expunge.errors import DataError, ExpungeError, FileError
from expunge.record import MOST_NAMES
from expunge.rows.arrays import DAMAGE, Array, damage_error, duplicate_error
from expunge.runtime.files import nearest, readable
from expunge.runtime.memory import out_of_memory, require_fits, require_room

CSV, PARQUET = (".csv", ".tsv", ".csv.gz", ".tsv.gz"), (".parquet", ".pq")
TABLES = (*CSV, *PARQUET)
SEPARATORS = ("\t", ";", "|", ",")  # a comma may stand in a number or a sentence, so it is the last that is tried
SAMPLE, LINES = 1 << 16, 50  # bytes and lines that are looked at for what stands between cells
LONGEST_LINE = 1 << 24  # bytes of a CSV file
CSV_BYTES = 1 << 22  # of it that are read at a time; a line that is longer needs more
NOT_READ = pa.list_(pa.null())  # the type of a column that holds neither numbers nor words
ATTEMPTS = 3  # to read a CSV file with columns of numbers read as such, before all are read as text
CODED = pa.dictionary(pa.int32(), pa.string())  # a column of text: a number for each cell, and what it stands for
NO_NUMBER_THERE = re.compile(r"In CSV column #(\d+): (Row #\d+: )?CSV conversion error to double")
LONG_LINE = "straddling object"  # Arrow's word for a line longer than what is read at a time
BATCH_ROWS = 1 << 16  # of a Parquet file that are read at a time
CELL_BYTES = 24  # that are made of a cell that was read: its text or Arrow's number, ours in float64, a copy
COLUMN_BYTES = 10_000  # that Arrow takes for a column, whatever is in it; 8,300 were measured
FOOTER_FACTOR = 60  # bytes in memory for a byte of a Parquet file's footer; 30 were measured with 200,000 columns
MOST_OFTEN, SMALL = 10_000, 1 << 26  # bytes in memory for a byte of the file, beyond 64 MB: tables of zeros have 1,000
LONGEST_LABEL = 1_000  # characters
EMPTY = ("", "?", "na", "n/a", "#n/a", "nan", "null", "nil")  # in any case, spaces around it apart
NO_NUMBER = (*EMPTY, "none", "-", ".", "missing", "unknown")  # in a column of numbers also these
SPELLED = sorted({spell(word) for word in (*NO_NUMBER, "NaN") for spell in (str, str.lower, str.upper, str.capitalize)})
MISSING = "(missing)"  # what a cell without a value is called among categories
DECIMAL_COMMA = r"^[+-]?\d+(,\d+)?$"
WHOLE, WITH_ZEROS = r"^([+-]?\d+)$", r"^([+-]?\d+)\.0+$"
DATES = (
    r"^\d{4}-\d{1,2}-\d{1,2}([T ]\d{1,2}:\d{2}.*)?$|^\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2})( \d{1,2}:\d{2}.*)?$"
    r"|^\d{4}/\d{1,2}/\d{1,2}( \d{1,2}:\d{2}.*)?$|^\d{1,2}:\d{2}(:\d{2})?$"
)
BARE = "A CSV file without a header is read with --no-header."
AS_IT_STANDS = f"Give the name as it stands in the table. {BARE}"


@dataclass(frozen=True)
class Table:
    """Columns as a file or a frame holds them.

    `typed`: their types were chosen by somebody, so that text is text; the cells of a CSV file have none.
    `decimal_comma`: numbers may be written as 1,5, since a semicolon stands between cells. `has_header`: the table
    itself says what its columns are called. `file_names` are all columns of its file, of which some were read.
    """

    arrow: pa.Table
    name: str
    typed: bool
    decimal_comma: bool = False
    has_header: bool = True
    file_names: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return list(self.file_names or self.arrow.column_names)

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def numbers(self, column: str) -> Array | None:
        """The column in float64, NaN where there is no finite value; None if some cell holds something else."""
        return as_numbers(self.arrow[column], self.decimal_comma)

    def has_numbers(self, columns: Sequence[str]) -> bool:
        """Whether every cell of these columns is a number, not a text that looks like one."""

        def all_numbers(column: str) -> bool:
            values = None if self.typed and not is_number(self.arrow[column].type) else self.numbers(column)
            return values is not None and not np.isnan(values).any()

        return all(map(all_numbers, columns))

    def words(self, column: str) -> Words:
        """The column as words."""
        return as_words(self.arrow[column])

    def has_dates(self, column: str) -> bool:
        """Whether the column holds days or times: by its type or, of cells without one, by how each is written."""
        values, kind = self.arrow[column], _plain_type(self.arrow[column].type)
        if pa.types.is_temporal(kind) or self.typed or not is_text(kind):
            return bool(pa.types.is_temporal(kind))
        text = pc.utf8_trim_whitespace(as_words(values).different if pa.types.is_dictionary(values.type) else values)
        filled = pc.filter(text, pc.invert(pc.is_in(pc.utf8_lower(text), value_set=pa.array(EMPTY))))
        return len(filled) > 0 and bool(pc.all(pc.match_substring_regex(filled, DATES)).as_py())

    def features(self, columns: Sequence[str]) -> Array:
        """These columns as rows x features; refuses empty cells and anything but numbers."""
        what = f"{len(self):,} rows of {len(columns):,} features"
        require_room(3 * 8 * len(self) * len(columns), Path(self.name), what)  # with copies that are made ready
        features = np.empty((len(self), len(columns)))
        for place, name in enumerate(columns):
            if self.typed:
                require_numbers(self.arrow[name].type, name, self.name)
            numbers = self.numbers(name)
            if numbers is None:
                raise not_numbers(self.name, name, "text")
            empty = int(np.isnan(numbers).sum())
            if empty:
                raise DataError(
                    f"{self.name}: column {name!r} has {empty:,} empty cells or values that are not finite",
                    "every cell needs a number",
                    "Fill them in or drop those rows, as was done for training.",
                )
            features[:, place] = numbers
        return features

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
        own: Array = np.append(np.asarray(places.to_numpy(zero_copy_only=False), dtype=np.int32), np.int32(-1))
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
    if not is_number(kind):
        return None
    return _finite(column.cast(pa.uint8()) if pa.types.is_boolean(kind) else column)


def _finite(column: Any) -> Array:
    values = np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    finite = np.isfinite(values)
    return values if finite.all() else np.where(finite, values, np.nan)


def _parse_numbers(column: Any, decimal_comma: bool) -> Array | None:
    with contextlib.suppress(pa.ArrowInvalid):
        return _finite(column.cast(pa.float64()))  # nothing but numbers
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
    return Words(different, np.append(places, np.int32(-1))[codes])


def _dictionary(column: Any) -> tuple[Any, Array]:
    """The different values of a coded column, and where each row's is; -1 for none."""
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # of no chunks
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    codes = column.indices.cast(pa.int32()).fill_null(-1).to_numpy(zero_copy_only=False)
    return column.dictionary, np.asarray(codes)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers, or true and false."""
    whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    return bool(whole or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def require_numbers(kind: pa.DataType, name: str, table: str) -> None:
    """Refuse a column whose values are no numbers."""
    if not is_number(kind):
        raise not_numbers(table, name, "text" if is_text(kind) else str(kind))


def not_numbers(table: str, name: str, found: str) -> DataError:
    """The error for a feature column that holds something else."""
    return DataError(
        f"{table}: column {name!r} holds {found}",
        "features must be numbers",
        "Save lists of features as the rows of X in an .npz file, with y."
        if "list" in found
        else "Encode it as numbers the way it was encoded for training, or drop it.",
    )


def require_label(kind: pa.DataType, table: str, column: str) -> None:
    """Refuse a label column that holds neither numbers nor text."""
    plain = _plain_type(kind)
    if not (is_text(plain) or is_number(plain) or pa.types.is_null(plain)):
        raise DataError(
            f"{table}: label column {column!r} holds {kind}", "labels are whole numbers or text", "Convert them."
        )


# Which column is which ------------------------------------------------------------------------------------------------


def choose_label(name: Path | str, names: Sequence[str], label: str | None) -> str:
    """The label column: the one that is asked for, or one that is called y or label."""
    target = label if label is not None else next((each for each in ("y", "label") if each in names), None)
    if target is None:
        raise FileError(
            f"{name} has columns {show_columns(names)}, and none is called y",
            "a label column is needed",
            f"Name it with --label (label=). {BARE}",
        )
    require_columns(name, names, [target], "a label column is needed", f"Name it with --label (label=). {BARE}")
    return target


def choose_columns(
    name: Path | str, names: Sequence[str], label: str | None, columns: Sequence[str] | None
) -> tuple[str, tuple[str, ...]]:
    """The label column and the feature columns: those asked for, or all others."""
    target = choose_label(name, names, label)
    chosen = tuple(each for each in names if each != target) if columns is None else tuple(columns)
    require_columns(name, names, chosen, "every column that is named with --columns is needed")
    if target in chosen:
        raise DataError(
            f"--columns has the label column {target!r}", "features are other columns", "Leave it out of --columns."
        )
    if not chosen:
        raise DataError(
            f"{name} has only the label column {target!r}", "at least one feature column is needed", "Add the features."
        )
    return target, chosen


def require_columns(
    name: Path | str, names: Sequence[str], wanted: Sequence[str], required: str, remedy: str = AS_IT_STANDS
) -> None:
    """Refuse a table that lacks columns, with the name that is nearest to theirs."""
    there = set(names)
    missing = [each for each in wanted if each not in there]
    if missing:
        close = nearest(missing[0], names)
        more = f" (nor {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise FileError(
            f"{name} has no column {missing[0]!r}{more}; its columns are {show_columns(names)}",
            required,
            f"Did you mean {close}? {remedy}" if close else remedy,
        )


def show_columns(names: Sequence[str], most: int = 14, longest: int = 40) -> str:
    """Names of columns in a line: all of few; of many the first, and the last, which is often the label.

    >>> show_columns([f"f{place}" for place in range(40)], 4)
    'f0, f1, f2 ... f39 (40 columns)'
    """
    short = [name if len(name) <= longest else name[: longest - 3] + "..." for name in names]
    if len(short) <= most:
        return ", ".join(short)
    return f"{', '.join(short[: most - 1])} ... {short[-1]} ({len(short):,} columns)"


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


@dataclass(frozen=True)
class TableFile:
    """A table's file, and the names of its columns; `schema` are their types, of a file that has types."""

    names: tuple[str, ...]
    schema: pa.Schema | None
    read_columns: Callable[[Sequence[str], Sequence[str]], Table]

    def read(self, columns: Sequence[str] | None = None, words: Sequence[str] = ()) -> Table:
        """These columns, or all; of a CSV file `words` as they are written, be they numbers or not.

        What has no number, word or date a row is left where it is.
        """
        return self.read_columns(list(dict.fromkeys(self.names if columns is None else columns)), words)


def open_table(
    path: Path, *, header: bool = True, names: Sequence[str] | None = None, known: Sequence[str] | None = None
) -> TableFile:
    """A table's file, of which nothing but what it says of itself was read.

    Without a `header` columns are called `names`, or by their place from 0. `known` are the columns of the table that a
    model was trained on, where that had no header: a file that does not begin with them is taken to have none either.
    """
    if table_ending(readable(path)) in CSV:
        return _open_csv(path, header, names, known)
    if not header or names is not None:
        raise FileError(
            f"{path}: --no-header", "a Parquet file names its columns itself", "Leave --no-header and --names out."
        )
    metadata, schema = open_parquet(path)

    def read(columns: Sequence[str], _: Sequence[str]) -> Table:
        plain = [name for name in columns if is_plain(schema.field(name).type)]
        table = _read_parquet(path, metadata, schema, plain)
        for name in columns:
            if name not in plain:
                table = table.append_column(name, pa.nulls(table.num_rows, NOT_READ))
        return Table(table, str(path), True, file_names=tuple(schema.names))

    return TableFile(tuple(schema.names), schema, read)


def _read_batches(batches: Iterable[pa.RecordBatch], path: Path) -> pa.Table:
    """A table, a part at a time; refused as soon as there is no room for what will be made of the parts."""
    parts, cells = [], 0
    for batch in batches:
        parts.append(batch)
        cells += batch.num_rows * batch.num_columns
        require_room(CELL_BYTES * cells, path, "the table")
    if sum(len(part) for part in parts) == 0:
        raise DataError(f"{path} has no rows", "at least one is needed", "Check how the file was written.")
    return pa.Table.from_batches(parts).replace_schema_metadata(None).unify_dictionaries()


# A Parquet file of a few hundred bytes can stand for gigabytes: a run of a billion equal values, a word that a
# dictionary repeats. What its footer says is checked before anything is read; then it is read a part at a time: a file
# whose pages hold more than its footer says is refused by Arrow, or when there is no room for the next part.


def open_parquet(path: Path) -> tuple[Any, pa.Schema]:
    """The footer, as Arrow reads it, and the schema; refuses one that is too long, has too many columns, or lies."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 8))
        end = file.read(8)
    try:
        if len(end) == 8 and end[4:] == b"PAR1":
            require_room(FOOTER_FACTOR * min(size, int.from_bytes(end[:4], "little")), path, "the footer")
        metadata = pa.parquet.read_metadata(path)
        schema = pa.parquet.ParquetFile(path, metadata=metadata).schema_arrow
        groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    except DAMAGE as error:
        raise damage_error(path, error) from error
    if metadata.num_columns > MOST_NAMES:
        raise FileError(
            f"{path} has {metadata.num_columns:,} columns", f"at most {MOST_NAMES:,} are read", "Save the rows as .npz."
        )
    if len(set(schema.names)) != len(schema.names):
        raise duplicate_error(path)
    values = metadata.num_columns * max(sum(max(rows, 0) for rows in groups), metadata.num_rows)
    if 8 * values > max(SMALL, MOST_OFTEN * size):
        raise FileError(
            f"{path} declares {8 * values:,} bytes in a file of {size:,}",
            f"a table takes at most {MOST_OFTEN:,} times as much in memory as in its file",
            "The file is made to deceive, or all its columns are constant; write it as .npz.",
        )
    return metadata, schema


def _read_parquet(path: Path, metadata: Any, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    """Read these columns of a Parquet file, whole."""
    require_fits(8 * max(metadata.num_rows, 0) * len(columns), path, "the table")
    return _read_batches(parquet_batches(path, metadata, schema, columns, range(metadata.num_row_groups)), path)


def parquet_batches(
    path: Path, metadata: Any, schema: pa.Schema, columns: Sequence[str], groups: Sequence[int], rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """These columns of some row groups, so many rows at a time."""
    require_room(COLUMN_BYTES * len(columns), path, "the table")
    # columns of text are read as codes and a dictionary: a long word is then in memory once
    text = [name for name in columns if is_text(_plain_type(schema.field(name).type))]
    options = {"memory_map": False, "pre_buffer": False, "buffer_size": 1 << 16}
    try:
        file = pa.parquet.ParquetFile(path, metadata=metadata, read_dictionary=text, **options)
        for batch in file.iter_batches(rows, groups, list(columns), use_threads=False):
            batch.validate(full=True)
            yield batch
    except DAMAGE as error:
        raise damage_error(path, error) from error


def require_types(schema: pa.Schema, path: Path, label: str, columns: Sequence[str]) -> None:
    """Refuse columns that are neither numbers nor, for the label, text: before they are read."""
    for name in columns:
        require_numbers(schema.field(name).type, name, str(path))
    require_label(schema.field(label).type, str(path), label)


def is_plain(kind: pa.DataType) -> bool:
    """Whether a column of this type has one number, word or date a row."""
    kind = _plain_type(kind)
    return is_text(kind) or is_number(kind) or bool(pa.types.is_temporal(kind) or pa.types.is_null(kind))


def _open_csv(path: Path, header: bool, names: Sequence[str] | None, known: Sequence[str] | None) -> TableFile:
    """Look at the first lines of a CSV file: what stands between its cells, and which columns seem to be numbers."""
    packed, separator = "gzip" if path.suffix.lower() == ".gz" else None, ","
    require_fits(path.stat().st_size, path, "the text")
    try:
        with pa.input_stream(path, compression=packed) as stream:
            sample = stream.read(SAMPLE)
            if b"\n" not in sample:  # a long line; the longest that is read has as many columns as are read
                sample += stream.read(LONGEST_LINE)
        separator = find_separator(sample[:SAMPLE])
        # of long lines no more than two: their cells take many times as much memory
        lines = list(itertools.islice(_cells(sample, separator), LINES if len(sample) <= SAMPLE else 2))
        if not lines:
            raise ValueError("Empty CSV file")
    except DAMAGE as error:
        raise _csv_error(path, separator, error) from error
    if len(lines[0][0]) > MOST_NAMES:
        raise FileError(
            f"{path} has more than {MOST_NAMES:,} columns", f"at most {MOST_NAMES:,} are read", "Save the rows as .npz."
        )
    first = [cell.strip() for cell in lines[0][0]]
    require_room(COLUMN_BYTES * len(first), path, "the table")
    if known is not None and first != list(known) and len(first) == len(known):
        header, names = False, known
    listed, skipped = _name_columns(path, first, header, names), lines[0][1] if header else 0
    whole = [cells for cells, _ in lines[int(header) :] if len(cells) == len(listed)]
    numbers = {name for name, cells in zip(listed, zip(*whole, strict=True), strict=False) if _seem_numbers(cells)}

    def read(columns: Sequence[str], words: Sequence[str]) -> Table:
        direct, block = numbers.intersection(columns) - set(words), CSV_BYTES
        for attempt in itertools.count(1):
            kinds = {name: pa.float64() if name in direct else CODED for name in columns}
            try:
                with pa.input_stream(path, compression=packed) as stream:
                    reader = pa.csv.open_csv(
                        stream,
                        pa.csv.ReadOptions(block_size=block, column_names=listed, skip_rows=skipped),
                        pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
                        pa.csv.ConvertOptions(column_types=kinds, include_columns=columns, null_values=SPELLED),
                    )
                    table = _read_batches(reader, path)
                break
            except DAMAGE as error:
                odd = NO_NUMBER_THERE.match(str(error))
                if odd is not None:  # as text a column is looked at as a whole; not one column at a time for ever
                    direct = direct - {listed[int(odd[1])]} if attempt < ATTEMPTS else set()
                elif LONG_LINE in str(error) and block < LONGEST_LINE:
                    block = LONGEST_LINE
                else:
                    raise _csv_error(path, separator, error) from error
        # where no semicolon stands between cells, a comma between digits may well group thousands
        return Table(table, str(path), False, separator == ";", header, tuple(listed))

    return TableFile(tuple(listed), None, read)


def _csv_error(path: Path, separator: str, error: BaseException) -> ExpungeError:
    """The error for a file that cannot be read as CSV."""
    sign = {"\t": "a tab"}.get(separator, repr(separator))
    return out_of_memory(error) or FileError(
        f"{path} is not a table ({str(error)[:200]}), read with {sign} between cells",
        "a header line and equally long rows are needed",
        f"Write it again as CSV, in UTF-8. {BARE}",
    )


def _seem_numbers(cells: Sequence[str]) -> bool:
    """Whether the first cells of a column are numbers, or empty but for those; a guess, which decides nothing."""
    filled = [cell for cell in cells if cell.strip().lower() not in NO_NUMBER]
    with contextlib.suppress(ValueError):
        return len(list(map(float, filled))) > 0
    return False


def _name_columns(path: Path, first: list[str], header: bool, names: Sequence[str] | None) -> list[str]:
    """What the columns of a CSV file are called, of which this is the first line."""
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
        raise duplicate_error(path, Counter(listed).most_common(1)[0][0], f"Rename one of them. {BARE}")
    return listed


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
    with contextlib.suppress(csv.Error):
        yield from ((cells, reader.line_num) for cells in reader if cells)


# Data frames ---------------------------------------------------------------------------------------------------------


def is_frame(values: object) -> bool:
    """Whether these have named columns: a frame of pandas, polars, Arrow or any other library, or a dict of columns."""
    streams = hasattr(values, "__arrow_c_stream__") or hasattr(values, "__array__")
    return isinstance(values, Mapping) or (streams and hasattr(values, "columns"))


def frame_names(frame: Any) -> tuple[str, ...]:
    """The names of a frame's columns."""
    names = getattr(frame, "column_names", None)  # Arrow's; its `columns` are the values
    return tuple(map(str, names or (frame if isinstance(frame, Mapping) else frame.columns)))


def frame_table(frame: Any, name: str) -> Table:
    """A data frame's columns as they are: of pandas, polars, Arrow, any other library, or a dict of columns."""
    names = frame_names(frame)
    if len(set(names)) != len(names):
        raise duplicate_error(name)
    try:
        if isinstance(frame, Mapping):
            table = pa.table({str(key): _as_arrow(values) for key, values in frame.items()})
        elif hasattr(frame, "iloc"):  # pandas; its index is no column
            table = pa.Table.from_pandas(frame.rename(columns=str), preserve_index=False)
        else:  # polars' own stream has text of a newer kind
            table = frame.to_arrow() if hasattr(frame, "to_arrow") else pa.table(frame)
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
