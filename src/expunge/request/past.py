"""What was forgotten before, in a series of deletions from one trained model.

All deletions are counted from the trained weights w, the anchor: of the rows forgotten before, only the sum of their
gradients there is kept, `sum m_j g_{U_j}(w)`, and how many there were of each class. The residual of all deletions
together follows from that, so no bound is carried from one to the next. PRIVATE, and so is the anchor.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from expunge.errors import FileError
from expunge.model import LinearModel, checked_model
from expunge.record import METADATA_KEY, TrainingRecord
from expunge.runtime.memory import file_bytes
from expunge.runtime.safetensors import read_safetensors


@dataclass(frozen=True)
class Past:
    """`gradients` is the sum over the rows forgotten before, K x d float64, regulariser included; `counts` are
    theirs by class.
    """

    gradients: Tensor = field(repr=False)
    counts: tuple[int, ...] = field(repr=False)

    @property
    def n_rows(self) -> int:
        return sum(self.counts)

    def with_rows(self, gradients: Tensor, counts: tuple[int, ...]) -> Past:
        """After some more were forgotten."""
        added = tuple(one + other for one, other in zip(self.counts, counts, strict=True))
        return Past(self.gradients + gradients.cpu(), added)


def nothing_forgotten(model: LinearModel) -> Past:
    """The past of a model as it was trained."""
    return Past(torch.zeros_like(model.matrix()), (0,) * model.n_classes)


def left_over(record: TrainingRecord, past: Past) -> TrainingRecord:
    """The record of what is left of the source after these deletions; its residual is still that of the training."""
    counts = record.class_counts
    if counts is not None:
        counts = tuple(count - gone for count, gone in zip(counts, past.counts, strict=True))
    return replace(record, n_source=record.n_source - past.n_rows, class_counts=counts)


def without(record: TrainingRecord, forget: Any) -> TrainingRecord:
    """The record of what is left when these rows go too."""
    gone = Counter(forget.labels.tolist())
    counts = record.class_counts
    if counts is not None:
        counts = tuple(count - gone[index] for index, count in enumerate(counts))
    return replace(record, n_source=record.n_source - len(forget), class_counts=counts)


def anchored_bytes(model: LinearModel, past: Past) -> bytes:
    """The private file of a series: the trained model with its record, and what was forgotten since."""
    assert model.record is not None
    tensors = {"weight": model.weight.contiguous(), "forgotten": past.gradients.contiguous()}
    tensors["counts"] = torch.tensor(past.counts, dtype=torch.int64)
    if model.bias is not None:
        tensors["bias"] = model.bias.contiguous()
    return safetensors_bytes(tensors, metadata={METADATA_KEY: model.record.to_json()})


def read_anchored(path: Path) -> tuple[LinearModel, Past]:
    """Read such a file back."""
    tensors, metadata = read_safetensors(file_bytes(path, "the state"), path)
    try:
        record = TrainingRecord.from_json(metadata[METADATA_KEY], str(path))
        weight, forgotten = (torch.from_numpy(np.array(tensors[name])) for name in ("weight", "forgotten"))
        bias = torch.from_numpy(np.array(tensors["bias"])) if "bias" in tensors else None
        counts = tuple(int(count) for count in np.array(tensors["counts"]))
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{path} is not the state of a series ({type(error).__name__}: {error})",
            "weights, forgotten gradients and counts are needed",
            "Restore it from a copy.",
        ) from error
    model = checked_model(weight, bias, record, str(path))
    if forgotten.shape != model.matrix().shape or len(counts) != model.n_classes or min(counts, default=-1) < 0:
        raise FileError(f"{path}: gradients or counts of another shape", "they must fit", "Restore it from a copy.")
    return model, Past(forgotten, counts)
