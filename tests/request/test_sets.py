"""Rows as they are given: what is refused, what is left out, what is remarked on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sklearn.datasets import load_digits

import expunge
from asking import asked
from class_shift import shifted_problem
from expunge import train, unlearn
from expunge.cli import main
from expunge.desk import Policy, accept, create_desk
from expunge.errors import DataError, OptionError, UselessModel
from expunge.evaluate.plan import plan
from expunge.heads import Rows
from expunge.heads.rows import scaling_of
from expunge.model import LinearModel
from expunge.record import TrainingRecord
from expunge.request.sets import column_notes, matched_rows, refuse_squashed
from expunge.rows import EncodedRows
from expunge.rows.features import bound_rows
from expunge.rows.streams import Form, StreamedRows, stream
from expunge.runtime.memory import Memory

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
    with pytest.raises(DataError, match="count as few as 1"):
        asked(model, (X[5:9], y[5:9]), (S, sy), distance="same", **given)
    # 5 rows for 99.9 % of the source: 400 rows, of which 5 count
    with pytest.raises(DataError, match="count as few as 5"):
        asked(model, (X[5:9], y[5:9]), (S[:400], (np.arange(400) >= 5).astype(int)), distance="chi2:0.1", **given)


def test_rows_of_classes_that_do_not_count_are_left_out_and_noted() -> None:
    model, X, y, gone, S = shifted_problem(3)
    assert model.record is not None
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
    request = asked(model.weight.numpy(), (X[forget], y[forget]), S, **bare, **options)
    assert len(request.surrogate) == int((S[1] < 2).sum())
    assert any("classes of which nothing is retained were left out" in note for note in request.notes)


def test_more_rows_of_a_class_than_there_were_leave_nothing_to_match_to() -> None:
    model, X, y, _, _ = shifted_problem(3)
    assert model.record is not None
    rows = Rows(torch.tensor(X), torch.tensor(y))
    with pytest.raises(DataError, match="than the source had"):
        matched_rows(rows, replace(model.record, class_counts=(301, 300, -1)), labelled=True)
    assert matched_rows(rows, replace(model.record, class_counts=(300, 300, 0)), labelled=True).largest_weight > 0.0


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


CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
LABELS = np.arange(600) % 2
RAW = 40.0 * RNG.normal(size=(600, 5)) + 100.0 * LABELS[:, None]  # a table as it comes: rows some hundreds long
SMALL = RAW / 1000.0
UNLEARN = {"epsilon": 5.0, "delta": 1e-4, "distance": "same"}


def lengths(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_streams_count_what_whole_sets_count() -> None:
    table, labels = torch.from_numpy(RAW), torch.from_numpy(LABELS)
    whole = bound_rows(table, labels, max_norm=150.0, bias=False, dtype=torch.float64, device=CPU, name="x")
    form = Form((0, 1), 150.0, False, torch.float64, CPU, 5, "x")
    blocks = stream(lambda: ((RAW[part : part + 70], LABELS[part : part + 70]) for part in range(0, 600, 70)))
    streamed = StreamedRows(blocks, form, Memory.of(None))
    assert len(streamed) == 600
    assert streamed.scaling == whole.scaling
    assert whole.scaling is not None
    assert whole.scaling.n_scaled == whole.n_scaled == streamed.n_scaled > 0


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


@pytest.fixture(scope="module", params=["softmax", "ridge"])
def model(request: pytest.FixtureRequest) -> LinearModel:
    return train(X[SOURCE], Y[SOURCE], l2=1e-3, max_norm=1, loss=request.param)


def test_the_class_is_gone_and_the_others_stay(model: LinearModel) -> None:
    source = (X[SOURCE], Y[SOURCE])
    result = unlearn(model, source, source, forget_class=0, distance="source", **OPTIONS)
    retrained = train(X[SOURCE][Y[SOURCE] > 0], Y[SOURCE][Y[SOURCE] > 0], l2=1e-3, max_norm=1, loss=model.record.loss)
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
    notes = unlearn(
        model, (X[SOURCE], Y[SOURCE]), (X[REST], Y[REST]), forget_class=2, distance="same", **OPTIONS
    ).certificate.content["notes"]
    (note,) = [note for note in notes if "every row of class 2 is forgotten" in note]
    assert f"its {int((Y[REST] == 2).sum())} surrogate rows stay" in note


def test_not_all_rows_of_the_class(model: LinearModel) -> None:
    with pytest.raises(DataError, match="only with all of them"):
        unlearn(model, (X[:400], Y[:400]), (X[REST], Y[REST]), forget_class=1, distance="same", **OPTIONS)
    with pytest.raises(OptionError, match="the classes are 0, 1, 2, 3"):
        unlearn(model, (X[SOURCE], Y[SOURCE]), (X[REST], Y[REST]), forget_class=7, distance="same", **OPTIONS)
    others = Y[SOURCE] != 1
    with pytest.raises(DataError, match="no rows of class 1"):
        unlearn(
            model,
            (X[SOURCE][others], Y[SOURCE][others]),
            (X[REST], Y[REST]),
            forget_class=1,
            distance="same",
            **OPTIONS,
        )


def test_part_of_a_class_is_no_class(model: LinearModel) -> None:
    notes = unlearn(model, (X[:3], Y[:3]), (X[REST], Y[REST]), distance="same", **OPTIONS).certificate.content["notes"]
    assert not [note for note in notes if "every row" in note]


@pytest.mark.parametrize("names", [False, True])
def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: bool) -> None:
    monkeypatch.chdir(tmp_path)
    labels = np.array(["zero", "one", "two", "three"])[Y] if names else Y
    np.savez("source.npz", X=X[SOURCE], y=labels[SOURCE])
    np.savez("surrogate.npz", X=X[REST], y=labels[REST])

    def run(line: str) -> dict[str, object]:
        result = CliRunner().invoke(main, [*line.split(), "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    run("train --data source.npz --l2 1e-2 --max-norm 1 --out model.safetensors")
    given = "unlearn --model model.safetensors --forget source.npz --surrogate surrogate.npz --epsilon 9 --delta 1e-3 --force"
    done = run(f"{given} --forget-class {'three' if names else 3} --distance same --out result")
    dossier = json.loads((tmp_path / "result" / "private" / "dossier.json").read_text())
    assert dossier["sizes"]["n_forget"] == int((Y[SOURCE] == 3).sum())
    run("verify result/statement.json --model result/model.safetensors")
    planned = given.replace("unlearn", "plan").replace(" --force", "")
    foreseen = run(f"{planned} --forget-class {'three' if names else 3} --distance same")
    assert foreseen["n_forget"] == dossier["sizes"]["n_forget"]
    assert foreseen["outlooks"][0]["sigma"] == pytest.approx(done["statement"]["sigma"], rel=0.2)
