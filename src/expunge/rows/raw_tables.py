"""Tables as they are, before anything is made of them: of files of text, of Parquet files, of data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.interchange
import pyarrow.parquet

from expunge.errors import DataError, ExpungeError, FileError
from expunge.rows.names import arrow_columns, frame_names
from expunge.rows.parquet_pages import Wanted, opened, require_bearable
from expunge.rows.tables import columns_shown, is_text, nearest
from expunge.rows.text_tables import TEXT_TABLES, is_text_table, looks_like_data, numbered, open_text, read_text
from expunge.rows.values import RawTable, is_yes_or_no
from expunge.runtime.memory import out_of_memory
from expunge.runtime.paths import readable

PARQUET = (".parquet", ".pq")
ENDINGS = (*TEXT_TABLES, *PARQUET)
DAMAGE = (ValueError, TypeError, KeyError, IndexError, OverflowError, OSError, RuntimeError, pa.ArrowException)


def is_table(path: Path) -> bool:
    """Whether a file of this name is a table."""
    return is_text_table(path) or path.suffix.lower() in PARQUET


def read_raw(
    path: Path,
    *,
    header: bool = True,
    names: Sequence[str] | None = None,
    known: Sequence[str] | None = None,
) -> RawTable:
    """A table's columns as they are. Without a `header` they are called `names`, or by their place from 0.

    `known` are the columns of the table that a model was trained on, where that had no header: a file that does not
    begin with them is taken to have none either.
    """
    readable(path)
    if not is_text_table(path):
        if not header or names is not None:
            raise FileError(
                f"{path}: --no-header", "a Parquet file names its columns itself", "Leave --no-header and --names out."
            )
        return _parquet(path)
    text = open_text(path)
    if known is not None and text.first != tuple(known) and len(text.first) == len(known):
        header, names = False, known
    if header and names is not None:
        raise FileError(
            f"{path}: --names with a header",
            "names are for files without one",
            "Add --no-header if the first line is data; else leave --names out.",
        )
    return read_text(text, None if header else tuple(names or numbered(len(text.first))))


def _parquet(path: Path) -> RawTable:
    """Columns of numbers, words and dates; what else there is stays where it is."""
    try:
        metadata = opened(path)
        schema = pa.parquet.ParquetFile(path, metadata=metadata).schema_arrow
        if len(set(schema.names)) != len(schema.names):
            raise FileError(f"{path} has two columns of one name", "column names must differ", "Rename one of them.")
        plain = [name for name in schema.names if _is_plain(schema.field(name).type)]
        wanted = Wanted.of(schema, None, plain)
        require_bearable(path, metadata, wanted)
        text = sorted(wanted.text) or None
        table = pa.parquet.ParquetFile(path, metadata=metadata, read_dictionary=text).read(columns=plain)
        others = {name: pa.nulls(table.num_rows) for name in schema.names if name not in plain}
    except DAMAGE as error:
        raise out_of_memory(error) or FileError(
            f"{path} is not a whole {path.suffix} file ({type(error).__name__}: {error})",
            "a complete one is needed",
            "Write or copy it again.",
        ) from error
    if table.num_rows == 0:
        raise DataError(f"{path} has no rows", "at least one is needed", "Check how the file was written.")
    for name, values in others.items():
        table = table.append_column(name, values)
    return RawTable(table.replace_schema_metadata(None), str(path), True)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether a column of this type has one number, word or date a row."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return (
        is_text(kind)
        or is_yes_or_no(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_temporal(kind)
    )


def raw_frame(frame: Any, name: str) -> RawTable:
    """A data frame's columns as they are: of pandas, polars, Arrow, any other library, or a dict of columns."""
    names = frame_names(frame)
    if len(set(names)) != len(names):
        raise DataError(f"{name} has two columns of one name", "column names must differ", "Rename one of them.")
    try:
        if isinstance(frame, Mapping):
            table = arrow_columns(frame, name)
        elif isinstance(frame, pa.Table):
            table = frame
        elif hasattr(frame, "to_arrow"):  # polars
            table = frame.to_arrow()
        elif hasattr(frame, "iloc"):  # pandas; its index is no column
            table = pa.Table.from_pandas(frame.rename(columns=str), preserve_index=False)
        else:
            table = pyarrow.interchange.from_dataframe(frame)
    except DAMAGE as error:
        raise DataError(
            f"{name}: a column holds values of several kinds ({str(error)[:200]})",
            "each column needs one kind: numbers, or text",
            "Convert the column, for example with frame[column].astype(str).",
        ) from error
    return RawTable(table.replace_schema_metadata(None), name, True)


AS_IT_STANDS = "Give the name as it stands in the table."


def require_columns(raw: RawTable, wanted: Sequence[str], what: str, remedy: str = AS_IT_STANDS) -> None:
    """Refuse a table that lacks columns, with the names that are nearest to theirs."""
    missing = [name for name in wanted if name not in raw.columns]
    if missing:
        raise missing_column(raw, missing, what, remedy)


def missing_column(raw: RawTable, missing: Sequence[str], what: str, otherwise: str = AS_IT_STANDS) -> ExpungeError:
    """The error for columns that are not there."""
    close = nearest(missing[0], raw.columns)
    more = f" (nor {len(missing) - 1} more)" if len(missing) > 1 else ""
    remedy = f"Did you mean {close}? " if close else ""
    if not raw.typed and raw.named and looks_like_data(raw.columns):
        remedy += "The first line looks like data: a file without a header is read with --no-header. "
    return FileError(
        f"{raw.name} has no column {missing[0]!r}{more}; its columns are {columns_shown(raw.columns)}",
        what,
        (remedy + otherwise).strip(),
    )
