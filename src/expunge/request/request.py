"""A request, checked (door.py): the model it is asked of, and what a certificate says of it."""

from __future__ import annotations

import datetime
import math
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from expunge import __version__
from expunge.bounds.paper import PaperConstants
from expunge.certificate.claim import Json
from expunge.distance import Distance, Estimation
from expunge.errors import FileError, ModelError, OptionError
from expunge.heads import LinearHead, head_for
from expunge.model import LinearModel, checked_model, declared_record, from_matrix, stored_bytes
from expunge.record import LOSSES, METADATA_KEY, TrainingRecord, one_digit, require_record
from expunge.request.promise import NOTHING_DECLARED, Declared, Promise
from expunge.rows.features import to_engine
from expunge.runtime.arrays import Array, Dtype, dtype_name, put, to_numpy, zeros
from expunge.runtime.memory import file_bytes
from expunge.runtime.safetensors import read_safetensors
from expunge.runtime.values import LARGEST
from expunge.solve.linear import Step

if TYPE_CHECKING:
    from expunge.deposit.file import Deposit
    from expunge.deposit.membership import Membership

# What is known of a model: its record, or what is declared of one that has none --------------------------------------


def record_for(model: LinearModel, declared: Declared = NOTHING_DECLARED) -> TrainingRecord:
    """The model's own record, or one declared by options; facts that cannot be are refused in both.

    An option that contradicts a record is an error. So is a record of other weights: nothing that it says would be
    true of these.
    """
    given = {name: value for name, value in vars(declared).items() if value is not None}
    for name in ("classes", "class_counts"):
        if name in given:
            given[name] = tuple(np.asarray(given[name]).tolist())
    own, said_by = model.record, "the model's record"
    if own is None:
        own, said_by = _declared_record(model, given), "what is declared of the model"
    elif own.class_counts is None and own.provenance == "declared" and "class_counts" in given:
        own = replace(own, class_counts=given["class_counts"])
    known = {**vars(own), "training_residual": own.residual}
    for name, value in given.items():
        if value != known[name]:
            raise ModelError(
                f"{name} {value} was given, but the model's record says {known[name]}",
                "they must agree",
                "Leave the option out; the record was written at training.",
            )
    require_record(own, model.n_classes, model.bias is not None, model.weights_sha256(), "the model", model.n_features)
    return own.check(said_by)


def _declared_record(model: LinearModel, given: dict[str, Any]) -> TrainingRecord:
    """A record for a model trained elsewhere, if every fact is there."""
    needed = ("n_source", "l2", "loss", "max_norm", "training_residual")
    missing = [name for name in needed if name not in given]
    if missing:
        options = ", ".join("--" + name.replace("_", "-") for name in missing)
        raise ModelError(
            f"the model has no training record and {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not "
            "given",
            "a certificate needs these facts",
            f"Give them as options ({options}); they will be marked declared.",
        )
    if given["loss"] in LOSSES and LOSSES[given["loss"]].one_row:
        raise OptionError(
            f"loss {given['loss']!r} for {model.n_classes} weight rows",
            "it has one weight vector, and a model without a record one row a class",
            "Declare softmax: with the rows -w/2 and w/2 and twice the l2 it is the same model.",
        )
    facts = {name: value for name, value in given.items() if name != "training_residual"}
    record = declared_record(model, residual=given["training_residual"], **facts)
    return replace(record, weights_sha256=model.weights_sha256())


# What was forgotten before ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Past:
    """What was forgotten before, in a series of deletions from one trained model. PRIVATE, and so is the model.

    All deletions are counted from the trained weights w: of the rows forgotten before only the sum of their gradients
    there is stored, `sum m_j g_{U_j}(w)` (K x d float64, regulariser included), and `counts`, how many there were of
    each class. The residual of all deletions together follows from that, so no bound is carried from one to the next.
    """

    gradients: Array = field(repr=False)
    counts: tuple[int, ...] = field(repr=False)

    @property
    def n_rows(self) -> int:
        return sum(self.counts)

    def with_rows(self, gradients: Array, counts: tuple[int, ...]) -> Past:
        """The past once some more rows are forgotten."""
        added = tuple(one + other for one, other in zip(self.counts, counts, strict=True))
        return Past(self.gradients + put(gradients, self.gradients), added)


def nothing_forgotten(model: LinearModel) -> Past:
    """The past of a model as it was trained."""
    return Past(zeros(model.matrix()), (0,) * model.n_classes)


def record_without(record: TrainingRecord, gone: Sequence[int] | Array) -> TrainingRecord:
    """The record of what is left of the source without so many rows of each class, or without rows of these labels.

    Its residual is still that of the training.
    """
    if not isinstance(gone, Sequence):
        labels = Counter(gone.tolist())
        gone = [labels[index] for index in range(len(record.classes))]
    counts = record.class_counts
    if counts is not None:
        counts = tuple(count - away for count, away in zip(counts, gone, strict=True))
    return replace(record, n_source=record.n_source - sum(gone), class_counts=counts)


def anchored_bytes(model: LinearModel, past: Past) -> bytes:
    """The private file of a series: the trained model with its record, and what was forgotten since."""
    assert model.record is not None
    gone = {"forgotten": past.gradients, "counts": np.array(past.counts, np.int64)}
    return stored_bytes(model.tensors() | gone, {METADATA_KEY: model.record.to_json()})


def read_anchored(path: Path) -> tuple[LinearModel, Past]:
    """Read the private file of a series: the trained model, and what was forgotten since."""
    tensors, metadata = read_safetensors(file_bytes(path, "the state"), path)
    try:
        record = TrainingRecord.from_json(metadata[METADATA_KEY], str(path))
        weight, forgotten = (to_engine(np.array(tensors[name])) for name in ("weight", "forgotten"))
        bias = to_engine(np.array(tensors["bias"])) if "bias" in tensors else None
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


# The model as the mechanism sees it ---------------------------------------------------------------------------------


class Subject(Protocol):
    """A model, and how it is published."""

    @property
    def head(self) -> Any:
        """What it minimises; see `heads/`."""

    @property
    def weights(self) -> Array:
        """In float64, on the device they are computed with."""

    @property
    def record(self) -> TrainingRecord:
        """What it says of its training."""

    @property
    def n_features(self) -> int:
        """What a certificate states as its features."""

    @property
    def sha256(self) -> str:
        """Digest of the model's file."""

    def published(self, noised: Array, record: TrainingRecord) -> Any:
        """The model to hand over, from weights on the cpu with their noise; `record` is what it says of itself."""

    def describe(self, published: Any) -> Json:
        """What a certificate says of the model before and after."""

    def describe_step(self, step: Step, kind: str) -> Json:
        """What a certificate says of the step."""


class NetworkSubject(Subject, Protocol):
    """A model whose examples only it can make ready (`networks/`)."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on every deletion from this network."""

    def rows(self, arrays: tuple[Any, Any], name: str) -> Any:
        """Inputs and labels as the head takes them."""


def require_not_noised(record: TrainingRecord) -> None:
    """Refuse the published result of an earlier unlearning."""
    if record.noised:
        raise ModelError(
            "this model is the noised result of an earlier unlearning",
            "the bound needs a model near its optimum, and the noise took this one away from it",
            "Unlearn both requests together from the model before noise, or retrain.",
        )


def head_of(model: LinearModel, record: TrainingRecord) -> LinearHead:
    """What a linear classifier minimises."""
    n_features = model.n_features + int(record.bias)
    return head_for(
        record.loss, l2=record.l2, n_classes=model.n_classes, n_features=n_features, row_bound=record.row_bound
    )


@dataclass(frozen=True)
class LinearSubject:
    """A linear classifier. `dtype` is what its weights are published in."""

    model: LinearModel
    record: TrainingRecord
    head: LinearHead
    weights: Array
    sha256: str
    dtype: Dtype

    @property
    def n_features(self) -> int:
        return self.model.n_features

    def published(self, noised: Array, record: TrainingRecord) -> LinearModel:
        model = from_matrix(noised, bias=self.record.bias, dtype=self.dtype)
        if not bool(np.isfinite(to_numpy(model.matrix())).all()):
            raise ModelError(
                f"with its noise a weight leaves the range of {dtype_name(self.dtype)}",
                "published weights must be finite",
                "Store the model in float32 or float64.",
            )
        return model.with_record(record)

    def describe(self, published: LinearModel) -> Json:
        assert published.record is not None
        return describe_model(self.record, published.record, self.sha256, published.sha256(), self.dtype)

    def describe_step(self, step: Step, kind: str) -> Json:
        return describe_step(step, kind)


def describe_model(record: TrainingRecord, published: TrainingRecord, before: str, after: str, dtype: Dtype) -> Json:
    """What a certificate says of a model with a norm bound on its rows, and its digests before and after.

    Under `published` what its record says now, which is all that a statement says of it.
    """
    model: Json = {
        "before": {"sha256": before},
        "after": {"sha256": after},
        "published": {"n_source": published.n_source, "l2": published.l2, "max_norm": published.max_norm},
        "loss": record.loss,
        "l2": record.l2,
        "max_norm": record.max_norm,
        "row_bound": record.row_bound,
        "bias": record.bias,
        "dtype": dtype_name(dtype),
        "record": record.provenance,
    }
    optional = {
        "free_bias": record.free_bias or None,
        "fixed_c": record.fixed_c,
        "class_weights": None if record.class_weights is None else list(record.class_weights),
        "preparation": record.preparation,
        "encoder": record.encoder,
        "encoder_trained_on_source": None if record.encoder is None else record.encoder_trained or "unknown",
    }
    return model | {name: value for name, value in optional.items() if value is not None}


def describe_step(step: Step, kind: str) -> Json:
    """The evidence of a step, in JSON's terms (null for infinite)."""
    return {
        "kind": kind,
        "method": step.method,
        "iterations": step.iterations,
        "inner_iterations": step.inner_iterations,
        "residual": step.residual,
        "positive_definite": step.positive_definite,
        "damping": step.damping if step.damping < math.inf else None,
        "converged": step.converged,
        "pull": step.pull if step.pull < math.inf else None,
    }


# A request, checked (door.py), and what a certificate says of it: sizes, data, software, and the published record


@dataclass(frozen=True)
class Request:
    """A model, what to forget, what is known of the source, and the promise wanted. There is no field for the source.

    `deposit` is what was kept of the source, and `membership` where the forget rows are in it.
    """

    subject: Subject
    forget: Any = field(repr=False)
    surrogate: Any = field(repr=False)
    promise: Promise
    constants: PaperConstants | None = None
    notes: tuple[str, ...] = ()
    deposit: Deposit | None = field(default=None, repr=False)
    membership: Membership | None = field(default=None, repr=False)

    @cached_property
    def record(self) -> TrainingRecord:
        return self.subject.record

    @property
    def head(self) -> Any:
        return self.subject.head

    @property
    def weights(self) -> Array:
        return self.subject.weights

    @cached_property
    def distance(self) -> Distance | Estimation:
        distance: Distance | Estimation = self.promise.distance
        return distance

    @cached_property
    def n_source(self) -> int:
        """Rows of the source at training."""
        return self.record.n_source + (0 if self.deposit is None else self.deposit.numbers.forgotten)

    @property
    def past(self) -> Past | None:
        """What was forgotten before, in a series."""
        series = self.promise.series
        return None if series is None or series.past is None or series.past.n_rows == 0 else series.past

    def next_past(self) -> Past:
        """PRIVATE: what has been forgotten once these rows are gone too, for the next of a series."""
        counts = np.bincount(to_numpy(self.forget.labels), minlength=len(self.record.classes)).tolist()
        past = self.past or Past(to_engine(np.zeros(self.weights.shape)), (0,) * len(counts))
        return past.with_rows(len(self.forget) * self.head.gradient(self.weights, self.forget), tuple(counts))

    @cached_property
    def n_forget(self) -> int:
        """All rows forgotten since training, these included."""
        earlier = 0 if self.past is None else self.past.n_rows
        return len(self.forget) + (earlier if self.deposit is None else self.deposit.numbers.forgotten)

    @cached_property
    def forgotten(self) -> Array:
        """`sum m_j g_{U_j}(w)`: the gradients of all of them at the trained weights, regulariser included."""
        gradients: Array = len(self.forget) * self.head.gradient(self.weights, self.forget)
        return gradients if self.past is None else gradients + put(self.past.gradients, gradients)

    @property
    def n_surrogate(self) -> int:
        return 0 if self.surrogate is None else len(self.surrogate)


def record_after(request: Request) -> TrainingRecord:
    """The record of the published model: what retraining on the retained rows would have written, coarsely.

    Rows are counted to one digit, rounded down, so that models of a series do not tell how many left; a fixed C has its
    l2 by that count. No class counts or class weights, no residual, no norm bound that was a row's length.
    """
    record = request.record
    n_rows = one_digit(request.n_source - request.n_forget)
    return replace(
        record,
        n_source=n_rows,
        class_counts=None,
        class_weights=None,
        residual=None,
        noised=True,
        l2=record.l2 if record.fixed_c is None else 1.0 / (record.fixed_c * n_rows),
        max_norm=LARGEST if record.norm_measured else record.max_norm,
        weights_sha256="",
    )


def retained_counts(request: Request) -> list[int]:
    """PRIVATE: rows of each class that are left, where that is known."""
    left = request.record if request.past is None else record_without(request.record, request.past.counts)
    if request.deposit is not None:
        left = replace(left, class_counts=request.deposit.numbers.class_counts)
    return list(record_without(left, request.forget.labels).class_counts or ())


def describe_sizes(request: Request) -> Json:
    """How large sets and model are."""
    return {
        "n_source": request.n_source,
        "n_forget": request.n_forget,
        "n_surrogate": request.n_surrogate,
        "n_retain": request.n_source - request.n_forget,
        "parameters": request.head.n_parameters,
        "classes": len(request.record.classes),
        "features": request.subject.n_features,
    }


def describe_data(request: Request, distance: Distance) -> Json:
    """What a certificate says of the rows; nothing where the loss is not convex, since no bound follows from them."""
    if not request.head.about.convex:
        return {}
    given = request.surrogate is not None
    scaled = request.surrogate.n_scaled if given else 0
    described: Json = {"rows_scaled_to_max_norm": {"forget": request.forget.n_scaled, "surrogate": scaled}}
    if given:
        described["surrogate_dtype"] = dtype_name(request.surrogate.dtype)
        described["effective_surrogate_rows"] = request.surrogate.effective
    if distance.matched:
        described["class_counts"] = retained_counts(request)
    if request.promise.series is not None:
        earlier = request.n_forget - len(request.forget)
        described["sequence"] = request.promise.series.describe() | {"forgotten_before": earlier}
    return described


def describe_software() -> Json:
    """Versions of what computed the numbers."""
    torch = sys.modules.get("torch")  # it computed nothing where it is not loaded
    versions = {"numpy": np.__version__} | ({} if torch is None else {"torch": torch.__version__})
    return {"expunge": __version__, "python": platform.python_version(), **versions}


def timestamp() -> str:
    """Now, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
