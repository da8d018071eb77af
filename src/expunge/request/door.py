"""What the user asks, validated once, at the door."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from expunge.bounds.paper import PaperConstants
from expunge.certificate.claim import PublicNote
from expunge.certificate.derive import BOUNDS
from expunge.distance import Distance, Estimation
from expunge.errors import ModelError, OptionError
from expunge.heads.rows import RowSet, in_memory
from expunge.model import LinearModel, one_row_a_class
from expunge.record import Label, TrainingRecord
from expunge.request.columns import column_notes
from expunge.request.declared import NOTHING_DECLARED, Declared, record_for
from expunge.request.estimable import paper_constants, require_estimable, require_own_source
from expunge.request.execution import Execution, dtype_named
from expunge.request.multiplicities import Multiplicities
from expunge.request.past import Past, left_over, nothing_forgotten, without
from expunge.request.promise import Promise, budget_notes
from expunge.request.rows import (
    Reading,
    check_sizes,
    encoder_notes,
    is_labelled,
    matched_rows,
    of_class,
    require_enough,
    rows_of,
    whole_set,
)
from expunge.request.scaling import refuse_squashed
from expunge.request.subject import LinearSubject, Subject, require_not_noised
from expunge.request.survey import class_notes, notes_on, survey
from expunge.rows.columns import prepare_frames
from expunge.runtime.group import Group
from expunge.runtime.memory import Memory

HERE = Execution()


@dataclass(frozen=True)
class Request:
    """A model, what to forget, what stands in for the source, and the promise wanted.

    There is no field for the source.
    """

    subject: Subject
    forget: Any = field(repr=False)
    surrogate: Any = field(repr=False)
    promise: Promise
    constants: PaperConstants | None = None
    notes: tuple[str, ...] = ()
    # what was kept of the source (deposit/), and where the forget rows are in it
    deposit: Any = field(default=None, repr=False)
    membership: Any = field(default=None, repr=False)

    @property
    def record(self) -> TrainingRecord:
        return self.subject.record

    @property
    def head(self) -> Any:
        return self.subject.head

    @property
    def weights(self) -> Tensor:
        return self.subject.weights

    @property
    def distance(self) -> Distance | Estimation:
        return self.promise.distance

    @property
    def n_source(self) -> int:
        """Rows of the source at training."""
        return self.record.n_source + (0 if self.deposit is None else self.deposit.numbers.forgotten)

    @property
    def past(self) -> Past | None:
        """What was forgotten before, in a series."""
        series = self.promise.series
        return None if series is None or series.past is None or series.past.n_rows == 0 else series.past

    @property
    def n_forget(self) -> int:
        """All rows forgotten since training, these included."""
        earlier = 0 if self.past is None else self.past.n_rows
        return len(self.forget) + (earlier if self.deposit is None else self.deposit.numbers.forgotten)

    @cached_property
    def forgotten(self) -> Tensor:
        """`sum m_j g_{U_j}(w)`: the gradients of all of them at the trained weights, regulariser included."""
        gradients: Tensor = len(self.forget) * self.head.gradient(self.weights, self.forget)
        return gradients if self.past is None else gradients + self.past.gradients.to(gradients.device)

    def next_past(self) -> Past:
        """PRIVATE: what has been forgotten once these rows are gone too, for the next of a series."""
        counts = torch.bincount(self.forget.labels.cpu(), minlength=len(self.record.classes)).tolist()
        past = self.past or Past(torch.zeros_like(self.weights.cpu()), (0,) * len(counts))
        return past.with_rows(len(self.forget) * self.head.gradient(self.weights, self.forget), tuple(counts))

    @property
    def n_surrogate(self) -> int:
        return 0 if self.surrogate is None else len(self.surrogate)


def ask(
    model: LinearModel,
    forget: Any,
    surrogate: Any,
    promise: Promise,
    *,
    forget_class: Label | None = None,
    declared: Declared = NOTHING_DECLARED,
    execution: Execution = HERE,
    model_sha256: str | None = None,
) -> Request:
    """A request about a linear classifier, with everything checked that can be before any work is done.

    `forget` and `surrogate` are (features, labels), or streams; with `forget_class` the rows of that class among those
    given are forgotten, and they must be all the source had. `declared` stands for a record that the model does not
    have.
    """
    # long: one check after the other, in the order in which a mistake is best told
    place, group = execution.place, execution.group
    record = record_for(model, declared)
    require_plain_reference(record, promise)
    model, record, digest, told = _by_class(model, record, model_sha256)
    require_not_noised(record)
    subject = LinearSubject.of(model, record, place, digest, promise.series)
    series = promise.series
    past = nothing_forgotten(model) if series is None or series.past is None else series.past
    left = left_over(record, past)
    reading = Reading(Memory.of(execution.memory), group, execution.progress)
    forget = whole_set(forget, reading, "the forget set", record)
    if forget_class is not None:
        forget = of_class(forget, forget_class, left)
    given_rows = rows_of(forget, model, record, dtype_named(record.rows_dtype), place, "the forget set")
    forget_rows = in_memory(given_rows, "what is to be forgotten")
    forget_rows = replace(forget_rows, features=forget_rows.features.double())
    check_sizes(len(forget_rows) + past.n_rows, record, promise.force)
    if group.size > 1:
        _require_alike(group, promise, execution.dtype, subject, forget_rows)
    surrogate = prepare_frames(surrogate, record, "the surrogate set")
    surrogate_rows = rows_of(surrogate, model, record, execution.rows_dtype, place, "the surrogate set", reading)
    labelled = is_labelled(surrogate)
    asked = forget_rows
    if execution.dtype != record.rows_dtype:  # long rows are scaled otherwise in another dtype
        alike = rows_of(forget, model, record, execution.rows_dtype, place, "the forget set")
        asked = in_memory(alike, "what is to be forgotten")
    distance = promise.distance
    seen = survey(asked, surrogate_rows, model.n_classes, execution.progress, Multiplicities.of(distance))
    notes = notes_on(forget_rows, surrogate_rows, seen, left, distance, has_labels=labelled, force=promise.force)
    notes += class_notes(forget_rows, seen, left, forget_class, distance, has_labels=labelled)
    notes += told + _notes_on_rows(record, (forget, forget_rows), (surrogate, surrogate_rows), promise)
    if distance.matched:
        n_before = len(surrogate_rows)
        surrogate_rows = matched_rows(surrogate_rows, without(left, forget_rows), labelled, seen.counts)
        if len(surrogate_rows) < n_before:
            gone = n_before - len(surrogate_rows)
            notes += (f"{gone} surrogate rows of classes of which nothing is retained were left out",)
    if distance.samples_rows:
        require_enough(surrogate_rows)
    if isinstance(distance, Estimation):
        in_memory(surrogate_rows, "an estimated distance")
        require_estimable(distance, record, labelled, promise.bound)
        require_own_source(distance)
    if series is not None and series.note is not None:
        notes += (series.note,)
    constants = paper_constants(promise.constants, subject.head, record) if promise.paper else None
    return Request(subject, forget_rows, surrogate_rows, promise, constants, notes)


def require_plain_reference(record: TrainingRecord, promise: Promise) -> None:
    """Refuse what has no bound without a deposit.

    That is class weights, an intercept that is not regularised, an l2 that grows as rows leave, and a deposit's own
    bound.
    """
    if BOUNDS[promise.bound].kept:
        raise OptionError(f"bound {promise.bound!r}", "it is a deposit's, and none was given", "Give the deposit.")
    if record.class_weights is not None:
        raise ModelError(
            "a model with class weights",
            "without a deposit every row counts alike",
            "Give the deposit that was made of its source.",
        )
    if record.free_bias or record.fixed_c is not None:
        raise ModelError(
            "a model whose intercept is free" if record.free_bias else f"a model with a fixed C ({record.fixed_c:g})",
            "without a deposit the bound needs every weight regularised, by the same l2 for fewer rows",
            "Give the deposit that was made of its source, or train with expunge and no --free-bias.",
        )


ONE_VECTOR = PublicNote(
    "the model has one weight vector w for two classes; it was taken, and is published, as the rows -w/2 and w/2 of a "
    "softmax at twice the l2, which is the same objective and the same classifier"
)


def _by_class(
    model: LinearModel, record: TrainingRecord, digest: str | None
) -> tuple[LinearModel, TrainingRecord, str | None, tuple[str, ...]]:
    """The model with one weight row a class, its record, the digest of the model as given, what is said of it."""
    two = one_row_a_class(model)
    if two is model or two.record is None:
        return model, record, digest, ()
    return two, two.record, digest or model.sha256(), (ONE_VECTOR,)


def _notes_on_rows(
    record: TrainingRecord, forget: tuple[Any, RowSet], surrogate: tuple[Any, RowSet], promise: Promise
) -> tuple[str, ...]:
    """What is said of encoders, lengths, columns and delta, from sets as given and as made ready."""
    sets = {"the surrogate set": surrogate, "the forget set": forget}
    notes = encoder_notes(record, forget[0], surrogate[0]) + budget_notes(
        promise.delta, record.n_source - len(forget[1])
    )
    for name, (_, rows) in sets.items():
        said = refuse_squashed(rows.scaling, name, record.max_norm, promise.force)
        notes += tuple(map(PublicNote, said)) if name == "the surrogate set" else said
    return notes + column_notes(record, {"the forget set": forget[0], "the surrogate set": surrogate[0]})


def _require_alike(group: Group, promise: Promise, dtype: str, subject: LinearSubject, forget: Any) -> None:
    """Refuse a group whose processes hold another model, forget set or options."""
    asked_for = (replace(promise, series=None, estimate=None), str(promise.distance), dtype, subject.record)
    parts = (subject.model.matrix(), forget.features, forget.labels)
    held = b"".join(part.cpu().contiguous().numpy().tobytes() for part in parts)
    group.require_alike(repr(asked_for).encode() + held, "model, forget set or options")
