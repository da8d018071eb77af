"""A linear classifier and what is known of its training; as a safetensors file, weights and record travel together."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from expunge.data.files import read_safetensors
from expunge.data.prepare import Label
from expunge.errors import ModelError
from expunge.record import METADATA_KEY, TrainingRecord
from expunge.runtime.memory import require_fits
from expunge.runtime.paths import readable

MODEL_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class LinearModel:
    """`weight` K x d and `bias` K or None, in the dtype they are stored in, with a training record where there is one."""

    weight: Tensor
    bias: Tensor | None = None
    record: TrainingRecord | None = None

    @property
    def n_classes(self) -> int:
        return int(self.weight.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.weight.shape[1])

    @property
    def classes(self) -> tuple[Label, ...]:
        return tuple(range(self.n_classes)) if self.record is None else self.record.classes

    def matrix(self, device: torch.device | str = "cpu") -> Tensor:
        """Weights as one K x d matrix in float64, the bias its last column."""
        weight = self.weight.to(device=device, dtype=torch.float64)
        if self.bias is None:
            return weight.clone()
        return torch.cat([weight, self.bias.to(device=device, dtype=torch.float64)[:, None]], dim=1)

    def predict(self, features: Any) -> np.ndarray[Any, np.dtype[Any]]:
        """Predicted labels, for rows as they come (scaled to the record's norm bound, as in training)."""
        rows = torch.as_tensor(np.asarray(features), dtype=torch.float64)
        if self.record is not None:
            rows = rows * (self.record.max_norm / rows.norm(dim=1, keepdim=True).clamp(min=self.record.max_norm))
        outputs = rows @ self.weight.double().T
        if self.bias is not None:
            outputs = outputs + self.bias.double()
        labels: np.ndarray[Any, np.dtype[Any]] = np.asarray(self.classes)[outputs.argmax(dim=1).numpy()]
        return labels

    def with_record(self, record: TrainingRecord) -> LinearModel:
        """The same weights under a record that names them by digest."""
        return replace(self, record=replace(record, weights_sha256=self.weights_sha256()))

    def weights_sha256(self) -> str:
        """SHA-256 over dtype, shape and bytes of each tensor."""
        digest = hashlib.sha256()
        for name, tensor in self._tensors().items():
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def to_bytes(self) -> bytes:
        """The safetensors file, byte for byte."""
        metadata = None if self.record is None else {METADATA_KEY: self.record.to_json()}
        return safetensors_bytes(self._tensors(), metadata=metadata)

    def sha256(self) -> str:
        """SHA-256 of the safetensors file."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {"weight": self.weight.detach().cpu().contiguous()}
        if self.bias is not None:
            tensors["bias"] = self.bias.detach().cpu().contiguous()
        return tensors


def from_matrix(matrix: Tensor, *, bias: bool, dtype: torch.dtype) -> LinearModel:
    """A model from a K x d float64 matrix whose last column is the bias, if there is one."""
    stored = matrix.detach().cpu().to(dtype)
    if not bias:
        return LinearModel(stored.contiguous())
    return LinearModel(stored[:, :-1].contiguous(), stored[:, -1].contiguous())


def checked_model(
    weight: Any, bias: Any = None, record: TrainingRecord | None = None, name: str = "the model"
) -> LinearModel:
    """A model from arrays or tensors, refusing what cannot be a linear classifier."""
    tensor = _as_tensor(weight, f"{name}: weight")
    if tensor.ndim != 2:
        raise ModelError(
            f"{name}: weight of shape {tuple(tensor.shape)}",
            "K x d is needed, one row a class",
            "Reshape it; see docs/how-to-choose.md.",
        )
    if tensor.shape[0] < 2:
        raise ModelError(
            f"{name}: weight has {tensor.shape[0]} row",
            "one row a class is needed, at least two",
            "Write a two-class model with one weight vector w as the rows -w/2 and w/2 (softmax, l2 doubled) or -w and w (ridge).",
        )
    if tensor.shape[1] < 1:
        raise ModelError(
            f"{name}: weight of shape {tuple(tensor.shape)}", "at least one feature is needed", "Check the file."
        )
    offset = None if bias is None else _as_tensor(bias, f"{name}: bias")
    if offset is not None and tuple(offset.shape) != (tensor.shape[0],):
        raise ModelError(
            f"{name}: bias of shape {tuple(offset.shape)}", f"({tensor.shape[0]},) is needed", "One bias a class."
        )
    model = LinearModel(tensor, offset if offset is None else offset.to(tensor.dtype), record)
    if record is not None:
        _check_record(model, record, name)
    return model


def _as_tensor(values: Any, name: str) -> Tensor:
    tensor = values.detach().cpu() if isinstance(values, Tensor) else torch.as_tensor(np.array(values))
    if tensor.dtype not in MODEL_DTYPES:
        raise ModelError(
            f"{name} of dtype {tensor.dtype}",
            "floating-point weights are needed",
            "Convert them to float64 or float32.",
        )
    if not bool(torch.isfinite(tensor).all()):
        odd = tensor[~torch.isfinite(tensor)][0]
        raise ModelError(
            f"{name} holds {float(odd)}",
            "every weight must be a finite number",
            "Training diverged, or the file is damaged.",
        )
    return tensor


def _check_record(model: LinearModel, record: TrainingRecord, name: str) -> None:
    remedy = "Record and weights do not belong together; use the file as it was written."
    if len(record.classes) != model.n_classes:
        raise ModelError(
            f"{name}: {model.n_classes} weight rows, {len(record.classes)} classes recorded", "they must agree", remedy
        )
    if record.bias != (model.bias is not None):
        raise ModelError(f"{name}: the record says bias {record.bias}", "the tensors must agree", remedy)
    if record.weights_sha256 != model.weights_sha256():
        raise ModelError(
            f"{name}: the weights are not those the record was made for", "their digests must agree", remedy
        )


def read_model(path: str | Path) -> tuple[LinearModel, str]:
    """A model from a safetensors file, and the file's SHA-256."""
    location = Path(path)
    if location.suffix.lower() != ".safetensors":
        raise ModelError(
            f"{location}: unknown model type {location.suffix!r}",
            "models are .safetensors files with tensors weight (K x d) and bias (K, optional)",
            "Save with safetensors.torch.save_file({'weight': W, 'bias': b}, path); pickled models are never loaded.",
        )
    require_fits(readable(location).stat().st_size, location, "the model")
    content = location.read_bytes()
    tensors, metadata = read_safetensors(content, location)
    if "weight" not in tensors or set(tensors) - {"weight", "bias"}:
        raise ModelError(
            f"{location} holds {', '.join(sorted(tensors)) or 'nothing'}",
            "exactly weight and, where there is one, bias are needed",
            "Save the linear head alone, under these names.",
        )
    record = TrainingRecord.from_json(metadata[METADATA_KEY], str(location)) if METADATA_KEY in metadata else None
    model = checked_model(
        np.array(tensors["weight"]), np.array(tensors["bias"]) if "bias" in tensors else None, record, str(location)
    )
    return model, hashlib.sha256(content).hexdigest()


def declared_record(
    model: LinearModel,
    *,
    n_source: int,
    l2: float,
    loss: str,
    max_norm: float,
    residual: float,
    classes: Sequence[Label] | None = None,
    class_counts: Sequence[int] | None = None,
) -> TrainingRecord:
    """A record for a model trained elsewhere: the same facts, marked `declared`."""
    return TrainingRecord(
        n_source=n_source,
        classes=model.classes if classes is None else tuple(classes),
        class_counts=None if class_counts is None else tuple(class_counts),
        l2=float(l2),
        loss=loss,
        max_norm=float(max_norm),
        bias=model.bias is not None,
        residual=float(residual),
        provenance="declared",
    )
