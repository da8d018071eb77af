"""Images as MNIST and CIFAR-10 are published: idx files, python batches, and pictures of one image a line.

    ...-images-idx3-ubyte       MNIST's images, gzipped or not; labels are in the -labels-idx1-ubyte beside it
    data_batch_1, test_batch    CIFAR-10's batches (see cifar.py) in a folder, all data_batch_* files for training
    data_batch_1.png, ...       the same as pictures of one image a line, beside train_lables.json and test_lables.json

Nothing is allocated before its declared size has been checked.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from experiments.datasets.cifar import read_batch
from expunge.errors import FileError
from expunge.rows.arrays import DAMAGE, Array, EncoderInputs, checked_examples, damage_error, read_picture
from expunge.runtime.files import readable
from expunge.runtime.memory import file_bytes, require_fits, require_room

SHAPE = (3, 32, 32)
BATCH = re.compile(r"(data_batch_[0-9]+|test_batch)(\.png)?$")
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_mnist(path: Path) -> EncoderInputs:
    """Images of an idx file, with the labels that are beside it."""
    try:
        return checked_examples(read_idx(path), read_idx(_labels_beside(path)), str(path))
    except DAMAGE as error:
        raise damage_error(path, error) from error


def read_cifar(folder: Path, split: str = "train") -> EncoderInputs:
    """CIFAR-10's batches in a folder, `train` or `test`, as python batches or as pictures."""
    names = "data_batch_*" if split == "train" else "test_batch*"
    files = sorted(path for path in folder.glob(names) if BATCH.match(path.name))
    if not files:
        raise FileError(f"{folder} has no {names}", "CIFAR-10's batches are needed", "Check the folder.")
    try:
        pictures = [path for path in files if path.suffix == ".png"]
        if len(pictures) == len(files):
            inputs, labels = _lines_of_pictures(folder, pictures, split)
        else:
            batches = [read_batch(path) for path in files if path not in pictures]
            inputs, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    except DAMAGE as error:
        raise damage_error(folder, error) from error
    return checked_examples(inputs.reshape(len(inputs), *SHAPE), labels, str(folder))


def _lines_of_pictures(folder: Path, files: list[Path], split: str) -> tuple[Array, Array]:
    """One image a line: 1024 pixels, row by row. The labels' file is spelt so where it is published."""
    labels = json.loads(file_bytes(folder / f"{split}_lables.json", "the labels", copies=8))
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise ValueError("labels are not whole numbers from 0 to 9")
    pictures = [read_picture(file) for file in files]
    for file, picture in zip(files, pictures, strict=True):
        if picture.shape[0] != 3 or picture.shape[2] != 1024:
            raise ValueError(f"{file.name} is not lines of 1024 coloured pixels")
    lines = np.concatenate([picture.transpose(1, 0, 2) for picture in pictures])
    return np.ascontiguousarray(lines), np.array(labels, dtype=np.int64)


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
