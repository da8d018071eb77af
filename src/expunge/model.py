"""A linear classifier and what is known of its training; as a safetensors file, weights and record travel together."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from expunge.data.files import is_digest, not_a_number, read_safetensors, readable, without_duplicates
from expunge.data.memory import require_fits
from expunge.data.prepare import Label
from expunge.errors import ModelError
from expunge.objectives import OBJECTIVES
from expunge.objectives.tangent import Tangent

RECORD_SCHEMA = "expunge/record/1"
ENCODER_SCHEMA = "expunge/record/2"  # as 1, with the encoder the features came from
METADATA_KEY = "expunge"
MOST_ROWS = 2**53  # beyond this a count is no longer exact in float64
SMALLEST, LARGEST = 1e-30, 1e30  # of l2, norms and constants: beyond this their powers leave float64
LOSSES = (*OBJECTIVES, Tangent.name)
MODEL_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class TrainingRecord:
    """What is kept of the source once it is gone.

    `max_norm` is the length feature rows were scaled down to; `row_bound` counts the constant feature of a bias too.
    `residual` is an upper bound on the norm of the objective's gradient at the weights AS STORED. `provenance` is
    `measured` if this library trained the model, `declared` if somebody stated the same facts. A `noised` model is the
    result of unlearning: it is no longer near an optimum, and has no residual. `encoder` is the digest of what made the
    features, where their file named it; a record without one is written as schema 1.
    """

    n_source: int
    classes: tuple[Label, ...]
    class_counts: tuple[int, ...] | None
    l2: float
    loss: str
    max_norm: float
    bias: bool
    residual: float | None
    rows_dtype: str = "float64"
    provenance: str = "measured"
    noised: bool = False
    weights_sha256: str = field(default="")
    encoder: str | None = None

    @property
    def row_bound(self) -> float:
        """B: the largest norm of a row, constant feature included."""
        return math.sqrt(self.max_norm**2 + 1.0) if self.bias else self.max_norm

    def to_json(self) -> str:
        schema = RECORD_SCHEMA if self.encoder is None else ENCODER_SCHEMA
        return json.dumps({"schema": schema, **self.facts()}, sort_keys=True, allow_nan=False)

    def facts(self) -> dict[str, Any]:
        """What the record says, as it is written."""
        known = asdict(self) | {"row_bound": self.row_bound}
        return {name: value for name, value in known.items() if name != "encoder" or value is not None}

    @staticmethod
    def from_json(text: str, name: str) -> TrainingRecord:
        """Read a record back, refusing what does not make sense."""
        remedy = "The file was changed after it was written; use the original, or declare the facts as options for a bare model."
        try:
            content = json.loads(text, parse_constant=not_a_number, object_pairs_hook=without_duplicates)
        except (ValueError, RecursionError) as error:
            raise ModelError(
                f"{name}: the training record is not JSON ({error})", "a whole record is needed", remedy
            ) from error
        schema = content.pop("schema", None) if isinstance(content, dict) else None
        if schema not in (RECORD_SCHEMA, ENCODER_SCHEMA):
            raise ModelError(
                f"{name}: the training record has schema {schema!r}",
                f"{RECORD_SCHEMA} and {ENCODER_SCHEMA} are understood",
                remedy,
            )
        row_bound = content.pop("row_bound", None)
        expected = set(TrainingRecord.__dataclass_fields__) - ({"encoder"} if schema == RECORD_SCHEMA else set())
        if set(content) != expected:
            odd = ", ".join(sorted(set(content) ^ expected))
            raise ModelError(
                f"{name}: the training record lacks or adds {odd}",
                "its facts must be possible, under the keys of its schema",
                remedy,
            )
        problem = next(
            (f"{key} {content[key]!r}" for key in ("classes", "class_counts") if not _listed(content[key], key)), None
        )
        if problem is None:
            counts = content["class_counts"]
            content |= {"classes": tuple(content["classes"]), "class_counts": None if counts is None else tuple(counts)}
            record = TrainingRecord(**content)
            problem = record._problem(schema) or (None if row_bound == record.row_bound else f"row_bound {row_bound!r}")
        if problem is not None:
            raise ModelError(f"{name}: the training record says {problem}", "its facts must be possible", remedy)
        return record

    def _problem(self, schema: str) -> str | None:
        """The first fact that cannot be, or None."""
        if schema == ENCODER_SCHEMA and not is_digest(self.encoder):
            return f"encoder {self.encoder!r}"
        if type(self.n_source) is not int or not 1 <= self.n_source <= MOST_ROWS:
            return f"n_source {self.n_source!r}"
        if not isinstance(self.loss, str) or self.loss not in LOSSES:
            return f"loss {self.loss!r}"
        if not is_digest(self.weights_sha256):
            return f"weights_sha256 {self.weights_sha256!r}"
        if not _positive(self.l2):
            return f"l2 {self.l2!r}"
        if not _positive(self.max_norm):
            return f"max_norm {self.max_norm!r}"
        if type(self.bias) is not bool or type(self.noised) is not bool:
            return f"bias {self.bias!r}, noised {self.noised!r}"
        if self.residual is not None and not (type(self.residual) is float and 0 <= self.residual < math.inf):
            return f"residual {self.residual!r}"
        if self.residual is None and not self.noised:
            return "no residual"
        if self.provenance not in ("measured", "declared") or self.rows_dtype not in ("float64", "float32"):
            return f"provenance {self.provenance!r}, rows_dtype {self.rows_dtype!r}"
        if (
            len(self.classes) < 2
            or len(set(self.classes)) != len(self.classes)
            or not all(type(c) in (int, str) for c in self.classes)
        ):
            return f"classes {self.classes!r}"
        counts = self.class_counts
        if counts is not None and (
            len(counts) != len(self.classes)
            or not all(type(c) is int and c >= 0 for c in counts)
            or sum(counts) != self.n_source
        ):
            return f"class counts {counts!r} of {self.n_source} rows"
        return None


def _positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and SMALLEST <= value <= LARGEST


def _listed(value: object, key: str) -> bool:
    return isinstance(value, list) or (value is None and key == "class_counts")


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
