"""The one door: everything that can be checked is checked here, before any work is done.

For Python and the command line alike, and whatever is known of the source: rows that resemble it, the source itself, a
deposit, or a deposit and rows. What does not apply is refused, never ignored.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch

from expunge.bounds.paper import PaperConstants
from expunge.certificate.claim import PublicNote
from expunge.deposit.file import Deposit
from expunge.deposit.membership import Membership, as_given, look_up, require_members
from expunge.deposit.sums import require_equal
from expunge.distance import Distance, Estimation
from expunge.errors import DataError, ModelError, OptionError
from expunge.heads import Rows
from expunge.heads.rows import FEW, in_memory
from expunge.model import LinearModel, one_row_a_class
from expunge.record import Label, TrainingRecord
from expunge.request.promise import (
    HERE,
    NOTHING_DECLARED,
    Declared,
    Execution,
    Promise,
    budget_notes,
    dtype_named,
    paper_constants,
    require_estimable,
    require_none_with_deposit,
    require_own_source,
)
from expunge.request.request import (
    LinearSubject,
    NetworkSubject,
    Request,
    head_of,
    nothing_forgotten,
    record_for,
    record_without,
    require_not_noised,
)
from expunge.request.sets import (
    FORGET,
    SURROGATE,
    Multiplicities,
    Reading,
    check_sizes,
    class_notes,
    column_notes,
    encoder_notes,
    is_labelled,
    of_class,
    refuse_squashed,
    require_enough,
    rows_of,
    scaling_words,
    survey,
    survey_notes,
    weighted_rows,
    whole_set,
)
from expunge.rows import as_labels
from expunge.rows.columns import prepare_frames

ALIKE = ("loss", "classes", "features", "encoder", "free_bias", "fixed_c", "preparation", "table")
ITS_MODEL = "Give the model and the deposit that was made for it, or for a deletion from it."
ONE_VECTOR = PublicNote(
    "the model has one weight vector w for two classes; it was taken, and is published, as the rows -w/2 and w/2 of a "
    "softmax at twice the l2, which is the same objective and the same classifier"
)


def ask(
    model: LinearModel | NetworkSubject | None,
    forget: Any,
    surrogate: Any,
    promise: Promise,
    *,
    deposit: Deposit | None = None,
    forget_class: Label | None = None,
    declared: Declared = NOTHING_DECLARED,
    execution: Execution = HERE,
    model_sha256: str | None = None,
    store: torch.dtype | None = None,
) -> Request:
    """A request about a linear classifier or a network, with everything checked that can be before any work is done.

    Parameters
    ----------
    model
        What to unlearn from; with a deposit it may be left out, or be the published model of a deletion before. A
        network comes as its `NetworkSubject`, which also says where and in which blocks it computes.
    forget, surrogate
        (features, labels), or streams. Without a deposit there must be a surrogate and, in the promise, its distance.
    forget_class
        The rows of that class among those given are forgotten, and they must be all the source had.
    declared
        Stands for a record that the model does not have.
    model_sha256, store
        The digest of the model's file, and the type that weights are published in; the model's own unless given.
    """
    # long: one check after the other, in the order in which a mistake is best told
    promise = promise.complete(deposit=deposit is not None, surrogate=surrogate is not None)
    if model is not None and not isinstance(model, LinearModel):
        return _ask_network(model, forget, surrogate, promise, deposit)
    if deposit is None:
        start = _begin(model, promise, declared, execution, model_sha256, store)
    else:
        start = _begin_with_deposit(model, promise, deposit, declared, execution, model_sha256, store)
    record, reading, place = start.subject.record, Reading.by(execution), execution.place
    form, left = start.subject.model, start.left
    forget = whole_set(forget, reading, FORGET, record)
    if deposit is not None and not is_labelled(forget):
        raise DataError(f"{FORGET}: no labels", "a row is known by its label too", "Give (features, labels).")
    if forget_class is not None:
        forget = of_class(forget, forget_class, left)
    forget_rows = in_memory(rows_of(forget, form, record, start.dtype, place, FORGET), "what is to be forgotten")
    forget_rows = replace(forget_rows, features=forget_rows.features.double())
    membership, sets = None, {FORGET: forget}
    notes: tuple[str, ...] = ()
    if deposit is not None:
        membership = look_up(deposit, *as_given(forget, deposit))
        require_members(membership)
    n_before = record.n_source - left.n_source
    check_sizes(len(forget_rows) + n_before, record, force=promise.force or deposit is not None)
    if execution.group.size > 1:
        _require_alike(promise, execution, start.subject, forget_rows)
    surrogate_rows, seen = None, None
    if surrogate is not None:
        surrogate = prepare_frames(surrogate, record, SURROGATE)
        sets = {FORGET: forget, SURROGATE: surrogate}
        dtype = torch.float64 if deposit is not None else execution.rows_dtype
        surrogate_rows = rows_of(surrogate, form, record, dtype, place, SURROGATE, reading)
        alike = forget_rows
        if dtype != start.dtype:  # long rows are scaled otherwise in another dtype
            alike = in_memory(rows_of(forget, form, record, dtype, place, FORGET), "what is to be forgotten")
        distance, labelled = promise.distance, is_labelled(surrogate)
        seen = survey(alike, surrogate_rows, len(record.classes), execution.progress, Multiplicities.of(distance))
        known = {"has_labels": labelled, "force": promise.force}
        notes += survey_notes(forget_rows, surrogate_rows, seen, left, distance, **known)
        notes += class_notes(forget_rows, seen, left, forget_class, distance, has_labels=labelled)
    notes += start.notes + encoder_notes(record, sets)
    notes += budget_notes(promise.delta, record.n_source - len(forget_rows))
    if surrogate_rows is not None:
        squashed = refuse_squashed(surrogate_rows.scaling, SURROGATE, record.max_norm, promise.force)
        notes += tuple(map(PublicNote, squashed))
    if deposit is None:
        notes += refuse_squashed(forget_rows.scaling, FORGET, record.max_norm, promise.force)
    notes += column_notes(record, sets)
    if deposit is not None and membership is not None:
        notes += deposit_notes(membership, deposit) + _emptied(deposit, forget_rows)
    if surrogate_rows is not None and seen is not None:
        retained = record_without(left, forget_rows.labels)
        n_given = len(surrogate_rows)
        surrogate_rows = weighted_rows(surrogate_rows, retained, promise.distance, labelled, seen.counts)
        if len(surrogate_rows) < n_given:
            gone = n_given - len(surrogate_rows)
            notes += (f"{gone} surrogate rows of classes of which nothing is retained were left out",)
        if isinstance(promise.distance, Estimation):
            in_memory(surrogate_rows, "an estimated distance")
            require_estimable(promise.distance, record, labelled, promise.paper)
            require_own_source(promise.distance)
    if promise.series is not None and deposit is None:
        notes += promise.series.notes
    constants = paper_constants(promise, start.subject.head, record)
    placed = None if deposit is None else deposit.on(place)
    return Request(start.subject, forget_rows, surrogate_rows, promise, constants, notes, placed, membership)


@dataclass(frozen=True)
class _Basis:
    """What follows from the model alone. `left` is the record of what earlier deletions left of the source, `dtype`
    what forget rows are read in."""

    subject: LinearSubject
    left: TrainingRecord
    dtype: torch.dtype
    notes: tuple[str, ...] = ()


def _begin(
    model: LinearModel | None,
    promise: Promise,
    declared: Declared,
    execution: Execution,
    digest: str | None,
    store: torch.dtype | None,
) -> _Basis:
    if model is None:
        raise OptionError("no model", "without a deposit it is needed", "Give the model, or the deposit.")
    record = record_for(model, declared)
    require_plain_reference(record)
    two = one_row_a_class(model)
    told: tuple[str, ...] = ()
    if two is not model and two.record is not None:
        model, record, digest, told = two, two.record, digest or model.sha256(), (ONE_VECTOR,)
    require_not_noised(record)
    series = promise.series
    if store is None and series is not None and series.store is not None:
        store = getattr(torch, series.store)
    weights = model.matrix(execution.place)
    published = store or model.weight.dtype
    subject = LinearSubject(model, record, head_of(model, record), weights, digest or model.sha256(), published)
    past = nothing_forgotten(model) if series is None or series.past is None else series.past
    return _Basis(subject, record_without(record, past.counts), dtype_named(record.rows_dtype), told)


def _begin_with_deposit(
    model: LinearModel | None,
    promise: Promise,
    deposit: Deposit,
    declared: Declared,
    execution: Execution,
    digest: str | None,
    store: torch.dtype | None,
) -> _Basis:
    dtype = None if execution.dtype == "float64" else execution.dtype
    require_none_with_deposit({"dtype": dtype, **vars(declared)})
    require_linear(deposit)
    if model is not None:
        require_its_model(model, deposit)
    if execution.group.size > 1:
        raise OptionError(
            f"{execution.group.size} processes for a deletion from a deposit",
            "there are no rows to share out among them",
            "Start one process, without torchrun.",
        )
    record, anchor = deposit.record, deposit.model
    if promise.distance.law.stands_in:
        require_equal(record)
    published = store or (torch.float64 if model is None else model.weight.dtype)
    before = digest or (None if model is None else model.sha256()) or anchor.sha256()
    subject = LinearSubject(anchor, record, deposit.head, anchor.matrix(execution.place), before, published)
    left = replace(record, n_source=deposit.numbers.n_rows, class_counts=deposit.numbers.class_counts)
    return _Basis(subject, left, torch.float64)


def _ask_network(
    subject: NetworkSubject, forget: Any, surrogate: Any, promise: Promise, deposit: Deposit | None
) -> Request:
    """Of a network, whose examples are made ready by the subject; only of a convex loss can a survey tell anything."""
    record, distance, convex = subject.record, promise.distance, subject.head.about.convex
    if deposit is None and convex:
        require_not_noised(record)
        if not isinstance(distance, Distance):
            raise OptionError(
                "distance estimate", "for a network a distance must be declared", "Write for example chi2:0.1 or same."
            )
        if distance.matched:
            raise DataError("matched classes", "networks do not know them", "Declare the distance without matching.")
    rows = subject.rows(forget, FORGET)
    check_sizes(len(rows), record, force=promise.force or not convex or deposit is not None)
    budget = budget_notes(promise.delta, record.n_source - len(rows))
    if deposit is not None:
        inputs = torch.as_tensor(forget[0]).flatten(1)
        membership = look_up(deposit, inputs, as_labels(forget[1], len(inputs), FORGET))
        require_members(membership)
        if copies := [int(row) + 1 for row in membership.matches.precision.nonzero()[0]]:
            raise DataError(
                f"{len(copies):,} examples (row {', '.join(map(str, copies[:5]))}) are rounded copies",
                "how far a network's Jacobian changes with its input is not known",
                "Give them to the last digit as they were trained on.",
            )
        notes = subject.notes + budget + deposit_notes(membership, deposit)
        return Request(subject, rows, None, promise, None, notes, deposit.on(subject.weights.device), membership)
    stand_in = subject.rows(surrogate, SURROGATE)
    if not convex:
        constants = promise.constants if isinstance(promise.constants, PaperConstants) else None
        return Request(subject, rows, stand_in, promise, constants, subject.notes + budget)
    if distance.samples_rows:
        require_enough(stand_in)
    flat, flat_surrogate = (Rows(part.inputs.flatten(1), part.labels) for part in (rows, stand_in))
    # whatever they are stored in, all is computed in float64
    known = replace(record, rows_dtype=str(stand_in.inputs.dtype).removeprefix("torch."))
    seen = survey(flat, flat_surrogate, len(record.classes), repeats=Multiplicities.of(distance))
    notes = survey_notes(flat, flat_surrogate, seen, known, distance, has_labels=True, force=promise.force) + budget
    for each, name in ((stand_in, SURROGATE), (rows, FORGET)):
        # only said: Jacobians are scaled to one length on purpose
        notes += (scaling_words(each.scaling, name),) if each.scaling.share > FEW else ()
    notes += class_notes(flat, seen, record, None, distance, has_labels=True)
    return Request(subject, rows, stand_in, promise, None, notes)


def require_plain_reference(record: TrainingRecord) -> None:
    """Refuse what has no bound without a deposit: class weights, a free intercept, an l2 that grows as rows leave."""
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


def _require_alike(promise: Promise, execution: Execution, subject: LinearSubject, forget: Rows) -> None:
    """Refuse a group whose processes hold another model, forget set or options."""
    asked_for = (replace(promise, series=None, estimate=None), str(promise.distance), execution.dtype, subject.record)
    parts = (subject.model.matrix(), forget.features, forget.labels)
    held = b"".join(part.cpu().contiguous().numpy().tobytes() for part in parts)
    execution.group.require_alike(repr(asked_for).encode() + held, "model, forget set or options")


# Of a deposit -------------------------------------------------------------------------------------------------------


def require_linear(deposit: Deposit) -> None:
    """Refuse a deposit whose rows only a network can form."""
    if deposit.of_network:
        raise OptionError(
            "a deposit of a network's tangent weights",
            "rows leave it with the network at hand",
            "Use expunge tangent unlearn --deposit (in Python unlearn_tangent).",
        )


def require_its_model(model: LinearModel, deposit: Deposit) -> None:
    """Refuse a model that the deposit was not made for, as far as shape and record tell; it may be a published one."""
    kept = deposit.record
    shape = (*model.weight.shape, model.bias is not None)
    own = (*deposit.model.weight.shape, deposit.model.bias is not None)
    if shape != own:
        raise ModelError(
            f"a model of {shape[0]} x {shape[1]} weights, {'with' if shape[2] else 'without'} a bias",
            f"the deposit is of one of {own[0]} x {own[1]}, {'with' if own[2] else 'without'}",
            ITS_MODEL,
        )
    if model.record is None:
        return
    own_anchor = model.record.weights_sha256 == kept.weights_sha256
    if model.record.noised and deposit.numbers.generation == 0 and not own_anchor:
        raise ModelError(
            "the model is a published one, which rows were taken out of",
            "none has left this deposit yet: whoever was forgotten would be back",
            "Give the deposit that was written with that model (private/model.deposit), and destroy this one.",
        )
    require_its_record(model.record, kept)


def require_its_record(record: TrainingRecord, kept: TrainingRecord) -> None:
    """Refuse a model whose record is of another training than the deposit's.

    A published model's says less, and since rows leave a deposit, it counts other rows than the model from before; a
    fixed C makes another l2 of them.
    """
    names = (*ALIKE, *(() if kept.fixed_c is not None else ("l2",)))
    names += () if record.noised else ("class_weights", "max_norm")
    for name in names:
        said, known = getattr(record, name), getattr(kept, name)
        if said != known:
            own, other = (text if len(text) <= 60 else text[:57] + "..." for text in (repr(said), repr(known)))
            raise ModelError(f"the model's record says {name} {own}", f"the deposit's says {other}", ITS_MODEL)


def deposit_notes(membership: Membership, deposit: Deposit) -> tuple[str, ...]:
    """What is said of copies, and of deletions before this one."""
    notes: tuple[str, ...] = ()
    recognised = [membership.count(level) for level in (1, 2)]
    if any(recognised):
        notes += (
            f"{sum(recognised):,} rows are copies of source rows ({recognised[0]:,} to float32, {recognised[1]:,} to "
            "six decimals); the difference is charged",
        )
    numbers = deposit.numbers
    if numbers.forgotten:
        notes += (
            f"{numbers.forgotten:,} rows had left the deposit before, in {numbers.generation} "
            f"{'deletion' if numbers.generation == 1 else 'deletions'}; the bound is that of all of them together",
        )
    return notes


def _emptied(deposit: Deposit, rows: Rows) -> tuple[str, ...]:
    """Classes of which no row is retained: what is handed out has their names still."""
    gone = Counter(rows.labels.tolist())
    counted = zip(deposit.record.classes, deposit.numbers.class_counts, strict=True)
    empty = [repr(value) for index, (value, count) in enumerate(counted) if count <= gone[index]]
    if not empty:
        return ()
    said = (
        f"no retained row is of class {', '.join(empty[:12])}, which the model still names: that somebody of it was "
        "there can be seen; retraining would have no such class"
    )
    return (PublicNote(said),)
