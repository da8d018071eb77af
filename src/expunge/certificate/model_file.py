"""A linear model's file, read and checked without torch: all that whoever checks a certificate has to know of it."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from expunge.certificate.check import MODEL, Check, shown
from expunge.certificate.claim import OLD_SCHEMAS, Json
from expunge.errors import InputError, ModelError
from expunge.record import METADATA_KEY, Loss, TrainingRecord, loss_named, one_digit
from expunge.runtime.memory import file_bytes
from expunge.runtime.safetensors import Array, StoredTensor, stored_tensors
from expunge.runtime.strict_json import read_json

FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class ModelFile:
    """`weight` K x d and `bias` K or None as they are stored, the training record, and the digest of the whole file."""

    weight: StoredTensor
    bias: StoredTensor | None
    record: TrainingRecord | None
    sha256: str


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
    weight, bias = tensors["weight"], tensors.get("bias")
    _require_numbers(weight, f"{name}: weight")
    require_matrix(weight.shape, name, record is not None and loss_named(record.loss).one_row)
    if bias is not None:
        _require_numbers(bias, f"{name}: bias")
        require_bias(bias.shape, weight.shape[0], name)
    if record is not None:
        stored = {"weight": weight} | ({} if bias is None else {"bias": bias})
        digest = weights_digest((part, tensor.dtype, tensor.shape, tensor.raw) for part, tensor in stored.items())
        require_record(record, weight.shape[0], bias is not None, digest, name, weight.shape[1])
    return ModelFile(weight, bias, record, hashlib.sha256(content).hexdigest())


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
    remedy = "Record and weights do not belong together; use the file as it was written."
    if loss_named(record.loss).weight_rows(len(record.classes)) != n_classes:
        raise ModelError(
            f"{name}: {n_classes} weight rows, {len(record.classes)} classes recorded", "they must agree", remedy
        )
    if record.features is not None and len(record.features) != width:
        raise ModelError(
            f"{name}: {width} weight columns, {len(record.features)} features named", "they must agree", remedy
        )
    if record.bias != bias:
        raise ModelError(f"{name}: the record says bias {record.bias}", "the tensors must agree", remedy)
    if record.weights_sha256 != weights_sha256:
        raise ModelError(
            f"{name}: the weights are not those the record was made for", "their digests must agree", remedy
        )


# The published model beside its certificate: each way in which it can be the wrong one, in words. No torch.


TANGENT_TENSOR = "tangent"


@dataclass(frozen=True)
class Published:
    """A model's file: its tensors as they are stored, its record and the digest of the whole."""

    tensors: tuple[StoredTensor, ...]
    record: TrainingRecord | None
    sha256: str


def published_checks(content: Json, path: str | Path) -> list[Check]:
    """What a model's file shows of being the one the certificate speaks of."""
    stated = content["model"]
    compared, model = opened_model(
        "the model is the one of the certificate (model.after.sha256)", stated["after"]["sha256"], stated["loss"], path
    )
    if model is None:
        return compared
    if model.record is None:
        return [
            *compared,
            model_check("the model has a record", False, True, "a published model says what is left of its source"),
        ]
    return [*compared, *_record_checks(content, model.record), *tensor_checks(content, model)]


def _record_checks(content: Json, record: TrainingRecord) -> list[Check]:
    stated, sizes = content["model"], content["sizes"]
    now = stated["published"] if content["schema"] not in OLD_SCHEMAS else stated
    same = {
        "l2": (now["l2"], record.l2),
        "loss": (stated["loss"], record.loss),
        "max_norm": (now["max_norm"], record.max_norm),
        "bias": (stated["bias"], record.bias),
        "provenance": (stated["record"], record.provenance),
        "encoder": (stated.get("encoder"), record.encoder),
    }
    if content["schema"] not in OLD_SCHEMAS and record.encoder is not None:
        told = (stated.get("encoder_trained_on_source"), record.encoder_trained or "unknown")
        same["encoder_trained_on_source"] = told
    optional: Json = {"preparation": record.preparation, "free_bias": record.free_bias or None}
    optional |= {"fixed_c": record.fixed_c}
    for name, recorded in optional.items():
        if recorded is not None or name in stated:
            same[name] = (stated.get(name), recorded)
    return [
        model_check(
            "the model has its noise",
            record.noised and record.residual is None,
            True,
            "its record says that none was added: this is the trained model, not the published one",
        ),
        _rows_check(content, record),
        model_check(
            "the model has the classes of the certificate",
            len(record.classes),
            sizes["classes"],
            f"the certificate says {shown(sizes['classes'])}",
        ),
        *_counts_checks(content, record),
        *(
            model_check(
                f"the model has the {name} of the certificate",
                claimed,
                recorded,
                f"the certificate says {shown(claimed)}, its record does not",
            )
            for name, (claimed, recorded) in same.items()
        ),
    ]


def _rows_check(content: Json, record: TrainingRecord) -> Check:
    """A published record counts what is retained to one digit, and neither classes nor their weights."""
    sizes = content["sizes"]
    if content["schema"] in OLD_SCHEMAS:
        why = f"the certificate says {shown(sizes['n_retain'])} rows, its record does not"
        return model_check("the model is of what is retained", record.n_source, sizes["n_retain"], why)
    kept = {"n_source": one_digit(sizes["n_retain"]), "class_counts": None, "class_weights": None}
    found = {name: getattr(record, name) for name in kept}
    why = "its record counts other rows than one digit of what is retained, or rows of each class"
    return model_check("the model's record says nothing of who left", found, kept, why)


def tensor_checks(content: Json, model: Published) -> list[Check]:
    """Shape, type and grid of the weights, beside what a certificate or a statement says of them."""
    sizes, stated, exponent = content["sizes"], content["model"], content["noise"]["grid_exponent"]
    loss = loss_named(stated["loss"])
    shape = (sizes["parameters"],) if loss.one_vector else (loss.weight_rows(sizes["classes"]), sizes["features"])
    found = model.tensors[0].shape
    types = sorted({tensor.dtype for tensor in model.tensors})
    off = sum(off_grid(tensor.values, exponent) for tensor in model.tensors)
    return [
        model_check("the model has the shape of the certificate", list(found), list(shape), "its weights have another"),
        model_check(
            "the model has the type of the certificate",
            types,
            [stated["dtype"]],
            f"the certificate says {shown(stated['dtype'])}, its weights have another",
        ),
        model_check(
            "the weights are on the noise's grid",
            off,
            0,
            f"{off} of them are no multiples of 2^{shown(exponent)}: they were not noised as stated, or changed since",
        ),
    ]


def off_grid(values: Array, exponent: int) -> int:
    """How many values are no multiples of 2^exponent.

    A multiple that a narrower type had to round is one still: rounded numbers have fewer digits, not finer ones. So the
    check is exact for every type; but float16 and bfloat16 have so few digits that nearly all of theirs pass.

    >>> off_grid(np.array([0.75, 0.5, 0.25]), -1)
    2
    """
    scaled = np.ldexp(values.astype(np.float64), -exponent)
    return int(np.count_nonzero(scaled != np.rint(scaled)))


def _counts_checks(content: Json, record: TrainingRecord) -> list[Check]:
    """Matched rows follow class counts; schemas 1 and 2 state the source's, of which some rows are gone since."""
    counts: Any = content["data"].get("class_counts")
    if counts is None or record.class_counts is None or content["schema"] not in OLD_SCHEMAS:
        return []
    agree = len(counts) == len(record.class_counts) and all(map(operator.le, record.class_counts, counts))
    why = "the classes that rows were matched to are not those of its record"
    return [model_check("the model has the class counts of the certificate", agree, True, why)]


def model_check(name: str, claimed: Any, found: Any, why: str) -> Check:
    """A check that is about the model's file."""
    return Check(name, claimed, found, why, MODEL)


def opened_model(name: str, stated: object, loss_name: str, path: str | Path) -> tuple[list[Check], Published | None]:
    """Whether a file has the digest that is stated, and what is in it; None where there is nothing more to compare.

    A file that is not there was named by mistake; one that is there and is damaged is not the model.
    """
    location, loss = Path(path), loss_named(loss_name)
    content = _model_bytes(location, loss)
    compared = [model_check(name, stated, hashlib.sha256(content).hexdigest(), "its file has another digest")]
    if not loss.convex:  # a whole network: its file is its owner's, and only its digest is known
        return compared, None
    try:
        return compared, _parse_published(content, location, loss)
    except InputError as damaged:
        return [*compared, model_check("the model's file is whole", False, True, damaged.found)], None


def read_published(path: Path, loss: Loss) -> Published:
    """A model's file, as far as it can be read without torch and the network."""
    return _parse_published(_model_bytes(path, loss), path, loss)


def _model_bytes(path: Path, loss: Loss) -> bytes:
    return file_bytes(path, "the model") if loss.one_vector else model_bytes(path)


def _parse_published(content: bytes, path: Path, loss: Loss) -> Published:
    if not loss.one_vector:
        model = parse_model_file(content, path)
        tensors = (model.weight,) if model.bias is None else (model.weight, model.bias)
        return Published(tensors, model.record, model.sha256)
    digest = hashlib.sha256(content).hexdigest()
    return _read_tangent(content, path, digest) if loss.convex else Published((), None, digest)


def _read_tangent(content: bytes, path: Path, digest: str) -> Published:
    """Tangent weights, without the network they belong to."""
    tensors, metadata = stored_tensors(content, path)
    try:
        told = read_json(metadata[METADATA_KEY])
        weights, text = tensors[TANGENT_TENSOR], str(told["record"])
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
    return Published((weights,), record, digest)
