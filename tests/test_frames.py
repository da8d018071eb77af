"""Every frame is prepared where the model's record has a table: by every entry point, whatever the frame, with its label
column or without; the reference is the same rows prepared by hand and given as plain arrays."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

import expunge
from expunge.deposit.make import make_deposit
from expunge.deposit.membership import answers
from expunge.deposit.verify import verify_deposits
from expunge.desk import Policy, accept, create_desk
from expunge.distance import Estimation
from expunge.errors import DataError, FileError
from expunge.estimate.comparison import compare
from expunge.evaluate import Splits, make_case
from expunge.evaluate.metrics import describe_fit, score_model
from expunge.evaluate.plan import plan, plan_deposit
from expunge.mechanism import Unlearned
from expunge.model import LinearModel
from expunge.rows.columns import match_record
from expunge.rows.preparation import Preparation
from expunge.rows.tables import frame_table

N, LABEL = 240, "pays"
SOURCE, FORGET, TEST = slice(0, N), slice(0, 2), slice(N, N + 160)
FEW = Estimation(steps=20, chains=100, epochs=3, seed=1)


@cache
def people() -> pd.DataFrame:
    """Numbers alone: what they become is called as they are."""
    rng = np.random.default_rng(0)
    age, income = rng.normal(40.0, 12.0, N + 160), rng.normal(52_000.0, 9_000.0, N + 160)
    pays = (age / 12.0 + income / 9_000.0 + rng.logistic(size=N + 160) > 9.1).astype(int)
    return pd.DataFrame({"income": income, "age": age, LABEL: pays})


@cache
def trained() -> LinearModel:
    return expunge.train(people()[SOURCE], label=LABEL)


@cache
def kept() -> expunge.Deposit:
    return expunge.deposit(trained(), *by_hand(SOURCE), seed=1)


def by_hand(part: slice) -> tuple[np.ndarray, np.ndarray]:
    """The reference: an array of what training made of the columns, and the labels."""
    record = trained().record
    assert record is not None
    assert record.table is not None
    frame = people()[part]
    return Preparation.of(record.table).features(frame_table(frame, "it")), frame[LABEL].to_numpy()


KINDS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "polars": lambda frame: pl.DataFrame({name: frame[name].to_numpy() for name in frame}),
    "arrow": lambda frame: pa.table({name: frame[name].to_numpy() for name in frame}),
    "dict": lambda frame: {name: frame[name].to_numpy() for name in frame},
}
# with its label column and nothing beside it; with both; without its label column, the labels beside it
LABELS: dict[str, Callable[[Any, pd.DataFrame], Any]] = {
    "label in it": lambda kind, frame: kind(frame),
    "label in it and beside": lambda kind, frame: (kind(frame), frame[LABEL].to_numpy()),
    "label beside": lambda kind, frame: (kind(frame.drop(columns=LABEL)), frame[LABEL].to_numpy()),
    "another order": lambda kind, frame: (kind(frame[["age", "income"]]), frame[LABEL].to_numpy()),
}
Given = Callable[[slice], Any]  # of a part: a frame, or (frame, labels)


def both(given: Any) -> tuple[Any, Any]:
    return given if isinstance(given, tuple) else (given, None)


def alone(given: Any) -> Any:
    return both(given)[0]


def told(made: Unlearned) -> Any:
    """What depends on the rows: the published weights under a fixed seed, and the bound."""
    return made.model.matrix().tolist(), made.certificate.total, made.certificate.terms


PROMISE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-3, "insecure_test_seed": 7, "force": True}


def desk_results(rows: Given) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        policy = Policy(epsilon=1.0, delta=1e-3, distance="same", planned=2, force=True)
        desk = create_desk(Path(folder) / "desk", trained(), rows(TEST), policy, noise=1e-3)
        asked = accept(desk, *both(rows(FORGET)), "a case").request.id
        stored = desk.rows_in(desk.layout.rows_of(asked))
        surrogate = np.load(desk.layout.surrogate)["X"]
        return stored[0].tolist(), np.asarray(stored[1]).tolist(), surrogate.tolist()


def streamed(rows: Given, part: slice) -> Any:
    step = max(1, (part.stop - part.start) // 4)
    return expunge.stream(lambda: (rows(slice(at, at + step)) for at in range(part.start, part.stop, step)))


def parts_of(rows: Given) -> Any:
    case = make_case(Splits(rows(slice(2, N)), rows(FORGET), rows(TEST), rows(TEST)), trained=trained())
    return {name: (each.features.tolist(), each.labels.tolist()) for name, each in case.rows.items()}


def shown(rows: Given) -> Any:
    made = expunge.unlearn(trained(), by_hand(FORGET), epsilon=1.0, delta=1e-3, deposit=kept(), force=True)
    return len(verify_deposits(made.certificate, made.deposit, kept(), rows(FORGET)))


def compared(rows: Given) -> Any:
    record = trained().record
    assert record is not None
    found = compare(
        trained(), rows(TEST), record=record, wanted=FEW, forget=rows(FORGET), reference=rows(slice(100, 200))
    )
    return repr(found.lines)


def without_notes(made: Any) -> Any:
    """Arrays name no columns, and that is noted."""
    return replace(made, notes=())


ENTRIES: dict[str, Callable[[Given], Any]] = {
    "predict": lambda rows: trained().predict(alone(rows(TEST))).tolist(),
    "predict_proba": lambda rows: trained().predict_proba(alone(rows(TEST))).tolist(),
    "score": lambda rows: trained().score(*both(rows(TEST))),
    "score_model": lambda rows: score_model(trained(), rows(TEST)),
    "describe_fit": lambda rows: describe_fit(trained(), rows(SOURCE)),
    "forget": lambda rows: told(expunge.unlearn(trained(), rows(FORGET), by_hand(TEST), distance="same", **PROMISE)),
    "surrogate": lambda rows: told(expunge.unlearn(trained(), by_hand(FORGET), rows(TEST), distance="same", **PROMISE)),
    "surrogate without labels": lambda rows: told(
        expunge.unlearn(trained(), by_hand(FORGET), alone(rows(TEST)), distance="same", step="newton", **PROMISE)
    )[1:],
    "source": lambda rows: told(
        expunge.unlearn(trained(), by_hand(FORGET), rows(SOURCE), distance="source", **PROMISE)
    ),
    "forget with a deposit": lambda rows: told(expunge.unlearn(trained(), rows(FORGET), deposit=kept(), **PROMISE)),
    "stream to forget": lambda rows: told(
        expunge.unlearn(trained(), streamed(rows, FORGET), deposit=kept(), **PROMISE)
    ),
    "stream of surrogate rows": lambda rows: told(
        expunge.unlearn(trained(), streamed(rows, FORGET), streamed(rows, TEST), distance="same", **PROMISE)
    ),
    "deposit": lambda rows: _sums(expunge.deposit(trained(), *both(rows(SOURCE)), seed=1)),
    "deposit of a stream": lambda rows: _sums(make_deposit(trained(), streamed(rows, SOURCE), seed=1).deposit),
    "member": lambda rows: answers(kept(), rows(slice(0, 5))),
    "verify": shown,
    "make_case": parts_of,
    "plan": lambda rows: without_notes(
        plan(trained(), rows(FORGET), rows(TEST), delta=1e-3, distances=["same"], epsilons=[1.0], insecure_test_seed=1)
    ),
    "plan_deposit": lambda rows: without_notes(
        plan_deposit(kept(), rows(FORGET), delta=1e-3, epsilons=[1.0], test=rows(TEST))
    ),
    "compare": compared,
    "desk": desk_results,
}


def _sums(made: expunge.Deposit) -> Any:
    digests = [each.tolist() for each in made.hashes.digests]
    return made.model.matrix().tolist(), made.sums.curvature.values.tolist(), digests


@cache
def reference(entry: str) -> Any:
    return ENTRIES[entry](by_hand)


# each entry with two kinds of frames, labels in two places; over all entries, each kind with each place
MET = [
    (entry, list(KINDS)[(number + turn) % 4], list(LABELS)[(number // 4 + 2 * turn) % 4])
    for number, entry in enumerate(ENTRIES)
    for turn in (0, 1)
]


@pytest.mark.parametrize(("entry", "kind", "labels"), MET)
def test_every_frame_is_prepared_at_every_entry(entry: str, kind: str, labels: str) -> None:
    def rows(part: slice) -> Any:
        return LABELS[labels](KINDS[kind], people()[part])

    assert ENTRIES[entry](rows) == reference(entry)


def test_columns_that_were_read_as_they_are_are_refused(tmp_path: Path) -> None:
    """A file read without the model's preparation, and a folder of Parquet files, which nothing prepares."""
    frame, record = people()[TEST], trained().record
    assert record is not None
    (tmp_path / "many").mkdir()
    for path in (tmp_path / "rows.parquet", tmp_path / "many" / "rows.parquet"):
        pa.parquet.write_table(pa.table(KINDS["arrow"](frame)), path)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    raw = [expunge.read_data(tmp_path / f"rows.{ending}", LABEL) for ending in ("csv", "parquet")]
    raw += [expunge.open_data(tmp_path / "rows.parquet", LABEL, stream=True)]
    raw += [expunge.open_data(tmp_path / "many", LABEL, preparation=record.table)]
    for rows in raw:
        with pytest.raises(DataError, match="columns of a table as they are"):
            expunge.unlearn(trained(), by_hand(FORGET), rows, distance="same", **PROMISE)
    with pytest.raises(DataError, match="columns of a table as they are"):
        trained().predict(raw[0])
    read = expunge.read_data(tmp_path / "rows.csv", LABEL, preparation=record.table)
    assert trained().predict_proba(read) == pytest.approx(trained().predict_proba(by_hand(TEST)[0]), abs=1e-12)


def test_frames_of_features_under_their_names_are_no_table() -> None:
    """Of a table with words a prepared frame has other columns than the table: it is refused, not guessed at."""
    frame = people()[SOURCE].assign(town=np.where(np.arange(N) % 3 == 0, "A", "B"))
    model = expunge.train(frame, label=LABEL)
    assert model.record is not None
    made = match_record(frame, model.record, model.n_features, "it")
    named = pd.DataFrame(made[0], columns=list(model.record.features or ()))
    with pytest.raises(FileError, match="no column 'town'"):
        model.predict(named)
    assert (model.predict(made[0]) == model.predict(frame)).all()


def test_a_stream_s_frames_are_matched_by_name_without_a_preparation_too() -> None:
    X, y = by_hand(SOURCE)
    frame = pd.DataFrame(X, columns=["income", "age"])
    model = expunge.train(frame, y, l2=0.01, max_norm=9.0, prepare="none")
    rows = {
        "one": lambda: iter([(frame[:2], y[:2])]),
        "other": lambda: iter([(frame[["age", "income"]][:2], y[:2])]),
    }
    made = [
        told(expunge.unlearn(model, expunge.stream(blocks), (X[2:], y[2:]), distance="same", **PROMISE))
        for blocks in rows.values()
    ]
    assert made[0] == made[1]


def test_a_dict_that_is_no_table_is_refused() -> None:
    assert trained().predict({"age": (20.0, 60.0), "income": [52_000, 52_000]}).tolist() == [0, 1]
    with pytest.raises(DataError, match="columns that make no table"):
        trained().predict({"age": [1.0, 2.0], "income": [1.0]})
    with pytest.raises(DataError, match="columns that make no table"):
        trained().predict({"age": [1.0, "a"], "income": [1.0, 2.0]})
