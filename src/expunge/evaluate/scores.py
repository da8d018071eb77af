"""How good a model's answers are on labelled rows: accuracy, balanced accuracy, each class, beside mere guessing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from expunge.data import as_labels, encode
from expunge.data.ordered import by_record
from expunge.errors import DataError
from expunge.model import LinearModel
from expunge.record import Label
from expunge.request.rows import is_labelled

NAME = "the rows to score"


@dataclass(frozen=True)
class OfClass:
    """Of one class: how many rows have it, and what share of them the model gets right."""

    label: Label
    rows: int
    right: float


@dataclass(frozen=True)
class Scores:
    """`accuracy` is the share of rows that are right, `balanced` its mean over the classes that occur.

    `majority` is what always naming the most frequent class of these rows would get right; balanced, that is one over
    the number of classes that occur.
    """

    rows: int
    accuracy: float
    balanced: float
    majority: float
    classes: tuple[OfClass, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"classes": [asdict(each) for each in self.classes]}


def scores_of(model: LinearModel, rows: tuple[Any, Any]) -> Scores:
    """Of a model, on (features, labels) as they come."""
    given = by_record(rows, model.record, model.n_features, NAME)
    if not is_labelled(given):
        raise DataError(f"{NAME}: no labels", "answers are compared with them", "Give rows with their labels.")
    labels = as_labels(given[1], len(given[1]), NAME)
    own = encode(labels, model.classes, NAME).numpy()
    right = model.predict(given[0]) == np.asarray(model.classes)[own]
    counts = np.bincount(own, minlength=len(model.classes))
    hits = np.bincount(own[right], minlength=len(model.classes))
    there = np.flatnonzero(counts)
    shares = hits[there] / counts[there]
    classes = tuple(
        OfClass(model.classes[place], int(counts[place]), float(share))
        for place, share in zip(there, shares, strict=True)
    )
    return Scores(len(own), float(right.mean()), float(shares.mean()), float(counts.max() / len(own)), classes)
