"""The sets as they are given, looked over once: what is refused, what is remarked on."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expunge.certificate.claim import PublicNote
from expunge.distance import Distance, Estimation
from expunge.errors import DataError, UselessModel
from expunge.heads import Block, Rows, RowSet
from expunge.record import Label, TrainingRecord
from expunge.request.copies import IMPLAUSIBLE, Multiplicities
from expunge.request.execution import dtype_named
from expunge.request.sets import FORCED
from expunge.runtime.progress import Progress, silent


@dataclass(frozen=True)
class Survey:
    """What one pass over the surrogate says of it beside the forget set.

    `counts` are its rows by class. `shared` counts forget rows that occur in it, value for value; `lacking` those that
    do not occur with the same label and as often. `copied` says how often rows were copied, where independent draws do
    not repeat as these rows do; 0 otherwise, and where nobody asked.
    """

    counts: tuple[int, ...]
    shared: int
    lacking: int
    copied: int = 0


def survey(
    forget: Rows,
    surrogate: RowSet,
    n_classes: int,
    progress: Progress = silent,
    repeats: Multiplicities | None = None,
) -> Survey:
    """Look the surrogate over, block by block; with `repeats` also for rows that were copied.

    Copies are looked for by each process among the rows that it goes over.
    """
    asked = _Asked(forget, surrogate.dtype)
    counts = torch.zeros(n_classes, dtype=torch.float64)
    occurrences = torch.zeros(asked.n_rows, dtype=torch.float64)
    labelled = torch.zeros(asked.n_keys, dtype=torch.float64)
    for block in surrogate.blocks():
        progress("Looking over the surrogate (rows)", block.start, surrogate.n_expected)
        counts += torch.bincount(block.labels, minlength=n_classes).cpu()
        for row, label in asked.occurring(block):
            occurrences[asked.rows[row]] += 1
            if (row, label) in asked.keys:
                labelled[asked.keys[row, label]] += 1
        if repeats is not None:
            repeats.add(block.features)
    copied = 0 if repeats is None else repeats.copied([int(count) for count in counts.tolist()])
    counts, occurrences, labelled = (surrogate.total(part) for part in (counts, occurrences, labelled))
    return Survey(
        counts=tuple(int(count) for count in counts.tolist()),
        shared=sum(bool(occurrences[asked.rows[row]]) for row, _ in asked.given),
        lacking=sum(max(0, count - int(labelled[asked.keys[key]])) for key, count in Counter(asked.given).items()),
        copied=int(surrogate.largest(float(copied))),
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
    fingerprints: NDArray[np.uint64] = np.bitwise_xor.reduce(mixed ^ (mixed >> np.uint64(32)), axis=1)
    return fingerprints


def _row_keys(features: Tensor, labels: Tensor) -> list[tuple[bytes, int]]:
    """A digest of each row's values in float64, and its label; a block at a time is converted."""
    digests = [
        hashlib.blake2b(row.tobytes(), digest_size=20).digest()
        for block in torch.split(features, 1024)
        for row in (block.cpu().double() + 0.0).numpy()  # so that -0 is 0
    ]
    return list(zip(digests, labels.tolist(), strict=True))


def survey_notes(
    forget: Rows,
    surrogate: RowSet,
    seen: Survey,
    record: TrainingRecord,
    distance: Distance | Estimation,
    has_labels: bool,
    force: bool = False,
) -> tuple[str, ...]:
    """What is odd about the data but not an error; each is recorded in the certificate.

    What contradicts the declared distance is refused, unless forced.
    """
    notes: list[str] = []
    if seen.copied:
        raise DataError(
            f"the surrogate's rows repeat as if they had been copied, {seen.copied} times each",
            f"independent draws repeat so with a probability below {IMPLAUSIBLE:g}, and the sampling term needs such",
            "Remove the copies, or declare the distance between the sets themselves (between samples) if it is known.",
        )
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
            named = ", ".join(repr(value) for value in absent)
            notes.append(PublicNote("the surrogate has no rows of class " + named))
        notes += against_the_distance(counts, seen, record, distance, force)
    if distance.is_source:
        _require_source(len(forget), surrogate, seen, record, has_labels)
    elif seen.shared:
        notes.append(
            f"{seen.shared} of {len(forget)} forget rows are also in the surrogate; it should hold none of them"
        )
    return tuple(notes)


def against_the_distance(
    forgotten: Counter[int], seen: Survey, record: TrainingRecord, distance: Distance | Estimation, force: bool
) -> tuple[str, ...]:
    """Refuse a surrogate without any row of a class that is retained, where the distance says that cannot be."""
    if record.class_counts is None or not isinstance(distance, Distance) or distance.provenance != "declared":
        return ()
    left = [count - forgotten[index] for index, count in enumerate(record.class_counts)]
    absent = [index for index, count in enumerate(left) if count > 0 and seen.counts[index] == 0]
    missing = sum(left[index] for index in absent)
    covered = distance.kind == "tv" and missing <= distance.value * sum(left)  # what it declares may well be missing
    if not absent or covered:
        return ()
    named = ", ".join(repr(record.classes[index]) for index in absent[:12])
    said = (
        f"the surrogate has no row of class {named}, of which {missing:,} of {sum(left):,} retained rows are "
        f"({100 * missing / sum(left):.3g} %)"
    )
    if not force:
        raise UselessModel(
            said,
            f"the distance declared, {distance}, says that such rows are there",
            "Add surrogate rows of that class; declare a tv that covers its share; or insist with --force "
            "(force=True), and the certificate says so.",
        )
    against = f"the distance declared, {distance}, says that such rows are there, so it may be false"
    without_counts = f"{FORCED}the surrogate has no row of class {named}, of which rows are retained; {against}"
    return (f"{FORCED}{said}; {against}", PublicNote(without_counts))


def _require_source(n_forget: int, source: RowSet, seen: Survey, record: TrainingRecord, has_labels: bool) -> None:
    """Refuse rows that are given as the source but cannot be it."""
    if not has_labels:
        raise DataError(
            "the source rows have no labels", "with distance source they are needed", "Give (features, labels)."
        )
    if source.dtype != dtype_named(record.rows_dtype):
        raise DataError(
            f"the source rows are kept in {str(source.dtype).removeprefix('torch.')}",
            f"the model was trained on {record.rows_dtype}",
            f"Use --dtype {record.rows_dtype} (dtype='{record.rows_dtype}').",
        )
    if len(source) != record.n_source:
        raise DataError(
            f"the surrogate has {len(source):,} rows",
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
            f"{seen.lacking} of {n_forget} forget rows are not among the source rows given, with these labels and as "
            "often",
            "with distance source every forget row must be",
            "Give the source itself, or declare another distance.",
        )


def class_notes(
    forget: Rows,
    seen: Survey,
    record: TrainingRecord,
    asked: Label | None,
    distance: Distance | Estimation,
    has_labels: bool,
) -> tuple[str, ...]:
    """What becomes of classes that are forgotten whole.

    Their surrogate rows stay unless classes are matched, and what is declared is declared of the retained rows, of
    which there are none.
    """
    if record.class_counts is None:
        if asked is None:
            return ()
        return ("the record has no class counts; that these are all rows the source had of the class was not checked",)
    counts = Counter(forget.labels.tolist())
    notes = []
    for index in sorted(index for index, count in counts.items() if count == record.class_counts[index]):
        note = (
            f"every row of class {record.classes[index]!r} is forgotten ({counts[index]:,}); the model keeps its "
            "weights for that class"
        )
        if has_labels and seen.counts[index] and not (distance.is_source or distance.matched):
            note += (
                f"; its {seen.counts[index]:,} surrogate rows stay, so the distance must be that of retained rows "
                "without the class from surrogate rows with it (leave them out, or match classes)"
            )
        notes.append(note)
    return tuple(notes)
