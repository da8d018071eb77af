"""Arrays in files, .npz, .npy and .safetensors: read whole, or a few rows at a time.

Nothing here unpickles, and nothing is allocated before the size a file declares has been checked against what it
holds and against a limit."""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from expunge.errors import DataError, ExpungeError, FileError
from expunge.record import TRAINED_ON_SOURCE
from expunge.runtime.files import readable
from expunge.runtime.memory import file_bytes, out_of_memory, require_fits, require_room
from expunge.runtime.safetensors import BFLOAT16, HEADER_LIMIT, raw_type, read_safetensors, safetensors_layout
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
SPARSE = ("data", "indices", "indptr", "shape", "format")  # arrays of a sparse matrix, as scipy saves it
Origin = tuple[str | None, str | None]  # digest of the encoder, and whether it was trained on the source
Layout = tuple[tuple[int, ...], bool, np.dtype[Any], int]  # shape, whether in Fortran's order, type, bytes of header


def damage_error(path: Path, error: BaseException) -> ExpungeError:
    """The error for a file that its reader choked on."""
    return out_of_memory(error) or FileError(
        f"{path} is not a whole {path.suffix} file ({type(error).__name__}: {error})",
        "a complete one is needed",
        "Write or copy it again.",
    )


def duplicate_error(path: Path | str, name: str | None = None, remedy: str = "Rename one of them.") -> FileError:
    """The error for two columns of one name."""
    which = f", {name!r}" if name else ""
    return FileError(f"{path} has two columns of one name{which}", "column names must differ", remedy)


# Read whole ----------------------------------------------------------------------------------------------------------


def read_arrays(path: Path) -> tuple[Any, Array, Origin, tuple[str, ...] | None]:
    """X and y of an .npz or .safetensors file, its encoder, and the names of its columns; X may be sparse rows."""
    if path.suffix.lower() == ".npz":
        extra_names = (ENCODER, ENCODER_TRAINED, NAMES)
        if holds_sparse(path):
            arrays = read_npz(path, SPARSE, optional=("y", *extra_names))
            arrays |= {"X": _sparse_of(path, arrays), "y": _labels_of(path, arrays)}
        else:
            arrays = read_npz(path, ("X", "y"), optional=extra_names)
        extra = {
            name: array.item() if array.size == 1 else str(array.shape)
            for name, array in arrays.items()
            if name in (ENCODER, ENCODER_TRAINED)
        }
        return arrays["X"], arrays["y"], origin(path, extra), _column_names(path, arrays)
    tensors, metadata = read_safetensors(file_bytes(path, "the file"), path)
    require_tensors(path, tensors, ("X", "y"))
    return tensors["X"], tensors["y"], origin(path, metadata), None


def holds_sparse(path: Path) -> bool:
    """Whether an npz file holds sparse rows, as `scipy.sparse.save_npz` writes them."""
    with zipfile.ZipFile(path) as archive:
        return "indptr.npy" in archive.namelist()


def read_features(path: Path) -> Any:
    """X of an .npz file, which needs no labels."""
    return _sparse_of(path, read_npz(path, SPARSE)) if holds_sparse(path) else read_npz(path, ("X",))["X"]


def _sparse_of(path: Path, arrays: dict[str, Array]) -> Any:
    """Sparse rows, every place in them checked."""
    from scipy.sparse import csr_array

    values, places, starts, shape, kind = (arrays[name] for name in SPARSE)
    remedy = "Save with scipy.sparse.save_npz(path, X.tocsr())."
    if str(kind.astype(str)) != "csr" or shape.shape != (2,) or shape.dtype.kind not in "iu":
        raise FileError(
            f"{path}: a sparse matrix of format {kind} and shape {shape}",
            "rows one after another are needed, in format csr",
            remedy,
        )
    integers = all(each.dtype.kind in "iu" and each.ndim == 1 for each in (places, starts))
    if (
        not integers
        or values.shape != places.shape
        or len(starts) != shape[0] + 1
        or (starts[0], starts[-1]) != (0, len(places))
        or (starts[1:] < starts[:-1]).any()
    ):
        raise FileError(
            f"{path}: data, indices and indptr of a sparse matrix that do not fit together",
            "indptr says where each row's values begin",
            remedy,
        )
    require_room(8 * int(shape[1]), path, "a row, written out,")
    if values.dtype.kind not in "fiub":
        raise DataError(f"{path}: features of dtype {values.dtype}", "real numbers are needed", "Convert them.")
    rows = csr_array((values, places, starts), shape=(int(shape[0]), int(shape[1])))
    rows.check_format(full_check=True)
    return rows


def _labels_of(path: Path, arrays: dict[str, Array]) -> Array:
    """Labels of sparse rows: y of the same file, or of a .npy file beside it, whose name ends in y in place of X."""
    if "y" in arrays:
        return arrays["y"]
    beside = path.with_name(path.stem[:-1] + "y.npy")
    if path.stem[-1:] != "X" or not beside.exists():
        raise FileError(
            f"{path}: sparse rows without labels",
            "they have none in their file, and so lie beside it: docs-y.npy beside docs-X.npz",
            "Name the file so that it ends in X.npz, and save the labels with numpy.save.",
        )
    stored = locate_npy(readable(beside))
    require_room(2 * stored.shape[0] * stored.row_bytes, beside, "labels")
    return stored.read(0, stored.shape[0])


def require_tensors(path: Path, tensors: Any, names: tuple[str, ...]) -> None:
    """Refuse a safetensors file that lacks X or y."""
    if any(name not in tensors for name in names):
        raise FileError(
            f"{path} holds {', '.join(sorted(tensors)) or 'nothing'}",
            "tensors X and y are needed",
            "Save with safetensors.numpy.save_file({'X': features, 'y': labels}, path).",
        )


def origin(path: Path, extra: Any) -> Origin:
    """The encoder a file names, if that is a digest, and whether it says that it was trained on the source."""
    encoder, trained = extra.get(ENCODER), extra.get(ENCODER_TRAINED)
    if encoder is not None and not is_digest(encoder):
        raise FileError(
            f"{path}: encoder {encoder!r}",
            "it must be a SHA-256 digest in hexadecimal",
            "Use the file as expunge embed wrote it, or leave the encoder out.",
        )
    if trained is not None and trained not in TRAINED_ON_SOURCE:
        raise FileError(
            f"{path}: {ENCODER_TRAINED} {trained!r}",
            f"it is one of {', '.join(TRAINED_ON_SOURCE)}",
            "Use the file as expunge embed wrote it.",
        )
    return encoder, trained


def _column_names(path: Path, arrays: dict[str, Array]) -> tuple[str, ...] | None:
    names, shape = arrays.get(NAMES), arrays["X"].shape
    if names is None:
        return None
    if names.dtype.kind != "U" or names.ndim != 1 or len(shape) != 2 or len(names) != shape[1]:
        raise FileError(
            f"{path}: {NAMES} of dtype {names.dtype} and shape {names.shape} for X of shape {shape}",
            "one name a column is needed",
            f"Save them with {NAMES}=numpy.array([...], dtype=str), or leave them out.",
        )
    if len(set(names.tolist())) != len(names):
        raise duplicate_error(path)
    return tuple(names.tolist())


def read_moments(path: str | Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Arrays mean and covariance of an .npz file."""
    location = readable(Path(path))
    try:
        arrays = read_npz(location, ("mean", "covariance"))
    except DAMAGE as error:
        raise damage_error(location, error) from error
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


def read_npz(path: Path, names: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Array]:
    """Named arrays of an npz file; those that are `optional` where they are there."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if any(name not in members for name in names):
            raise FileError(
                f"{path} holds {', '.join(sorted(members)) or 'nothing'}",
                f"arrays {' and '.join(names)} are needed",
                f"Save with numpy.savez(path, {', '.join(f'{name}=...' for name in names)}).",
            )
        wanted = {name: members[name] for name in (*names, *optional) if name in members}
        total = 0
        for name, info in wanted.items():
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # a part of these may be any size
                raise FileError(
                    f"{path}: array {name!r} is compressed in way {info.compress_type} of zip files",
                    "it must be as numpy writes it, plain or deflated",
                    "Save with numpy.savez or numpy.savez_compressed.",
                )
            with archive.open(info) as stream:
                shape, _, dtype, _ = _npy_layout(stream, path, name, info.file_size)
            require_fits(math.prod(shape) * dtype.itemsize, path, f"array {name!r}")
            total += math.prod(shape) * dtype.itemsize
        require_room(total, path, "what it holds")
        arrays = {}
        for name, info in wanted.items():
            with archive.open(info) as stream:
                arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
        return arrays


def _npy_layout(stream: IO[bytes], path: Path, name: str, file_size: int) -> Layout:
    """The header of an array in a stream of `file_size` bytes, all of it checked."""
    try:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
    except ValueError as error:
        raise FileError(
            f"{path}: {name!r} is not an array ({error})", "npy members are needed", "Save with numpy.savez."
        ) from error
    if dtype.hasobject:
        raise FileError(
            f"{path}: array {name!r} holds Python objects",
            "unpickling runs code from the file and is never done",
            "Save plain numbers: numpy.savez(path, X=X.astype(float), y=y.astype(int)); labels that are words: "
            "y=y.astype(str).",
        )
    if dtype.subdtype is not None or dtype.itemsize == 0 or any(type(size) is not int or size < 0 for size in shape):
        raise FileError(
            f"{path}: array {name!r} has dtype {dtype} and shape {shape}",
            "plain numbers or text are needed",
            "Save with numpy.savez(path, X=features, y=labels).",
        )
    declared, header = math.prod(shape) * dtype.itemsize, stream.tell()
    if declared != file_size - header:
        raise FileError(
            f"{path}: array {name!r} declares {declared:,} bytes but {file_size - header:,} follow",
            "the header must tell the truth",
            "The file is damaged or made to deceive; write it again.",
        )
    return shape, fortran, dtype, header


# Read a few rows at a time -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredArray:
    """An array that lies in a file as it lies in memory: its first byte, its shape, how its numbers are stored."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    kind: str  # of numpy, or bf16, which numpy does not have

    @property
    def stored(self) -> np.dtype[Any]:
        return raw_type(self.kind)

    @property
    def row_bytes(self) -> int:
        return (self.shape[1] if len(self.shape) == 2 else 1) * self.stored.itemsize

    def read(self, start: int, stop: int) -> Array:
        """Rows `start` to `stop`."""
        count = (stop - start) * (self.row_bytes // self.stored.itemsize)
        array = np.fromfile(self.path, self.stored, count, offset=self.offset + start * self.row_bytes)
        if len(array) < count:
            raise FileError(
                f"{self.path} ends after {self.path.stat().st_size:,} bytes",
                f"{self.offset + self.shape[0] * self.row_bytes:,} are needed",
                "It was cut short while it was read; write it again.",
            )
        array = array.reshape(stop - start, *self.shape[1:])
        return (array.astype(np.uint32) << 16).view(np.float32) if self.kind == BFLOAT16 else array


def locate_npy(path: Path) -> StoredArray:
    """The array of a .npy file."""
    try:
        with path.open("rb") as stream:
            shape, fortran, dtype, header = _npy_layout(stream, path, path.stem, path.stat().st_size)
    except DAMAGE as error:
        raise damage_error(path, error) from error
    if len(shape) not in (1, 2) or (fortran and len(shape) == 2 and 1 not in shape):
        raise FileError(
            f"{path}: shape {shape}" + (", column after column" if fortran else ""),
            "rows, one after another, are needed",
            "Save with numpy.save(path, numpy.ascontiguousarray(features)).",
        )
    return StoredArray(path, header, shape, dtype.str)


def locate_safetensors(path: Path) -> tuple[dict[str, StoredArray], dict[str, str]]:
    """The tensors and metadata of a safetensors file."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = file.read(min(length, HEADER_LIMIT, size))
    except DAMAGE as error:
        raise damage_error(path, error) from error
    entries, metadata = safetensors_layout(length, header, size, path)
    arrays = {
        name: StoredArray(path, 8 + length + start, shape, kind) for name, (start, shape, kind) in entries.items()
    }
    return arrays, metadata
