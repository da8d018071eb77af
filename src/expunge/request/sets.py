"""Forget and surrogate set as they are given: made ready, and matched to what the model was trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from expunge.bounds.retained import FEWEST_SAMPLED_ROWS
from expunge.certificate.claim import PublicNote
from expunge.distance import Distance, Estimation
from expunge.errors import DataError, ModelError, OptionError, UselessModel
from expunge.heads import RowSet
from expunge.heads.rows import FEW, Scaling
from expunge.model import LinearModel
from expunge.record import Label, TrainingRecord
from expunge.request.promise import Execution
from expunge.rows import EncodedRows, as_features, as_labels, bound_rows, encode, encoder_of, names_of, weight_classes
from expunge.rows.columns import match_record, prepare_frames
from expunge.rows.streams import ArrayStream, Form, Stream, StreamedRows, Watch, fits, load
from expunge.rows.tables import is_frame
from expunge.runtime.group import ALONE, Group
from expunge.runtime.memory import Memory
from expunge.runtime.progress import Progress, silent
from expunge.runtime.values import up

FORGET, SURROGATE = "the forget set", "the surrogate set"
SOLVER_VECTORS = 160  # as long as the weights: those of Newton's method and of Lanczos
FORCED = "FORCED: "  # how a note begins that would have been a refusal
MOST_SCALED = 0.5  # of a set's rows: beyond this their lengths, and with them most of what a table says, are gone
FEWEST_TO_JUDGE = 20  # rows: of fewer, a share says little, and a person whose rows are unusual may ask too


def public_if_surrogate(name: str) -> type[str]:
    """The kind of a note on this set: what is said of a surrogate would be the same whoever had left."""
    return PublicNote if name == SURROGATE else str


@dataclass(frozen=True)
class Reading:
    """How streams are read: within what memory, shared out among whom, and who is told how far it is."""

    memory: Memory = field(default_factory=lambda: Memory.of(None))
    group: Group = ALONE
    progress: Progress = silent

    @classmethod
    def by(cls, execution: Execution) -> Reading:
        return cls(Memory.of(execution.memory), execution.group, execution.progress)

    def watch(self, name: str) -> Watch:
        return lambda done, total: self.progress(f"Reading {name} (rows)", done, total)


def rows_of(
    rows: tuple[Any, Any] | Stream | Any,
    model: LinearModel,
    record: TrainingRecord,
    dtype: torch.dtype,
    device: torch.device,
    name: str,
    reading: Reading | None = None,
) -> RowSet:
    """Rows ready for the model's objective, from (features, labels), features alone, or a stream of them."""
    require_encoder(rows, record, name)
    rows = match_record(rows, record, model.n_features, name)
    if name == FORGET and not is_labelled(rows):
        raise DataError(
            f"{name}: no labels", "the gradient of what is forgotten needs them", "Give (features, labels)."
        )
    reading = reading or Reading()
    if reading.group.size > 1 and not isinstance(rows, Stream):
        features, labels = rows if isinstance(rows, tuple) else (rows, None)
        features = as_features(features, name) if is_frame(features) else features
        rows = ArrayStream(features, labels, name, encoder_of(rows))
    if isinstance(rows, Stream):
        form = Form(record.classes, record.max_norm, record.bias, dtype, device, model.n_features, name)
        if reading.group.size > 1 or not fits(rows, form, reading.memory):
            parameters = model.n_classes * (model.n_features + int(record.bias))
            memory = reading.memory.less(8 * parameters * SOLVER_VECTORS)
            return StreamedRows(rows, form, memory, reading.group, reading.watch(name))
        rows = load(rows)
    values, labels = rows if isinstance(rows, tuple) else (rows, None)
    table = as_features(values, name)
    if labels is None:
        indices = torch.zeros(table.shape[0], dtype=torch.int64)
    else:
        indices = encode(as_labels(labels, table.shape[0], name), record.classes, name)
    return bound_rows(
        table,
        indices,
        max_norm=record.max_norm,
        bias=record.bias,
        dtype=dtype,
        device=device,
        width=model.n_features,
        name=name,
    )


def whole_set(rows: Any, reading: Reading, name: str, record: TrainingRecord | None = None) -> Any:
    """A stream's rows in memory, where every process needs all of them; those of a frame prepared as at training."""
    rows = rows if record is None else prepare_frames(rows, record, name)
    if not isinstance(rows, Stream):
        return rows
    size = rows.bytes_in_memory
    if size is not None and 2 * size > reading.memory.spare:
        raise DataError(
            f"{name}: {size / 1e6:,.0f} MB in memory",
            f"half of {reading.memory.spare / 1e6:,.0f} MB may be used for it",
            "Raise the memory limit, or forget fewer rows at once.",
        )
    return EncodedRows(*load(rows), rows.encoder, rows.feature_names, rows.encoder_trained)


def is_labelled(rows: Any) -> bool:
    """Whether rows, as they are given, come with labels."""
    return rows.labelled if isinstance(rows, Stream) else isinstance(rows, tuple) and rows[1] is not None


def of_class(rows: tuple[Any, Any], wanted: Label, record: TrainingRecord) -> tuple[Any, Any]:
    """The rows of one class.

    Refuses a class that is unknown or not there, and rows that are not all the source had of it.
    """
    known: dict[Label, Label] = {str(value): value for value in record.classes}
    known |= {value: value for value in record.classes}
    if wanted not in known:
        shown = ", ".join(repr(value) for value in record.classes[:12]) + (" ..." if len(record.classes) > 12 else "")
        raise OptionError(
            f"class {wanted!r} is to be forgotten", f"the classes are {shown}", "Name one of the model's classes."
        )
    label = known[wanted]
    features = as_features(rows[0], FORGET)
    labels = as_labels(rows[1], len(features), FORGET)
    alike = labels.dtype.kind == ("U" if isinstance(label, str) else "i")
    chosen = labels == label if alike else np.zeros(len(labels), bool)
    count, index = int(chosen.sum()), record.classes.index(label)
    if count == 0:
        raise DataError(
            f"the forget set has no rows of class {label!r}",
            "its training rows are needed: what is forgotten is their gradient",
            "Give a file that holds them.",
        )
    if record.class_counts is not None and count < record.class_counts[index]:
        raise DataError(
            f"the forget set has {count:,} rows of class {label!r}",
            f"the source had {record.class_counts[index]:,}, and a class is forgotten only with all of them",
            "Give all its rows; to forget only these, leave --forget-class (forget_class) out.",
        )
    of_these = features[torch.from_numpy(chosen).to(features.device)]
    return EncodedRows(of_these, labels[chosen], encoder_of(rows), names_of(rows))


# How many -----------------------------------------------------------------------------------------------------------


def check_sizes(n_forget: int, record: TrainingRecord, force: bool) -> None:
    """Refuse to forget everything and, unless forced, more than half."""
    n_source = record.n_source
    if n_forget >= n_source:
        raise DataError(
            f"{n_forget:,} rows to forget of a source of {n_source:,}",
            "at least one row must be retained",
            "Check n_source; if all rows are to go, delete the model and what was kept for it.",
        )
    if 2 * n_forget > n_source and not force:
        raise UselessModel(
            f"{n_forget:,} of {n_source:,} rows are to be forgotten",
            "more than half leaves a model that is mostly guesswork",
            "Retrain on what is left, or insist with --force (force=True).",
        )


class Counted(Protocol):
    """A set whose rows may differ in weight."""

    @property
    def largest_weight(self) -> float:
        """1 without weights."""

    def __len__(self) -> int: ...


def require_enough(surrogate: Counted) -> None:
    """Refuse a surrogate whose moments say too little of its population's.

    Weights of at most q make s rows count as s/q.
    """
    needed = f"at least {FEWEST_SAMPLED_ROWS} are needed before its moments can stand for its population's"
    if len(surrogate) < FEWEST_SAMPLED_ROWS:
        raise DataError(
            f"the surrogate set has {len(surrogate)} rows",
            needed,
            "Add surrogate rows, or declare the distance between the sets themselves (between samples) if it is known.",
        )
    if len(surrogate) / surrogate.largest_weight < FEWEST_SAMPLED_ROWS:
        raise DataError(
            f"with matched classes a surrogate row weighs up to {surrogate.largest_weight:.3g}, so that its "
            f"{len(surrogate):,} rows count as few as {len(surrogate) / surrogate.largest_weight:.0f}",
            needed,
            "Add surrogate rows of the classes that it has too few of, or leave --match-classes out and declare a "
            "distance.",
        )


def matched_rows(
    surrogate: RowSet, record: TrainingRecord, labelled: bool, present: Sequence[int] | None = None
) -> RowSet:
    """The surrogate, weighted to the class counts of the record: of the rows that are retained."""
    if record.class_counts is None:
        raise ModelError(
            "the model's record has no class counts",
            "matching classes needs the source's",
            "Give them with --class-counts (class_counts=), in the order of the classes; model cards often have them.",
        )
    if not labelled:
        raise DataError(
            "the surrogate has no labels", "matching classes needs them", "Give (features, labels), or a label column."
        )
    if min(record.class_counts) < 0:
        raise DataError(
            "more rows of a class are to be forgotten than the source had",
            "the surrogate is matched to what is left",
            "Check the labels; these rows cannot all have been trained on.",
        )
    return weight_classes(surrogate, record.class_counts, record.classes, present)


def weighted_rows(
    rows: RowSet, retained: TrainingRecord, distance: Distance | Estimation, labelled: bool, counts: Any = None
) -> RowSet:
    """A surrogate weighted by class where that is asked for, if there is enough of it."""
    if distance.matched:
        rows = matched_rows(rows, retained, labelled, counts)
    if distance.samples_rows:
        require_enough(rows)
    return rows


# Encoders, columns, lengths -----------------------------------------------------------------------------------------


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
    return tuple(
        public_if_surrogate(name)(
            f"{name} names no encoder; that its features come from the one recorded at training was not checked"
        )
        for name, digest in made_by.items()
        if digest is None
    )


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
    share = 0.0 if scaling is None else scaling.share
    if scaling is None or not math.isfinite(share) or share <= FEW:
        return ()
    said, note = scaling_words(scaling, name), public_if_surrogate(name)
    if share <= MOST_SCALED or scaling.n_rows < FEWEST_TO_JUDGE:
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
