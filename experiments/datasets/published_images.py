"""Images as MNIST and CIFAR-10 are published: idx files, and CIFAR-10's binary batches.

    ...-images-idx3-ubyte           MNIST's images, gzipped or not; labels are in the -labels-idx1-ubyte beside it
    data_batch_1.bin, test_batch.bin    CIFAR-10: a byte for the label, 3072 for the pixels, image after image

Nothing is allocated before its declared size has been checked.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from expunge.errors import FileError
from expunge.networks.encoders import EncoderInputs
from expunge.rows.arrays import DAMAGE, Array, damage_error
from expunge.runtime.files import readable
from expunge.runtime.memory import file_bytes, require_fits, require_room

SHAPE = (3, 32, 32)
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_mnist(path: Path) -> EncoderInputs:
    """Images of an idx file, with the labels that are beside it."""
    try:
        return EncoderInputs(read_idx(path), read_idx(_labels_beside(path)), str(path))
    except DAMAGE as error:
        raise damage_error(path, error) from error


def read_cifar(folder: Path, split: str = "train") -> EncoderInputs:
    """CIFAR-10's binary batches in a folder, `train` or `test`."""
    names = "data_batch_*.bin" if split == "train" else "test_batch.bin"
    files = sorted(folder.glob(names))
    if not files:
        raise FileError(f"{folder} has no {names}", "CIFAR-10's binary batches are needed", "Check the folder.")
    content = np.frombuffer(b"".join(file_bytes(file, "the images", copies=3) for file in files), np.uint8)
    width = 1 + math.prod(SHAPE)
    if content.size % width:
        problem = f"{folder}: {content.size:,} bytes in {names}"
        raise FileError(problem, f"an image takes {width:,}", "Download the files again.")
    images = content.reshape(-1, width)
    if images[:, 0].max() > 9:
        raise FileError(f"{folder}: a label {images[:, 0].max()}", "0 to 9 are known", "Download the files again.")
    return EncoderInputs(images[:, 1:].reshape(-1, *SHAPE).copy(), images[:, 0].astype(np.int64), str(folder))


def read_idx(path: Path) -> Array:
    """An idx array: two zero bytes, a type, a number of dimensions, the sizes (big-endian), the values."""
    readable(path)
    with contextlib.ExitStack() as stack:
        stream: Any = stack.enter_context(path.open("rb"))
        if path.suffix == ".gz":
            stream = stack.enter_context(gzip.GzipFile(fileobj=stream))
        head = stream.read(4)
        if len(head) != 4 or head[:2] != b"\0\0" or head[2] not in IDX_TYPES or not 1 <= head[3] <= 4:
            raise ValueError(f"it starts with {head.hex()}")
        sizes = struct.unpack(f">{head[3]}I", stream.read(4 * head[3]))
        dtype = np.dtype(IDX_TYPES[head[2]])
        declared = math.prod(sizes) * dtype.itemsize
        require_fits(declared, path, "the array")
        require_room(3 * declared, path, "the array")
        content = stream.read(declared + 1)
    if len(content) != declared:
        raise ValueError(f"{declared:,} bytes are declared, {len(content):,} or more follow")
    array = np.frombuffer(content, dtype).reshape(sizes).astype(dtype.newbyteorder("="))
    return array[:, None] if array.ndim == 3 else array  # one channel


def _labels_beside(images: Path) -> Path:
    name = re.sub(r"images([.-])idx3", r"labels\1idx1", images.name)
    names = (name, name.removesuffix(".gz"), name + ".gz")
    found = next((path for path in map(images.with_name, names) if path.exists() and path != images), None)
    if found is None:
        raise FileError(f"{images} has no labels beside it", f"{name} is needed", "Put it in the same folder.")
    return found
