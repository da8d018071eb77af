"""What is said of sets that name no columns, or of a record that names none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from expunge.errors import DataError
from expunge.record import TrainingRecord
from expunge.request.columns import column_notes
from expunge.rows import EncodedRows
from expunge.train import train

NAMES = ("a", "b")
BARE = (np.eye(2), np.array([0, 1]))
NAMED, TURNED = EncodedRows(*BARE, None, NAMES), EncodedRows(*BARE, None, NAMES[::-1])


@pytest.fixture(scope="module")
def record() -> TrainingRecord:
    found = train(*BARE, l2=0.1, max_norm=1.0, feature_names=NAMES).record
    assert found is not None
    return found


def noted(record: TrainingRecord, forget: object, surrogate: object) -> tuple[str, ...]:
    return column_notes(record, {"the forget set": forget, "the surrogate set": surrogate})


def test_sets_without_names_are_noted_once(record: TrainingRecord) -> None:
    both = "the forget set and the surrogate set: columns are matched by position: these files name none"
    assert noted(record, BARE, BARE) == (both,)
    assert noted(record, NAMED, BARE) == ("the surrogate set: columns are matched by position: this file names none",)
    assert noted(record, NAMED, TURNED) == ()  # both were put into the model's order


def test_names_that_no_record_can_be_compared_with(record: TrainingRecord) -> None:
    unnamed = replace(record, features=None)
    said = "the model's record names no columns; those of the rows were matched to it by position"
    assert noted(unnamed, BARE, BARE) == ()
    assert noted(unnamed, NAMED, BARE) == noted(unnamed, NAMED, NAMED) == (said,)
    with pytest.raises(DataError, match="in another order"):
        noted(unnamed, NAMED, TURNED)
