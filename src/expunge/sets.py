"""Forget and surrogate set as they are given: made ready, looked over once, refused or remarked on."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expunge.data import EncodedRows, as_features, as_labels, class_matched, encode, encoder_of, prepare
from expunge.data.memory import Memory
from expunge.data.prepare import Label
from expunge.data.streamed import Form, StreamedRows, Watch, fits, loaded
from expunge.data.streams import ArrayStream, Stream
from expunge.distance import Distance, Estimation
from expunge.errors import DataError, ModelError, OptionError, UselessModel
from expunge.group import ALONE, Group
from expunge.model import LinearModel, TrainingRecord
from expunge.objectives import Block, Rows, RowSet
from expunge.options import DTYPES
from expunge.solve import Progress, silent

SOLVER_VECTORS = 160  # as long as the weights: those of Newton's method and of Lanczos
FEWEST_SAMPLED_ROWS = 100  # below this, a sample's moments say too little about its population


def rows_of(
    given: tuple[Any, Any] | Stream | Any,
    model: LinearModel,
    record: TrainingRecord,
    dtype: torch.dtype,
    device: torch.device,
    name: str,
    reading: Reading | None = None,
) -> RowSet:
    """Rows ready for the model's objective, from (features, labels), features alone, or a stream of them."""
    require_encoder(given, record, name)
    if name == "the forget set" and not is_labelled(given):
        raise DataError(
            f"{name}: no labels", "the gradient of what is forgotten needs them", "Give (features, labels)."
        )
    reading = reading or Reading()
    if reading.group.size > 1 and not isinstance(given, Stream):
        features, labels = given if isinstance(given, tuple) else (given, None)
        given = ArrayStream(features, labels, name, encoder_of(given))
    if isinstance(given, Stream):
        form = Form(record.classes, record.max_norm, record.bias, dtype, device, model.n_features, name)
        if reading.group.size > 1 or not fits(given, form, reading.memory):
            parameters = model.n_classes * (model.n_features + int(record.bias))
            memory = reading.memory.less(8 * parameters * SOLVER_VECTORS)
            return StreamedRows(given, form, memory, reading.group, reading.watch(name))
        given = loaded(given)
    values, labels = given if isinstance(given, tuple) else (given, None)
    table = as_features(values, name)
    if labels is None:
        indices = torch.zeros(table.shape[0], dtype=torch.int64)
    else:
        indices = encode(as_labels(labels, table.shape[0], name), record.classes, name)
    return prepare(
        table,
        indices,
        max_norm=record.max_norm,
        bias=record.bias,
        dtype=dtype,
        device=device,
        width=model.n_features,
        name=name,
    ).rows


def whole_set(given: Any, reading: Reading, name: str) -> Any:
    """A stream's rows in memory, where every process needs all of them."""
    if not isinstance(given, Stream):
        return given
    size = given.bytes_in_memory
    if size is not None and 2 * size > reading.memory.spare:
        raise DataError(
            f"{name}: {size / 1e6:,.0f} MB in memory",
            f"half of {reading.memory.spare / 1e6:,.0f} MB may be used for it",
            "Raise the memory limit, or forget fewer rows at once.",
        )
    return EncodedRows(*loaded(given), given.encoder)


def is_labelled(given: Any) -> bool:
    """Whether rows, as they are given, come with labels."""
    return given.labelled if isinstance(given, Stream) else isinstance(given, tuple) and given[1] is not None


def require_encoder(given: Any, record: TrainingRecord, name: str) -> None:
    """Refuse features that say they were made by another encoder than those the model was trained on."""
    made_by = encoder_of(given)
    if made_by is not None and record.encoder is not None and made_by != record.encoder:
        raise DataError(
            f"{name}: features of encoder {made_by[:16]}...",
            f"the model was trained on those of {record.encoder[:16]}...",
            "Embed these rows with the encoder, and the preparation, that was used for training.",
        )


def encoder_notes(record: TrainingRecord, forget: Any, surrogate: Any) -> tuple[str, ...]:
    """Which features nobody can say the encoder of; two sets of different encoders are refused."""
    sets = {"the forget set": forget, "the surrogate set": surrogate}
    made_by = {name: encoder_of(given) for name, given in sets.items()}
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
        f"{name} names no encoder; that its features come from the one recorded at training was not checked"
        for name, digest in made_by.items()
        if digest is None
    )


def of_class(given: tuple[Any, Any], wanted: Label, record: TrainingRecord) -> tuple[Any, Any]:
    """The rows of one class; refuses a class that is unknown or not there, and rows that are not all the source had of it."""
    known: dict[Label, Label] = {
        **{str(value): value for value in record.classes},
        **{value: value for value in record.classes},
    }
    if wanted not in known:
        shown = ", ".join(repr(value) for value in record.classes[:12]) + (" ..." if len(record.classes) > 12 else "")
        raise OptionError(
            f"class {wanted!r} is to be forgotten", f"the classes are {shown}", "Name one of the model's classes."
        )
    label = known[wanted]
    features = as_features(given[0], "the forget set")
    labels = as_labels(given[1], len(features), "the forget set")
    chosen = (
        labels == label
        if labels.dtype.kind == ("U" if isinstance(label, str) else "i")
        else np.zeros(len(labels), bool)
    )
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
            "Give all its rows; to forget only these, leave --forget-class out.",
        )
    return EncodedRows(features[torch.from_numpy(chosen).to(features.device)], labels[chosen], encoder_of(given))


@dataclass(frozen=True)
class Reading:
    """How streams are read: within what memory, shared out among whom, and who is told how far it is."""

    memory: Memory = field(default_factory=lambda: Memory.of(None))
    group: Group = ALONE
    progress: Progress = silent

    def watch(self, name: str) -> Watch:
        return lambda done, total: self.progress(f"Reading {name} (rows)", done, total)


@dataclass(frozen=True)
class Survey:
    """What one pass over the surrogate says of it beside the forget set.

    `counts` are its rows by class. `shared` counts forget rows that occur in it, value for value; `lacking` those that do
    not occur with the same label and as often.
    """

    counts: tuple[int, ...]
    shared: int
    lacking: int


def survey(forget: Rows, surrogate: RowSet, n_classes: int, progress: Progress = silent) -> Survey:
    """Look the surrogate over, block by block."""
    asked = _Asked(forget, surrogate.dtype)
    counts = torch.zeros(n_classes, dtype=torch.float64)
    found = torch.zeros(asked.n_rows, dtype=torch.float64)
    labelled = torch.zeros(asked.n_keys, dtype=torch.float64)
    for block in surrogate.blocks():
        progress("Looking over the surrogate (rows)", block.start, surrogate.n_expected)
        counts += torch.bincount(block.labels, minlength=n_classes).cpu()
        for row, label in asked.occurring(block):
            found[asked.rows[row]] += 1
            if (row, label) in asked.keys:
                labelled[asked.keys[row, label]] += 1
    counts, found, labelled = (surrogate.total(part) for part in (counts, found, labelled))
    return Survey(
        counts=tuple(int(count) for count in counts.tolist()),
        shared=sum(bool(found[asked.rows[row]]) for row, _ in asked.given),
        lacking=sum(max(0, count - int(labelled[asked.keys[key]])) for key, count in Counter(asked.given).items()),
    )


class _Asked:
    """The forget set's rows, numbered, and a quick test for rows that might be among them."""

    def __init__(self, forget: Rows, dtype: torch.dtype) -> None:
        features = forget.features.cpu().to(dtype)
        self.columns = np.unique(np.linspace(0, forget.n_features - 1, 8).astype(int))
        self.prints = np.unique(_fingerprints(features, self.columns))
        self.given = _row_keys(features, forget.labels)
        self.rows = {row: index for index, row in enumerate(dict.fromkeys(row for row, _ in self.given))}
        self.keys = {key: index for index, key in enumerate(dict.fromkeys(self.given))}
        self.n_rows, self.n_keys = len(self.rows), len(self.keys)

    def occurring(self, block: Block) -> list[tuple[bytes, int]]:
        """Rows of the block, with their labels, that are forget rows."""
        hits = torch.from_numpy(np.flatnonzero(np.isin(_fingerprints(block.features, self.columns), self.prints)))
        where = hits.to(block.features.device)  # rows stay where they are; only a few columns and the hits are fetched
        return [key for key in _row_keys(block.features[where], block.labels[where]) if key[0] in self.rows]


def _fingerprints(features: Tensor, columns: NDArray[Any]) -> NDArray[np.uint64]:
    """A number for each row from the bits of a few columns: equal rows have equal ones."""
    chosen = np.ascontiguousarray((features[:, columns].cpu().double() + 0.0).numpy()).view(
        np.uint64
    )  # so that -0 is 0
    odd = np.random.default_rng(0).integers(0, 2**63, len(columns), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    mixed = (chosen ^ (chosen >> np.uint64(29))) * odd
    found: NDArray[np.uint64] = np.bitwise_xor.reduce(mixed ^ (mixed >> np.uint64(32)), axis=1)
    return found


def _row_keys(features: Tensor, labels: Tensor) -> list[tuple[bytes, int]]:
    """A digest of each row's values in float64, and its label; a block at a time is converted."""
    digests = [
        hashlib.blake2b(row.tobytes(), digest_size=20).digest()
        for block in torch.split(features, 1024)
        for row in (block.cpu().double() + 0.0).numpy()  # so that -0 is 0
    ]
    return list(zip(digests, labels.tolist(), strict=True))


def notes_on(
    forget: Rows,
    surrogate: RowSet,
    seen: Survey,
    record: TrainingRecord,
    distance: Distance | Estimation,
    has_labels: bool,
) -> tuple[str, ...]:
    """What is odd about the data but not an error; each is recorded in the certificate."""
    notes = []
    repeated = len(forget) - len({row for row, _ in _row_keys(forget.features, forget.labels)})
    if repeated:
        notes.append(
            f"{repeated} of {len(forget)} forget rows are repeats of another; each was counted as one training row"
        )
    counts = Counter(forget.labels.tolist())
    if record.class_counts is not None:
        for index, count in counts.items():
            if count > record.class_counts[index]:
                raise DataError(
                    f"{count} rows of class {record.classes[index]!r} are to be forgotten",
                    f"the source had {record.class_counts[index]}",
                    "Check the labels; these rows cannot all have been trained on.",
                )
    if has_labels:
        absent = [value for value, count in zip(record.classes, seen.counts, strict=True) if count == 0]
        if absent:
            notes.append("the surrogate has no rows of class " + ", ".join(repr(value) for value in absent))
    if distance.kind == "source":
        _require_source(len(forget), surrogate, seen, record, has_labels)
    elif seen.shared:
        notes.append(
            f"{seen.shared} of {len(forget)} forget rows are also in the surrogate; it should hold none of them"
        )
    return tuple(notes)


def _require_source(n_forget: int, given: RowSet, seen: Survey, record: TrainingRecord, has_labels: bool) -> None:
    """Refuse rows that are given as the source but cannot be it."""
    if not has_labels:
        raise DataError(
            "the source rows have no labels", "with distance source they are needed", "Give (features, labels)."
        )
    if given.dtype != DTYPES[record.rows_dtype]:
        raise DataError(
            f"the source rows are kept in {str(given.dtype).removeprefix('torch.')}",
            f"the model was trained on {record.rows_dtype}",
            f"Use --dtype {record.rows_dtype}.",
        )
    if len(given) != record.n_source:
        raise DataError(
            f"the surrogate has {len(given):,} rows",
            f"the source had {record.n_source:,}",
            "With distance source, give the source itself.",
        )
    if record.class_counts is not None and seen.counts != record.class_counts:
        raise DataError(
            f"the rows given as the source have class counts {seen.counts}",
            f"at training they were {record.class_counts}",
            "With distance source, give the source itself.",
        )
    if seen.lacking:
        raise DataError(
            f"{seen.lacking} of {n_forget} forget rows are not among the source rows given, with these labels and as often",
            "with distance source every forget row must be",
            "Give the source itself, or declare another distance.",
        )


def class_notes(
    forget: Rows, seen: Survey, record: TrainingRecord, asked: Label | None, has_labels: bool
) -> tuple[str, ...]:
    """What becomes of classes that are forgotten whole."""
    if record.class_counts is None:
        if asked is None:
            return ()
        return ("the record has no class counts; that these are all rows the source had of the class was not checked",)
    counts = Counter(forget.labels.tolist())
    notes = []
    for index in sorted(index for index, count in counts.items() if count == record.class_counts[index]):
        kept = "" if not has_labels else f"its {seen.counts[index]:,} surrogate rows stay, since "
        notes.append(
            f"every row of class {record.classes[index]!r} is forgotten ({counts[index]:,}); the model keeps its weights for that class; "
            f"{kept}the surrogate stands for the whole source"
        )
    return tuple(notes)


def check_sizes(n_forget: int, record: TrainingRecord, force: bool) -> None:
    """Refuse to forget everything and, unless forced, more than half."""
    n_source = record.n_source
    if n_forget >= n_source:
        raise DataError(
            f"{n_forget:,} rows to forget of a source of {n_source:,}",
            "at least one row must be retained",
            "Check n_source; if all rows are to go, delete the model.",
        )
    if 2 * n_forget > n_source and not force:
        raise UselessModel(
            f"{n_forget:,} of {n_source:,} rows are to be forgotten",
            "more than half leaves a model that is mostly guesswork",
            "Retrain on what is left, or insist with --force (force=True).",
        )


def require_enough(surrogate: RowSet) -> None:
    """Refuse a surrogate whose moments say too little of its population's. Weights of at most q make s rows count as s/q."""
    if len(surrogate) < FEWEST_SAMPLED_ROWS:
        raise DataError(
            f"the surrogate set has {len(surrogate)} rows",
            f"at least {FEWEST_SAMPLED_ROWS} are needed before its moments can stand for its population's",
            "Add surrogate rows, or declare the distance between the sets themselves (between samples) if it is known.",
        )
    if len(surrogate) / surrogate.largest_weight < FEWEST_SAMPLED_ROWS:
        raise DataError(
            f"with matched classes a surrogate row weighs up to {surrogate.largest_weight:.3g}, so that its {len(surrogate):,} rows count as few as {len(surrogate) / surrogate.largest_weight:.0f}",
            f"at least {FEWEST_SAMPLED_ROWS} are needed before its moments can stand for its population's",
            "Add surrogate rows of the classes that it has too few of, or leave --match-classes out and declare a distance.",
        )


def matched_rows(
    surrogate: RowSet, record: TrainingRecord, labelled: bool, present: Sequence[int] | None = None
) -> RowSet:
    """The surrogate, weighted to the class counts of the source."""
    if record.class_counts is None:
        raise ModelError(
            "the model's record has no class counts",
            "matching classes needs the source's",
            "Give them with --class-counts, in the order of the classes; model cards often have them.",
        )
    if not labelled:
        raise DataError(
            "the surrogate has no labels", "matching classes needs them", "Give (features, labels), or a label column."
        )
    return class_matched(surrogate, record.class_counts, record.classes, present)
