"""Examples before any encoder: images in folders, `.npz` arrays, and the files MNIST and CIFAR-10 are published as.

    .npz                        arrays X (rows first, any shape) and y
    a folder                    class/name.png, one folder a class; the class is the folder's name
    ...-images-idx3-ubyte       MNIST's images, gzipped or not; labels are in the -labels-idx1-ubyte beside it
    data_batch_1, test_batch    CIFAR-10's batches, or the folder that holds them (all data_batch_* files)
    data_batch_1.png, ...       CIFAR-10 as pictures of one image a line, beside train_lables.json and test_lables.json

Images come out as uint8, channels first (rows x channels x height x width). Nothing is allocated before its declared
size has been checked. CIFAR-10's batches are pickles; they are read by their layout and never unpickled (`cifar.py`).
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import re
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from expunge.errors import DataError, FileError
from expunge.rows.cifar import read_batch
from expunge.rows.files import DAMAGE, Array, read_npz
from expunge.runtime.memory import file_bytes, require_fits, require_room
from expunge.runtime.paths import readable

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
CIFAR_SHAPE = (3, 32, 32)
CIFAR_FILE = re.compile(r"(data_batch_[0-9]+|test_batch)$")
CIFAR_PICTURE = re.compile(r"(data_batch_[0-9]+|test_batch)\.png$")
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


@dataclass(frozen=True)
class Examples:
    """Inputs of an encoder, rows first, and their labels."""

    inputs: Array
    labels: Array
    name: str


def read_examples(path: str | Path, *, split: str = "train", size: int | None = None) -> Examples:
    """Read inputs and labels.

    `split` says which batches of a CIFAR-10 folder (train or test), `size` that pictures in folders become squares.
    """
    location = Path(path)
    try:
        inputs, labels = _reader(location, split, size)()
    except DAMAGE as error:
        raise FileError(
            f"{location} is not a whole data file ({type(error).__name__}: {error})",
            "a complete one is needed",
            "Write or copy it again.",
        ) from error
    if inputs.ndim < 2 or len(inputs) == 0:
        raise DataError(
            f"{location}: inputs of shape {inputs.shape}",
            "one or more examples are needed, rows first",
            "Check how the file was written.",
        )
    if labels.shape != (len(inputs),):
        raise DataError(
            f"{location}: labels of shape {labels.shape} for {len(inputs):,} examples",
            "one label an example is needed",
            "Check that X and y belong together.",
        )
    if inputs.dtype.kind not in "fiub":
        raise DataError(
            f"{location}: inputs of dtype {inputs.dtype}", "numbers are needed", "Convert them to uint8 or float32."
        )
    return Examples(inputs, labels, str(location))


def _reader(path: Path, split: str, size: int | None) -> Callable[[], tuple[Array, Array]]:
    if split not in ("train", "test"):
        raise DataError(f"split {split!r}", "it is train or test", "Choose one of them.")
    if path.is_dir():
        if size is None and any(CIFAR_FILE.match(entry.name) for entry in path.iterdir()):
            return lambda: _cifar_folder(path, split)
        if size is None and any(CIFAR_PICTURE.match(entry.name) for entry in path.iterdir()):
            return lambda: _cifar_pictures(path, split)
        return lambda: _picture_folder(path, size)
    if size is not None:
        raise DataError(f"size {size} for {path}", "only folders of pictures are resized", "Leave the size out.")
    readable(path)
    if path.suffix.lower() == ".npz":
        return lambda: _npz(path)
    if re.search(r"idx[0-9]-ubyte(\.gz)?$", path.name):
        return lambda: (_idx(path), _idx(_idx_labels(path)))
    if CIFAR_FILE.match(path.name):
        return lambda: _cifar_batch(path)
    raise FileError(
        f"{path}: unknown file type {path.suffix!r}",
        "a .npz file, a folder of pictures, MNIST's idx files or CIFAR-10's python batches are needed",
        "Save the examples with numpy.savez(path, X=images, y=labels).",
    )


def _npz(path: Path) -> tuple[Array, Array]:
    arrays = read_npz(path, ("X", "y"))
    return arrays["X"], arrays["y"]


# Folders of pictures ----------------------------------------------------------------------------------------------


def _picture_folder(folder: Path, size: int | None) -> tuple[Array, Array]:
    files = sorted(
        entry
        for entry in folder.glob("*/*")
        if entry.suffix.lower() in PICTURES and entry.is_file() and not entry.name.startswith(".")
    )
    if not files:
        raise DataError(
            f"{folder} holds no pictures",
            f"folders named after classes with {', '.join(PICTURES)} files are needed",
            "Arrange them as class/name.png.",
        )
    first = _picture(files[0], size)
    require_room(first.nbytes * len(files), folder, f"{len(files):,} pictures")
    inputs = np.empty((len(files), *first.shape), dtype=np.uint8)
    for index, file in enumerate(files):
        picture = _picture(file, size)
        if picture.shape != first.shape:
            raise DataError(
                f"{file} has shape {picture.shape}",
                f"{files[0].name} has {first.shape}, and all must be alike",
                "Resize and convert the pictures the way the encoder was trained.",
            )
        inputs[index] = picture
    return inputs, np.array([file.parent.name for file in files])


def _picture(path: Path, size: int | None) -> Array:
    """One picture as channels x height x width: one channel if it is grey, else three.

    With a size: always three, the shorter side scaled to it, and the middle square cut out.
    """
    from PIL import Image

    readable(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of Pillow's size limit it is only a warning at first
        try:
            with Image.open(path) as image:
                require_room(3 * 4 * image.width * image.height, path, "the picture")
                grey = size is None and image.mode in ("1", "L", "LA")
                converted = image.convert("L" if grey else "RGB")
                values = np.asarray(converted if size is None else _square(converted, size))
        except (*DAMAGE, Image.DecompressionBombError, Image.DecompressionBombWarning, Warning) as error:
            raise FileError(
                f"{path} is not a whole picture ({type(error).__name__}: {error})",
                "a complete one of ordinary size is needed",
                "Write it again as .png.",
            ) from error
    return values[None] if grey else np.ascontiguousarray(values.transpose(2, 0, 1))


def _square(image: Any, size: int) -> Any:
    """The shorter side scaled to `size` (bilinear), the middle square."""
    from PIL import Image

    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    scaled = image.resize((width, height), Image.Resampling.BILINEAR)
    return scaled.crop((left, top, left + size, top + size))


# MNIST: the idx format --------------------------------------------------------------------------------------------


def _idx(path: Path) -> Array:
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


def _idx_labels(images: Path) -> Path:
    name = re.sub(r"images([.-])idx3", r"labels\1idx1", images.name)
    beside = [images.with_name(name), images.with_name(name.removesuffix(".gz")), images.with_name(name + ".gz")]
    labels_file = next((path for path in beside if path.exists() and path != images), None)
    if labels_file is None:
        raise FileError(f"{images} has no labels beside it", f"{name} is needed", "Put it in the same folder.")
    return labels_file


# CIFAR-10 ---------------------------------------------------------------------------------------------------------


def _cifar_batch(path: Path) -> tuple[Array, Array]:
    pixels, labels = read_batch(path)
    return pixels.reshape(len(pixels), *CIFAR_SHAPE), labels


def _cifar_folder(folder: Path, split: str) -> tuple[Array, Array]:
    pattern = "data_batch_*" if split == "train" else "test_batch"
    files = sorted(path for path in folder.glob(pattern) if CIFAR_FILE.match(path.name))
    if not files:
        raise FileError(f"{folder} has no {pattern}", "CIFAR-10's python batches are needed", "Check the folder.")
    parts = [_cifar_batch(file) for file in files]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _cifar_pictures(folder: Path, split: str) -> tuple[Array, Array]:
    """One image a line: 1024 pixels, row by row. The labels' file is spelt so where it is published."""
    pattern = "data_batch_*.png" if split == "train" else "test_batch.png"
    files = sorted(path for path in folder.glob(pattern) if CIFAR_PICTURE.match(path.name))
    if not files:
        raise FileError(f"{folder} has no {pattern}", "CIFAR-10's batches are needed", "Check the folder.")
    labels = json.loads(file_bytes(folder / f"{split}_lables.json", "the labels", copies=8))
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise ValueError("labels are not whole numbers from 0 to 9")
    pictures = [_picture(file, None) for file in files]
    for file, picture in zip(files, pictures, strict=True):
        if picture.shape[0] != 3 or picture.shape[2] != 1024:
            raise ValueError(f"{file.name} is not lines of 1024 coloured pixels")
    lines = np.concatenate([picture.transpose(1, 0, 2) for picture in pictures])
    return lines.reshape(len(lines), *CIFAR_SHAPE), np.array(labels, dtype=np.int64)
