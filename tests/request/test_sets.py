"""Rows as they are given: what is refused, what is left out, what is remarked on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import expunge
from asking import asked
from class_shift import shifted_problem
from expunge import train, unlearn
from expunge.certificate.claim import PublicNote
from expunge.desk import Policy, accept, create_desk
from expunge.distance import Distance
from expunge.errors import DataError, OptionError, UselessModel
from expunge.evaluate.plan import plan
from expunge.heads import Rows
from expunge.heads.rows import scaling_of
from expunge.model import LinearModel
from expunge.record import TrainingRecord
from expunge.request.sets import column_notes, refuse_squashed, survey, survey_notes, weighted_rows
from expunge.rows import EncodedRows
from expunge.runtime.arrays import to_numpy

pytestmark = pytest.mark.usefixtures("one_thread")


def test_matching_needs_labels_and_a_surrogate_that_is_not_the_source() -> None:
    model, X, y, gone, S = shifted_problem(2)
    given = {"epsilon": 1.0, "delta": 0.01, "match_classes": True, "force": True}
    with pytest.raises(DataError, match="no labels"):
        asked(model, (X[gone], y[gone]), S[0], distance="same", **given)
    with pytest.raises(OptionError, match="source's classes are its own"):
        asked(model, (X[gone], y[gone]), (X, y), distance="source", **given)
    few = S[1] < 2
    with pytest.raises(DataError, match="no rows of class 2"):
        asked(model, (X[gone], y[gone]), (S[0][few], S[1][few]), distance="same", **given)


def test_a_class_with_too_few_surrogate_rows_is_refused() -> None:
    """One row that stands for a whole class has no spread: moments over it would say nothing."""
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(2000, 4)) / 3, (np.arange(2000) < 2).astype(int)
    model = train(X, y, l2=0.01, max_norm=1.0, force=True)
    S, sy = rng.normal(size=(401, 4)) / 3, (np.arange(401) > 0).astype(int)
    given = {"epsilon": 1.0, "delta": 1e-4, "match_classes": True, "force": True}
    with pytest.raises(DataError, match="count as few as 1:"):
        asked(model, (X[5:9], y[5:9]), (S, sy), distance="same", **given)
    # 5 rows for 99.9 % of the source: 400 rows, of which 5 count
    with pytest.raises(DataError, match="count as few as 5:"):
        asked(model, (X[5:9], y[5:9]), (S[:400], (np.arange(400) >= 5).astype(int)), distance="chi2:0.1", **given)


def test_rows_of_classes_that_do_not_count_are_left_out_and_noted() -> None:
    model, X, y, gone, S = shifted_problem(3)
    record = model.record
    bare = {"n_source": 600, "l2": 0.05, "loss": "softmax", "max_norm": 1.0, "training_residual": record.residual}
    options = {
        "epsilon": 1.0,
        "delta": 0.01,
        "distance": "same",
        "match_classes": True,
        "force": True,
        "class_counts": (300, 300, 0),
    }
    forget = gone[y[gone] < 2]
    request = asked(to_numpy(model.weight), (X[forget], y[forget]), S, **bare, **options)
    assert len(request.surrogate) == int((S[1] < 2).sum())
    assert any("classes of which nothing is retained were left out" in note for note in request.notes)


def test_more_rows_of_a_class_than_there_were_leave_nothing_to_match_to() -> None:
    model, X, y, _, _ = shifted_problem(3)
    rows, matched = Rows(torch.tensor(X), torch.tensor(y)), Distance("same", 0.0, matched=True)
    with pytest.raises(DataError, match="than the source had"):
        weighted_rows(rows, replace(model.record, class_counts=(301, 300, -1)), matched, True)
    left = replace(model.record, class_counts=(300, 300, 0))
    assert weighted_rows(rows, left, matched, True).largest_weight > 0.0


NAMES = ("a", "b")
BARE = (np.eye(2), np.array([0, 1]))
NAMED, TURNED = EncodedRows(*BARE, None, NAMES), EncodedRows(*BARE, None, NAMES[::-1])


@pytest.fixture(scope="module")
def record() -> TrainingRecord:
    return train(*BARE, l2=0.1, max_norm=1.0, feature_names=NAMES).record


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


CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
LABELS = np.arange(600) % 2
RAW = 40.0 * RNG.normal(size=(600, 5)) + 100.0 * LABELS[:, None]  # a table as it comes: rows some hundreds long
SMALL = RAW / 1000.0
UNLEARN = {"epsilon": 5.0, "delta": 1e-4, "distance": "same"}


def lengths(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_nothing_is_said_of_few_and_more_than_half_are_refused() -> None:
    few, some, most = (scaling_of(lengths(*([3.0] * k), *([0.5] * (100 - k))), 1.0) for k in (1, 2, 51))
    assert refuse_squashed(few, "the set", 1.0, force=False) == ()
    (note,) = refuse_squashed(some, "the set", 1.0, force=False)
    assert note == (
        "the set: 2 of 100 rows (2 %) were longer than the norm bound and were scaled down to it, half of them to 34 % of "
        "their length or less"
    )
    with pytest.raises(UselessModel, match=r"51 of 100 rows .* --max-norm of 3\.1 would scale one row in a hundred"):
        refuse_squashed(most, "the set", 1.0, force=False)
    (note,) = refuse_squashed(most, "the set", 1.0, force=True)
    assert note.startswith("FORCED: the set: 51 of 100 rows")
    # a person whose own rows are long may still ask
    assert len(refuse_squashed(scaling_of(lengths(3.0), 1.0), "the forget set", 1.0, force=False)) == 1


def test_training_on_a_raw_table_is_refused_with_a_bound_that_works() -> None:
    """As it was: a model that names one class, without a word."""
    with pytest.raises(UselessModel, match="the source: 600 of 600 rows") as raised:
        train(RAW, LABELS, l2=1e-3, max_norm=1.0)
    bound = float(raised.value.remedy.split("--max-norm of ")[1].split(" ")[0])
    assert (np.linalg.norm(RAW, axis=1) > bound).mean() <= 0.01
    assert train(RAW, LABELS, l2=1e-3, max_norm=bound).record is not None
    assert train(RAW, LABELS, l2=1e-3, max_norm=1.0, force=True).record is not None


def test_every_later_step_says_or_refuses() -> None:
    model = train(SMALL[:300], LABELS[:300], l2=0.05, max_norm=1.0)
    good, raw = (SMALL[300:], LABELS[300:]), (RAW[300:], LABELS[300:])
    forget = (SMALL[:2], LABELS[:2])
    with pytest.raises(UselessModel, match="the surrogate set: 300 of 300 rows"):
        expunge.unlearn(model, forget, raw, **UNLEARN)
    forced = expunge.unlearn(model, forget, raw, **UNLEARN, force=True).certificate.content["notes"]
    assert any(note.startswith("FORCED: the surrogate set: 300 of 300 rows") for note in forced)
    with pytest.raises(UselessModel, match="the forget set: 30 of 30 rows"):
        expunge.unlearn(model, (RAW[:30], LABELS[:30]), good, **UNLEARN)
    mixed = (np.concatenate([SMALL[300:], RAW[:6]]), np.concatenate([LABELS[300:], LABELS[:6]]))
    notes = expunge.unlearn(model, forget, mixed, **UNLEARN, force=True).certificate.content["notes"]
    assert any(note.startswith("the surrogate set: 6 of 306 rows (1.96 %)") for note in notes)
    planned = plan(model, forget, raw, delta=1e-4, epsilons=(5.0,), distances=("same",))
    assert planned.outlooks[0].refused
    assert any("the surrogate set: 300 of 300 rows" in note for note in planned.notes)


def test_a_desk_that_could_never_run_is_not_opened(tmp_path) -> None:
    model = train(SMALL[:300], LABELS[:300], l2=0.05, max_norm=1.0)
    policy = Policy(epsilon=5.0, delta=0.01, distance="same", planned=2)
    with pytest.raises(UselessModel, match="every run of this desk would be refused"):
        create_desk(tmp_path / "desk", model, (RAW[300:], LABELS[300:]), policy)
    with pytest.raises(UselessModel, match="no row of class 1"):
        create_desk(tmp_path / "desk", model, (SMALL[300::2], LABELS[300::2]), policy)
    assert not (tmp_path / "desk").exists()
    said: list[str] = []
    desk = create_desk(tmp_path / "desk", model, (SMALL[300:], LABELS[300:]), policy, say=said.append)
    noted, cost = said
    assert noted.startswith("delta 0.01 is above 1/n")
    assert cost.startswith("of the surrogate's rows")
    with pytest.raises(UselessModel, match="the rows to forget: 30 of 30 rows"):
        accept(desk, RAW[:30], LABELS[:30], "case-1")


OPTIONS = {"epsilon": 1e5, "delta": 1e-3, "force": True}


def digits() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    keep = labels < 4
    pixels = images[keep] / np.linalg.norm(images[keep], axis=1, keepdims=True)
    return pixels, labels[keep]


X, Y = digits()
SOURCE, REST = slice(0, 500), slice(500, None)


@pytest.fixture(scope="module")
def model() -> LinearModel:
    return train(X[SOURCE], Y[SOURCE], l2=1e-3, max_norm=1)


def test_the_class_is_gone_and_the_others_stay(model: LinearModel) -> None:
    source, gone = (X[SOURCE], Y[SOURCE]), Y[SOURCE] == 0
    result = unlearn(model, (X[SOURCE][gone], Y[SOURCE][gone]), source, distance="source", **OPTIONS)
    retrained = train(X[SOURCE][Y[SOURCE] > 0], Y[SOURCE][Y[SOURCE] > 0], l2=1e-3, max_norm=1)
    answers = result.model.predict(X[REST])
    assert result.model.weight.shape == model.weight.shape
    assert np.mean(answers[Y[REST] == 0] == 0) < 0.1
    others = Y[REST] > 0
    assert (
        np.mean(answers[others] == Y[REST][others])
        >= np.mean(retrained.predict(X[REST][others]) == Y[REST][others]) - 0.02
    )
    assert result.model.record.class_counts is None, "that the class is gone is not told"
    assert result.certificate.content["sizes"]["n_forget"] == int((Y[SOURCE] == 0).sum())


def test_the_certificate_says_what_becomes_of_the_class(model: LinearModel) -> None:
    gone = X[SOURCE][Y[SOURCE] == 2], Y[SOURCE][Y[SOURCE] == 2]
    notes = unlearn(model, gone, (X[REST], Y[REST]), distance="same", **OPTIONS).certificate.content["notes"]
    (note,) = [note for note in notes if "every row of class 2 is forgotten" in note]
    assert f"its {int((Y[REST] == 2).sum())} surrogate rows stay" in note


def test_part_of_a_class_is_no_class(model: LinearModel) -> None:
    notes = unlearn(model, (X[:3], Y[:3]), (X[REST], Y[REST]), distance="same", **OPTIONS).certificate.content["notes"]
    assert not [note for note in notes if "every row" in note]


# Looked over once ----------------------------------------------------------------------------------------------------

SAME, THE_SOURCE, BETWEEN = Distance("same", 0.0), Distance("source", 0.0), Distance("chi2", 0.1, "samples")


def rows(features: Any, labels: Any) -> Rows:
    return Rows(torch.tensor(features, dtype=torch.float64), torch.tensor(labels, dtype=torch.int64))


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_loops_over_rows_find(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of two small whole numbers: many repeats, within a set and across, under labels equal and not; -0 is 0."""
    monkeypatch.setattr("expunge.heads.rows.BLOCK_BYTES", 7 * 2 * 8)
    rng = np.random.default_rng(seed)
    U, S = (rng.integers(-1, 2, (count, 2)) * np.where(rng.random((count, 1)) < 0.5, -1.0, 1.0) for count in (6, 40))
    u, s = rng.integers(0, 3, 6), rng.integers(0, 3, 40)
    found = survey(rows(U, u), rows(S, s), 3, BETWEEN)
    there = Counter((tuple(row + 0.0), int(label)) for row, label in zip(S, s, strict=True))
    asked = Counter((tuple(row + 0.0), int(label)) for row, label in zip(U, u, strict=True))
    assert found.counts == tuple(np.bincount(s, minlength=3))
    assert found.repeated == len(U) - len({tuple(row + 0.0) for row in U})
    assert found.shared == sum(any((row == other).all() for other in S) for row in U)
    assert found.lacking == sum(max(0, count - there[key]) for key, count in asked.items())


@pytest.fixture(scope="module")
def six() -> TrainingRecord:
    """Four rows of class 0, two of class 1."""
    X = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.7, 0.1], [0.0, 1.0], [0.1, 0.9]])
    return train(X, [0, 0, 0, 0, 1, 1], l2=0.1, max_norm=2.0).record


def surveyed(
    forget: Rows,
    surrogate: Rows,
    six: TrainingRecord,
    distance: Distance = SAME,
    labelled: bool = True,
    force: bool = False,
) -> Any:
    seen = survey(forget, surrogate, 2, distance)
    return survey_notes(forget, surrogate, seen, six, distance, has_labels=labelled, force=force)


def test_what_is_odd_is_remarked_on(six: TrainingRecord) -> None:
    forget, surrogate = rows([[1, 0], [1, 0], [0, 1]], [0, 0, 1]), rows([[0, 1], [0.5, 0.5]], [0, 0])
    unknown = replace(six, class_counts=None)
    assert surveyed(forget, surrogate, unknown) == (
        "1 of 3 forget rows are repeats of another; each was counted as one training row",
        "the surrogate has no row of class 1",
        "1 of 3 forget rows are also in the surrogate; it should hold none of them",
    )
    assert surveyed(rows([[1, 0]], [0]), rows([[0, 1], [0.5, 0.5]], [0, 1]), six) == ()
    assert surveyed(rows([[1, 0]], [0]), rows([[0, 1], [0.5, 0.5]], [0, 0]), six, labelled=False) == ()


def test_a_class_that_the_declared_distance_says_is_there_is_refused_or_told(six: TrainingRecord) -> None:
    """Of the five rows that are left two are of class 1, and the surrogate has none of them."""
    forget, surrogate = rows([[1, 0]], [0]), rows([[0, 1], [0.5, 0.5]], [0, 0])
    declared = (SAME, Distance("chi2", 1.0), Distance("kl", 1.0), Distance("tv", 0.39), Distance("tv", 0.3, "samples"))
    for distance in declared:
        with pytest.raises(UselessModel, match=r"no row of class 1, of which 2 of 5 retained rows are \(40 %\)"):
            surveyed(forget, surrogate, six, distance)
        (said,) = surveyed(forget, surrogate, six, distance, force=True)
        assert said.startswith("FORCED: the surrogate has no row of class 1, of which rows are retained")
        assert said.endswith(f"{distance}, says that such rows are there, so it may be false")
        # whoever reads the statement is told, but not how many rows are left of which class
        assert isinstance(said, PublicNote)
    # a total variation of two rows in five covers them; a class that goes whole is not retained
    assert surveyed(forget, surrogate, six, Distance("tv", 0.4)) == ("the surrogate has no row of class 1",)
    both = rows([[0, 1], [0.1, 0.9]], [1, 1])
    assert "the surrogate has no row of class 1" in surveyed(both, surrogate, six)


def test_more_rows_of_a_class_than_there_were_are_refused(six: TrainingRecord) -> None:
    three = rows([[0, 1], [0.1, 0.9], [0.2, 0.8]], [1, 1, 1])
    with pytest.raises(DataError, match="rows of class 1 are to be forgotten, 1 more than the source had"):
        surveyed(three, rows([[1, 0]], [0]), six)
    surveyed(three, rows([[1, 0]], [0]), replace(six, class_counts=None))


def test_rows_that_cannot_be_the_source_are_refused(six: TrainingRecord) -> None:
    X = [[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.7, 0.1], [0.0, 1.0], [0.1, 0.9]]
    y = [0, 0, 0, 0, 1, 1]
    forget, source = rows(X[:1], y[:1]), rows(X, y)
    assert surveyed(forget, source, six, THE_SOURCE) == ()
    single = Rows(source.features.float(), source.labels)
    for given, words, labelled in (
        (source, "no labels", False),
        (single, "kept in float32", True),
        (rows(X[:5], y[:5]), "has 5 rows; the source had 6", True),
        (rows(X, [0, 0, 0, 1, 1, 1]), "class counts", True),
        (rows([[0.5, 0.5], *X[1:]], y), "1 of 1 forget rows are not among", True),
    ):
        with pytest.raises(DataError, match=words):
            surveyed(forget, given, six, THE_SOURCE, labelled)


def test_a_class_that_goes_whole_is_told(six: TrainingRecord) -> None:
    forget, surrogate = rows([[0, 1], [0.1, 0.9], [1, 0]], [1, 1, 0]), rows([[0.2, 1], [0.5, 0.5], [1, 0.2]], [1, 1, 0])
    gone = "every row of class 1 is forgotten (2); the model keeps its weights for that class"
    (note,) = surveyed(forget, surrogate, six)
    assert note.startswith(f"{gone}; its 2 surrogate rows stay, so the distance must be")
    # where they do not stay, or nobody can tell which they are, nothing is said of them
    for distance, labelled in ((replace(SAME, matched=True), True), (SAME, False)):
        assert surveyed(forget, surrogate, six, distance, labelled) == (gone,)
    assert surveyed(forget, surrogate, replace(six, class_counts=None)) == ()
