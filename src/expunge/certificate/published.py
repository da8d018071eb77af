"""The published model beside its certificate: each way in which it can be the wrong one, in words. No torch."""

from __future__ import annotations

import hashlib
import math
import operator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from expunge.certificate.check import MODEL, Check, shown
from expunge.certificate.facts import OLD_SCHEMAS, Json
from expunge.certificate.model_file import model_bytes, parse_model_file
from expunge.errors import InputError, ModelError
from expunge.record import METADATA_KEY, Loss, TrainingRecord, loss_named, one_digit
from expunge.runtime.memory import file_bytes
from expunge.runtime.safetensors import Array, StoredTensor, stored_tensors
from expunge.runtime.strict_json import read_json

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
