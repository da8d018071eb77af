"""Rows by the path a user gives: of files that are read whole, and of files and folders that are streamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from expunge.errors import DataError, FileError
from expunge.record import TrainingRecord
from expunge.rows.files import (
    DAMAGE,
    ENCODER,
    ENCODER_TRAINED,
    EncodedRows,
    LabelledArrays,
    encoder_digest,
    encoder_training,
    not_whole,
    read_data,
    read_npz,
)
from expunge.rows.parquet_pages import opened
from expunge.rows.raw import RawArray, npy_array, npz_arrays, safetensors_arrays
from expunge.rows.raw_tables import is_table, read_raw, require_columns
from expunge.rows.streams import ParquetStream, RawStream, Segment, Stream
from expunge.runtime.memory import Memory
from expunge.runtime.paths import readable

PARQUET = (".parquet", ".pq")


def open_data(
    path: str | Path,
    label: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    memory: Memory | None = None,
    stream: bool | None = None,
    preparation: Mapping[str, Any] | None = None,
) -> LabelledArrays | Stream:
    """Rows of a file or folder: read whole, or as a stream where they are larger than `memory` allows.

    A table that a model's `preparation` makes into features is read whole.

    With `stream`, as one if that can be, and whoever goes over it then decides; without, where that can be avoided,
    whole. Always streams are .npy files (`X.npy` with `y.npy` beside it), and folders of those, of .safetensors or of
    Parquet files.
    """
    location = Path(path)
    if is_folder(location):
        return _folder(location, label, columns)
    readable(location)
    suffix = location.suffix.lower()
    if suffix == ".npy":
        return _npy(location)
    allowed = (memory or Memory.of(None)).spare

    def streams(n_bytes: int) -> bool:
        return n_bytes > allowed if stream is None else stream

    if suffix == ".npz":
        arrays = npz_arrays(location) if streams(3 * location.stat().st_size) else None
        if arrays is not None and {"X", "y"} <= arrays.keys():
            return RawStream(str(location), [_segment(arrays["X"], arrays["y"])])
    if suffix == ".safetensors" and streams(3 * location.stat().st_size):
        return _safetensors(str(location), [location])
    whole = preparation is not None  # what becomes of its columns needs all of them
    if suffix in PARQUET and not whole and (columns is not None or streams(2 * _table_bytes(location))):
        return ParquetStream(str(location), [location], label, columns)
    return read_data(location, label, columns=columns, preparation=preparation)


def read_unlabelled(path: str | Path, label: str | None, record: TrainingRecord | None) -> Any:
    """Features of rows whose labels nobody needs, as they come; a label column that is there is left aside."""
    location = readable(Path(path))
    table = None if record is None else record.table
    if is_table(location) and table is None and record is not None and record.features is not None:
        raw = read_raw(location)
        require_columns(raw, record.features, "the model was trained on a column of that name")
        columns = {name: raw.numbers(name) for name in record.features}
        odd = [name for name, values in columns.items() if values is None or np.isnan(values).any()]
        if odd:
            raise DataError(
                f"{location}: column {odd[0]!r} has a cell without a number",
                "the model was trained on numbers in every cell",
                "Encode and fill the column as it was done for training.",
            )
        made = np.column_stack([values for values in columns.values() if values is not None])
        return EncodedRows(made, None, None, record.features)
    if location.suffix.lower() == ".npz":
        try:
            return read_npz(location, ("X",))["X"]
        except DAMAGE as error:
            raise not_whole(location, error) from error
    read = read_data(location, label if is_table(location) else None, preparation=table, labelled=False)
    return EncodedRows(read.features, None, read.encoder, read.feature_names)


def is_folder(path: Path) -> bool:
    """Whether this is a folder; a path that cannot be one is not."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _table_bytes(path: Path) -> int:
    try:
        metadata = opened(path)
    except DAMAGE as error:
        raise not_whole(path, error) from error
    return int(metadata.num_rows * metadata.num_columns * 8)


def _folder(folder: Path, label: str | None, columns: Sequence[str] | None) -> Stream:
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] not in "._")
    if (folder / "X.npy") in files:
        return _npy(folder / "X.npy")
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
    return _safetensors(str(folder), shards) if shards else ParquetStream(str(folder), tables, label, columns)


def _npy(path: Path) -> RawStream:
    """`X.npy` with `y.npy` beside it, or any name that ends in X with the same that ends in y."""
    features = npy_array(path)
    beside = path.with_name(path.stem[:-1] + "y.npy")
    labels = npy_array(readable(beside)) if path.stem.endswith("X") and beside.exists() else None
    return RawStream(str(path), [_segment(features, labels)])


def _safetensors(name: str, files: Sequence[Path]) -> RawStream:
    segments, encoders, trained = [], set(), set()
    for path in files:
        arrays, metadata = safetensors_arrays(path)
        if "X" not in arrays:
            raise FileError(
                f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}",
                "tensors X and y are needed",
                "Save with safetensors.numpy.save_file({'X': features, 'y': labels}, path).",
            )
        segments.append(_segment(arrays["X"], arrays.get("y")))
        encoders.add(encoder_digest(path, metadata.get(ENCODER)))
        trained.add(encoder_training(path, metadata.get(ENCODER_TRAINED)))
    if len(encoders) > 1:
        raise FileError(
            f"{name}: files made by {len(encoders)} encoders, or some by none that is named",
            "all features must come from one",
            "Embed all rows with the same encoder.",
        )
    made = RawStream(name, segments, encoders.pop())
    made.encoder_trained = trained.pop() if len(trained) == 1 else "unknown"
    return made


def _segment(features: RawArray, labels: RawArray | None) -> Segment:
    if len(features.shape) != 2 or features.stored.kind not in "fiub":
        raise FileError(
            f"{features.path}: X of shape {features.shape} and type {features.kind}",
            "a table of numbers is needed, rows x features",
            "Reshape to two dimensions, one row per example.",
        )
    if labels is not None and (labels.shape[0] != features.shape[0] or labels.shape[1:] not in ((), (1,))):
        raise FileError(
            f"{labels.path}: y of shape {labels.shape} for X of shape {features.shape}",
            "one label a row is needed",
            "Check that X and y belong together.",
        )
    return Segment(features, labels)
