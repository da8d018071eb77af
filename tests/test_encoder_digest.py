"""The encoder's digest travels from the feature file into the record, and features of another encoder are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from expunge import DataError, train, unlearn
from expunge.cli import main
from expunge.desk import Policy, accept, create_desk, run
from expunge.distance import Estimation
from expunge.estimate.comparison import compare
from expunge.evaluate.plan import plan
from expunge.rows import EncodedRows

OURS, OTHER = "a" * 64, "b" * 64
BUDGET = {"epsilon": 20.0, "delta": 1e-3, "distance": "same", "force": True}


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    features = 2.0 * np.eye(3, 4)[labels] + 0.3 * np.random.default_rng(seed).normal(size=(count, 4))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


X, Y = rows(120, 1)
S, T = rows(150, 2)


@pytest.fixture(scope="module")
def model() -> object:
    return train(X, Y, l2=0.1, max_norm=1, encoder=OURS)


def test_unlearning_with_the_same_encoder_says_so_and_nothing_else(model: object) -> None:
    found = unlearn(model, EncodedRows(X[:3], Y[:3], OURS), EncodedRows(S, T, OURS), **BUDGET).certificate.content
    assert found["model"]["encoder"] == OURS
    assert not [note for note in found["notes"] if "encoder" in note]


def test_features_of_another_encoder_are_refused_everywhere(model: object, tmp_path: Path) -> None:
    ours, other = EncodedRows(X[:3], Y[:3], OURS), EncodedRows(X[:3], Y[:3], OTHER)
    standing = EncodedRows(S, T, OTHER)
    with pytest.raises(DataError, match=r"the forget set: features of encoder bbbb"):
        unlearn(model, other, (S, T), **BUDGET)
    with pytest.raises(DataError, match=r"the surrogate set: features of encoder bbbb"):
        unlearn(model, ours, standing, **BUDGET)
    with pytest.raises(DataError, match="features of encoder bbbb"):
        plan(model, ours, standing, delta=1e-3)
    with pytest.raises(DataError, match="features of encoder bbbb"):
        compare(model, standing, record=model.record, wanted=Estimation("kl"))
    policy = Policy(20.0, 1e-3, "same", force=True)
    with pytest.raises(DataError, match="features of encoder bbbb"):
        create_desk(tmp_path / "desk", model, standing, policy)


def test_a_desk_checks_every_request(model: object, tmp_path: Path) -> None:
    desk = create_desk(tmp_path / "desk", model, EncodedRows(S, T, OURS), Policy(20.0, 1e-3, "same", force=True))
    with pytest.raises(DataError, match="features of encoder bbbb"):
        accept(desk, X[:2], Y[:2], "case-1", encoder=OTHER)
    accept(desk, X[:2], Y[:2], "case-1", encoder=OURS)
    (published,) = run(desk).published
    assert not [note for note in published.certificate.content["notes"] if "encoder" in note]


def test_rows_without_a_digest_are_noted(model: object) -> None:
    found = unlearn(model, (X[:3], Y[:3]), EncodedRows(S, T, OURS), **BUDGET).certificate.content
    assert [note for note in found["notes"] if note.startswith("the forget set names no encoder")]
    bare = train(X, Y, l2=0.1, max_norm=1)
    found = unlearn(bare, EncodedRows(X[:3], Y[:3], OURS), EncodedRows(S, T, OURS), **BUDGET).certificate.content
    assert [note for note in found["notes"] if "record names no encoder" in note]
    with pytest.raises(DataError, match="different encoders"):
        unlearn(bare, EncodedRows(X[:3], Y[:3], OURS), EncodedRows(S, T, OTHER), **BUDGET)


def test_the_published_model_keeps_it(model: object) -> None:
    published = unlearn(model, EncodedRows(X[:3], Y[:3], OURS), EncodedRows(S, T, OURS), **BUDGET).model
    assert published.record.encoder == OURS
    assert np.isfinite(published.weight).all()


def test_evaluation_refuses_them_too(model: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.safetensors").write_bytes(model.to_bytes())
    parts = {"retain": (X[30:], Y[30:]), "forget": (X[:30], Y[:30]), "test": (S, T), "surrogate": (S, T)}
    for name, (features, labels) in parts.items():
        for end, encoder in (("", OURS), ("-other", OTHER)):
            np.savez(f"{name}{end}.npz", X=features, y=labels, encoder=np.array(encoder))

    def asked(command: str, *names: str, odd: str) -> list[str]:
        files = [[f"--{name}", f"{name}{'-other' if name == odd else ''}.npz"] for name in names]
        return [*command.split(), *(word for pair in files for word in pair), "--json"]

    evaluating = "evaluate --model model.safetensors --epsilon 5 --delta 1e-3 --seeds 1 --models 0 --out out"
    for odd in ("retain", "test", "surrogate"):
        refused = CliRunner().invoke(main, asked(evaluating, *parts, odd=odd))
        assert refused.exit_code == 2, refused.output
        assert "features of encoder bbbb" in refused.output
