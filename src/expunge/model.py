"""A linear classifier and what is known of its training; as a safetensors file, weights and record travel together."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

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
from expunge.rows.features import as_labels, as_table, encode, require_finite, require_width, row_norms, to_engine
from expunge.rows.output import require_absent, write_file
from expunge.runtime.arrays import (
    Array,
    Device,
    Dtype,
    cast,
    contiguous,
    copy,
    double,
    dtype_name,
    equal,
    is_sparse,
    is_tensor,
    load_torch,
    namespace,
    put,
    sigmoid,
    softmax,
    to_numpy,
)
from expunge.runtime.safetensors import BFLOAT16, StoredTensor, safetensors_parts


@dataclass(frozen=True)
class LinearModel:
    """`weight` K x d and `bias` K or None, in the dtype they are stored in, with a training record if there is one."""

    weight: Array
    bias: Array | None = None
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

    def matrix(self, device: Device = "cpu") -> Array:
        """Weights as one K x d matrix in float64, the bias its last column, in the engine that computes there."""
        weight, bias = (None if part is None else double(part) for part in (self.weight, self.bias))
        whole = copy(weight) if bias is None else namespace(weight).concat([weight, bias[:, None]], axis=1)
        if device == "cpu":  # where one engine computes, whichever the weights came in
            return to_engine(to_numpy(whole))
        return put(whole, load_torch(f"device {device}").zeros(0, device=device))

    def predict(self, features: Any) -> np.ndarray[Any, np.dtype[Any]]:
        """Predicted labels, for rows as they come: columns matched where both name them, scaled as in training.

        Of a model that was trained on a table, every frame (pandas, polars, Arrow, a dict of columns) is prepared as
        that was, with or without the label column; plain arrays are taken as prepared already.
        """
        outputs = self._outputs(features)
        chosen = outputs[:, 0] > 0 if self.weight.shape[0] == 1 else outputs.argmax(axis=1)
        labels: np.ndarray[Any, np.dtype[Any]] = np.asarray(self.classes)[chosen.astype(np.int64)]
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
            return softmax(outputs)
        apart = sigmoid(outputs)
        return np.hstack([1.0 - apart, apart]) if outputs.shape[1] == 1 else apart / apart.sum(axis=1, keepdims=True)

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

    def _outputs(self, features: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        given = match_record(features, self.record, self.n_features, "the rows to predict")
        values = given[0] if isinstance(given, tuple) else given
        rows = double(as_table(values, "the rows to predict", sparse=True))
        rows = rows if is_sparse(rows) else to_numpy(rows)
        require_finite(rows, "the rows to predict")
        require_width(rows.shape[1], self.n_features, "the rows to predict")
        weight = to_numpy(double(self.weight)).T
        with np.errstate(over="ignore", invalid="ignore"):  # of rows that are too long, which are scaled
            outputs = rows @ weight
        if self.record is not None:
            norms = row_norms(rows)
            long = np.flatnonzero(norms > self.record.max_norm)
            outputs[long] = (rows[long] * (self.record.max_norm / norms[long, None])) @ weight
        return outputs if self.bias is None else outputs + to_numpy(double(self.bias))

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
            (name, dtype_name(tensor.dtype), tuple(tensor.shape), _raw(tensor).data)
            for name, tensor in self.tensors().items()
        )

    def to_bytes(self) -> bytes:
        """The safetensors file, byte for byte."""
        metadata = None if self.record is None else {METADATA_KEY: self.record.to_json()}
        return stored_bytes(self.tensors(), metadata)

    def sha256(self) -> str:
        """SHA-256 of the safetensors file."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def tensors(self) -> dict[str, Array]:
        """The arrays of the file, each in one piece."""
        tensors = {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})
        return {
            name: contiguous(tensor.detach().cpu() if is_tensor(tensor) else tensor) for name, tensor in tensors.items()
        }


def stored_bytes(tensors: Mapping[str, Array], metadata: dict[str, str] | None) -> bytes:
    """A safetensors file of arrays of either engine."""
    if any(is_tensor(tensor) for tensor in tensors.values()):
        from safetensors.torch import save

        like = next(tensor for tensor in tensors.values() if is_tensor(tensor))
        return save({name: contiguous(put(tensor, like)) for name, tensor in tensors.items()}, metadata=metadata)
    return b"".join(safetensors_parts(tensors, metadata or {}))


def _raw(tensor: Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    flat = tensor.reshape(-1)
    return to_numpy(flat.view(namespace(flat).uint8))


def table_of(model: Any) -> dict[str, Any] | None:
    """How the columns of a table become a model's features, where it was trained on one; of a deposit the same."""
    record: TrainingRecord | None = None if model is None else model.record
    return None if record is None else record.table


def from_matrix(matrix: Array, *, bias: bool, dtype: Dtype) -> LinearModel:
    """A model from a K x d float64 matrix, its last column the bias if there is one; tensors where `dtype` is theirs.

    A weight that a shorter type cannot hold becomes infinite, as everywhere: who publishes weights looks for that.
    """
    plain = matrix.detach().cpu() if is_tensor(matrix) else matrix
    with np.errstate(over="ignore"):
        stored = cast(plain if isinstance(dtype, str) else to_engine(plain, dtype), dtype)
    if not bias:
        return LinearModel(contiguous(stored))
    return LinearModel(copy(stored[:, :-1]), copy(stored[:, -1]))


def one_row_a_class(model: LinearModel) -> LinearModel:
    """A two-class model of one weight vector w as the rows -w/2 and w/2 of a softmax at twice the l2; others stay.

    It is the same objective: the outputs differ by `w x`, and both rows together weigh `||w||^2/2`. The gradient is
    that of w in one row and its negative in the other, so the residual is sqrt 2 times as long.

    >>> model = LinearModel(np.array([[2.0, 4.0]]))
    >>> one_row_a_class(model) is model
    True
    """
    record = model.record
    if record is None or not loss_named(record.loss).one_row:
        return model
    residual = None if record.residual is None else math.nextafter(record.residual * math.sqrt(2.0), math.inf)
    exact = all(equal(part / 2.0 * 2.0, part) for part in model.tensors().values())  # not of subnormal numbers
    half = model.matrix() / 2.0
    two = from_matrix(
        namespace(half).concat([-half, half]),
        bias=model.bias is not None,
        dtype=model.weight.dtype if exact else half.dtype,
    )
    return two.with_record(replace(record, loss=SOFTMAX.name, l2=2.0 * record.l2, residual=residual))


def checked_model(
    weight: Any, bias: Any = None, record: TrainingRecord | None = None, name: str = "the model"
) -> LinearModel:
    """A model from arrays or tensors, refusing what cannot be a linear classifier."""
    matrix, offset = _as_array(weight), None if bias is None else _as_array(bias)
    model = LinearModel(matrix, offset if offset is None else cast(offset, matrix.dtype), record)
    given = {"weight": matrix} | ({} if offset is None else {"bias": offset})
    tensors = {
        part: (name, to_numpy(double(tensor) if name.endswith(("float16", "float32")) else tensor))
        for part, tensor in given.items()
        for name in (dtype_name(tensor.dtype),)
    }
    require_weights(tensors, record, model.weights_sha256(), name)
    return model


def _as_array(values: Any) -> Array:
    return values.detach().cpu() if is_tensor(values) else to_engine(np.array(values))


def read_model(path: str | Path) -> tuple[LinearModel, str]:
    """A model from a safetensors file, and the file's SHA-256."""
    file = read_model_file(path)
    weight = _stored(file.weight)
    bias = None if file.bias is None else cast(_stored(file.bias), weight.dtype)
    return LinearModel(weight, bias, file.record), file.sha256


def _stored(tensor: StoredTensor) -> Array:
    """The array in the type it is stored in; numpy has no bfloat16."""
    if tensor.kind == BFLOAT16:
        torch = load_torch("weights in bfloat16")
        halves = np.frombuffer(tensor.raw, "<i2").reshape(tensor.shape)
        return torch.from_numpy(halves.copy()).view(torch.bfloat16)
    return to_engine(tensor.values.copy())


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
