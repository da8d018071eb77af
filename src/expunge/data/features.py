"""Feature files: what an encoder made of examples, with the encoder's digest, as `train` and `unlearn` read them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as safetensors_bytes

from expunge.data.files import ENCODER
from expunge.errors import DataError, FileError

FEATURE_FILES = (".npz", ".safetensors")


def require_feature_file(path: Path) -> None:
    """Refuse a name no feature file can have, before any work is done."""
    if path.suffix.lower() not in FEATURE_FILES:
        raise FileError(
            f"{path}: unknown file type {path.suffix!r}",
            f"feature files end in {' or '.join(FEATURE_FILES)}",
            "Name it for example features.npz.",
        )


def feature_bytes(path: Path, features: NDArray[Any], labels: NDArray[Any], encoder: str) -> bytes:
    """The file's content, by the ending of its name."""
    require_feature_file(path)
    if path.suffix.lower() == ".npz":
        stream = io.BytesIO()
        np.savez(stream, allow_pickle=False, X=features, y=labels, **{ENCODER: np.array(encoder)})
        return stream.getvalue()
    if labels.dtype.kind not in "iub":
        raise DataError(
            f"labels of dtype {labels.dtype}", "a .safetensors file holds whole numbers", "Write an .npz file."
        )
    arrays = {"X": np.ascontiguousarray(features), "y": np.ascontiguousarray(labels)}
    return safetensors_bytes(arrays, metadata={ENCODER: encoder})
