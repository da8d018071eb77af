"""`expunge distance`: every estimate with its side, and nothing written where something is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from command_line import done, refused
from digit_rows import digit_case
from expunge.model import one_row_a_class
from expunge.train import train

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    case = digit_case()
    monkeypatch.chdir(tmp_path)
    for name in ("forget", "surrogate", "source"):
        np.savez(f"{name}.npz", X=case[name][0], y=case[name][1])
    Path("model.safetensors").write_bytes(case["model"].to_bytes())
    Path("old.npz").write_bytes(b"old")
    np.savez("moments.npz", mean=np.zeros(64), covariance=np.eye(64))
    return tmp_path


LINE = "distance --model model.safetensors --surrogate surrogate.npz "
COMMAND = LINE + "--chains 200 --steps 800 --step-size 0.2 --epochs 2 --support gaussian "


def test_every_estimate_comes_with_its_side(files: Path) -> None:
    found = done(COMMAND + "--forget forget.npz --reference source.npz --match-classes --json")
    lines = {(line["name"], line["source"]): line for line in found["estimates"]}
    assert len(lines) == 11
    assert {line["direction"] for line in lines.values()} == {"lower", "neither"}
    assert all(line["direction"] == "lower" for (name, _), line in lines.items() if "Donsker" in name)
    assert found["diagnostics"]["converged"] is True
    assert found["effective_surrogate_rows"] < found["surrogate_rows"]


def test_one_weight_vector_gives_what_the_two_rows_that_it_stands_for_give(files: Path) -> None:
    X = np.random.default_rng(0).normal(size=(300, 4)) / 4.0
    y = (X[:, 0] > 0).astype(int)
    np.savez("surrogate.npz", X=X[150:], y=y[150:])
    one = train(X[:150], y[:150], l2=0.1, max_norm=1.0, loss="logistic")
    found = []
    for model, more in ((one, ""), (one, "--l2 0.1 --loss logistic "), (one_row_a_class(one), "--l2 0.2 ")):
        Path("model.safetensors").write_bytes(model.to_bytes())
        found.append(done(COMMAND + more + "--json")["estimates"])
    assert found[0] == found[1] == found[2]
    assert found[0]


def test_on_a_screen_it_says_that_nothing_is_proven(files: Path) -> None:
    told = done(COMMAND + "--moments moments.npz --reference source.npz")
    for text in (
        "this tells nothing",
        "nothing is proven",
        "split R-hat",
        "support: Gaussian reference with the moments given",
        "lower",
    ):
        assert text in told


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ("--support cube", "support 'cube'"),
        ("--moments forget.npz", "arrays mean and covariance are needed"),
        ("--moments nothing.npz", "nothing.npz"),
        ("--out old.npz", "exists already"),
        ("--out new.pdf", ".npz"),
        ("--class-counts 1,2", "they must agree"),
        ("--chain-seed 99999999999999999999", "chain seed"),
        ("--chains 1000000000000", "chains"),
        ("--chains 9000000", "memory"),
        ("--step-size 1e308", "step size"),
        ("--step-size 2", "jump about"),
        ("--class-counts 1,x", "whole numbers"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(files: Path, more: str, match: str) -> None:
    before = sorted(files.iterdir())
    refused(COMMAND + more, match)
    assert sorted(files.iterdir()) == before


def test_where_samples_cannot_tell_there_is_a_reason_and_no_number(files: Path) -> None:
    """A few short steps in a ball: chains that have not mixed, far from any row."""
    command = LINE + "--chains 200 --steps 40 --epochs 2 --quiet "
    shown = done(command + "--out estimate.npz")
    for text in ("this tells nothing", "have not mixed", "keep a deposit", "not written"):
        assert text in shown
    assert "total variation" not in shown.replace("total variation 1", "")
    assert not (files / "estimate.npz").exists()
    found = done(command + "--json")
    assert (found["tells"], found["marginal_lower"]) == (False, None)
    assert found["reasons"]
    assert {line["value"] for line in found["estimates"] if line["source"] == "samples"} == {None}
