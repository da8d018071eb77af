"""Forget and surrogate set as they are given: made ready, matched to the model's training, looked over once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from expunge.bounds.retained import FEWEST_SAMPLED_ROWS
from expunge.certificate.claim import PublicNote
from expunge.distance import Distance, Estimation
from expunge.errors import DataError, ModelError, UselessModel
from expunge.heads import Rows, RowSet
from expunge.heads.rows import FEW, Scaling
from expunge.model import LinearModel
from expunge.record import TrainingRecord
from expunge.request.copies import IMPLAUSIBLE, Multiplicities, copy_factor, row_prints
from expunge.request.promise import HERE, Execution
from expunge.request.request import record_without
from expunge.rows import EncodedRows, as_features, as_labels, bound_rows, encode, encoder_of, names_of, weight_classes
from expunge.rows.columns import match_record, prepare_frames
from expunge.rows.streams import Form, Stream, StreamedRows, fits, load, stream_arrays
from expunge.rows.tables import is_frame
from expunge.runtime.arrays import Device, Dtype, cast, dtype_name, to_numpy
from expunge.runtime.memory import Memory
from expunge.runtime.progress import Progress, silent
from expunge.runtime.values import up

# Made ready ---------------------------------------------------------------------------------------------------------

FORGET, SURROGATE = "the forget set", "the surrogate set"
SOLVER_VECTORS = 160  # as long as the weights: those of Newton's method and of Lanczos
FORCED = "FORCED: "  # how a note begins that would have been a refusal
MOST_SCALED = 0.5  # of a set's rows: beyond this their lengths, and with them most of what a table says, are gone
FEWEST_TO_JUDGE = 20  # rows: of fewer, a share says little, and a person whose rows are unusual may ask too


def rows_of(
    rows: tuple[Any, Any] | Stream | Any,
    model: LinearModel,
    record: TrainingRecord,
    dtype: Dtype,
    device: Device,
    name: str,
    execution: Execution = HERE,
    *,
    sparse: bool = False,
) -> RowSet:
    """Rows ready for the model's objective, from (features, labels), features alone, or a stream of them; `sparse` ones
    as such where that is asked for, or written out."""
    require_encoder(rows, record, name)
    rows = match_record(rows, record, model.n_features, name)
    if name == FORGET and not is_labelled(rows):
        raise DataError(
            f"{name}: no labels", "the gradient of what is forgotten needs them", "Give (features, labels)."
        )
    group = execution.group
    if group.size > 1 and not isinstance(rows, Stream):
        features, labels = rows if isinstance(rows, tuple) else (rows, None)
        features = as_features(features, name) if is_frame(features) or hasattr(features, "tocsr") else features
        rows = stream_arrays(features, labels, name, encoder_of(rows))
    if isinstance(rows, Stream):
        form = Form(record.classes, record.max_norm, record.bias, dtype, device, model.n_features, name)
        memory = Memory.of(execution.memory)
        if group.size > 1 or not fits(rows, form, memory):
            parameters = model.n_classes * (model.n_features + int(record.bias))
            memory = memory.less(8 * parameters * SOLVER_VECTORS)
            told = f"Reading {name} (rows)"
            return StreamedRows(rows, form, memory, group, lambda done, total: execution.progress(told, done, total))
        rows = load(rows)
    values, labels = rows if isinstance(rows, tuple) else (rows, None)
    table = as_features(values, name, sparse=sparse)
    if labels is None:
        indices = np.zeros(table.shape[0], np.int64)
    else:
        indices = encode(as_labels(labels, table.shape[0], name), record.classes, name)
    kept: dict[str, Any] = {"dtype": dtype, "device": device, "width": model.n_features, "name": name}
    return bound_rows(table, indices, max_norm=record.max_norm, bias=record.bias, **kept)


def whole_set(rows: Any, record: TrainingRecord, name: str, execution: Execution = HERE) -> Any:
    """Rows in memory, where every process needs all of them; those of a frame prepared as at training."""
    rows = prepare_frames(rows, record, name)
    if not isinstance(rows, Stream):
        return rows
    size, spare = rows.bytes_in_memory, Memory.of(execution.memory).spare
    if size is not None and 2 * size > spare:
        raise DataError(
            f"{name}: {size / 1e6:,.0f} MB in memory",
            f"half of {spare / 1e6:,.0f} MB may be used for it",
            "Raise the memory limit, or forget fewer rows at once.",
        )
    return EncodedRows(*load(rows), rows.encoder, rows.feature_names, rows.encoder_trained)


def is_labelled(rows: Any) -> bool:
    """Whether rows, as they are given, come with labels."""
    return rows.labelled if isinstance(rows, Stream) else isinstance(rows, tuple) and rows[1] is not None


# How many, and how much each counts ---------------------------------------------------------------------------------


def check_sizes(n_forget: int, record: TrainingRecord, force: bool) -> None:
    """Refuse to forget everything and, unless forced, more than half."""
    if n_forget >= record.n_source:
        raise DataError(
            f"{n_forget:,} rows to forget of a source of {record.n_source:,}",
            "at least one row must be retained",
            "Check n_source; if all rows are to go, delete the model and what was kept for it.",
        )
    if 2 * n_forget > record.n_source and not force:
        raise UselessModel(
            f"{n_forget:,} of {record.n_source:,} rows are to be forgotten",
            "more than half leaves a model that is mostly guesswork",
            "Retrain on what is left, or insist with --force (force=True).",
        )


def require_enough(surrogate: RowSet) -> None:
    """Refuse a surrogate whose moments say too little of its population's: weights of at most q make s rows s/q."""
    weight = surrogate.largest_weight
    if len(surrogate) / weight < FEWEST_SAMPLED_ROWS:
        counted = f", which count as few as {len(surrogate) / weight:.0f}: one weighs up to {weight:.3g}"
        raise DataError(
            f"the surrogate set has {len(surrogate)} rows{counted if surrogate.has_weights else ''}",
            f"at least {FEWEST_SAMPLED_ROWS} are needed before its moments can stand for its population's",
            "Add surrogate rows, where classes are matched of those it has too few of, or declare the distance between "
            "the sets themselves (between samples) if it is known.",
        )


def weighted_rows(
    rows: RowSet,
    retained: TrainingRecord,
    distance: Distance | Estimation,
    labelled: bool,
    counts: Sequence[int] | None = None,
) -> RowSet:
    """The surrogate, where classes are matched weighted to the class counts of the rows that are retained.

    `counts` are its own rows of each class, where these are known. Too few of them are refused.
    """
    if distance.matched:
        if retained.class_counts is None:
            raise ModelError(
                "the model's record has no class counts",
                "matching classes needs the source's",
                "Give them with --class-counts (class_counts=), in the order of the classes; model cards often have "
                "them.",
            )
        if not labelled:
            raise DataError(
                "the surrogate has no labels",
                "matching classes needs them",
                "Give (features, labels), or a label column.",
            )
        require_possible(retained)
        rows = weight_classes(rows, retained.class_counts, retained.classes, counts)
    if distance.samples_rows:
        require_enough(rows)
    return rows


def require_possible(retained: TrainingRecord) -> None:
    """Refuse to forget more rows of a class than the source had."""
    for value, left in zip(retained.classes, retained.class_counts or (), strict=False):
        if left < 0:
            raise DataError(
                f"rows of class {value!r} are to be forgotten, {-left:,} more than the source had",
                "every one must have been trained on",
                "Check the labels; these rows cannot all have been trained on.",
            )


# Encoders, columns, lengths -----------------------------------------------------------------------------------------


def public_if_surrogate(name: str) -> type[str]:
    """The kind of a note on this set: what is said of a surrogate would be the same whoever had left."""
    return PublicNote if name == SURROGATE else str


def require_encoder(rows: Any, record: TrainingRecord, name: str) -> None:
    """Refuse features that say they were made by another encoder than those the model was trained on."""
    made_by = encoder_of(rows)
    if made_by is not None and record.encoder is not None and made_by != record.encoder:
        raise DataError(
            f"{name}: features of encoder {made_by[:16]}...",
            f"the model was trained on those of {record.encoder[:16]}...",
            "Embed these rows with the encoder, and the preparation, that was used for training.",
        )


def encoder_notes(record: TrainingRecord, sets: Mapping[str, Any]) -> tuple[str, ...]:
    """Which features nobody can say the encoder of; two sets of different encoders are refused."""
    made_by = {name: encoder_of(rows) for name, rows in sets.items()}
    named = {digest for digest in made_by.values() if digest is not None}
    if len(named) > 1:
        raise DataError(
            "the forget set and the surrogate set were made by different encoders",
            "all features must come from the one the model was trained on",
            "Embed both with the same encoder.",
        )
    if record.encoder is None:
        return ("the model's record names no encoder; that of the rows could not be compared",) if named else ()
    said = "names no encoder; that its features come from the one recorded at training was not checked"
    return tuple(public_if_surrogate(name)(f"{name} {said}") for name, digest in made_by.items() if digest is None)


def column_notes(record: TrainingRecord, sets: Mapping[str, Any]) -> tuple[str, ...]:
    """Which sets were matched by position, since they name no columns, or the model's record none."""
    named = {name: names for name, rows in sets.items() if (names := names_of(rows)) is not None}
    if record.features is None:
        if len(set(named.values())) > 1:
            raise DataError(
                f"{' and '.join(named)} have other columns, or the same in another order",
                "the model's record names no columns, so nobody can say which are right",
                "Give all sets the columns of training, in the order of training.",
            )
        said = "the model's record names no columns; those of the rows were matched to it by position"
        return (said,) if named else ()
    bare = [name for name in sets if name not in named]
    if not bare:
        return ()
    files = "this file names none" if len(bare) == 1 else "these files name none"
    note = PublicNote if bare == [SURROGATE] else str  # how a forget file was written is its sender's
    return (note(f"{' and '.join(bare)}: columns are matched by position: {files}"),)


def scaling_words(scaling: Scaling, name: str) -> str:
    """How many rows were scaled, and by how much."""
    percent = min(100 * scaling.share, 100.0)
    return (
        f"{name}: {scaling.n_scaled:,} of {scaling.n_rows:,} rows ({percent:.3g} %) were longer than the norm bound "
        f"and were scaled down to it, half of them to {up(100 * scaling.factor, 2)} % of their length or less"
    )


def refuse_squashed(scaling: Scaling | None, name: str, max_norm: float, force: bool) -> tuple[str, ...]:
    """A note where more than one row in a hundred was scaled; more than half are refused, unless forced."""
    if scaling is None or not math.isfinite(scaling.share) or scaling.share <= FEW:
        return ()
    said, note = scaling_words(scaling, name), public_if_surrogate(name)
    if scaling.share <= MOST_SCALED or scaling.n_rows < FEWEST_TO_JUDGE:
        return (note(said),)
    if not force:
        raise UselessModel(
            said,
            f"a norm bound ({max_norm:g}) that scales more than half of the rows leaves only their directions, which "
            "for a table of raw numbers is next to nothing",
            f"Standardise the features, as was done for training; a --max-norm of {up(scaling.bound_for_few, 2)} would "
            "scale one row in a hundred; or insist with --force (force=True) where all are to have one length.",
        )
    return (note(f"{FORCED}{said}; with more than half it would have been refused"),)


# Looked over once: what is refused, what is remarked on -------------------------------------------------------------


@dataclass(frozen=True)
class Survey:
    """What one pass over the surrogate says of it beside the forget set.

    `counts` are its rows by class. `repeated` counts forget rows that repeat another, `shared` those that occur in the
    surrogate, `lacking` those that do not occur in it with the same label and as often. `copied` says how often
    surrogate rows were copied, where independent draws do not repeat as these do; 0 otherwise, and where it is no
    sample.
    """

    counts: tuple[int, ...]
    repeated: int
    shared: int
    lacking: int
    copied: int


def survey(
    forget: Rows,
    surrogate: RowSet,
    n_classes: int,
    distance: Distance | Estimation,
    progress: Progress = silent,
) -> Survey:
    """Look the surrogate over, block by block; each process looks for copies among the rows that it goes over."""
    given = row_prints(cast(forget.features, surrogate.dtype))
    prints, rows = np.unique(given, return_inverse=True)
    there, counts = np.zeros((len(prints), n_classes)), np.zeros(n_classes)
    repeats = Multiplicities()
    for block in surrogate.blocks():
        progress("Looking over the surrogate (rows)", block.start, surrogate.n_expected)
        found, labels = row_prints(block.features), to_numpy(block.labels)
        counts += np.bincount(labels, minlength=n_classes)
        hits = np.isin(found, prints)
        np.add.at(there, (np.searchsorted(prints, found[hits]), labels[hits]), 1.0)
        if distance.samples_rows:
            repeats.add(found)
    mine = [int(count) for count in counts]
    copied = copy_factor(repeats.occurring(), mine if distance.matched else [sum(mine)], repeats.halvings)
    there, counts = (to_numpy(surrogate.total(part)) for part in (there, counts))
    asked = Counter(zip(rows.tolist(), forget.labels.tolist(), strict=True))
    return Survey(
        counts=tuple(int(count) for count in counts),
        repeated=len(given) - len(prints),
        shared=int((there.sum(axis=1)[rows] > 0).sum()),
        lacking=sum(max(0, count - int(there[key])) for key, count in asked.items()),
        copied=int(surrogate.largest(float(copied))),
    )


def survey_notes(
    forget: Rows,
    surrogate: RowSet,
    seen: Survey,
    record: TrainingRecord,
    distance: Distance | Estimation,
    *,
    has_labels: bool,
    force: bool = False,
) -> tuple[str, ...]:
    """What is odd about the data but not an error; each is recorded in the certificate.

    `record` is that of what earlier deletions left. What contradicts it, or the declared distance, is refused.
    """
    if seen.copied:
        raise DataError(
            f"the surrogate's rows repeat as if they had been copied, {seen.copied} times each",
            f"independent draws repeat so with a probability below {IMPLAUSIBLE:g}, and the sampling term needs such",
            "Remove the copies, or declare the distance between the sets themselves (between samples) if it is known.",
        )
    notes: list[str] = []
    if seen.repeated:
        notes.append(
            f"{seen.repeated} of {len(forget)} forget rows are repeats of another; each was counted as one training row"
        )
    retained = record_without(record, forget.labels)
    require_possible(retained)
    if has_labels:
        notes += _absent_class_notes(seen, retained, distance, force)
    if distance.is_source:
        _require_source(len(forget), surrogate, seen, record, has_labels)
    elif seen.shared:
        notes.append(
            f"{seen.shared} of {len(forget)} forget rows are also in the surrogate; it should hold none of them"
        )
    for index, left in enumerate(retained.class_counts or ()):
        gone = 0 if record.class_counts is None else record.class_counts[index]
        if left or not gone:
            continue
        value = record.classes[index]
        note = f"every row of class {value!r} is forgotten ({gone:,}); the model keeps its weights for that class"
        if has_labels and seen.counts[index] and not (distance.is_source or distance.matched):
            note += (
                f"; its {seen.counts[index]:,} surrogate rows stay, so the distance must be that of retained rows "
                "without the class from surrogate rows with it (leave them out, or match classes)"
            )
        notes.append(note)
    return tuple(notes)


def _absent_class_notes(
    seen: Survey, retained: TrainingRecord, distance: Distance | Estimation, force: bool
) -> tuple[str, ...]:
    """What is said of classes that the surrogate lacks; refused, unless forced, where the distance rules that out."""
    absent = [index for index, count in enumerate(seen.counts) if count == 0]
    if not absent:
        return ()
    named = ", ".join(repr(retained.classes[index]) for index in absent[:12])
    said = PublicNote(f"the surrogate has no row of class {named}")
    if retained.class_counts is None or not isinstance(distance, Distance) or distance.provenance != "declared":
        return (said,)
    missing, total = sum(retained.class_counts[index] for index in absent), sum(retained.class_counts)
    if not missing or (distance.kind == "tv" and missing <= distance.value * total):  # declared to be missing
        return (said,)
    if not force:
        raise UselessModel(
            f"{said}, of which {missing:,} of {total:,} retained rows are ({100 * missing / total:.3g} %)",
            f"the distance declared, {distance}, says that such rows are there",
            "Add surrogate rows of that class; declare a tv that covers its share; or insist with --force "
            "(force=True), and the certificate says so.",
        )
    contradicts = f"of which rows are retained; the distance declared, {distance}, says that such rows are there"
    return (PublicNote(f"{FORCED}{said}, {contradicts}, so it may be false"),)


def _require_source(n_forget: int, source: RowSet, seen: Survey, record: TrainingRecord, has_labels: bool) -> None:
    """Refuse rows that are given as the source but cannot be it."""
    given = "With distance source, give the source itself."
    dtype, trained = dtype_name(source.dtype), record.rows_dtype
    for wrong, found, required, remedy in (
        (not has_labels, "the source rows have no labels", "with distance source they are needed", given),
        (
            dtype != trained,
            f"the source rows are kept in {dtype}",
            f"the model was trained on {trained}",
            f"Use --dtype {trained} (dtype='{trained}').",
        ),
        (
            len(source) != record.n_source,
            f"the surrogate has {len(source):,} rows",
            f"the source had {record.n_source:,}",
            given,
        ),
        (
            record.class_counts not in (None, seen.counts),
            f"the rows given as the source have class counts {seen.counts}",
            f"at training they were {record.class_counts}",
            given,
        ),
        (
            seen.lacking,
            f"{seen.lacking} of {n_forget} forget rows are not among the source rows given, with these labels and as "
            "often",
            "with distance source every forget row must be",
            "Give the source itself, or declare another distance.",
        ),
    ):
        if wrong:
            raise DataError(found, required, remedy)
