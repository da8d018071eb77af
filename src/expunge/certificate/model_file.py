"""A model's file, read and checked without torch: all that whoever checks a certificate has to know of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from expunge.errors import ModelError
from expunge.record import METADATA_KEY, Loss, TrainingRecord, loss_named
from expunge.runtime.memory import file_bytes
from expunge.runtime.safetensors import StoredTensor, stored_tensors
from expunge.runtime.strict_json import read_json

FLOATS = ("float64", "float32", "float16", "bfloat16")
TANGENT_TENSOR = "tangent"


@dataclass(frozen=True)
class ModelFile:
    """The tensors as they are stored (of a linear model weight K x d and, where there is one, bias K), the training
    record, and the digest of the whole file."""

    tensors: tuple[StoredTensor, ...]
    record: TrainingRecord | None
    sha256: str

    @property
    def weight(self) -> StoredTensor:
        return self.tensors[0]

    @property
    def bias(self) -> StoredTensor | None:
        return self.tensors[1] if len(self.tensors) > 1 else None


def read_model_file(path: str | Path) -> ModelFile:
    """A linear model from a safetensors file, refusing what cannot be one."""
    location = Path(path)
    return parse_model_file(model_bytes(location), location)


def model_bytes(location: Path) -> bytes:
    """The bytes of a linear model's file, refusing what is not called one."""
    if location.is_dir():
        raise ModelError(
            f"{location} is a folder",
            "a model is a file",
            f"Name the file inside it, as {location / 'model.safetensors'}.",
        )
    if location.suffix.lower() != ".safetensors":
        raise ModelError(
            f"{location}: unknown model type {location.suffix!r}",
            "models are .safetensors files with tensors weight (K x d) and bias (K, optional)",
            "Save with safetensors.torch.save_file({'weight': W, 'bias': b}, path); pickled models are never loaded.",
        )
    return file_bytes(location, "the model")


def parse_model_file(content: bytes, location: Path) -> ModelFile:
    """A linear model from the bytes of its file; `location` is what it is called in messages."""
    tensors, metadata = stored_tensors(content, location)
    if "weight" not in tensors or set(tensors) - {"weight", "bias"}:
        raise ModelError(
            f"{location} holds {', '.join(sorted(tensors)) or 'nothing'}",
            "exactly weight and, where there is one, bias are needed",
            "Save the linear head alone, under these names.",
        )
    name = str(location)
    record = TrainingRecord.from_json(metadata[METADATA_KEY], name) if METADATA_KEY in metadata else None
    stored = {part: tensors[part] for part in ("weight", "bias") if part in tensors}
    weight, bias = tensors["weight"], tensors.get("bias")
    _require_numbers(weight, f"{name}: weight")
    require_matrix(weight.shape, name, record is not None and loss_named(record.loss).one_row)
    if bias is not None:
        _require_numbers(bias, f"{name}: bias")
        require_bias(bias.shape, weight.shape[0], name)
    if record is not None:
        digest = weights_digest((part, tensor.dtype, tensor.shape, tensor.raw) for part, tensor in stored.items())
        require_record(record, weight.shape[0], bias is not None, digest, name, weight.shape[1])
    return ModelFile(tuple(stored.values()), record, hashlib.sha256(content).hexdigest())


def weights_digest(tensors: Iterable[tuple[str, str, tuple[int, ...], bytes | memoryview]]) -> str:
    """SHA-256 over name, dtype, shape and bytes of each tensor; weight first, then bias.

    >>> weights_digest([("weight", "float64", (1, 1), bytes(8))])[:16]
    '13f15b0a1a630ea5'
    """
    digest = hashlib.sha256()
    for name, dtype, shape, raw in tensors:
        digest.update(f"{name} torch.{dtype} {list(shape)}\n".encode())
        digest.update(raw)
    return digest.hexdigest()


def require_floats(dtype: str, name: str) -> None:
    """Refuse weights that are not floating-point numbers."""
    if dtype not in FLOATS:
        raise ModelError(
            f"{name} of dtype torch.{dtype}",
            "floating-point weights are needed",
            "Convert them to float64 or float32.",
        )


def not_finite(value: float, name: str) -> ModelError:
    """The error for weights that hold NaN or an infinity."""
    return ModelError(
        f"{name} holds {value}", "every weight must be a finite number", "Training diverged, or the file is damaged."
    )


def _require_numbers(tensor: StoredTensor, name: str) -> None:
    require_floats(tensor.dtype, name)
    values = tensor.values
    finite = np.isfinite(values)
    if not finite.all():
        raise not_finite(float(values[~finite][0]), name)


def require_matrix(shape: tuple[int, ...], name: str, one_row: bool = False) -> None:
    """Refuse weights that are not one row a class; `one_row`: of two classes, for the second alone."""
    if len(shape) != 2:
        raise ModelError(
            f"{name}: weight of shape {shape}",
            "K x d is needed, one row a class",
            "Reshape it; see docs/how-to-choose.md.",
        )
    if shape[0] < 2 and not (one_row and shape[0] == 1):
        raise ModelError(
            f"{name}: weight has {shape[0]} row",
            "one row a class is needed, at least two",
            "Write a two-class model with one weight vector w as the rows -w/2 and w/2 (softmax, l2 doubled) "
            "or -w and w (ridge).",
        )
    if shape[1] < 1:
        raise ModelError(f"{name}: weight of shape {shape}", "at least one feature is needed", "Check the file.")


def require_bias(shape: tuple[int, ...], n_classes: int, name: str) -> None:
    """Refuse a bias that is not one number a class."""
    if shape != (n_classes,):
        raise ModelError(f"{name}: bias of shape {shape}", f"({n_classes},) is needed", "One bias a class.")


def require_record(
    record: TrainingRecord, n_classes: int, bias: bool, weights_sha256: str, name: str, width: int
) -> None:
    """Refuse a record that was made for other weights."""
    features = width if record.features is None else len(record.features)
    wrong = {
        f"{n_classes} weight rows, {len(record.classes)} classes recorded": (
            loss_named(record.loss).weight_rows(len(record.classes)) != n_classes
        ),
        f"{width} weight columns, {features} features named": features != width,
        f"the record says bias {record.bias}, the tensors do not": record.bias != bias,
        "the weights are not those the record was made for": record.weights_sha256 != weights_sha256,
    }
    remedy = "Record and weights do not belong together; use the file as it was written."
    for found, is_wrong in wrong.items():
        if is_wrong:
            raise ModelError(f"{name}: {found}", "they must agree", remedy)


# A published model, linear or a network's tangent weights.


def read_published(path: Path, loss: Loss) -> ModelFile:
    """A published model's file, as far as it can be read without torch and the network."""
    return parse_published(published_bytes(path, loss), path, loss)


def published_bytes(path: Path, loss: Loss) -> bytes:
    """The bytes of a published model's file."""
    return file_bytes(path, "the model") if loss.one_vector else model_bytes(path)


def parse_published(content: bytes, path: Path, loss: Loss) -> ModelFile:
    """A published model from the bytes of its file; of a whole network nothing but the digest is known."""
    if not loss.one_vector:
        return parse_model_file(content, path)
    digest = hashlib.sha256(content).hexdigest()
    if not loss.convex:
        return ModelFile((), None, digest)
    tensors, metadata = stored_tensors(content, path)
    try:
        weights, text = tensors[TANGENT_TENSOR], str(read_json(metadata[METADATA_KEY])["record"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            f"{path} holds no tangent weights ({type(error).__name__}: {error})",
            "tensor tangent and its record are needed",
            "Give the published model's file as it was written.",
        ) from error
    record = TrainingRecord.from_json(text, str(path))
    if record.weights_sha256 != hashlib.sha256(weights.raw).hexdigest():
        raise ModelError(f"{path}: the weights are not those of its record", "they must agree", "Use the original.")
    if math.prod(weights.shape) == 0 or not bool(np.isfinite(weights.values).all()):
        raise ModelError(f"{path}: weights that are no numbers", "every weight must be finite", "Use the original.")
    return ModelFile((weights,), record, digest)
