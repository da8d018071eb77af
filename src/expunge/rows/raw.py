"""Arrays that lie in files as they lie in memory, read a few rows at a time: .npy, .npz, .safetensors."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from expunge.errors import FileError
from expunge.rows.files import DAMAGE, ENCODER, ENCODER_TRAINED, NAMES, Array, checked_npy, not_whole
from expunge.runtime.safetensors import BFLOAT16, HEADER_LIMIT, raw_type, safetensors_layout


@dataclass(frozen=True)
class RawArray:
    """Where an array is: its first byte in a file, its shape, how its numbers are stored (`bf16` has no numpy type)."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    kind: str

    @property
    def stored(self) -> np.dtype[Any]:
        return raw_type(self.kind)

    @property
    def row_bytes(self) -> int:
        width = self.shape[1] if len(self.shape) == 2 else 1
        return width * self.stored.itemsize

    def stamp(self) -> tuple[int, int, int]:
        status = self.path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns

    @contextmanager
    def opened(self) -> Iterator[int]:
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            yield file
        finally:
            os.close(file)

    def read(self, file: int, start: int, stop: int, buffer: Array | None) -> Array:
        """Rows `start` to `stop`, in the buffer if one is given."""
        array = np.empty((stop - start, *self.shape[1:]), self.stored) if buffer is None else buffer[: stop - start]
        view = array.reshape(-1).view(np.uint8).data
        position, filled = self.offset + start * self.row_bytes, 0
        while filled < len(view):
            count = os.preadv(file, [view[filled:]], position + filled)
            if count == 0:
                raise FileError(
                    f"{self.path} ends after {position + filled:,} bytes",
                    f"{self.offset + self.shape[0] * self.row_bytes:,} are needed",
                    "It was cut short while it was read; write it again.",
                )
            filled += count
        if self.kind == BFLOAT16:
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array


def npy_array(path: Path) -> RawArray:
    """The array of a .npy file."""
    try:
        with path.open("rb") as stream:
            shape, dtype, header = checked_npy(stream, path, path.stem, path.stat().st_size)
    except DAMAGE as error:
        raise not_whole(path, error) from error
    return RawArray(path, header, shape, dtype.str)


def npz_arrays(path: Path) -> dict[str, RawArray] | None:
    """X and y of an .npz file; None if they are compressed, or an encoder or columns are named beside them."""
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            members = archive.infolist()
            if {info.filename.removesuffix(".npy") for info in members} & {ENCODER, ENCODER_TRAINED, NAMES}:
                return None  # what it names is read with the whole file
            for info in members:
                if info.filename.removesuffix(".npy") not in ("X", "y"):
                    continue
                if info.compress_type != zipfile.ZIP_STORED:
                    return None
                file.seek(info.header_offset)
                local = file.read(30)
                if local[:4] != b"PK\x03\x04":
                    raise zipfile.BadZipFile("no member where one is declared")
                names, extra = struct.unpack("<HH", local[26:30])
                begin = info.header_offset + 30 + names + extra
                with archive.open(info) as member:
                    shape, dtype, header = checked_npy(member, path, info.filename.removesuffix(".npy"), info.file_size)
                arrays[info.filename.removesuffix(".npy")] = RawArray(path, begin + header, shape, dtype.str)
    except DAMAGE as error:
        raise not_whole(path, error) from error
    return arrays


def safetensors_arrays(path: Path) -> tuple[dict[str, RawArray], dict[str, str]]:
    """The tensors and metadata of a safetensors file."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = file.read(min(length, HEADER_LIMIT, size))
    except DAMAGE as error:
        raise not_whole(path, error) from error
    entries, metadata = safetensors_layout(length, header, size, path)
    begin = 8 + length
    return {
        name: RawArray(path, begin + start, shape, kind) for name, (start, shape, kind) in entries.items()
    }, metadata
