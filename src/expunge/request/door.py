"""What the user asks, validated once, at the door."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from expunge.bounds.paper import PaperConstants
from expunge.distance import Distance, Estimation
from expunge.heads.rows import in_memory
from expunge.model import LinearModel
from expunge.record import Label, TrainingRecord
from expunge.request.declared import NOTHING_DECLARED, Declared, record_for
from expunge.request.estimable import paper_constants, require_estimable, require_own_source
from expunge.request.execution import DTYPES, Execution
from expunge.request.guarantee import Guarantee
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
from expunge.request.subject import LinearSubject, Subject
from expunge.request.survey import class_notes, notes_on, survey
from expunge.runtime.group import Group
from expunge.runtime.memory import Memory

HERE = Execution()


@dataclass(frozen=True)
class Request:
    """A model, what to forget, what stands in for the source, and the promise wanted.

    There is no field for the source.
    """

    subject: Subject
    forget: Any
    surrogate: Any
    guarantee: Guarantee
    constants: PaperConstants | None = None
    notes: tuple[str, ...] = ()

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
        return self.guarantee.distance

    @property
    def n_source(self) -> int:
        return self.record.n_source

    @property
    def n_forget(self) -> int:
        return len(self.forget)

    @property
    def n_surrogate(self) -> int:
        return len(self.surrogate)


def ask(
    model: LinearModel,
    forget: Any,
    surrogate: Any,
    guarantee: Guarantee,
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
    place, group = execution.place, execution.group
    record = record_for(model, declared)
    subject = LinearSubject.of(model, record, place, model_sha256, guarantee.series)
    reading = Reading(Memory.of(execution.memory), group, execution.progress)
    forget = whole_set(forget, reading, "the forget set")
    if forget_class is not None:
        forget = of_class(forget, forget_class, record)
    given_rows = rows_of(forget, model, record, DTYPES[record.rows_dtype], place, "the forget set")
    forget_rows = in_memory(given_rows, "what is to be forgotten")
    forget_rows = replace(forget_rows, features=forget_rows.features.double())
    check_sizes(len(forget_rows), record, guarantee.force)
    if group.size > 1:
        _require_alike(group, guarantee, execution.dtype, subject, forget_rows)
    surrogate_rows = rows_of(surrogate, model, record, execution.rows_dtype, place, "the surrogate set", reading)
    labelled = is_labelled(surrogate)
    asked = forget_rows
    if execution.dtype != record.rows_dtype:  # long rows are scaled otherwise in another dtype
        alike = rows_of(forget, model, record, execution.rows_dtype, place, "the forget set")
        asked = in_memory(alike, "what is to be forgotten")
    distance = guarantee.distance
    seen = survey(asked, surrogate_rows, model.n_classes, execution.progress)
    notes = notes_on(forget_rows, surrogate_rows, seen, record, distance, has_labels=labelled)
    notes += class_notes(forget_rows, seen, record, forget_class, has_labels=labelled)
    notes += encoder_notes(record, forget, surrogate)
    if distance.matched:
        n_before = len(surrogate_rows)
        surrogate_rows = matched_rows(surrogate_rows, record, labelled, seen.counts)
        if len(surrogate_rows) < n_before:
            notes += (
                f"{n_before - len(surrogate_rows)} surrogate rows of classes the source had none of were left out",
            )
    if distance.samples_rows:
        require_enough(surrogate_rows)
    if isinstance(distance, Estimation):
        in_memory(surrogate_rows, "an estimated distance")
        require_estimable(distance, record, labelled, guarantee.bound)
        require_own_source(distance)
    if guarantee.series is not None and guarantee.series.note is not None:
        notes += (guarantee.series.note,)
    constants = paper_constants(guarantee.constants, subject.head, record) if guarantee.paper else None
    return Request(subject, forget_rows, surrogate_rows, guarantee, constants, notes)


def _require_alike(group: Group, guarantee: Guarantee, dtype: str, subject: LinearSubject, forget: Any) -> None:
    """Refuse a group whose processes hold another model, forget set or options."""
    asked_for = (replace(guarantee, series=None, estimate=None), str(guarantee.distance), dtype, subject.record)
    parts = (subject.model.matrix(), forget.features, forget.labels)
    held = b"".join(part.cpu().contiguous().numpy().tobytes() for part in parts)
    group.require_alike(repr(asked_for).encode() + held, "model, forget set or options")
