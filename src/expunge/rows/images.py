"""Examples before any encoder: arrays of any shape in an .npz file, and pictures in folders.

    .npz        arrays X (rows first, any shape) and y
    a folder    class/name.png, one folder a class; the class is the folder's name

Pictures come out as uint8, channels first (rows x channels x height x width). Nothing is allocated before its declared
size has been checked.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from expunge.errors import DataError, FileError
from expunge.rows.arrays import DAMAGE, Array, damage_error, read_npz
from expunge.runtime.files import readable
from expunge.runtime.memory import require_room

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


@dataclass(frozen=True)
class Examples:
    """Inputs of an encoder, rows first, and their labels."""

    inputs: Array
    labels: Array
    name: str


def read_examples(path: str | Path, *, size: int | None = None) -> Examples:
    """Read inputs and labels; with a `size` pictures in folders become squares."""
    location = Path(path)
    if size is not None and not location.is_dir():
        raise DataError(f"size {size} for {path}", "only folders of pictures are resized", "Leave the size out.")
    if not location.is_dir() and readable(location).suffix.lower() != ".npz":
        raise FileError(
            f"{path}: unknown file type {location.suffix!r}",
            "a .npz file or a folder of pictures is needed",
            "Save the examples with numpy.savez(path, X=images, y=labels).",
        )
    try:
        if location.is_dir():
            inputs, labels = _read_folder(location, size)
        else:
            arrays = read_npz(location, ("X", "y"))
            inputs, labels = arrays["X"], arrays["y"]
    except DAMAGE as error:
        raise damage_error(location, error) from error
    return checked_examples(inputs, labels, str(location))


def checked_examples(inputs: Array, labels: Array, name: str) -> Examples:
    """Inputs and labels, if they belong together."""
    if inputs.ndim < 2 or len(inputs) == 0:
        raise DataError(
            f"{name}: inputs of shape {inputs.shape}",
            "one or more examples are needed, rows first",
            "Check how the file was written.",
        )
    if labels.shape != (len(inputs),):
        raise DataError(
            f"{name}: labels of shape {labels.shape} for {len(inputs):,} examples",
            "one label an example is needed",
            "Check that X and y belong together.",
        )
    if inputs.dtype.kind not in "fiub":
        raise DataError(
            f"{name}: inputs of dtype {inputs.dtype}", "numbers are needed", "Convert them to uint8 or float32."
        )
    return Examples(inputs, labels, name)


def _read_folder(folder: Path, size: int | None) -> tuple[Array, Array]:
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
    first = read_picture(files[0], size)
    require_room(first.nbytes * len(files), folder, f"{len(files):,} pictures")
    inputs = np.empty((len(files), *first.shape), dtype=np.uint8)
    for index, file in enumerate(files):
        picture = read_picture(file, size)
        if picture.shape != first.shape:
            raise DataError(
                f"{file} has shape {picture.shape}",
                f"{files[0].name} has {first.shape}, and all must be alike",
                "Resize and convert the pictures the way the encoder was trained.",
            )
        inputs[index] = picture
    return inputs, np.array([file.parent.name for file in files])


def read_picture(path: Path, size: int | None = None) -> Array:
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
