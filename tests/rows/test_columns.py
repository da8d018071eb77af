"""Columns are matched by name, in every file and frame, at every step: the right result or a refusal, never a silent one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import expunge
from expunge.desk import Policy, accept, create_desk
from expunge.errors import DataError, ExpungeError, FileError
from expunge.evaluate.case import Splits, make_case
from expunge.evaluate.plan import plan
from expunge.model import LinearModel
from expunge.rows import names_of, open_data, order_columns, read_data
from expunge.runtime.arrays import equal, to_numpy
from expunge.train import train

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ("age", "hours", "debt", "rent")
SHUFFLED = ("rent", "age", "debt", "hours")
UNLEARN = {"epsilon": 5.0, "delta": 1e-3, "distance": "same", "insecure_test_seed": 1, "force": True}
Rows = tuple[np.ndarray, np.ndarray]
Maker = Callable[[pd.DataFrame, np.ndarray, Path], Any]


def rows(count: int, seed: int) -> Rows:
    """Three classes in four columns of unlike spread, so that a column in another's place changes every number."""
    labels = np.arange(count) % 3
    noise = np.random.default_rng(seed).normal(size=(count, 4)) * np.array([0.3, 0.1, 0.05, 0.2])
    features = np.eye(3, 4)[labels] * np.array([1.0, 0.7, 0.4, 0.0]) + noise
    return features / (2.0 * np.linalg.norm(features, axis=1).max()), labels


SOURCE, SURROGATE, TEST = rows(240, 1), rows(300, 2), rows(60, 3)
FORGET = (SOURCE[0][:3], SOURCE[1][:3])


def as_csv(frame: pd.DataFrame, labels: np.ndarray, folder: Path) -> Any:
    frame.assign(y=labels).to_csv(folder / "rows.csv", index=False)
    return read_data(folder / "rows.csv")


def as_parquet(frame: pd.DataFrame, labels: np.ndarray, folder: Path) -> Any:
    frame.assign(y=labels).to_parquet(folder / "rows.parquet", index=False)
    return read_data(folder / "rows.parquet")


def as_stream(frame: pd.DataFrame, labels: np.ndarray, folder: Path) -> Any:
    frame.assign(y=labels).to_parquet(folder / "rows.parquet", index=False)
    return open_data(folder / "rows.parquet", stream=True)


def as_pandas(frame: pd.DataFrame, labels: np.ndarray, folder: Path) -> Any:
    return frame, labels


IN_MEMORY: dict[str, Maker] = {"csv": as_csv, "pandas": as_pandas}
MAKERS = {**IN_MEMORY, "parquet": as_parquet, "stream": as_stream}


def framed(part: Rows) -> pd.DataFrame:
    return pd.DataFrame(part[0], columns=list(NAMES))


def shuffled(part: Rows) -> pd.DataFrame:
    return framed(part)[list(SHUFFLED)]


# What is wrong with a frame, and what the refusal must say
WRONG: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "missing": (lambda frame: frame.drop(columns="debt"), "no column 'debt'"),
    "extra": (lambda frame: frame.assign(shoe=1.0), "extra column 'shoe'"),
    "renamed": (lambda frame: frame.rename(columns={"debt": "Debt"}), "no column 'debt' and extra column 'Debt'"),
    "index": (lambda frame: frame.reset_index(names="Unnamed: 0"), "'Unnamed: 0', which looks like the row numbers"),
    "unnamed": (lambda frame: frame.reset_index(names=""), "'', which looks like the row numbers"),
    "level": (lambda frame: frame.reset_index(names="__index_level_0__"), "which looks like the row numbers"),
}
kinds = pytest.mark.parametrize("kind", sorted(MAKERS))
in_memory = pytest.mark.parametrize("kind", sorted(IN_MEMORY))
wrong = pytest.mark.parametrize("mistake", sorted(WRONG))


@pytest.fixture(scope="module")
def model() -> LinearModel:
    return train(framed(SOURCE), SOURCE[1], l2=0.05, max_norm=1.0)


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str, pd.DataFrame, np.ndarray], Any]:
    made = iter(range(100))

    def maker(kind: str, frame: pd.DataFrame, labels: np.ndarray) -> Any:
        folder = tmp_path / str(next(made))
        folder.mkdir()
        return MAKERS[kind](frame, labels, folder)

    return maker


def told(mistake: str) -> str:
    return WRONG[mistake][1].replace("'", ".")


# Training ----------------------------------------------------------------------------------------------------------


@in_memory
def test_trained_on_shuffled_columns_a_model_is_the_same_under_their_names(
    kind: str, make: Any, model: LinearModel
) -> None:
    given = make(kind, shuffled(SOURCE), SOURCE[1])
    other = train(*given, l2=0.05, max_norm=1.0, feature_names=names_of(given))
    assert other.record is not None
    assert other.record.features == SHUFFLED
    places = [SHUFFLED.index(name) for name in NAMES]
    assert np.allclose(to_numpy(other.weight[:, places]), to_numpy(model.weight), atol=1e-10)
    assert np.array_equal(other.predict(framed(TEST)), model.predict(framed(TEST)))
    assert np.array_equal(model.predict(shuffled(TEST)), model.predict(TEST[0]))
    ours = expunge.unlearn(model, (framed(FORGET), FORGET[1]), SURROGATE, **UNLEARN).certificate
    theirs = expunge.unlearn(other, (framed(FORGET), FORGET[1]), (framed(SURROGATE), SURROGATE[1]), **UNLEARN)
    assert theirs.certificate.total == pytest.approx(ours.total, rel=1e-6)


@in_memory
@pytest.mark.parametrize("mistake", ["index", "unnamed", "level"])
def test_row_numbers_are_not_trained_on(kind: str, mistake: str, make: Any) -> None:
    given = make(kind, WRONG[mistake][0](framed(SOURCE)), SOURCE[1])
    with pytest.raises(DataError, match="row numbers that pandas writes"):
        train(*given, l2=0.05, max_norm=1.0, feature_names=names_of(given))


# Unlearning ----------------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("which", ["forget", "both"])
def test_shuffled_columns_are_put_right(kind: str, which: str, make: Any, model: LinearModel) -> None:
    straight = expunge.unlearn(model, (framed(FORGET), FORGET[1]), (framed(SURROGATE), SURROGATE[1]), **UNLEARN)
    forget = make(kind, (framed if which == "surrogate" else shuffled)(FORGET), FORGET[1])
    surrogate = make(kind, (framed if which == "forget" else shuffled)(SURROGATE), SURROGATE[1])
    found = expunge.unlearn(model, forget, surrogate, **UNLEARN)
    ours, theirs = (result.certificate.content["bound"]["inputs"] for result in (straight, found))
    for name, fact in ours.items():
        assert theirs[name]["value"] == pytest.approx(fact["value"], rel=1e-6, abs=1e-12), name
    assert np.allclose(to_numpy(found.model.weight), to_numpy(straight.model.weight), rtol=1e-6)
    assert not any("position" in note for note in found.certificate.content["notes"])
    assert found.model.record is not None
    assert found.model.record.features == NAMES


@pytest.mark.parametrize("kind", ["csv", "stream"])
@wrong
@pytest.mark.parametrize("which", ["forget", "surrogate"])
def test_wrong_columns_are_refused_by_name(kind: str, which: str, mistake: str, make: Any, model: LinearModel) -> None:
    spoil = WRONG[mistake][0]
    part = FORGET if which == "forget" else SURROGATE
    spoiled = make(kind, spoil(framed(part)), part[1])
    good = (framed(SURROGATE), SURROGATE[1]) if which == "forget" else (framed(FORGET), FORGET[1])
    sets = (spoiled, good) if which == "forget" else (good, spoiled)
    with pytest.raises(DataError, match=told(mistake)) as raised:
        expunge.unlearn(model, *sets, **UNLEARN)
    assert f"the {which} set" in str(raised.value)


def test_a_record_without_names_says_that_names_were_not_compared(make: Any) -> None:
    bare = train(*SOURCE, l2=0.05, max_norm=1.0)
    assert bare.record is not None
    assert json.loads(bare.record.to_json())["schema"] == "expunge/record/1"
    forget, surrogate = make("csv", framed(FORGET), FORGET[1]), make("csv", framed(SURROGATE), SURROGATE[1])
    notes = expunge.unlearn(bare, forget, surrogate, **UNLEARN).certificate.content["notes"]
    assert "the model's record names no columns; those of the rows were matched to it by position" in notes
    with pytest.raises(DataError, match="in another order"):
        expunge.unlearn(bare, make("csv", shuffled(FORGET), FORGET[1]), surrogate, **UNLEARN)
    numbered = framed(FORGET).reset_index(names="")
    with pytest.raises(DataError, match="row numbers"):
        expunge.unlearn(bare, make("csv", numbered, FORGET[1]), surrogate, **UNLEARN)


# Planning, estimating, evaluating ------------------------------------------------------------------------------------


@kinds
def test_a_plan_is_the_same_for_shuffled_columns(kind: str, make: Any, model: LinearModel) -> None:
    options = {"delta": 1e-3, "epsilons": (1.0,), "distances": ("same",), "insecure_test_seed": 1}
    straight = plan(model, (framed(FORGET), FORGET[1]), (framed(SURROGATE), SURROGATE[1]), **options)
    found = plan(
        model, make(kind, shuffled(FORGET), FORGET[1]), make(kind, shuffled(SURROGATE), SURROGATE[1]), **options
    )
    assert found.outlooks[0].total == pytest.approx(straight.outlooks[0].total, rel=1e-9)
    assert found.accuracy_before == straight.accuracy_before
    with pytest.raises(DataError, match="no column"):
        plan(model, make(kind, framed(FORGET).drop(columns="age"), FORGET[1]), SURROGATE, **options)


@in_memory
def test_an_evaluation_compares_columns_by_name(kind: str, make: Any, model: LinearModel) -> None:
    retain = (SOURCE[0][3:], SOURCE[1][3:])
    parts = {"retain": retain, "forget": FORGET, "test": TEST, "surrogate": SURROGATE}
    straight = make_case(Splits(**parts), trained=model)
    orders = dict(zip(parts, (framed, shuffled, shuffled, shuffled), strict=True))
    given = {name: make(kind, orders[name](part), part[1]) for name, part in parts.items()}
    found = make_case(Splits(**given), trained=model)
    for name, expected in straight.rows.items():
        assert equal(found.rows[name].features, expected.features), name
    given["test"] = make(kind, framed(TEST).rename(columns={"age": "Age"}), TEST[1])
    with pytest.raises(DataError, match="the test set has no column 'age'"):
        make_case(Splits(**given), trained=model)
    # without a model they are trained on, in the order of the retain set
    given["test"] = make(kind, shuffled(TEST), TEST[1])
    anew = make_case(Splits(**given), l2=0.05, max_norm=1.0)
    assert anew.record.features == NAMES
    assert np.allclose(to_numpy(anew.weights), to_numpy(model.matrix()), atol=1e-10)
    bare = train(*SOURCE, l2=0.05, max_norm=1.0)
    with pytest.raises(DataError, match="nobody can say which are right"):
        make_case(Splits(**given), trained=bare)


# The desk ------------------------------------------------------------------------------------------------------------


POLICY = Policy(epsilon=5.0, delta=1e-3, distance="same", planned=3, force=True)


@in_memory
def test_a_desk_keeps_rows_in_the_model_s_order(kind: str, make: Any, model: LinearModel, tmp_path: Path) -> None:
    desk = create_desk(tmp_path / "desk", model, make(kind, shuffled(SURROGATE), SURROGATE[1]), POLICY)
    assert np.array_equal(desk.rows_in(desk.layout.surrogate)[0], SURROGATE[0])
    given = make(kind, shuffled(FORGET), FORGET[1])
    first = accept(desk, *given, "case-1", feature_names=names_of(given))
    assert first.new
    assert np.array_equal(desk.rows_in(desk.layout.rows_of(first.request.id))[0], FORGET[0])
    assert names_of(desk.rows_in(desk.layout.rows_of(first.request.id))) == NAMES
    again = make(kind, framed(FORGET), FORGET[1])
    assert not accept(desk, *again, "case-1", feature_names=names_of(again)).new
    assert accept(desk, *FORGET, "case-3").request.state == "aside", "the same rows, for somebody else"


def test_a_desk_without_names_refuses_requests_that_disagree(tmp_path: Path) -> None:
    bare = train(*SOURCE, l2=0.05, max_norm=1.0)
    desk = create_desk(tmp_path / "desk", bare, (framed(SURROGATE), SURROGATE[1]), POLICY)
    accept(desk, shuffled(FORGET), FORGET[1], "case-1")
    outcome = expunge.desk.run(desk)
    assert not outcome.published
    assert isinstance(outcome.refused, ExpungeError)
    assert "in another order" in str(outcome.refused)


def test_what_names_no_columns_is_matched_by_position_and_said_once(model: LinearModel, tmp_path: Path) -> None:
    np.savez(tmp_path / "bare.npz", X=SURROGATE[0], y=SURROGATE[1])
    bare = read_data(tmp_path / "bare.npz")
    notes = expunge.unlearn(model, FORGET, bare, **UNLEARN).certificate.content["notes"]
    said = "the forget set and the surrogate set: columns are matched by position: these files name none"
    assert [note for note in notes if "position" in note] == [said]
    notes = expunge.unlearn(model, (framed(FORGET), FORGET[1]), bare, **UNLEARN).certificate.content["notes"]
    said = "the surrogate set: columns are matched by position: this file names none"
    assert [note for note in notes if "position" in note] == [said]


SMALL = (np.arange(12.0).reshape(3, 4), np.array([0, 1, 0]))


def test_an_npz_may_name_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "named.npz"
    np.savez(file, X=shuffled(SMALL).to_numpy(), y=SMALL[1], feature_names=np.array(SHUFFLED))
    read = read_data(file)
    assert names_of(read) == SHUFFLED
    assert np.array_equal(order_columns(read, NAMES, 4, "it")[0], SMALL[0])
    streamed = open_data(file, stream=True)
    assert names_of(streamed) == SHUFFLED
    for names in (np.array(SHUFFLED[:3]), np.arange(4), np.array(["a", "b", "c", "a"])):
        np.savez(file, X=SMALL[0], y=SMALL[1], feature_names=names)
        with pytest.raises(FileError):
            read_data(file)
