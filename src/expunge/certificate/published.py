"""The published model beside its certificate: each way in which it can be the wrong one, in words. No torch."""

from __future__ import annotations

import hashlib
import json
import math
import operator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from expunge.certificate.check import MODEL, Check
from expunge.certificate.facts import OLD_SCHEMAS, Json
from expunge.certificate.model_file import read_model_file
from expunge.errors import ModelError
from expunge.record import METADATA_KEY, Loss, TrainingRecord, loss_named
from expunge.runtime.memory import file_bytes
from expunge.runtime.safetensors import Array, StoredTensor, stored_tensors
from expunge.runtime.strict_json import without_duplicates

TANGENT_TENSOR = "tangent"


@dataclass(frozen=True)
class Published:
    """A model's file: its tensors as they are stored, its record and the digest of the whole."""

    tensors: tuple[StoredTensor, ...]
    record: TrainingRecord | None
    sha256: str


def published_checks(content: Json, path: str | Path) -> list[Check]:
    """What a model's file shows of being the one the certificate speaks of."""
    stated, loss = content["model"], loss_named(content["model"]["loss"])
    model = read_published(Path(path), loss)
    compared = [
        model_check(
            "the model is the one of the certificate (model.after.sha256)",
            stated["after"]["sha256"],
            model.sha256,
            f"its file has digest {model.sha256[:16]}..., the certificate's {str(stated['after']['sha256'])[:16]}...",
        )
    ]
    if not loss.convex:  # a whole network: its file is its owner's, and only its digest is known
        return compared
    if model.record is None:
        return [
            *compared,
            model_check("the model has a record", False, True, "a published model says what is left of its source"),
        ]
    return [*compared, *_record_checks(content, model.record), *tensor_checks(content, model)]


def _record_checks(content: Json, record: TrainingRecord) -> list[Check]:
    stated, sizes = content["model"], content["sizes"]
    same = {
        "l2": (stated["l2"], record.l2),
        "loss": (stated["loss"], record.loss),
        "max_norm": (stated["max_norm"], record.max_norm),
        "bias": (stated["bias"], record.bias),
        "provenance": (stated["record"], record.provenance),
        "encoder": (stated.get("encoder"), record.encoder),
    }
    if content["schema"] not in OLD_SCHEMAS and record.encoder is not None:
        told = (stated.get("encoder_trained_on_source"), record.encoder_trained or "unknown")
        same["encoder_trained_on_source"] = told
    weights = None if record.class_weights is None else list(record.class_weights)
    optional: Json = {"preparation": record.preparation, "class_weights": weights}
    optional |= {"free_bias": record.free_bias or None, "fixed_c": record.fixed_c}
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
            f"it has {len(record.classes)}, not {sizes['classes']}",
        ),
        *_counts_checks(content, record),
        *(
            model_check(
                f"the model has the {name} of the certificate",
                claimed,
                recorded,
                f"its record says {recorded}, the certificate {claimed}",
            )
            for name, (claimed, recorded) in same.items()
        ),
    ]


def _rows_check(content: Json, record: TrainingRecord) -> Check:
    """Since schema 3 a published record counts as at training, and no classes: it would say who left."""
    sizes = content["sizes"]
    if content["schema"] in OLD_SCHEMAS:
        why = f"its record counts {record.n_source} rows, and {sizes['n_retain']} are retained"
        return model_check("the model is of what is retained", record.n_source, sizes["n_retain"], why)
    kept = {"n_source": sizes["n_source"], "class_counts": None}
    found = {"n_source": record.n_source, "class_counts": record.class_counts}
    why = f"its record counts {record.n_source} rows, not {sizes['n_source']} as at training, or rows of each class"
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
        model_check("the model has the shape of the certificate", list(found), list(shape), f"its weights are {found}"),
        model_check(
            "the model has the type of the certificate",
            types,
            [stated["dtype"]],
            f"its weights are {', '.join(types)}, not {stated['dtype']}",
        ),
        model_check(
            "the weights are on the noise's grid",
            off,
            0,
            f"{off} of them are no multiples of 2^{exponent}: they were not noised as stated, or changed since",
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


def read_published(path: Path, loss: Loss) -> Published:
    """A model's file, as far as it can be read without torch and the network."""
    if not loss.one_vector:
        model = read_model_file(path)
        tensors = (model.weight,) if model.bias is None else (model.weight, model.bias)
        return Published(tensors, model.record, model.sha256)
    content = file_bytes(path, "the model")
    digest = hashlib.sha256(content).hexdigest()
    return _read_tangent(content, path, digest) if loss.convex else Published((), None, digest)


def _read_tangent(content: bytes, path: Path, digest: str) -> Published:
    """Tangent weights, without the network they belong to."""
    tensors, metadata = stored_tensors(content, path)
    try:
        told = json.loads(metadata[METADATA_KEY], object_pairs_hook=without_duplicates)
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
