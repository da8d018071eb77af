"""Data files: `.npz` and `.safetensors` with `X` and `y`; tables (`.csv`, `.tsv`, also `.gz`, `.parquet`) with a label.

Nothing here unpickles, and nothing is allocated before the size a file declares has been checked against what it
holds and against a limit.
"""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from expunge.errors import DataError, ExpungeError, FileError
from expunge.record import TRAINED_ON_SOURCE
from expunge.rows.raw_tables import ENDINGS as TABLES
from expunge.rows.raw_tables import is_table
from expunge.rows.text_tables import table_ending
from expunge.rows.whole_tables import Layout, read_prepared, read_table
from expunge.runtime.memory import file_bytes, out_of_memory, require_fits, require_room
from expunge.runtime.paths import readable
from expunge.runtime.safetensors import read_safetensors
from expunge.runtime.strict_json import is_digest

Array = NDArray[Any]

# What a damaged or hostile file makes the libraries that read it raise.
DAMAGE = (
    ValueError, TypeError, KeyError, IndexError, OverflowError, OSError, EOFError, NotImplementedError, RuntimeError,
    SyntaxError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error, pa.ArrowException,
)  # fmt: skip

# arrays of an npz, metadata of a safetensors file: the digest of what made the features, and whether that was trained
# on rows of the source; an npz may also name its columns
ENCODER, ENCODER_TRAINED, NAMES = "encoder", "encoder_trained_on_source", "feature_names"


class EncodedRows(tuple[Any, Any]):
    """(features, labels), as every function takes them, with what their file says of them.

    That is the digest of the encoder that made the features, whether it was trained on rows of the source (`yes`, `no`,
    `unknown`), and what the columns are called. `unprepared` are columns of a table that was read as it is: for a model
    whose record says how columns become features they are no features yet.
    """

    encoder: str | None
    encoder_trained: str | None
    feature_names: tuple[str, ...] | None
    unprepared: bool = False

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
        made = EncodedRows(features, labels, self.encoder, self.feature_names, self.encoder_trained)
        made.unprepared = self.unprepared
        return made


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
    unprepared: bool = False

    @property
    def rows(self) -> EncodedRows:
        made = EncodedRows(self.features, self.labels, self.encoder, self.feature_names, self.encoder_trained)
        made.unprepared = self.unprepared
        return made


def read_data(
    path: str | Path,
    label: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    header: bool = True,
    names: Sequence[str] | None = None,
    preparation: Mapping[str, Any] | None = None,
    labelled: bool = True,
) -> LabelledArrays:
    """Read features and labels from a file.

    Of a table: `label` names its label column, `columns` those of the features (all others), and without a `header`
    columns are called `names`, or by their place from 0. With a model's `preparation` (`model.record.table`) a
    table's columns become features as they did at training; unless `labelled`, its label column may then be missing.
    """
    location = Path(path)
    kind = table_ending(location)
    if kind not in ENDINGS:
        raise unknown_type(location)
    if is_table(location) and preparation is not None:
        features, labels, named = read_prepared(location, label, columns, preparation, labelled)
        return LabelledArrays(features, labels, str(location), None, named)
    readers: dict[str, Callable[[Path], EncodedRows]] = {".npz": _from_npz, ".safetensors": _from_safetensors}
    layout = Layout(label, columns, header, names)
    if kind in readers and layout != Layout():
        raise FileError(
            f"{location}: --label {label!r}" if label is not None else f"{location}: --columns, --no-header or --names",
            "only tables (.csv and .parquet files, and the like) have named columns",
            "Leave --label out; y is used." if label is not None else "Leave these options out.",
        )
    readable(location)
    try:
        rows = readers[kind](location) if kind in readers else _from_table(location, layout)
    except DAMAGE as error:
        raise not_whole(location, error) from error
    features, labels = rows
    copies = 2 * 8 * features.size + 2 * labels.nbytes + 32 * labels.size  # in float64, and sorted by class
    require_room(copies, location, "the rows, checked and made ready,")
    made = LabelledArrays(*rows, str(location), rows.encoder, rows.feature_names, rows.encoder_trained)
    return replace(made, unprepared=is_table(location))


ENDINGS = (".npz", ".safetensors", *TABLES)


def unknown_type(path: Path) -> FileError:
    """The error for a file whose name ends otherwise than data files do."""
    return FileError(
        f"{path}: unknown file type {table_ending(path)!r}",
        f"data files end in {', '.join(ENDINGS)}",
        "Save the rows as .npz with arrays X and y, or as .csv or .parquet with a label column.",
    )


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


def _from_npz(path: Path) -> EncodedRows:
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
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # a part of these may be of any size
        raise FileError(
            f"{path}: array {name!r} is compressed in way {info.compress_type} of zip files",
            "it must be as numpy writes it, plain or deflated",
            "Save with numpy.savez or numpy.savez_compressed.",
        )
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


def _from_safetensors(path: Path) -> EncodedRows:
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


def _from_table(path: Path, layout: Layout) -> EncodedRows:
    features, labels, names = read_table(path, layout)
    return EncodedRows(features, labels, None, names)
