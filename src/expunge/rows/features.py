"""Feature files: what an encoder made of examples, with the encoder's digest, as `train` and `unlearn` read them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as safetensors_bytes

from expunge.errors import DataError, FileError
from expunge.record import TRAINED_ON_SOURCE
from expunge.rows.files import ENCODER, ENCODER_TRAINED
from expunge.runtime.checks import choice

FEATURE_FILES = (".npz", ".safetensors")


def require_feature_file(path: Path) -> None:
    """Refuse a name no feature file can have, before any work is done."""
    if path.suffix.lower() not in FEATURE_FILES:
        raise FileError(
            f"{path}: unknown file type {path.suffix!r}",
            f"feature files end in {' or '.join(FEATURE_FILES)}",
            "Name it for example features.npz.",
        )


def feature_bytes(
    path: Path, features: NDArray[Any], labels: NDArray[Any], encoder: str, trained: str = "unknown"
) -> bytes:
    """The file's content, by the ending of its name; `trained` says whether the encoder was trained on the source."""
    require_feature_file(path)
    choice(trained, TRAINED_ON_SOURCE, "trained on source")
    said = {ENCODER: encoder, ENCODER_TRAINED: trained}
    if path.suffix.lower() == ".npz":
        stream = io.BytesIO()
        np.savez(
            stream, allow_pickle=False, X=features, y=labels, **{name: np.array(text) for name, text in said.items()}
        )
        return stream.getvalue()
    if labels.dtype.kind not in "iub":
        raise DataError(
            f"labels of dtype {labels.dtype}", "a .safetensors file holds whole numbers", "Write an .npz file."
        )
    arrays = {"X": np.ascontiguousarray(features), "y": np.ascontiguousarray(labels)}
    return safetensors_bytes(arrays, metadata=said)
