"""`expunge distance`: every estimate with its side, and nothing written where something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import done, refused, run
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
    Path("old.png").write_bytes(b"old")
    np.savez("moments.npz", mean=np.zeros(64), covariance=np.eye(64))
    return tmp_path


LINE = "distance --model model.safetensors --surrogate surrogate.npz "
COMMAND = LINE + "--chains 200 --steps 800 --step-size 0.2 --epochs 5 --support gaussian "


def test_every_estimate_comes_with_its_side_and_the_picture_is_drawn(files: Path) -> None:
    found = done(COMMAND + "--forget forget.npz --reference source.npz --match-classes --figure f.png --json")
    lines = {(line["name"], line["source"]): line for line in found["estimates"]}
    assert len(lines) == 11
    assert {line["direction"] for line in lines.values()} == {"lower", "neither"}
    assert all(line["direction"] == "lower" for (name, _), line in lines.items() if "Donsker" in name)
    assert found["diagnostics"]["converged"] is True
    assert found["effective_surrogate_rows"] < found["surrogate_rows"]
    assert Path("f.png").read_bytes().startswith(b"\x89PNG")


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
        ("--figure old.png", "exists already"),
        ("--figure new.pdf", ".png"),
        ("--class-counts 1,2", "10 whole numbers"),
        ("--chain-seed 99999999999999999999", "chain seed"),
        ("--chains 1000000000000", "chains"),
        ("--chains 9000000", "memory"),
        ("--step-size 1e308", "step size"),
        ("--step-size 2", "jump about"),
        ("--support box --box 1e300", "box"),
        ("--box nan", "box"),
        ("--class-counts 1,x", "whole numbers"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(files: Path, more: str, match: str) -> None:
    before = sorted(files.iterdir())
    refused(COMMAND + more, match)
    assert sorted(files.iterdir()) == before


@pytest.mark.parametrize(
    ("mean", "covariance", "match"),
    [
        (np.zeros(64), np.eye(64) * 1j, "real numbers"),
        (np.full(64, np.nan), np.eye(64), "not finite"),
        (np.zeros(64), np.eye(64) + np.eye(64, k=1), "not symmetric"),
        (np.zeros(64), np.zeros((64, 3)), "not symmetric"),
    ],
)
def test_moments_that_are_none(files: Path, mean: Any, covariance: Any, match: str) -> None:
    np.savez("odd.npz", mean=mean, covariance=covariance)
    refused(COMMAND + "--moments odd.npz", match)


@pytest.fixture
def years(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three years that drift by 0.3 standard deviations each, and a label."""
    rng = np.random.default_rng(0)
    lines = ["age,height,year,default"]
    for year in (2016, 2017, 2018):
        for age, height in rng.normal(size=(700, 2)):
            drifted = 40 + 10 * (age + 0.3 * (year - 2016))
            lines.append(f"{drifted:.4f},{height:.4f},{year},{'yes' if age > 0 else 'no'}")
    monkeypatch.chdir(tmp_path)
    Path("surrogate.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.usefixtures("years")
def test_parts_are_compared_on_the_screen_and_in_a_figure() -> None:
    told = done("distance --by year --data surrogate.csv --label default --figure years.png --quiet")
    for text in (
        "against the rest",
        "Two by two",
        "plausible from chi2:",
        "a margin is due",
        "label, no feature: default",
    ):
        assert text in told
    assert Path("years.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("years")
def test_parts_in_json_with_a_model_that_was_trained_on_such_a_table() -> None:
    done("train --data surrogate.csv --label default --columns age,height --out m.safetensors --quiet")
    found = done("distance --by year --data surrogate.csv --model m.safetensors --quiet --json")
    assert [line["part"] for line in found["parts"]] == ["2016", "2017", "2018"]
    far = next(line for line in found["pairs"] if (line["part"], line["other"]) == ("2018", "2016"))
    assert far["lower"] <= np.exp(0.36) - 1.0 <= far["upper"], "chi-square of a shift by 0.6"
    assert found["plausible_chi2"]["from"] == max(line["upper"] for line in found["parts"])
    assert found["tells"] is True


@pytest.mark.usefixtures("years")
def test_parts_that_do_not_overlap_get_no_number() -> None:
    text = Path("surrogate.csv").read_text().splitlines()
    batches = (900 + i % 3 if ",2018," in line else i % 3 for i, line in enumerate(text[1:]))
    odd = [f"{text[0]},batch", *(f"{line},{batch}" for line, batch in zip(text[1:], batches, strict=True))]
    Path("batch.csv").write_text("\n".join(odd) + "\n")
    told = done("distance --by year --data batch.csv --label default --quiet")
    assert "what may be declared: this tells nothing" in told
    assert "batch" in told, "the column that tells them apart is named"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("distance --by yeer --data surrogate.csv", "Did you mean year"),
        ("distance --by year", "no --surrogate"),
        ("distance --surrogate surrogate.csv", "no --model"),
        ("distance --by year --data surrogate.csv --out e.npz", "with --by"),
        ("distance --by year --data surrogate.csv --figure e.pdf", ".png"),
        ("distance --model m --surrogate surrogate.csv --columns age", "without --by"),
        ("distance --model m --surrogate surrogate.csv --minutes 0", "--minutes 0"),
    ],
)
@pytest.mark.usefixtures("years")
def test_what_does_not_go_with_parts_is_said(text: str, match: str) -> None:
    refused(text, match)


def test_where_samples_cannot_tell_there_is_a_reason_and_no_number(files: Path) -> None:
    """A few short steps in a ball: chains that have not mixed, far from any row."""
    command = LINE + "--chains 200 --steps 40 --epochs 2 --quiet "
    shown = done(command + "--out estimate.npz")
    for text in ("this tells nothing", "have not mixed", "expunge distance --by", "keep a deposit", "not written"):
        assert text in shown
    assert "total variation" not in shown.replace("total variation 1", "")
    assert not (files / "estimate.npz").exists()
    found = done(command + "--json")
    assert (found["tells"], found["marginal_lower"]) == (False, None)
    assert found["reasons"]
    assert {line["value"] for line in found["estimates"] if line["source"] == "samples"} == {None}


def test_it_ends_within_its_time(files: Path) -> None:
    result = run(LINE + "--steps 1000000 --minutes 0.05 --json")
    assert result.exit_code == 0, result.output
    assert "steps" in result.stderr
