"""Accuracy before and after a deletion, on test rows: that of models that were published, never of private weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from expunge.data import as_features, as_labels
from expunge.data.ordered import by_record
from expunge.desk.desk import Desk, Rows
from expunge.desk.entries import Accuracy
from expunge.desk.layout import MODEL
from expunge.desk.seal import file_digest
from expunge.desk.state import State
from expunge.errors import DataError, FileError
from expunge.model import LinearModel, read_model

WHAT = "the test set"


@dataclass(frozen=True)
class LabelledRows:
    """Rows with the model's columns, checked before anything is done with a desk."""

    features: Any
    labels: Any

    def share_correct(self, model: LinearModel) -> float:
        """Of these rows, how many the model classifies as labelled."""
        return float(np.mean(model.predict(self.features) == self.labels))


def checked_test(model: LinearModel, test: Rows) -> LabelledRows:
    """The test rows in the order of the model's columns; refuses what nothing could be measured on."""
    features, labels = by_record(test, model.record, model.n_features, WHAT)
    table = as_features(features, WHAT)
    if table.shape[1] != model.n_features:
        raise DataError(
            f"{WHAT} has {table.shape[1]} columns",
            f"the model takes {model.n_features}",
            "Give rows with the columns of training.",
        )
    known = np.asarray(as_labels(labels, table.shape[0], WHAT))
    if not np.isin(known.astype(str), np.asarray(model.classes).astype(str)).any():
        raise DataError(
            f"{WHAT} has no row of a class that the model knows",
            f"its classes are {', '.join(map(str, model.classes[:5]))}",
            "Check the labels.",
        )
    return LabelledRows(features, known)


def accuracies(desk: Desk, state: State, after: LinearModel, test: LabelledRows) -> Accuracy:
    """Of the model published before and of this one; the first one's before is the model the desk was opened with.

    Where the folder of the one before was taken away, nothing is said of it: the weights in private/ have no noise.
    """
    before = state.model if state.number == 0 else _published(desk, state)
    return Accuracy(
        before=None if before is None else test.share_correct(before),
        after=test.share_correct(after),
        rows=len(test.labels),
    )


def _published(desk: Desk, state: State) -> LinearModel | None:
    path = desk.layout.published_model(state.number) / MODEL
    if not path.is_file():
        return None
    if file_digest(path) != state.published_sha256:
        raise FileError(
            f"{path} is not the file that was published", "its digest is in the ledger", "Restore it from a copy."
        )
    return read_model(path)[0]
