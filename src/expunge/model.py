"""A linear classifier and what is known of its training; as a safetensors file, weights and record travel together."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from expunge.errors import DataError, FileError, ModelError
from expunge.record import (
    LOGISTIC,
    METADATA_KEY,
    ONE_VS_REST,
    SOFTMAX,
    Label,
    TrainingRecord,
    loss_named,
    read_model_file,
    require_weights,
    weights_digest,
)
from expunge.rows.columns import match_record, names_of, prepare_frames
from expunge.rows.features import as_labels, as_table, encode, require_finite, require_width
from expunge.rows.output import require_absent, write_file
from expunge.runtime.safetensors import BFLOAT16, StoredTensor


@dataclass(frozen=True)
class LinearModel:
    """`weight` K x d and `bias` K or None, in the dtype they are stored in, with a training record if there is one."""

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
        """Predicted labels, for rows as they come: columns matched where both name them, scaled as in training.

        Of a model that was trained on a table, every frame (pandas, polars, Arrow, a dict of columns) is prepared as
        that was, with or without the label column; plain arrays are taken as prepared already.
        """
        outputs = self._outputs(features)
        chosen = outputs[:, 0] > 0 if self.weight.shape[0] == 1 else outputs.argmax(dim=1)
        labels: np.ndarray[Any, np.dtype[Any]] = np.asarray(self.classes)[chosen.long().numpy()]
        return labels

    def predict_proba(self, features: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Probability of each class, rows x K in the order of `classes`; a ridge model has none."""
        loss = "softmax" if self.record is None else self.record.loss
        if loss not in (SOFTMAX.name, LOGISTIC.name, ONE_VS_REST.name):
            raise ModelError(
                f"probabilities of a {loss} model", "its outputs are none", "Use predict, or train with loss softmax."
            )
        outputs = self._outputs(features)
        if loss == SOFTMAX.name:
            shares = torch.softmax(outputs, dim=1)
        elif outputs.shape[1] == 1:
            second = torch.sigmoid(outputs)
            shares = torch.cat([1.0 - second, second], dim=1)
        else:
            apart = torch.sigmoid(outputs)
            shares = apart / apart.sum(dim=1, keepdim=True)
        found: np.ndarray[Any, np.dtype[np.float64]] = shares.numpy()
        return found

    def score(self, features: Any, labels: Any = None) -> float:
        """Accuracy on these rows; of a frame that holds the label column of training, that is used."""
        rows = features if labels is None else (features, labels)
        given = rows if self.record is None else prepare_frames(rows, self.record, "the rows to score")
        if not isinstance(given, tuple) or given[1] is None:
            raise DataError("rows without labels", "they are needed to score", "Give score(features, labels).")
        known = as_labels(given[1], len(given[1]), "the rows to score")
        encode(known, self.classes, "the rows to score")
        values = given if names_of(given) is not None else given[0]
        return float(np.mean(self.predict(values) == known))

    def _outputs(self, features: Any) -> Tensor:
        given = match_record(features, self.record, self.n_features, "the rows to predict")
        values = given[0] if isinstance(given, tuple) else given
        rows = as_table(values, "the rows to predict").double()
        require_finite(rows, "the rows to predict")
        require_width(rows.shape[1], self.n_features, "the rows to predict")
        if self.record is not None:
            rows = rows * (self.record.max_norm / rows.norm(dim=1, keepdim=True).clamp(min=self.record.max_norm))
        outputs: Tensor = rows @ self.weight.double().T
        return outputs if self.bias is None else outputs + self.bias.double()

    def save(self, path: str | Path) -> None:
        """Write the model with its record as a new .safetensors file; a file that is there is never written over."""
        target = Path(path)
        if target.suffix.lower() != ".safetensors":
            raise FileError(f"{target}", "models are .safetensors files", "Name it for example model.safetensors.")
        require_absent(target)
        write_file(target, self.to_bytes())

    @staticmethod
    def load(path: str | Path) -> LinearModel:
        """A model from its file; `expunge.read_model` gives the file's digest too."""
        return read_model(path)[0]

    def with_record(self, record: TrainingRecord) -> LinearModel:
        """The same weights under a record that names them by digest."""
        return replace(self, record=replace(record, weights_sha256=self.weights_sha256()))

    def weights_sha256(self) -> str:
        """SHA-256 over dtype, shape and bytes of each tensor."""
        return weights_digest(
            (name, _dtype_name(tensor), tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().data)
            for name, tensor in self.tensors().items()
        )

    def to_bytes(self) -> bytes:
        """The safetensors file, byte for byte."""
        metadata = None if self.record is None else {METADATA_KEY: self.record.to_json()}
        return safetensors_bytes(self.tensors(), metadata=metadata)

    def sha256(self) -> str:
        """SHA-256 of the safetensors file."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def tensors(self) -> dict[str, Tensor]:
        """What its file holds: weight and, where there is one, bias."""
        tensors = {"weight": self.weight.detach().cpu().contiguous()}
        if self.bias is not None:
            tensors["bias"] = self.bias.detach().cpu().contiguous()
        return tensors


def table_of(model: Any) -> dict[str, Any] | None:
    """How the columns of a table become a model's features, where it was trained on one; of a deposit the same."""
    record: TrainingRecord | None = None if model is None else model.record
    return None if record is None else record.table


def from_matrix(matrix: Tensor, *, bias: bool, dtype: torch.dtype) -> LinearModel:
    """A model from a K x d float64 matrix whose last column is the bias, if there is one."""
    stored = matrix.detach().cpu().to(dtype)
    if not bias:
        return LinearModel(stored.contiguous())
    as_laid_out = torch.contiguous_format  # one number alone counts as contiguous whatever its stride
    return LinearModel(stored[:, :-1].clone(memory_format=as_laid_out), stored[:, -1].clone(memory_format=as_laid_out))


def one_row_a_class(model: LinearModel) -> LinearModel:
    """A two-class model of one weight vector w as the rows -w/2 and w/2 of a softmax at twice the l2; others stay.

    It is the same objective: the outputs differ by `w x`, and both rows together weigh `||w||^2/2`. The gradient is
    that of w in one row and its negative in the other, so the residual is sqrt 2 times as long.

    >>> model = LinearModel(torch.tensor([[2.0, 4.0]]))
    >>> one_row_a_class(model) is model
    True
    """
    record = model.record
    if record is None or not loss_named(record.loss).one_row:
        return model
    residual = None if record.residual is None else math.nextafter(record.residual * math.sqrt(2.0), math.inf)
    exact = all(torch.equal(part / 2.0 * 2.0, part) for part in model.tensors().values())  # not of subnormal numbers
    half = model.matrix() / 2.0
    two = from_matrix(
        torch.cat([-half, half]), bias=model.bias is not None, dtype=model.weight.dtype if exact else torch.float64
    )
    return two.with_record(replace(record, loss=SOFTMAX.name, l2=2.0 * record.l2, residual=residual))


def checked_model(
    weight: Any, bias: Any = None, record: TrainingRecord | None = None, name: str = "the model"
) -> LinearModel:
    """A model from arrays or tensors, refusing what cannot be a linear classifier."""
    matrix, offset = _as_tensor(weight), None if bias is None else _as_tensor(bias)
    model = LinearModel(matrix, offset if offset is None else offset.to(matrix.dtype), record)
    given = {"weight": matrix} | ({} if offset is None else {"bias": offset})
    tensors = {
        part: (_dtype_name(tensor), (tensor.double() if tensor.is_floating_point() else tensor).numpy())
        for part, tensor in given.items()
    }
    require_weights(tensors, record, model.weights_sha256(), name)
    return model


def _as_tensor(values: Any) -> Tensor:
    return values.detach().cpu() if isinstance(values, Tensor) else torch.as_tensor(np.array(values))


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def read_model(path: str | Path) -> tuple[LinearModel, str]:
    """A model from a safetensors file, and the file's SHA-256."""
    file = read_model_file(path)
    weight = _stored(file.weight)
    bias = None if file.bias is None else _stored(file.bias).to(weight.dtype)
    return LinearModel(weight, bias, file.record), file.sha256


def _stored(tensor: StoredTensor) -> Tensor:
    """The tensor in the type it is stored in."""
    if tensor.kind == BFLOAT16:
        halves = np.frombuffer(tensor.raw, "<i2").reshape(tensor.shape)
        return torch.from_numpy(halves.copy()).view(torch.bfloat16)
    return torch.from_numpy(tensor.values.copy())


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
    features: Sequence[str] | None = None,
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
        features=None if features is None else tuple(features),
    )
