"""The sets, looked over once: counts and repeats against loops, remarks and refusals one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from expunge import DataError, UselessModel, train
from expunge.certificate.claim import PublicNote
from expunge.distance import Distance
from expunge.heads import Rows
from expunge.record import TrainingRecord
from expunge.request.sets import class_notes, survey, survey_notes

SAME, SOURCE = Distance("same", 0.0), Distance("source", 0.0)


def rows(features: Any, labels: Any) -> Rows:
    return Rows(torch.tensor(features, dtype=torch.float64), torch.tensor(labels, dtype=torch.int64))


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_loops_over_rows_find(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of two small whole numbers: many repeats, within a set and across, under labels equal and not; -0 is 0."""
    monkeypatch.setattr("expunge.heads.rows.BLOCK_BYTES", 7 * 2 * 8)
    rng = np.random.default_rng(seed)
    U, S = (rng.integers(-1, 2, (count, 2)) * np.where(rng.random((count, 1)) < 0.5, -1.0, 1.0) for count in (6, 40))
    u, s = rng.integers(0, 3, 6), rng.integers(0, 3, 40)
    found = survey(rows(U, u), rows(S, s), 3)
    there = Counter((tuple(row + 0.0), int(label)) for row, label in zip(S, s, strict=True))
    asked = Counter((tuple(row + 0.0), int(label)) for row, label in zip(U, u, strict=True))
    assert found.counts == tuple(np.bincount(s, minlength=3))
    assert found.shared == sum(any((row == other).all() for other in S) for row in U)
    assert found.lacking == sum(max(0, count - there[key]) for key, count in asked.items())


@pytest.fixture(scope="module")
def record() -> TrainingRecord:
    """Four rows of class 0, two of class 1."""
    X = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.7, 0.1], [0.0, 1.0], [0.1, 0.9]])
    found = train(X, [0, 0, 0, 0, 1, 1], l2=0.1, max_norm=2.0).record
    assert found is not None
    return found


def noted(
    forget: Rows,
    surrogate: Rows,
    record: TrainingRecord,
    distance: Distance = SAME,
    labelled: bool = True,
    force: bool = False,
) -> Any:
    return survey_notes(
        forget, surrogate, survey(forget, surrogate, 2), record, distance, has_labels=labelled, force=force
    )


def test_what_is_odd_is_remarked_on(record: TrainingRecord) -> None:
    forget, surrogate = rows([[1, 0], [1, 0], [0, 1]], [0, 0, 1]), rows([[0, 1], [0.5, 0.5]], [0, 0])
    unknown = replace(record, class_counts=None)
    assert noted(forget, surrogate, unknown) == (
        "1 of 3 forget rows are repeats of another; each was counted as one training row",
        "the surrogate has no rows of class 1",
        "1 of 3 forget rows are also in the surrogate; it should hold none of them",
    )
    assert noted(rows([[1, 0]], [0]), rows([[0, 1], [0.5, 0.5]], [0, 1]), record) == ()
    assert noted(rows([[1, 0]], [0]), rows([[0, 1], [0.5, 0.5]], [0, 0]), record, labelled=False) == ()


def test_a_class_that_the_declared_distance_says_is_there_is_refused_or_told(record: TrainingRecord) -> None:
    """Of the five rows that are left two are of class 1, and the surrogate has none of them."""
    forget, surrogate = rows([[1, 0]], [0]), rows([[0, 1], [0.5, 0.5]], [0, 0])
    declared = (SAME, Distance("chi2", 1.0), Distance("kl", 1.0), Distance("tv", 0.39), Distance("tv", 0.3, "samples"))
    for distance in declared:
        with pytest.raises(UselessModel, match=r"no row of class 1, of which 2 of 5 retained rows are \(40 %\)"):
            noted(forget, surrogate, record, distance)
        _, counted, said = noted(forget, surrogate, record, distance, force=True)
        assert counted.startswith("FORCED: the surrogate has no row of class 1, of which 2 of 5 retained rows are")
        assert said.startswith("FORCED: the surrogate has no row of class 1, of which rows are retained")
        for note in (counted, said):
            assert note.endswith(f"{distance}, says that such rows are there, so it may be false")
        # whoever reads the statement is told, but not how many rows are left of which class
        assert isinstance(said, PublicNote)
        assert not isinstance(counted, PublicNote)
    # a total variation of two rows in five covers them; a class that goes whole is not retained
    assert noted(forget, surrogate, record, Distance("tv", 0.4)) == ("the surrogate has no rows of class 1",)
    both = rows([[0, 1], [0.1, 0.9]], [1, 1])
    assert "the surrogate has no rows of class 1" in noted(both, surrogate, record)


def test_more_rows_of_a_class_than_there_were_are_refused(record: TrainingRecord) -> None:
    three = rows([[0, 1], [0.1, 0.9], [0.2, 0.8]], [1, 1, 1])
    with pytest.raises(DataError, match="3 rows of class 1 are to be forgotten; the source had 2"):
        noted(three, rows([[1, 0]], [0]), record)
    noted(three, rows([[1, 0]], [0]), replace(record, class_counts=None))


def test_rows_that_cannot_be_the_source_are_refused(record: TrainingRecord) -> None:
    X = [[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.7, 0.1], [0.0, 1.0], [0.1, 0.9]]
    y = [0, 0, 0, 0, 1, 1]
    forget, source = rows(X[:1], y[:1]), rows(X, y)
    assert noted(forget, source, record, SOURCE) == ()
    single = Rows(source.features.float(), source.labels)
    for given, words, labelled in (
        (source, "no labels", False),
        (single, "kept in float32", True),
        (rows(X[:5], y[:5]), "has 5 rows; the source had 6", True),
        (rows(X, [0, 0, 0, 1, 1, 1]), "class counts", True),
        (rows([[0.5, 0.5], *X[1:]], y), "1 of 1 forget rows are not among", True),
    ):
        with pytest.raises(DataError, match=words):
            noted(forget, given, record, SOURCE, labelled)


def test_a_class_that_goes_whole_is_told(record: TrainingRecord) -> None:
    forget, surrogate = rows([[0, 1], [0.1, 0.9], [1, 0]], [1, 1, 0]), rows([[0, 1], [0.5, 0.5]], [1, 1])
    seen = survey(forget, surrogate, 2)
    (note,) = class_notes(forget, seen, record, None, SAME, has_labels=True)
    gone = "every row of class 1 is forgotten (2); the model keeps its weights for that class"
    assert note.startswith(f"{gone}; its 2 surrogate rows stay, so the distance must be")
    # where they do not stay, or nobody can tell which they are, nothing is said of them
    for distance, labelled in ((SOURCE, True), (replace(SAME, matched=True), True), (SAME, False)):
        assert class_notes(forget, seen, record, None, distance, has_labels=labelled) == (gone,)
    none_left = survey(forget, rows([[1, 0]], [0]), 2)
    assert class_notes(forget, none_left, record, None, SAME, has_labels=True) == (gone,)
    unknown = replace(record, class_counts=None)
    assert class_notes(forget, seen, unknown, None, SAME, has_labels=True) == ()
    (note,) = class_notes(forget, seen, unknown, 1, SAME, has_labels=True)
    assert "was not checked" in note
