"""Data files: `.npz` and `.safetensors` with `X` and `y`, `.csv` and `.parquet` with a label column.

Nothing here unpickles, and nothing is allocated before the size a file declares has been checked against what it
holds and against a limit.
"""

from __future__ import annotations

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from expunge.data.parquet_pages import Wanted, opened, require_bearable
from expunge.data.tables import feature_names, list_lengths, require_types, table_arrays, table_columns
from expunge.data.wide_csv import extent, is_wide, read_wide
from expunge.errors import DataError, ExpungeError, FileError
from expunge.record import TRAINED_ON_SOURCE
from expunge.runtime.memory import file_bytes, out_of_memory, require_fits, require_room
from expunge.runtime.paths import readable
from expunge.runtime.safetensors import read_safetensors
from expunge.runtime.strict_json import is_digest

Array = NDArray[Any]

# What a damaged or hostile file makes the libraries that read it raise.
DAMAGE = (
    ValueError, TypeError, KeyError, IndexError, OverflowError, OSError, EOFError, NotImplementedError, RuntimeError,
    SyntaxError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, pa.ArrowException,
)  # fmt: skip

# arrays of an npz, metadata of a safetensors file: the digest of what made the features, and whether that was trained
# on rows of the source; an npz may also name its columns
ENCODER, ENCODER_TRAINED, NAMES = "encoder", "encoder_trained_on_source", "feature_names"
TABLES = (".csv", ".parquet", ".pq")


class EncodedRows(tuple[Any, Any]):
    """(features, labels), as every function takes them, with what their file says of them.

    That is the digest of the encoder that made the features, whether it was trained on rows of the source (`yes`, `no`,
    `unknown`), and what the columns are called.
    """

    encoder: str | None
    encoder_trained: str | None
    feature_names: tuple[str, ...] | None

    def __new__(
        cls,
        features: Any,
        labels: Any,
        encoder: str | None = None,
        feature_names: tuple[str, ...] | None = None,
        encoder_trained: str | None = None,
    ) -> Self:
        made = super().__new__(cls, (features, labels))
        made.encoder, made.feature_names, made.encoder_trained = encoder, feature_names, encoder_trained
        return made

    def with_arrays(self, features: Any, labels: Any) -> EncodedRows:
        """Other rows of which the same is known."""
        return EncodedRows(features, labels, self.encoder, self.feature_names, self.encoder_trained)


def encoder_of(rows: object) -> str | None:
    """The digest of the encoder that made these rows, where they know it."""
    named = getattr(rows, "encoder", None)  # of EncodedRows, or of a stream
    return named if isinstance(named, str) else None


@dataclass(frozen=True)
class LabelledArrays:
    """Features (rows x d) and labels (numbers or strings) as a file holds them, and what it says of them."""

    features: Array
    labels: Array
    name: str
    encoder: str | None = None
    feature_names: tuple[str, ...] | None = None
    encoder_trained: str | None = None

    @property
    def rows(self) -> EncodedRows:
        return EncodedRows(self.features, self.labels, self.encoder, self.feature_names, self.encoder_trained)


def read_data(path: str | Path, label: str | None = None) -> LabelledArrays:
    """Read features and labels from a file; `label` names the label column of a CSV or Parquet file."""
    location = Path(path)
    readers: dict[str, Callable[[Path, str | None], EncodedRows]] = {
        ".npz": _from_npz, ".safetensors": _from_safetensors, ".csv": _from_csv, ".parquet": _from_parquet,
        ".pq": _from_parquet,
    }  # fmt: skip
    reader = readers.get(location.suffix.lower())
    if reader is None:
        raise FileError(
            f"{location}: unknown file type {location.suffix!r}",
            f"data files end in {', '.join(readers)}",
            "Save the rows as .npz with arrays X and y, or as .csv or .parquet with a label column.",
        )
    if label is not None and location.suffix.lower() not in TABLES:
        raise FileError(
            f"{location}: --label {label!r}",
            "a label column exists in .csv and .parquet files only",
            "Leave --label out; y is used.",
        )
    readable(location)
    try:
        rows = reader(location, label)
    except DAMAGE as error:
        raise not_whole(location, error) from error
    features, labels = rows
    copies = 2 * 8 * features.size + 2 * labels.nbytes + 32 * labels.size  # in float64, and sorted by class
    require_room(copies, location, "the rows, checked and made ready,")
    return LabelledArrays(*rows, str(location), rows.encoder, rows.feature_names, rows.encoder_trained)


def read_moments(path: str | Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Arrays mean and covariance of an .npz file."""
    location = readable(Path(path))
    try:
        arrays = read_npz(location, ("mean", "covariance"))
    except DAMAGE as error:
        raise not_whole(location, error) from error
    for name, array in arrays.items():
        if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
            raise DataError(
                f"{location}: {name} of dtype {array.dtype}, or not finite",
                "real numbers are needed",
                "Compute it again.",
            )
    mean, covariance = (arrays[name].astype(np.float64) for name in ("mean", "covariance"))
    if covariance.ndim != 2 or covariance.shape != covariance.T.shape or not np.allclose(covariance, covariance.T):
        raise DataError(f"{location}: the covariance is not symmetric", "a covariance is", "Check how it was computed.")
    return mean, covariance


def not_whole(location: Path, error: BaseException) -> ExpungeError:
    """The error for a file that its reader choked on."""
    return out_of_memory(error) or FileError(
        f"{location} is not a whole {location.suffix} file ({type(error).__name__}: {error})",
        "a complete one is needed",
        "Write or copy it again.",
    )


def _from_npz(path: Path, _label: str | None) -> EncodedRows:
    arrays = read_npz(path, ("X", "y"), optional=(ENCODER, ENCODER_TRAINED, NAMES))

    def one(name: str) -> Any:
        array = arrays.get(name)
        return None if array is None else array.item() if array.size == 1 else str(array.shape)

    encoder, trained = encoder_digest(path, one(ENCODER)), encoder_training(path, one(ENCODER_TRAINED))
    return EncodedRows(arrays["X"], arrays["y"], encoder, _npz_names(path, arrays), trained)


def _npz_names(path: Path, arrays: dict[str, Array]) -> tuple[str, ...] | None:
    """The names of the columns, where the file has them: as many as there are columns, all different."""
    names = arrays.get(NAMES)
    if names is None:
        return None
    shape = arrays["X"].shape
    if names.dtype.kind != "U" or names.ndim != 1 or len(shape) != 2 or len(names) != shape[1]:
        raise FileError(
            f"{path}: {NAMES} of dtype {names.dtype} and shape {names.shape} for X of shape {shape}",
            "one name a column is needed",
            f"Save them with {NAMES}=numpy.array([...], dtype=str), or leave them out.",
        )
    if len(set(names.tolist())) != len(names):
        raise FileError(f"{path} has two columns of one name", "column names must differ", "Rename one of them.")
    return tuple(names.tolist())


def encoder_digest(path: Path, named: Any) -> str | None:
    """The encoder a file names, if it is a digest."""
    if named is not None and not is_digest(named):
        raise FileError(
            f"{path}: encoder {named!r}",
            "it must be a SHA-256 digest in hexadecimal",
            "Use the file as expunge embed wrote it, or leave the encoder out.",
        )
    return None if named is None else str(named)


def encoder_training(path: Path, said: Any) -> str | None:
    """Whether the encoder was trained on the source, as a file says it."""
    if said is not None and said not in TRAINED_ON_SOURCE:
        raise FileError(
            f"{path}: {ENCODER_TRAINED} {said!r}",
            f"it is one of {', '.join(TRAINED_ON_SOURCE)}",
            "Use the file as expunge embed wrote it.",
        )
    return None if said is None else str(said)


def read_npz(path: Path, names: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Array]:
    """Named arrays of an npz file; those that are `optional` where they are there."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        missing = [name for name in names if name not in members]
        if missing:
            raise FileError(
                f"{path} holds {', '.join(sorted(members)) or 'nothing'}",
                f"arrays {' and '.join(names)} are needed",
                f"Save with numpy.savez(path, {', '.join(f'{name}=...' for name in names)}).",
            )
        wanted = [*names, *(name for name in optional if name in members)]
        require_room(sum(_declared(archive, members[name], path, name) for name in wanted), path, "what it holds")
        return {name: _read_member(archive, members[name], path, name) for name in wanted}


def _declared(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, name: str) -> int:
    """What an array takes in memory, from its header."""
    with archive.open(info) as stream:
        shape, _, dtype, _ = _npy_layout(stream, path, name, info.file_size)
    declared = math.prod(shape) * dtype.itemsize
    require_fits(declared, path, f"array {name!r}")
    return declared


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, name: str) -> Array:
    with archive.open(info) as stream:
        shape, fortran, dtype, _ = _npy_layout(stream, path, name, info.file_size)
        declared = math.prod(shape) * dtype.itemsize
        array: Array = np.empty(math.prod(shape), dtype=dtype)
        view = array.view(np.uint8) if declared else np.empty(0, dtype=np.uint8)
        filled = 0
        while filled < declared:
            chunk = stream.read(min(1 << 22, declared - filled))
            if not chunk:
                raise EOFError(f"array {name!r} ends after {filled:,} of {declared:,} bytes")
            view[filled : filled + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
            filled += len(chunk)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def _npy_layout(
    stream: IO[bytes], path: Path, name: str, file_size: int
) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order, type and length of the header of an array in a stream of `file_size` bytes, all of it checked."""
    shape, fortran, dtype, header = _npy_header(stream, path, name)
    if dtype.hasobject:
        raise FileError(
            f"{path}: array {name!r} holds Python objects",
            "unpickling runs code from the file and is never done",
            "Save plain numbers: numpy.savez(path, X=X.astype(float), y=y.astype(int)); labels that are words: "
            "y=y.astype(str).",
        )
    declared = math.prod(shape) * dtype.itemsize
    if dtype.subdtype is not None or dtype.itemsize == 0 or any(type(size) is not int or size < 0 for size in shape):
        raise FileError(
            f"{path}: array {name!r} has dtype {dtype} and shape {shape}",
            "plain numbers or text are needed",
            "Save with numpy.savez(path, X=features, y=labels).",
        )
    if declared != file_size - header:
        raise FileError(
            f"{path}: array {name!r} declares {declared:,} bytes but {file_size - header:,} follow",
            "the header must tell the truth",
            "The file is damaged or made to deceive; write it again.",
        )
    return shape, fortran, dtype, header


def checked_npy(stream: IO[bytes], path: Path, name: str, file_size: int) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """The same, of an array that can be read row by row."""
    shape, fortran, dtype, header = _npy_layout(stream, path, name, file_size)
    if len(shape) not in (1, 2) or (fortran and len(shape) == 2 and 1 not in shape):
        raise FileError(
            f"{path}: {name!r} of shape {shape}" + (", column after column" if fortran else ""),
            "rows, one after another, are needed",
            "Save with numpy.save(path, numpy.ascontiguousarray(features)).",
        )
    return shape, dtype, header


def _npy_header(stream: IO[bytes], path: Path, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    try:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
    except ValueError as error:
        raise FileError(
            f"{path}: {name!r} is not an array ({error})", "npy members are needed", "Save with numpy.savez."
        ) from error
    return shape, fortran, dtype, stream.tell()


def _from_safetensors(path: Path, _label: str | None) -> EncodedRows:
    tensors, metadata = read_safetensors(file_bytes(path, "the file"), path)
    missing = [name for name in ("X", "y") if name not in tensors]
    if missing:
        raise FileError(
            f"{path} holds {', '.join(sorted(tensors)) or 'nothing'}",
            "tensors X and y are needed",
            "Save with safetensors.numpy.save_file({'X': features, 'y': labels}, path).",
        )
    encoder = encoder_digest(path, metadata.get(ENCODER))
    trained = encoder_training(path, metadata.get(ENCODER_TRAINED))
    return EncodedRows(tensors["X"], tensors["y"], encoder, None, trained)


def _from_csv(path: Path, label: str | None) -> EncodedRows:
    found = extent(path)
    try:
        if is_wide(found):
            features, labels, names = read_wide(path, label)
            return EncodedRows(features, labels, None, names)
        whole_lines = pa.csv.ReadOptions(block_size=min(max(1 << 20, path.stat().st_size), 1 << 30))
        return _split(pa.csv.read_csv(path, read_options=whole_lines), path, label)
    except (pa.ArrowException, ValueError) as error:
        raise out_of_memory(error) or FileError(
            f"{path} is not a table ({error})",
            "a header line and equally long rows are needed",
            "Write it again as CSV, in UTF-8.",
        ) from error


def _from_parquet(path: Path, label: str | None) -> EncodedRows:
    metadata = opened(path)
    schema = pa.parquet.ParquetFile(path, metadata=metadata).schema_arrow
    column, names = table_columns(schema, path, label, None)
    require_types(schema, path, column, names)
    wanted = Wanted.of(schema, column, names)
    require_bearable(path, metadata, wanted)
    text = None if wanted.text is None else [wanted.text]
    return _split(pa.parquet.ParquetFile(path, metadata=metadata, read_dictionary=text).read(), path, label)


def _split(table: pa.Table, path: Path, label: str | None) -> EncodedRows:
    column, names = table_columns(table.schema, path, label, None)
    if table.num_rows == 0:
        raise DataError(f"{path} has no rows", "at least one is needed", "Check how the file was written.")
    features, labels = table_arrays(table, path, column, names)
    return EncodedRows(features, labels, None, feature_names(names, list_lengths(table, names)))
