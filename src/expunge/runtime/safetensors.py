"""The safetensors format, read strictly: every offset is checked against the bytes that are there; and written."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import FileError
from expunge.runtime.memory import require_room
from expunge.runtime.strict_json import read_json

Array = NDArray[Any]

HEADER_LIMIT = 100_000_000  # safetensors' own limit on its header
HEADER_ALLOWED, HEADER_FACTOR = 1_000_000, 40  # bytes of a header that need not be weighed; in memory for each
BFLOAT16 = "bf16"  # numpy has no type for it: the upper half of a float32
KINDS: dict[str, str] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": BFLOAT16, "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1", "BOOL": "|b1",
}  # fmt: skip


def raw_type(kind: str) -> np.dtype[Any]:
    """What numpy calls the numbers of this kind as they are stored."""
    return np.dtype("<u2" if kind == BFLOAT16 else kind)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as its file has it; `raw` are its bytes, row after row."""

    kind: str
    shape: tuple[int, ...]
    raw: memoryview = field(repr=False)

    @property
    def dtype(self) -> str:
        """The name torch and numpy have for its type, such as `float64` or `bfloat16`."""
        return "bfloat16" if self.kind == BFLOAT16 else np.dtype(self.kind).name

    @property
    def values(self) -> Array:
        """The tensor as an array that shares the file's bytes; bfloat16 is widened to float32, which loses nothing."""
        stored: Array = np.frombuffer(self.raw, raw_type(self.kind)).reshape(self.shape)
        return (stored.astype(np.uint32) << 16).view(np.float32) if self.kind == BFLOAT16 else stored


def safetensors_parts(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """A file of these arrays, as the safetensors library writes it, in parts: the arrays themselves, not copied."""
    codes = {np.dtype(kind): code for code, kind in KINDS.items() if kind != BFLOAT16}
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    parts, end = [], 0
    for name, array in sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0])):
        start, end = end, end + array.nbytes
        header[name] = {"dtype": codes[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
        parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [struct.pack("<Q", len(text)), text, *parts]


def stored_tensors(content: bytes | bytearray, path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    length = struct.unpack("<Q", content[:8])[0] if len(content) >= 8 else 0
    header = bytes(content[8 : 8 + min(length, HEADER_LIMIT)])
    entries, metadata = safetensors_layout(length, header, len(content), path)
    body = memoryview(content)[8 + length :]
    tensors = {
        name: StoredTensor(kind, shape, body[start : start + math.prod(shape) * raw_type(kind).itemsize])
        for name, (start, shape, kind) in entries.items()
    }
    return tensors, metadata


def read_safetensors(content: bytes | bytearray, path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors of a safetensors file as arrays, and its metadata."""
    tensors, metadata = stored_tensors(content, path)
    return {name: tensor.values for name, tensor in tensors.items()}, metadata


def safetensors_layout(
    length: int, content: bytes, size: int, path: Path
) -> tuple[dict[str, tuple[int, tuple[int, ...], str]], dict[str, str]]:
    """Where each tensor begins after a header of `length` bytes in a file of `size`, its shape and its type."""

    def damaged(what: str) -> FileError:
        return FileError(
            f"{path}: {what}",
            "the header must describe the bytes that follow it",
            "The file is damaged; write it again.",
        )

    if size < 8:
        raise damaged("shorter than a safetensors header")
    if length > min(HEADER_LIMIT, size - 8):
        raise damaged(f"a header of {length:,} bytes is declared in a file of {size:,}")
    if length > HEADER_ALLOWED:
        require_room(HEADER_FACTOR * length, path, "the header")
    try:
        header = read_json(content)
    except (ValueError, RecursionError) as error:
        raise damaged(f"the header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise damaged("the header is not a table")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise damaged("the metadata is not a table of strings")
    available, covered = size - 8 - length, 0
    entries: dict[str, tuple[int, tuple[int, ...], str]] = {}
    for name, entry in sorted(header.items(), key=lambda item: _offsets(item[1])):
        code = str(entry.get("dtype")) if isinstance(entry, dict) else None
        shape = entry.get("shape") if isinstance(entry, dict) else None
        start, end = _offsets(entry)
        sizes: list[Any] = shape if isinstance(shape, list) else [None]
        if code not in KINDS or len(sizes) > 8 or not all(type(n) is int and 0 <= n < 2**48 for n in sizes):
            raise damaged(f"tensor {name!r} has dtype {code!r} and shape {shape!r}")
        kind = KINDS[code]
        width = raw_type(kind).itemsize
        declared = math.prod(sizes) * width
        if start != covered or end - start != declared or end > available:
            raise damaged(f"tensor {name!r} declares {declared:,} bytes at {start:,} to {end:,} of {available:,}")
        entries[name] = (start, tuple(sizes), kind)
        covered = end
    if covered != available:
        raise damaged(f"{available - covered:,} bytes belong to no tensor")
    return entries, metadata


def _offsets(entry: object) -> tuple[int, int]:
    ends = entry.get("data_offsets") if isinstance(entry, dict) else None
    if isinstance(ends, list) and len(ends) == 2 and all(type(n) is int and n >= 0 for n in ends):
        return ends[0], ends[1]
    return -1, -1
