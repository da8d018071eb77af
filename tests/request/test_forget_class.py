"""A whole class is forgotten: all its rows, and the model no longer answers with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.datasets import load_digits

from expunge import DataError, OptionError, train, unlearn
from expunge.cli import main
from expunge.model import LinearModel

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
