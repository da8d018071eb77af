"""Rows by the path a user gives: arrays and tables read whole or as a stream, prepared as a model's record says.

Also the source a model is to be trained on, from a file or from Python, with every decision on its columns told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from expunge.errors import DataError, FileError, OptionError
from expunge.record import LEARNT_COARSE, LEARNT_ELSEWHERE, LEARNT_FROM_SOURCE, TrainingRecord
from expunge.rows.arrays import (
    DAMAGE,
    Array,
    damage_error,
    locate_npy,
    locate_safetensors,
    origin,
    read_arrays,
    read_features,
    require_tensors,
)
from expunge.rows.features import as_labels
from expunge.rows.preparation import RARE, TRAINED_ON, Preparation, learn
from expunge.rows.streams import Stream, stream_parquet, stream_stored
from expunge.rows.tables import (
    PARQUET,
    TABLES,
    Table,
    choose_columns,
    choose_label,
    frame_table,
    is_frame,
    is_plain,
    is_table,
    open_parquet,
    open_table,
    require_columns,
    require_types,
    table_ending,
)
from expunge.runtime.files import readable
from expunge.runtime.memory import Memory, require_room
from expunge.runtime.values import choice

ARRAYS = (".npz", ".safetensors")
PREPARE = ("auto", "table", "none")
COARSE, EXACT = PRECISION = ("coarse", "exact")


class EncodedRows(tuple[Any, Any]):
    """(features, labels), as every function takes them, with what their file says of them.

    That is the digest of the encoder that made the features, whether it was trained on rows of the source (`yes`, `no`,
    `unknown`), and what the columns are called. `unprepared` are columns of a table that was read as it is: for a model
    whose record says how columns become features they are no features yet.
    """

    encoder: str | None
    encoder_trained: str | None
    feature_names: tuple[str, ...] | None
    name: str
    unprepared: bool

    def __new__(
        cls,
        features: Any,
        labels: Any,
        encoder: str | None = None,
        feature_names: tuple[str, ...] | None = None,
        encoder_trained: str | None = None,
        *,
        name: str = "the rows",
        unprepared: bool = False,
    ) -> Self:
        rows = super().__new__(cls, (features, labels))
        rows.encoder, rows.feature_names, rows.encoder_trained = encoder, feature_names, encoder_trained
        rows.name, rows.unprepared = name, unprepared
        return rows

    @property
    def features(self) -> Any:
        return self[0]

    @property
    def labels(self) -> Any:
        return self[1]

    def with_arrays(self, features: Any, labels: Any) -> EncodedRows:
        """Other rows of which the same is known."""
        rows = EncodedRows(features, labels)
        rows.__dict__ |= self.__dict__
        return rows


def encoder_of(rows: object) -> str | None:
    """The digest of the encoder that made these rows, where they know it."""
    encoder = getattr(rows, "encoder", None)  # of EncodedRows, or of a stream
    return encoder if isinstance(encoder, str) else None


# Read whole ----------------------------------------------------------------------------------------------------------


def read_data(
    path: str | Path,
    label: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    header: bool = True,
    names: Sequence[str] | None = None,
    preparation: Mapping[str, Any] | None = None,
    labelled: bool = True,
) -> EncodedRows:
    """Read features and labels from a file.

    Of a table: `label` names its label column, `columns` those of the features (all others), and without a `header`
    columns are called `names`, or by their place from 0. With a model's `preparation` (`model.record.table`) a
    table's columns become features as they did at training; unless `labelled`, its label column is then left aside.
    """
    location = Path(path)
    if is_table(location) and preparation is not None:
        return _read_prepared(location, label, columns, Preparation.of(preparation), labelled)
    if table_ending(location) not in (*ARRAYS, *TABLES):
        raise type_error(location)
    if not is_table(location) and (label, columns, header, names) != (None, None, True, None):
        raise FileError(
            f"{location}: --label {label!r}" if label is not None else f"{location}: --columns, --no-header or --names",
            "only tables (.csv and .parquet files, and the like) have named columns",
            "Leave --label out; y is used." if label is not None else "Leave these options out.",
        )
    if is_table(location):
        file = open_table(location, header=header, names=names)
        target, chosen = choose_columns(location, file.names, label, columns)
        if file.schema is not None:
            require_types(file.schema, location, target, chosen)
        return _as_they_are(file.read([*chosen, target], [target]), target, chosen)
    try:
        features, labels, (encoder, trained), named = read_arrays(readable(location))
    except DAMAGE as error:
        raise damage_error(location, error) from error
    copies = 2 * 8 * features.size + 2 * labels.nbytes + 32 * labels.size  # in float64, and sorted by class
    require_room(copies, location, "the rows, checked and made ready,")
    return EncodedRows(features, labels, encoder, named, trained, name=str(location))


def _as_they_are(table: Table, target: str, columns: Sequence[str]) -> EncodedRows:
    """Rows of a table whose columns are numbers."""
    names = tuple(columns)
    return EncodedRows(table.features(names), table.labels(target), None, names, name=table.name, unprepared=True)


def _read_prepared(
    path: Path, label: str | None, columns: Sequence[str] | None, preparation: Preparation, labelled: bool
) -> EncodedRows:
    if columns is not None:
        raise FileError(
            f"{path}: --columns {','.join(columns)}",
            "the model has a preparation, which names its columns",
            "Leave --columns out.",
        )
    file, target = open_table(path, known=preparation.names or None), label or preparation.label
    require_columns(path, file.names, preparation.column_names, TRAINED_ON)
    wanted = [*preparation.column_names, *[target] * (labelled and target in file.names)]
    table = file.read(wanted, [target, *preparation.words])
    labels = preparation.labels(table, label) if labelled else np.empty(0)
    return EncodedRows(preparation.features(table), labels, None, preparation.feature_names, name=str(path))


def type_error(path: Path) -> FileError:
    """The error for a file whose name ends otherwise than data files do."""
    return FileError(
        f"{path}: unknown file type {table_ending(path)!r}",
        f"data files end in {', '.join((*ARRAYS, *TABLES))}",
        "Save the rows as .npz with arrays X and y, or as .csv or .parquet with a label column.",
    )


def read_unlabelled(path: str | Path, label: str | None, record: TrainingRecord | None) -> Any:
    """Features of rows whose labels nobody needs, as they come; a label column that is there is left aside."""
    location = readable(Path(path))
    preparation = None if record is None else record.table
    if is_table(location) and preparation is None and record is not None and record.features is not None:
        file = open_table(location)
        require_columns(location, file.names, record.features, TRAINED_ON)
        return EncodedRows(file.read(record.features).features(record.features), None, None, record.features)
    if location.suffix.lower() == ".npz":
        try:
            return read_features(location)
        except DAMAGE as error:
            raise damage_error(location, error) from error
    rows = read_data(location, label if is_table(location) else None, preparation=preparation, labelled=False)
    return EncodedRows(rows.features, None, rows.encoder, rows.feature_names)


# Read whole or streamed ----------------------------------------------------------------------------------------------


def open_data(
    path: str | Path,
    label: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    memory: Memory | None = None,
    stream: bool | None = None,
    preparation: Mapping[str, Any] | None = None,
) -> EncodedRows | Stream:
    """Rows of a file or folder: read whole, or as a stream where they are larger than `memory` allows.

    With `stream`, as one if that can be, and whoever goes over it then decides; without, where that can be avoided,
    whole. Always streams are .npy files (`X.npy` with `y.npy` beside it), and folders of those, of .safetensors or of
    Parquet files; never are .npz and CSV files, and tables that a model's `preparation` makes into features.
    """
    location = Path(path)
    if is_folder(location):
        return _open_folder(location, label, columns)
    suffix, size = location.suffix.lower(), readable(location).stat().st_size
    allowed = (memory or Memory.of(None)).spare

    def streams(n_bytes: int) -> bool:
        return n_bytes > allowed if stream is None else stream

    if suffix == ".npy":
        return _open_npy(location)
    if suffix == ".safetensors" and streams(3 * size):
        return _open_safetensors(str(location), [location])
    if suffix in PARQUET and preparation is None:
        metadata, _ = open_parquet(location)
        if columns is not None or streams(16 * metadata.num_rows * metadata.num_columns):
            return stream_parquet(str(location), [location], label, columns)
    return read_data(location, label, columns=columns, preparation=preparation)


def is_folder(path: Path) -> bool:
    """Whether this is a folder; a path that cannot be one is not."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _open_folder(folder: Path, label: str | None, columns: Sequence[str] | None) -> Stream:
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] not in "._")
    if (folder / "X.npy") in files:
        return _open_npy(folder / "X.npy")
    shards = [path for path in files if path.suffix.lower() == ".safetensors"]
    tables = [path for path in files if path.suffix.lower() in PARQUET]
    if bool(shards) == bool(tables):
        raise FileError(
            f"{folder} is a folder with {len(shards)} .safetensors and {len(tables)} Parquet files, and no X.npy",
            "a file is needed, or a folder with files of one of these kinds",
            "Name the file inside it, or the folder that has only such files.",
        )
    for path in shards or tables:
        readable(path)
    return _open_safetensors(str(folder), shards) if shards else stream_parquet(str(folder), tables, label, columns)


def _open_npy(path: Path) -> Stream:
    """`X.npy` with `y.npy` beside it, or any name that ends in X with the same that ends in y."""
    other = path.with_name(path.stem[:-1] + "y.npy")
    labels = locate_npy(readable(other)) if path.stem.endswith("X") and other.exists() else None
    return stream_stored(str(path), [(locate_npy(path), labels)])


def _open_safetensors(name: str, files: Sequence[Path]) -> Stream:
    parts, origins = [], []
    for path in files:
        arrays, metadata = locate_safetensors(path)
        require_tensors(path, arrays, ("X",))
        parts.append((arrays["X"], arrays.get("y")))
        origins.append(origin(path, metadata))
    encoders, trained = (set(each) for each in zip(*origins, strict=True))
    if len(encoders) > 1:
        raise FileError(
            f"{name}: files made by {len(encoders)} encoders, or some by none that is named",
            "all features must come from one",
            "Embed all rows with the same encoder.",
        )
    return stream_stored(name, parts, encoders.pop(), trained.pop() if len(trained) == 1 else "unknown")


# The source a model is trained on ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Rows ready to be trained on, the preparation that made them, if any, and what was decided, in sentences."""

    rows: EncodedRows
    preparation: Preparation | None = None
    learnt: str | None = None  # where
    decisions: tuple[str, ...] = ()


def read_source(
    path: Path,
    label: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    header: bool = True,
    names: Sequence[str] | None = None,
    prepare: str = "auto",
    prepare_from: Path | None = None,
    preparation: str = COARSE,
    rare: int = RARE,
    bounded: bool = False,
) -> Source:
    """The source's rows from its file.

    `prepare` is `table` (numbers standardised, categories one-hot encoded), `none` (features as they are), or
    `auto`: a table is prepared where it has anything but numbers in every cell, or where nobody has given a norm bound
    (`bounded`), since only standardised columns have one by themselves. `preparation` is `coarse` or `exact`;
    values that fewer than `rare` rows have are one.
    """
    choice(prepare, PREPARE, "prepare")
    choice(preparation, PRECISION, "preparation")
    if prepare_from is not None and prepare == "none":
        raise OptionError(
            "--prepare-from with --prepare none", "there is nothing to learn then", "Leave one of them out."
        )
    if not is_table(readable(path)) and (prepare == "table" or prepare_from is not None):
        if path.suffix.lower() not in (*ARRAYS, ".npy"):
            raise type_error(path)
        raise FileError(
            f"{path}: preparation of arrays",
            "only tables (.csv, .tsv, .parquet) have columns that can be prepared",
            "Leave --prepare out; standardise the features before they are saved.",
        )
    if_needed = prepare == "auto" and bounded and prepare_from is None
    if is_table(path) and prepare != "none":
        file = open_table(path, header=header, names=names)
        target, chosen = choose_columns(path, file.names, label, columns)
        table = file.read([*chosen, target] if prepare_from is None else None, [target])  # whole, to be held to another
        if if_needed and table.has_numbers(chosen):
            source = Source(_as_they_are(table, target, chosen))
        else:
            elsewhere = None if prepare_from is None else open_table(prepare_from).read(words=[target])
            source = _prepare_source(table, label, columns, elsewhere, preparation, rare)
            del elsewhere
        del table
        pa.default_memory_pool().release_unused()  # what is trained on needs it
        return source
    return Source(read_data(path, label, columns=columns, header=header, names=names))


def as_source(
    features: Any,
    labels: Any,
    label: str | None,
    prepare: str | Preparation = "auto",
    prepare_from: Any = None,
    *,
    preparation: str = COARSE,
    rare: int = RARE,
    bounded: bool = False,
) -> Source:
    """The source's rows from arrays or a data frame; see `read_source` for when a frame is prepared."""
    if isinstance(prepare, Preparation) and is_frame(features):
        raise DataError(
            "a frame with a preparation that was made before",
            "that is for rows that it was applied to already",
            "Give the preparation's features as an array, or leave prepare out.",
        )
    choice(preparation, PRECISION, "preparation")
    how = "none" if isinstance(prepare, Preparation) else choice(prepare, PREPARE, "prepare")
    if not is_frame(features):
        if label is not None or how == "table" or prepare_from is not None:
            raise DataError(
                f"{type(features).__name__} with label, prepare or prepare_from",
                "only data frames have columns that can be named and prepared",
                "Give a frame of pandas, polars or Arrow, a dict of columns, or leave these out.",
            )
        if labels is None:
            raise DataError(
                "no labels", "one a row is needed", "Give them, or a frame and the name of its label column."
            )
        return Source(EncodedRows(features, labels))
    table, target = _with_labels(frame_table(features, "the source"), labels, label)
    if_needed = how == "auto" and bounded and prepare_from is None
    if how == "none" or (if_needed and table.has_numbers([name for name in table.names if name != target])):
        if labels is None:
            features = table.arrow.select([name for name in table.names if name != target])
        return Source(EncodedRows(features, table.labels(target) if labels is None else labels))
    if isinstance(prepare_from, (str, Path)):
        prepare_from = open_table(Path(prepare_from)).read(words=[target])
    elif prepare_from is not None:
        prepare_from = frame_table(prepare_from, "prepare_from")
    return _prepare_source(table, target, None, prepare_from, preparation, rare)


def _prepare_source(
    table: Table,
    label: str | None,
    columns: Sequence[str] | None,
    elsewhere: Table | None,
    preparation: str,
    rare: int,
) -> Source:
    """A table's rows, with the preparation learnt from it or elsewhere."""
    if elsewhere is not None and _same_rows(elsewhere, table):
        raise OptionError(
            f"--prepare-from (prepare_from): {elsewhere.name} is the source itself",
            "it has no row of the source in it, for certificates will say so",
            "Give another table, or leave it out: certificates then say that it was learnt from the source.",
        )
    coarse = preparation == COARSE
    made, decisions = learn(table, label, columns, elsewhere=elsewhere, coarse=coarse, rare=rare)
    learnt = LEARNT_ELSEWHERE if elsewhere is not None else LEARNT_COARSE if coarse else LEARNT_FROM_SOURCE
    rows = EncodedRows(made.features(table), made.labels(table), None, made.feature_names, name=table.name)
    return Source(rows, made, learnt, decisions)


def _same_rows(one: Table, other: Table) -> bool:
    """Whether two tables hold the same rows, in whatever order rows and columns are, and in whatever kind of file."""
    if len(one) != len(other) or sorted(one.names) != sorted(other.names):
        return False
    return np.array_equal(np.sort(_row_codes(one)), np.sort(_row_codes(other)))


def _row_codes(table: Table) -> Array:
    """A number for each row, which rows with the same cells share, and hardly any others."""
    codes = np.zeros(len(table), np.uint64)
    for name in sorted(field.name for field in table.arrow.schema if is_plain(field.type)):
        if (numbers := table.numbers(name)) is not None:
            cells = np.where(np.isnan(numbers), np.nan, numbers + 0.0).view(np.uint64)
        else:
            words = table.words(name)
            each = [hash(word) % 2**64 for word in [*words.listed(), None]]
            cells = np.array(each, np.uint64)[words.codes]
        codes = (codes ^ cells) * np.uint64(0x9E3779B97F4A7C15)
        codes ^= codes >> np.uint64(29)
    return codes


def _with_labels(table: Table, labels: Any, label: str | None) -> tuple[Table, str]:
    """The table with its label column, and what that is called."""
    if labels is None:
        return table, choose_label(table.name, table.names, label)
    name = label or getattr(labels, "name", None)
    target = str(name) if name is not None and str(name) not in table.names else "label"
    while target in table.names:
        target += "_"
    values = as_labels(labels, len(table), table.name)
    return replace(table, arrow=table.arrow.append_column(target, pa.array(values))), target
