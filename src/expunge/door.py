"""The one door: everything that can be checked is checked here, before any work is done.

For Python and the command line alike, and whatever is known of the source: rows that resemble it, the source itself, or
a deposit. What does not apply is refused, never ignored.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from expunge.bounds.calibration import REHEARSAL
from expunge.bounds.paper import PaperConstants
from expunge.certificate.claim import PublicNote
from expunge.curvature import require_curved
from expunge.deposit.file import Deposit, Numbers
from expunge.deposit.membership import Membership, as_given, look_up, require_members
from expunge.distance import Distance, Estimation
from expunge.errors import DataError, ModelError, OptionError
from expunge.heads import Rows
from expunge.heads.rows import FEW, in_memory
from expunge.model import LinearModel, one_row_a_class
from expunge.record import TrainingRecord
from expunge.request.promise import (
    HERE,
    NOTHING_DECLARED,
    Declared,
    Execution,
    Promise,
    budget_notes,
    paper_constants,
    require_estimable,
    require_none_with_deposit,
)
from expunge.request.request import (
    LinearSubject,
    NetworkSubject,
    Request,
    head_of,
    record_for,
    record_without,
    require_not_noised,
)
from expunge.request.sets import (
    FORGET,
    SURROGATE,
    check_sizes,
    column_notes,
    encoder_notes,
    is_labelled,
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
from expunge.runtime.arrays import double, dtype_name, engine_dtype, to_numpy

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
    declared: Declared = NOTHING_DECLARED,
    execution: Execution = HERE,
    model_sha256: str | None = None,
) -> Request:
    """A request about a linear classifier or a network, with everything checked that can be before any work is done.

    Parameters
    ----------
    model
        What to unlearn from; with a deposit it may be left out, or be the published model of a deletion before. A
        network comes as its `NetworkSubject`, which also says where and in which blocks it computes.
    forget, surrogate
        (features, labels), or streams. There is either a deposit, or a surrogate and, in the promise, its distance.
    declared
        Stands for a record that the model does not have.
    model_sha256
        The digest of the model's file, where it came from one.
    """
    # long: one check after the other, in the order in which a mistake is best told
    promise = promise.complete(deposit=deposit is not None, surrogate=surrogate is not None)
    if model is not None and not isinstance(model, LinearModel):
        return _ask_network(model, forget, surrogate, promise, deposit)
    subject = _linear_subject(model, deposit, promise, declared, execution, model_sha256)
    dtype, left, series = engine_dtype(subject.record.rows_dtype, execution.place), subject.record, promise.series
    if deposit is not None:
        dtype, numbers = engine_dtype("float64", execution.place), deposit.numbers
        left = replace(left, n_source=numbers.n_rows, class_counts=numbers.class_counts)
    elif series is not None and series.past is not None:
        left = record_without(left, series.past.counts)
    record, form, place, distance = subject.record, subject.model, execution.place, promise.distance
    notes: tuple[str, ...] = ()
    forget = whole_set(forget, record, FORGET, execution)
    if not is_labelled(forget):
        raise DataError(
            f"{FORGET}: no labels", "the gradient of what is forgotten needs them", "Give (features, labels)."
        )
    given = rows_of(forget, form, record, dtype, place, FORGET, sparse=deposit is not None)
    comparable = in_memory(given, "what is to be forgotten")
    forget_rows = replace(comparable, features=double(comparable.features))
    membership = None
    if deposit is not None:
        membership = look_up(deposit, *as_given(forget, deposit))
        require_members(membership)
    forgotten = len(forget_rows) + record.n_source - left.n_source
    check_sizes(forgotten, record, force=promise.force or deposit is not None)
    if execution.group.size > 1:
        facts = (replace(promise, series=None, estimate=None), str(distance), execution.dtype, record)
        held = (form.matrix(), forget_rows.features, forget_rows.labels)
        parts = [np.ascontiguousarray(to_numpy(part)).tobytes() for part in held]
        execution.group.require_alike(repr(facts).encode() + b"".join(parts), "model, forget set or options")
    sets, rows, n_given = {FORGET: forget}, None, 0
    if surrogate is not None:
        sets[SURROGATE] = surrogate = prepare_frames(surrogate, record, SURROGATE)
        stored, labelled = execution.rows_dtype, is_labelled(surrogate)
        rows = rows_of(surrogate, form, record, stored, place, SURROGATE, execution)
        if stored != dtype:  # long rows are scaled otherwise in another dtype
            comparable = in_memory(rows_of(forget, form, record, stored, place, FORGET), "what is to be forgotten")
        seen = survey(comparable, rows, len(record.classes), distance, execution.progress)
        notes += survey_notes(forget_rows, rows, seen, left, distance, has_labels=labelled, force=promise.force)
        n_given, retained = len(rows), record_without(left, forget_rows.labels)
        rows = weighted_rows(rows, retained, distance, labelled, seen.counts)
        if promise.curvature is not None:
            require_curved(subject.head, rows, labelled)
        if isinstance(distance, Estimation):
            _require_estimate(distance, rows, record, labelled, promise)
    notes += (ONE_VECTOR,) if form is not model and deposit is None else ()
    notes += encoder_notes(record, sets) + budget_notes(promise.delta, record.n_source - len(forget_rows))
    if rows is not None:
        notes += refuse_squashed(rows.scaling, SURROGATE, record.max_norm, promise.force)
    if deposit is None:
        notes += refuse_squashed(forget_rows.scaling, FORGET, record.max_norm, promise.force)
    notes += column_notes(record, sets)
    if deposit is not None and membership is not None:
        notes += deposit_notes(membership, deposit) + _emptied(deposit, forget_rows)
    if rows is not None and len(rows) < n_given:
        notes += (f"{n_given - len(rows)} surrogate rows of classes of which nothing is retained were left out",)
    if series is not None and deposit is None:
        notes += series.notes
    constants = paper_constants(promise, subject.head, record)
    placed = None if deposit is None else deposit.on(place)
    return Request(subject, forget_rows, rows, promise, constants, notes, placed, membership)


def _linear_subject(
    model: LinearModel | None,
    deposit: Deposit | None,
    promise: Promise,
    declared: Declared,
    execution: Execution,
    digest: str | None,
) -> LinearSubject:
    """The model as it is unlearned: the deposit's own, or the one given, with two rows where it had one vector."""
    if deposit is not None:
        dtype = None if execution.dtype == "float64" else execution.dtype
        require_none_with_deposit({"dtype": dtype, **vars(declared)})
        require_its_model(model, deposit)
        if execution.group.size > 1:
            raise OptionError(
                f"{execution.group.size} processes for a deletion from a deposit",
                "there are no rows to share out among them",
                "Start one process, without torchrun.",
            )
        form, record, head, given = deposit.model, deposit.record, deposit.head, model or deposit.model
        published = given.weight.dtype
    else:
        if model is None:
            raise OptionError("no model", "without a deposit it is needed", "Give the model, or the deposit.")
        form = given = model
        record = record_for(model, declared)
        require_not_noised(record)
        if record.class_weights is not None:
            raise ModelError(
                "a model with class weights",
                "without a deposit every row counts alike",
                "Give the deposit that was made of its source.",
            )
        if record.free_bias or record.fixed_c is not None:
            raise ModelError(
                "a model whose intercept is free"
                if record.free_bias
                else f"a model with a fixed C ({record.fixed_c:g})",
                "without a deposit the bound needs every weight regularised, by the same l2 for fewer rows",
                "Give the deposit that was made of its source, or train with expunge and no --free-bias.",
            )
        two = one_row_a_class(model)
        if two is not model and two.record is not None:
            form, record = two, two.record
        head, published = head_of(form, record), form.weight.dtype
    if promise.series is not None and promise.series.store is not None:
        published = promise.series.store
    return LinearSubject(form, record, head, form.matrix(execution.place), digest or given.sha256(), published)


def _require_estimate(
    wanted: Estimation, surrogate: Any, record: TrainingRecord, labelled: bool, promise: Promise
) -> None:
    """Refuse what cannot be estimated, and an estimate whose source would be made of the surrogate."""
    in_memory(surrogate, "an estimated distance")
    require_estimable(wanted, record, labelled, promise.paper)
    if wanted.support == "gaussian" and wanted.mean is None:
        raise OptionError(
            "an estimate on a Gaussian reference with the surrogate's own moments",
            "it finds the surrogate near itself, whatever the source was; a certificate needs more",
            "Use --support ball (support='ball'), or --moments (mean=, covariance=) with what is known of the "
            "source; expunge distance shows the difference.",
        )


def _ask_network(
    subject: NetworkSubject, forget: Any, surrogate: Any, promise: Promise, deposit: Deposit | None
) -> Request:
    """A request about a network, whose subject makes examples ready; only convex losses are worth a survey."""
    record, distance, convex = subject.record, promise.distance, subject.head.about.convex
    if not isinstance(distance, Distance) or distance.matched:
        raise OptionError(
            f"distance {distance}, estimated or with matched classes",
            "for a network it must be declared, and of the classes as they are",
            "Write for example chi2:0.1 or same.",
        )
    if distance.within is not None:
        raise OptionError(
            f"sampling {distance.sampling} for a network",
            "rows of a table alone are looked at for what is within it",
            "Use --sampling strict (sampling='strict').",
        )
    if promise.curvature is not None:
        raise OptionError(
            "curvature with a network",
            "it is of linear heads on the rows of a table",
            "Use --curvature none (curvature='none').",
        )
    if deposit is None and convex:
        require_not_noised(record)
    if promise.noise.kind == REHEARSAL:
        raise OptionError(
            f"noise as for {promise.noise.rows} rows of a network",
            "rows of a table alone are rehearsed with",
            "Give a number, or leave --noise (noise) out.",
        )
    rows = subject.rows(forget, FORGET)
    check_sizes(len(rows), record, force=promise.force or not convex or deposit is not None)
    notes = subject.notes + budget_notes(promise.delta, record.n_source - len(rows))
    if deposit is not None:
        inputs = to_numpy(forget[0])
        inputs = inputs.reshape(len(inputs), -1)
        membership = look_up(deposit, inputs, as_labels(forget[1], len(inputs), FORGET))
        require_members(membership)
        if copies := [int(row) + 1 for row in membership.matches.precision.nonzero()[0]]:
            raise DataError(
                f"{len(copies):,} examples (row {', '.join(map(str, copies[:5]))}) are rounded copies",
                "how far a network's Jacobian changes with its input is not known",
                "Give them to the last digit as they were trained on.",
            )
        notes += deposit_notes(membership, deposit)
        return Request(subject, rows, None, promise, None, notes, deposit.on(subject.weights.device), membership)
    stand_in = subject.rows(surrogate, SURROGATE)
    if not convex:
        constants = promise.constants if isinstance(promise.constants, PaperConstants) else None
        return Request(subject, rows, stand_in, promise, constants, notes)
    if distance.samples_rows:
        require_enough(stand_in)
    flat, flat_surrogate = (Rows(part.inputs.flatten(1), part.labels) for part in (rows, stand_in))
    # whatever they are stored in, all is computed in float64
    known = replace(record, rows_dtype=dtype_name(stand_in.inputs.dtype))
    seen = survey(flat, flat_surrogate, len(record.classes), distance)
    notes += survey_notes(flat, flat_surrogate, seen, known, distance, has_labels=True, force=promise.force)
    for each, name in ((stand_in, SURROGATE), (rows, FORGET)):
        # only said: Jacobians are scaled to one length on purpose
        notes += (scaling_words(each.scaling, name),) if each.scaling.share > FEW else ()
    return Request(subject, rows, stand_in, promise, None, notes)


# Of a deposit -------------------------------------------------------------------------------------------------------


def require_its_model(model: LinearModel | None, deposit: Deposit) -> None:
    """Refuse a deposit of a network, and a model that it was not made for, as far as shape and record tell.

    The model may be a published one.
    """
    if deposit.of_network:
        raise OptionError(
            "a deposit of a network's tangent weights",
            "rows leave it with the network at hand",
            "Use expunge tangent unlearn --deposit (in Python unlearn_tangent).",
        )
    if model is None:
        return
    shape, own = ((*each.weight.shape, each.bias is not None) for each in (model, deposit.model))
    if shape != own:
        raise ModelError(
            f"a model of {shape[0]} x {shape[1]} weights, {'with' if shape[2] else 'without'} a bias",
            f"the deposit is of one of {own[0]} x {own[1]}, {'with' if own[2] else 'without'}",
            ITS_MODEL,
        )
    if model.record is None:
        return
    own_anchor = model.record.weights_sha256 == deposit.record.weights_sha256
    if model.record.noised and deposit.numbers.generation == 0 and not own_anchor:
        raise ModelError(
            "the model is a published one, which rows were taken out of",
            "none has left this deposit yet: whoever was forgotten would be back",
            "Give the deposit that was written with that model (private/model.deposit), and destroy this one.",
        )
    require_its_record(model.record, deposit.record)
    if not model.record.noised:
        _require_its_rows(model.record, deposit.numbers)


def _require_its_rows(record: TrainingRecord, numbers: Numbers) -> None:
    """Refuse a trained model of other rows than the deposit's: as many are left as have not gone, of each class."""
    trained_on = numbers.n_rows + numbers.forgotten
    if record.n_source != trained_on:
        raise ModelError(
            f"the model was trained on {record.n_source:,} rows", f"the deposit is of {trained_on:,}", ITS_MODEL
        )
    gone = [had - left for had, left in zip(record.class_counts or (), numbers.class_counts, strict=False)]
    if any(each < 0 for each in gone) or (gone and sum(gone) != numbers.forgotten):
        raise ModelError("the model was trained on other rows", "the deposit has other counts of classes", ITS_MODEL)


def require_its_record(record: TrainingRecord, deposited: TrainingRecord) -> None:
    """Refuse a model whose record is of another training than the deposit's.

    A published model's says less, and since rows leave a deposit, it counts other rows than the model from before; a
    fixed C makes another l2 of them.
    """
    names = (*ALIKE, *(() if deposited.fixed_c is not None else ("l2",)))
    names += () if record.noised else ("class_weights", "max_norm")
    for name in names:
        said, known = getattr(record, name), getattr(deposited, name)
        if said != known:
            own, other = (text if len(text) <= 60 else text[:57] + "..." for text in (repr(said), repr(known)))
            raise ModelError(f"the model's record says {name} {own}", f"the deposit's says {other}", ITS_MODEL)


def deposit_notes(membership: Membership, deposit: Deposit) -> tuple[str, ...]:
    """What is said of copies, and of deletions before this one."""
    notes: tuple[str, ...] = ()
    single, six = membership.count(1), membership.count(2)
    if single + six:
        notes += (
            f"{single + six:,} rows are copies of source rows ({single:,} to float32, {six:,} to six decimals); the "
            "difference is charged",
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
