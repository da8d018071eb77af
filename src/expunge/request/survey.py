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

from expunge.distance import Distance, Estimation
from expunge.errors import DataError
from expunge.heads import Block, Rows, RowSet
from expunge.record import Label, TrainingRecord
from expunge.request.execution import DTYPES
from expunge.runtime.progress import Progress, silent


@dataclass(frozen=True)
class Survey:
    """What one pass over the surrogate says of it beside the forget set.

    `counts` are its rows by class. `shared` counts forget rows that occur in it, value for value; `lacking` those that
    do not occur with the same label and as often.
    """

    counts: tuple[int, ...]
    shared: int
    lacking: int


def survey(forget: Rows, surrogate: RowSet, n_classes: int, progress: Progress = silent) -> Survey:
    """Look the surrogate over, block by block."""
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
    counts, occurrences, labelled = (surrogate.total(part) for part in (counts, occurrences, labelled))
    return Survey(
        counts=tuple(int(count) for count in counts.tolist()),
        shared=sum(bool(occurrences[asked.rows[row]]) for row, _ in asked.given),
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
    if distance.is_source:
        _require_source(len(forget), surrogate, seen, record, has_labels)
    elif seen.shared:
        notes.append(
            f"{seen.shared} of {len(forget)} forget rows are also in the surrogate; it should hold none of them"
        )
    return tuple(notes)


def _require_source(n_forget: int, source: RowSet, seen: Survey, record: TrainingRecord, has_labels: bool) -> None:
    """Refuse rows that are given as the source but cannot be it."""
    if not has_labels:
        raise DataError(
            "the source rows have no labels", "with distance source they are needed", "Give (features, labels)."
        )
    if source.dtype != DTYPES[record.rows_dtype]:
        raise DataError(
            f"the source rows are kept in {str(source.dtype).removeprefix('torch.')}",
            f"the model was trained on {record.rows_dtype}",
            f"Use --dtype {record.rows_dtype}.",
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
            f"every row of class {record.classes[index]!r} is forgotten ({counts[index]:,}); the model keeps its "
            f"weights for that class; {kept}the surrogate stands for the whole source"
        )
    return tuple(notes)
