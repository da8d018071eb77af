"""Requests with a deposit, checked at the door."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expunge
from deposit_problems import made
from expunge.bounds.calibration import POLICY, Scale
from expunge.deposit.membership import as_given
from expunge.desk import Policy, create_desk
from expunge.door import ask, require_its_model
from expunge.errors import DataError, ModelError, OptionError
from expunge.model import LinearModel
from expunge.request.promise import Declared, Execution, Promise, require_none_with_deposit
from expunge.runtime.group import Group
from expunge.unlearn import unlearn
from small_deposit import kept, rows, source, trained

pytestmark = pytest.mark.usefixtures("one_thread")
PROMISE = Promise(1.0, 1e-3)


def test_rows_that_were_never_there_or_not_so_often_are_refused() -> None:
    features, labels = rows(1, 2)
    with pytest.raises(DataError, match=r"1 of 2 rows \(row 2\)"):
        ask(None, (features + np.array([[0.0], [0.5]]), labels), None, PROMISE, deposit=kept().deposit)
    with pytest.raises(DataError, match="1 of 2 rows"):
        ask(None, rows(1, 1), None, PROMISE, deposit=kept().deposit)
    assert len(ask(None, rows(0, 0), None, PROMISE, deposit=kept().deposit).forget) == 2
    with pytest.raises(DataError, match="no labels"):
        ask(None, (features, None), None, PROMISE, deposit=kept().deposit)
    with pytest.raises(DataError, match="at least one row must be retained"):
        ask(None, source(), None, PROMISE, deposit=kept().deposit)


def test_copies_and_earlier_deletions_are_noted() -> None:
    features, labels = rows(1, 2)
    request = ask(None, (features.astype(np.float32), labels), None, PROMISE, deposit=kept().deposit)
    assert any("2 rows are copies" in note for note in request.notes)
    first = unlearn(trained(), rows(1), epsilon=1.0, delta=1e-3, deposit=kept().deposit)
    later = ask(None, rows(2, 3), None, PROMISE, deposit=first.deposit)
    assert any("1 rows had left the deposit before, in 1 deletion;" in note for note in later.notes)
    assert later.n_forget == 3


def test_the_model_must_be_the_deposit_s() -> None:
    record = trained().record
    assert record is not None
    assert record.class_counts is not None
    more, *rest = record.class_counts
    for model in (
        LinearModel(trained().weight),
        LinearModel(trained().weight[:, :3], trained().bias),
        replace(trained(), record=replace(record, l2=0.02)),
        replace(trained(), record=replace(record, classes=("a", "b", "c"))),
        replace(trained(), record=replace(record, n_source=record.n_source + 1)),
        replace(trained(), record=replace(record, class_counts=(more + 1, rest[0] - 1, *rest[1:]))),
    ):
        with pytest.raises(ModelError, match="deposit"):
            require_its_model(model, kept().deposit)
    require_its_model(LinearModel(trained().weight, trained().bias), kept().deposit)
    result = unlearn(trained(), rows(1), epsilon=1.0, delta=1e-3, deposit=kept().deposit)
    require_its_model(result.model, result.deposit)
    require_its_model(trained(), result.deposit)


def test_a_deposit_from_before_a_published_model_would_bring_the_forgotten_back() -> None:
    result = unlearn(trained(), rows(1), epsilon=1.0, delta=1e-3, deposit=kept().deposit)
    with pytest.raises(ModelError, match="whoever was forgotten would be back"):
        unlearn(result.model, rows(2), epsilon=1.0, delta=1e-3, deposit=kept().deposit)
    assert (
        unlearn(result.model, rows(2), epsilon=1.0, delta=1e-3, deposit=result.deposit).deposit.numbers.forgotten == 2
    )


def test_what_does_not_go_with_a_deposit_is_refused() -> None:
    assert Promise(1.0, 1e-3, noise=0.25).noise == Scale(POLICY, 0.25)
    with pytest.raises(OptionError, match="as for 10 rows"):
        ask(None, rows(1), None, Promise(1.0, 1e-3, noise="rows:10"), deposit=kept().deposit)
    for beside in ({"surrogate": source()}, {"distance": "same"}, {"surrogate": source(), "distance": "same"}):
        with pytest.raises(OptionError, match=r"status would say whether they had.*leave the deposit out"):
            unlearn(trained(), rows(1), epsilon=1.0, delta=1e-3, deposit=kept().deposit, **beside)
    with pytest.raises(OptionError, match="--match-classes"):
        require_none_with_deposit({"surrogate": None, "match_classes": True})
    with pytest.raises(OptionError, match="2 processes"):
        ask(None, rows(1), None, PROMISE, deposit=kept().deposit, execution=Execution(group=Group(0, 2)))


UNFIT: dict[str, Any] = {
    "step": "newton", "bound": "paper", "constants": "derived", "sizes": "surrogate", "dtype": "float32",
    "n_source": 7, "l2": 99.0, "loss": "softmax", "max_norm": 1.0, "training_residual": 0.0, "classes": [0, 1, 2],
    "class_counts": [1, 2, 3], "curvature": 0.25,
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT)
def test_what_a_deposit_decides_by_itself_is_refused_in_python_as_on_the_command_line(name: str) -> None:
    with pytest.raises(OptionError, match=f"--{name.replace('_', '-')} with a deposit"):
        unlearn(trained(), rows(1), epsilon=1.0, delta=1e-3, deposit=kept().deposit, **{name: UNFIT[name]})


def test_a_deposit_s_bound_is_chosen_by_the_deposit_alone() -> None:
    """Named by hand it let everything else pass unread: a distance without rows, noise as for ten rows."""
    with pytest.raises(OptionError, match="--bound with a deposit"):
        unlearn(trained(), rows(1), epsilon=1.0, delta=1e-3, deposit=kept().deposit, bound="deposit")


def test_every_parameter_of_unlearn_goes_with_a_deposit_or_is_refused() -> None:
    """A new parameter has to be put on one of these lists."""
    fit = {"model", "forget", "surrogate", "epsilon", "delta", "distance", "deposit", "match_classes"}
    fit |= {"force", "noise", "bias", "device", "memory", "progress", "model_sha256", "insecure_test_seed"}
    assert fit | set(UNFIT) == set(inspect.signature(unlearn).parameters)
    with pytest.raises(OptionError, match="a bias beside a LinearModel"):
        unlearn(trained(), rows(1), epsilon=1.0, delta=1e-3, deposit=kept().deposit, bias=[0.0, 0.0, 0.0])
    with pytest.raises(OptionError, match="a bias beside a LinearModel"):
        unlearn(trained(), rows(1), rows(2), epsilon=1.0, delta=1e-3, distance="same", bias=[0.0, 0.0, 0.0])
    with pytest.raises(ModelError, match="a model of 2 x 9 weights"):
        unlearn(np.ones((2, 9)), rows(1), epsilon=1.0, delta=1e-3, deposit=kept().deposit)


def test_a_desk_with_a_deposit_refuses_what_it_decides_by_itself(tmp_path: Path) -> None:
    policy = Policy(1.0, 1e-3, "deposit")
    for change in ({"noise": "rows:10"}, {"declared": Declared(l2=99.0)}):
        with pytest.raises(OptionError, match="with a deposit"):
            create_desk(tmp_path / "desk", None, None, policy, deposit=kept().deposit, **change)
    for own in ({"step": "balanced"}, {"match_classes": True}, {"between": "samples"}, {"sampling": "seen"}):
        with pytest.raises(OptionError, match="with a deposit"):
            create_desk(tmp_path / "desk", None, None, replace(policy, **own), deposit=kept().deposit)


def test_copies_are_noted_in_the_dossier_alone() -> None:
    case = made("softmax", n=400)
    narrow, decimals = case.X[:2].astype(np.float32), np.round(case.X[2:3], 6)
    rows = np.concatenate([narrow.astype(float), decimals, case.X[3:4]])
    request = ask(None, (rows, case.y[:4]), None, PROMISE, deposit=case.deposit)
    assert any("3 rows are copies of source rows (2 to float32, 1 to six decimals)" in note for note in request.notes)
    result = unlearn(case.model, (rows, case.y[:4]), epsilon=1.0, delta=1e-5, deposit=case.deposit, force=True)
    assert any("copies" in note for note in result.certificate.content["notes"])
    assert not any("copies" in note for note in result.statement.content["notes"])
    plain = ask(None, (case.X[:2], case.y[:2]), None, PROMISE, deposit=case.deposit)
    assert not any("copies" in note for note in plain.notes)


def test_rows_are_hashed_in_the_order_of_the_model_s_columns() -> None:
    import pandas

    case = made("softmax")
    record = replace(case.deposit.record, features=("a", "b", "c"))
    named = replace(case.deposit, model=case.deposit.model.with_record(record))
    frame = pandas.DataFrame({"c": case.X[:2, 2], "a": case.X[:2, 0], "b": case.X[:2, 1]})
    features, labels = as_given((frame, case.y[:2]), named)
    assert np.asarray(features).tolist() == case.X[:2].tolist()
    assert list(labels) == case.y[:2].tolist()
    request = ask(None, (frame, case.y[:2]), None, PROMISE, deposit=named)
    assert request.membership.missing == []


def test_a_class_that_only_the_forgotten_were_of_is_said_to_be_seen() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)), np.append(np.arange(59) % 2, 2)
    model = expunge.train(X, y, l2=0.1, max_norm=5.0, loss="ridge")
    whole = expunge.deposit(model, X, y, seed=0)
    told = [
        expunge.unlearn(model, (X[who], y[who]), epsilon=1.0, delta=1e-3, deposit=whole).statement.content["notes"]
        for who in (slice(0, 1), slice(59, 60))
    ]
    assert told[0] == []
    assert told[1][0].startswith("no retained row is of class 2, which the model still names")
