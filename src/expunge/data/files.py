"""Data files: `.npz` and `.safetensors` with `X` and `y`, `.csv` and `.parquet` with a label column.

Nothing here unpickles, and nothing is allocated before the size a file declares has been checked against what it
holds and against a limit.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import re
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
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from expunge.errors import DataError, FileError

Array = NDArray[Any]
# What a damaged or hostile file makes the libraries that read it raise.
DAMAGE = (
    ValueError, TypeError, KeyError, IndexError, OverflowError, OSError, EOFError, NotImplementedError, RuntimeError, SyntaxError,
    struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, pa.ArrowException,
)  # fmt: skip
LABEL_COLUMNS = ("y", "label")
ENCODER = "encoder"  # array of an npz, metadata of a safetensors file: the digest of what made the features
TABLES = (".csv", ".parquet", ".pq")
HEADER_LIMIT = 100_000_000  # safetensors' own limit on its header

_SAFETENSORS_DTYPES: dict[str, str] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "bf16", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1", "BOOL": "|b1",
}  # fmt: skip


class EncodedRows(tuple[Any, Any]):
    """(features, labels), as every function takes them, that also knows the digest of the encoder that made the features."""

    encoder: str | None

    def __new__(cls, features: Any, labels: Any, encoder: str | None = None) -> Self:
        made = super().__new__(cls, (features, labels))
        made.encoder = encoder
        return made


def encoder_of(given: object) -> str | None:
    """The digest of the encoder that made these rows, where they know it."""
    return given.encoder if isinstance(given, EncodedRows) else None


@dataclass(frozen=True)
class LabelledArrays:
    """Features (rows x d) and labels as a file holds them, labels being numbers or strings; `encoder` where it names one."""

    features: Array
    labels: Array
    name: str
    encoder: str | None = None

    @property
    def rows(self) -> EncodedRows:
        return EncodedRows(self.features, self.labels, self.encoder)


def memory_limit() -> int:
    """Bytes one array may take: half the machine's memory, or EXPUNGE_MAX_BYTES."""
    override = os.environ.get("EXPUNGE_MAX_BYTES")
    if override is not None:
        if not re.fullmatch("[0-9]{1,18}", override):
            raise FileError(
                f"EXPUNGE_MAX_BYTES={override!r}", "it must be a number of bytes", "Unset it, or give digits only."
            )
        return int(override)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def require_fits(declared: int, path: Path, what: str) -> None:
    """Refuse an array whose declared size is over the limit, before it is allocated."""
    limit = memory_limit()
    if declared > limit:
        raise FileError(
            f"{path}: {what} declares {declared:,} bytes",
            f"the limit is {limit:,}",
            "Use fewer rows or float32, or set EXPUNGE_MAX_BYTES if the machine can hold it.",
        )


def readable(path: Path) -> Path:
    """The path, if it is a file that can be read."""
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise FileError(f"{path} is not a usable path ({error})", "a file is needed", "Check the path.") from error
    if not exists:
        raise FileError(f"{path} does not exist", "a file is needed", "Check the path.")
    if path.is_dir():
        raise FileError(f"{path} is a folder", "a file is needed", "Name the file inside it.")
    if not os.access(path, os.R_OK):
        raise FileError(
            f"{path} cannot be read", "read permission is needed", "Change its permissions, or run as its owner."
        )
    if path.stat().st_size == 0:
        raise FileError(f"{path} is empty", "a file with data is needed", "Write it again.")
    return path


def read_data(path: str | Path, label: str | None = None) -> LabelledArrays:
    """Read features and labels from a file; `label` names the label column of a CSV or Parquet file."""
    location = Path(path)
    readers: dict[str, Callable[[Path, str | None], EncodedRows]] = {
        ".npz": _from_npz, ".safetensors": _from_safetensors, ".csv": _from_csv, ".parquet": _from_parquet, ".pq": _from_parquet,
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
        found = reader(location, label)
    except DAMAGE as error:
        raise _not_whole(location, error) from error
    return LabelledArrays(*found, str(location), found.encoder)


def read_moments(path: str | Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Arrays mean and covariance of an .npz file."""
    location = readable(Path(path))
    try:
        arrays = read_npz(location, ("mean", "covariance"))
    except DAMAGE as error:
        raise _not_whole(location, error) from error
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


def _not_whole(location: Path, error: BaseException) -> FileError:
    return FileError(
        f"{location} is not a whole {location.suffix} file ({type(error).__name__}: {error})",
        "a complete one is needed",
        "Write or copy it again.",
    )


# npz ------------------------------------------------------------------------------------------------------------


def _from_npz(path: Path, label: str | None) -> EncodedRows:
    arrays = read_npz(path, ("X", "y"), optional=(ENCODER,))
    encoder = arrays.get(ENCODER)
    named = None if encoder is None else encoder.item() if encoder.size == 1 else str(encoder.shape)
    return EncodedRows(arrays["X"], arrays["y"], _encoder(path, named))


def _encoder(path: Path, named: Any) -> str | None:
    if named is not None and not is_digest(named):
        raise FileError(
            f"{path}: encoder {named!r}",
            "it must be a SHA-256 digest in hexadecimal",
            "Use the file as expunge embed wrote it, or leave the encoder out.",
        )
    return None if named is None else str(named)


def is_digest(value: object) -> bool:
    """Whether this is a SHA-256 digest, in hexadecimal."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


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
        return {name: _read_member(archive, members[name], path, name) for name in wanted}


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, name: str) -> Array:
    with archive.open(info) as stream:
        shape, fortran, dtype, header = _npy_header(stream, path, name)
        if dtype.hasobject:
            raise FileError(
                f"{path}: array {name!r} holds Python objects",
                "unpickling runs code from the file and is never done",
                "Save plain numbers: numpy.savez(path, X=X.astype(float), y=y.astype(int)).",
            )
        declared = math.prod(shape) * dtype.itemsize
        if (
            dtype.subdtype is not None
            or dtype.itemsize == 0
            or any(type(size) is not int or size < 0 for size in shape)
        ):
            raise FileError(
                f"{path}: array {name!r} has dtype {dtype} and shape {shape}",
                "plain numbers or text are needed",
                "Save with numpy.savez(path, X=features, y=labels).",
            )
        if declared != info.file_size - header:
            raise FileError(
                f"{path}: array {name!r} declares {declared:,} bytes but {info.file_size - header:,} follow",
                "the header must tell the truth",
                "The file is damaged or made to deceive; write it again.",
            )
        require_fits(declared, path, f"array {name!r}")
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


# safetensors ----------------------------------------------------------------------------------------------------


def _from_safetensors(path: Path, label: str | None) -> EncodedRows:
    require_fits(path.stat().st_size, path, "the file")
    tensors, metadata = read_safetensors(path.read_bytes(), path)
    missing = [name for name in ("X", "y") if name not in tensors]
    if missing:
        raise FileError(
            f"{path} holds {', '.join(sorted(tensors)) or 'nothing'}",
            "tensors X and y are needed",
            "Save with safetensors.numpy.save_file({'X': features, 'y': labels}, path).",
        )
    return EncodedRows(tensors["X"], tensors["y"], _encoder(path, metadata.get(ENCODER)))


def read_safetensors(content: bytes, path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Tensors and metadata of a safetensors file, every offset checked against the bytes that are there."""

    def damaged(found: str) -> FileError:
        return FileError(
            f"{path}: {found}",
            "the header must describe the bytes that follow it",
            "The file is damaged; write it again.",
        )

    if len(content) < 8:
        raise damaged("shorter than a safetensors header")
    (length,) = struct.unpack("<Q", content[:8])
    if length > min(HEADER_LIMIT, len(content) - 8):
        raise damaged(f"a header of {length:,} bytes is declared in a file of {len(content):,}")
    try:
        header = json.loads(content[8 : 8 + length], object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        raise damaged(f"the header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise damaged("the header is not a table")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise damaged("the metadata is not a table of strings")
    body, covered = memoryview(content)[8 + length :], 0
    tensors: dict[str, Array] = {}
    for name, entry in sorted(header.items(), key=lambda item: _offsets(item[1])):
        code = str(entry.get("dtype")) if isinstance(entry, dict) else None
        shape = entry.get("shape") if isinstance(entry, dict) else None
        start, end = _offsets(entry)
        sizes: list[Any] = shape if isinstance(shape, list) else [None]
        if (
            code not in _SAFETENSORS_DTYPES
            or len(sizes) > 8
            or not all(type(n) is int and 0 <= n < 2**48 for n in sizes)
        ):
            raise damaged(f"tensor {name!r} has dtype {code!r} and shape {shape!r}")
        kind = _SAFETENSORS_DTYPES[code]
        width = 2 if kind == "bf16" else np.dtype(kind).itemsize
        declared = math.prod(sizes) * width
        if start != covered or end - start != declared or end > len(body):
            raise damaged(f"tensor {name!r} declares {declared:,} bytes at {start:,} to {end:,} of {len(body):,}")
        raw = body[start:end]
        if kind == "bf16":
            array: Array = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(raw, kind)
        tensors[name] = array.reshape(sizes)
        covered = end
    if covered != len(body):
        raise damaged(f"{len(body) - covered:,} bytes belong to no tensor")
    return tensors, metadata


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which no key occurs twice; Python would keep the last one."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def not_a_number(text: str) -> float:
    """JSON has no NaN and no infinity; Python's reader would take them."""
    raise ValueError(f"{text} is not a number")


def _offsets(entry: object) -> tuple[int, int]:
    found = entry.get("data_offsets") if isinstance(entry, dict) else None
    if isinstance(found, list) and len(found) == 2 and all(type(n) is int and n >= 0 for n in found):
        return found[0], found[1]
    return -1, -1


# tables ---------------------------------------------------------------------------------------------------------


def _from_csv(path: Path, label: str | None) -> EncodedRows:
    require_fits(path.stat().st_size, path, "the text")
    try:
        whole_lines = pa.csv.ReadOptions(block_size=min(max(1 << 20, path.stat().st_size), 1 << 30))
        return EncodedRows(*_split_table(pa.csv.read_csv(path, read_options=whole_lines), path, label))
    except (pa.ArrowException, ValueError) as error:
        raise FileError(
            f"{path} is not a table ({error})",
            "a header line and equally long rows are needed",
            "Write it again as CSV, in UTF-8.",
        ) from error


def _from_parquet(path: Path, label: str | None) -> EncodedRows:
    schema = pa.parquet.read_schema(path)
    text = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    file = pa.parquet.ParquetFile(path, read_dictionary=text)  # a repeated string is held once
    require_fits(file.metadata.num_rows * file.metadata.num_columns * 8, path, "the table")
    return EncodedRows(*_split_table(file.read(), path, label))


def _split_table(table: pa.Table, path: Path, label: str | None) -> tuple[Array, Array]:
    column = label if label is not None else next((name for name in LABEL_COLUMNS if name in table.column_names), None)
    if column is None or column not in table.column_names:
        shown = ", ".join(table.column_names[:12]) + (" ..." if table.num_columns > 12 else "")
        raise FileError(
            f"{path} has no column {column!r}" if column else f"{path} has columns {shown}",
            "a label column is needed",
            f"Name it with --label; the columns are {shown}.",
        )
    if len(set(table.column_names)) != table.num_columns:
        raise FileError(f"{path} has two columns of one name", "column names must differ", "Rename one of them.")
    if table.num_rows == 0:
        raise DataError(f"{path} has no rows", "at least one is needed", "Check how the file was written.")
    names = [name for name in table.column_names if name != column]
    if not names:
        raise DataError(
            f"{path} has only the label column {column!r}", "at least one feature column is needed", "Add the features."
        )
    for name in [*names, column]:
        if table[name].null_count:
            raise DataError(
                f"{path}: column {name!r} has {table[name].null_count:,} empty cells",
                "every cell needs a value",
                "Fill them in or drop those rows, as was done for training.",
            )
    features = np.empty((table.num_rows, len(names)), dtype=np.float64)
    for index, name in enumerate(names):
        kind = table.schema.field(name).type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            raise DataError(
                f"{path}: column {name!r} holds {kind}",
                "features must be numbers",
                "Encode it as numbers the way it was encoded for training, or drop it.",
            )
        features[:, index] = table[name].cast(pa.float64(), safe=False).to_numpy()
    labels = table[column].unify_dictionaries().combine_chunks()
    if pa.types.is_dictionary(labels.type):
        if pa.types.is_string(labels.type.value_type) or pa.types.is_large_string(labels.type.value_type):
            longest = max((len(value) for value in labels.dictionary.to_pylist()), default=0)
            require_fits(4 * longest * len(labels), path, f"label column {column!r}")
        labels = labels.cast(labels.type.value_type)
    kind = labels.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (text or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"{path}: label column {column!r} holds {kind}", "labels are whole numbers or text", "Convert them."
        )
    if text:
        return features, np.array(labels.to_pylist(), dtype=str)
    return features, labels.to_numpy(zero_copy_only=False)
