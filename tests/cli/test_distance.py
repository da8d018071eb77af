"""`expunge distance`: every estimate with its side, and nothing written where something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from digit_rows import digit_case
from expunge import LinearModel
from expunge.cli import main
from expunge.model import one_row_a_class
from expunge.train import train

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def digits() -> dict[str, Any]:
    return digit_case()


@pytest.fixture
def files(digits: dict[str, Any], tmp_path: Path) -> Path:
    for name in ("forget", "surrogate", "source"):
        np.savez(tmp_path / f"{name}.npz", X=digits[name][0], y=digits[name][1])
    model: LinearModel = digits["model"]
    (tmp_path / "model.safetensors").write_bytes(model.to_bytes())
    (tmp_path / "old.png").write_bytes(b"old")
    np.savez(tmp_path / "moments.npz", mean=np.zeros(64), covariance=np.eye(64))
    return tmp_path


COMMAND = "distance --model {0}/model.safetensors --surrogate {0}/surrogate.npz --chains 200 --steps 800 --step-size 0.2 --epochs 5 --support gaussian "


def run(text: str, files: Path) -> Any:
    return CliRunner().invoke(main, text.format(files).split())


def test_every_estimate_comes_with_its_side_and_the_picture_is_drawn(files: Path) -> None:
    result = run(
        COMMAND + "--forget {0}/forget.npz --reference {0}/source.npz --match-classes --figure {0}/f.png --json", files
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    lines = {(line["name"], line["source"]): line for line in found["estimates"]}
    assert len(lines) == 11
    assert {line["direction"] for line in lines.values()} == {"lower", "neither"}
    assert all(line["direction"] == "lower" for (name, _), line in lines.items() if "Donsker" in name)
    assert found["diagnostics"]["converged"] is True
    assert found["effective_surrogate_rows"] < found["surrogate_rows"]
    assert (files / "f.png").read_bytes().startswith(b"\x89PNG")


def test_one_weight_vector_gives_what_the_two_rows_that_it_stands_for_give(files: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)) / 4.0
    y = (X[:, 0] > 0).astype(int)
    np.savez(files / "surrogate.npz", X=X[150:], y=y[150:])
    one = train(X[:150], y[:150], l2=0.1, max_norm=1.0, loss="logistic")
    found = []
    for model, more in ((one, ""), (one, "--l2 0.1 --loss logistic "), (one_row_a_class(one), "--l2 0.2 ")):
        (files / "model.safetensors").write_bytes(model.to_bytes())
        result = run(COMMAND + more + "--json", files)
        assert result.exit_code == 0, result.output
        found.append(json.loads(result.stdout.splitlines()[-1])["estimates"])
    assert found[0] == found[1] == found[2]
    assert found[0]


def test_on_a_screen_it_says_that_nothing_is_proven(files: Path) -> None:
    result = run(COMMAND + "--moments {0}/moments.npz --reference {0}/source.npz", files)
    assert result.exit_code == 0, result.output
    for text in (
        "this tells nothing",
        "nothing is proven",
        "split R-hat",
        "support: Gaussian reference with the moments given",
        "lower",
    ):
        assert text in result.stdout


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ("--support cube", "support 'cube'"),
        ("--moments {0}/forget.npz", "arrays mean and covariance are needed"),
        ("--moments {0}/nothing.npz", "nothing.npz"),
        ("--figure {0}/old.png", "exists already"),
        ("--figure {0}/new.pdf", ".png"),
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
    result = run(COMMAND + more, files)
    assert result.exit_code == 2, result.output
    assert match in result.stderr
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
    np.savez(files / "odd.npz", mean=mean, covariance=covariance)
    result = run(COMMAND + "--moments {0}/odd.npz", files)
    assert result.exit_code == 2
    assert match in result.stderr


@pytest.fixture
def years(tmp_path: Path) -> Path:
    """Three years that drift by 0.3 standard deviations each, and a label."""
    rng = np.random.default_rng(0)
    lines = ["age,height,year,default\n"]
    for year in (2016, 2017, 2018):
        for age, height in rng.normal(size=(700, 2)):
            lines.append(
                f"{40 + 10 * (age + 0.3 * (year - 2016)):.4f},{height:.4f},{year},{'yes' if age > 0 else 'no'}\n"
            )
    (tmp_path / "surrogate.csv").write_text("".join(lines))
    return tmp_path


def test_parts_are_compared_on_the_screen_and_in_a_figure(years: Path) -> None:
    result = run("distance --by year --data {0}/surrogate.csv --label default --figure {0}/years.png --quiet", years)
    assert result.exit_code == 0, result.output
    for text in (
        "against the rest",
        "Two by two",
        "plausible from chi2:",
        "a margin is due",
        "label, no feature: default",
    ):
        assert text in result.stdout
    assert (years / "years.png").read_bytes().startswith(b"\x89PNG")


def test_parts_in_json_with_a_model_that_was_trained_on_such_a_table(years: Path) -> None:
    trained = run(
        "train --data {0}/surrogate.csv --label default --columns age,height --out {0}/m.safetensors --quiet", years
    )
    assert trained.exit_code == 0, trained.output
    result = run("distance --by year --data {0}/surrogate.csv --model {0}/m.safetensors --quiet --json", years)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert [line["part"] for line in found["parts"]] == ["2016", "2017", "2018"]
    far = next(line for line in found["pairs"] if (line["part"], line["other"]) == ("2018", "2016"))
    assert far["lower"] <= np.exp(0.36) - 1.0 <= far["upper"], "chi-square of a shift by 0.6"
    assert found["plausible_chi2"]["from"] == max(line["upper"] for line in found["parts"])
    assert found["tells"] is True


def test_parts_that_do_not_overlap_get_no_number(years: Path) -> None:
    text = (years / "surrogate.csv").read_text().replace(",2018,", ",2018,").splitlines()
    odd = [
        text[0] + ",batch",
        *(line + ("," + str(900 + i % 3) if ",2018," in line else f",{i % 3}") for i, line in enumerate(text[1:])),
    ]
    (years / "batch.csv").write_text("\n".join(odd) + "\n")
    result = run("distance --by year --data {0}/batch.csv --label default --quiet", years)
    assert result.exit_code == 0, result.output
    assert "what may be declared: this tells nothing" in result.stdout
    assert "batch" in result.stdout, "the column that tells them apart is named"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("distance --by yeer --data {0}/surrogate.csv", "Did you mean year"),
        ("distance --by year", "no --surrogate"),
        ("distance --surrogate {0}/surrogate.csv", "no --model"),
        ("distance --by year --data {0}/surrogate.csv --out {0}/e.npz", "with --by"),
        ("distance --by year --data {0}/surrogate.csv --figure {0}/e.pdf", ".png"),
        ("distance --model {0}/m --surrogate {0}/surrogate.csv --columns age", "without --by"),
        ("distance --model {0}/m --surrogate {0}/surrogate.csv --minutes 0", "--minutes 0"),
    ],
)
def test_what_does_not_go_with_parts_is_said(years: Path, text: str, match: str) -> None:
    result = run(text, years)
    assert result.exit_code == 2, result.output
    assert match in result.stderr


def test_where_samples_cannot_tell_there_is_a_reason_and_no_number(files: Path) -> None:
    """A few short steps in a ball: chains that have not mixed, far from any row."""
    command = "distance --model {0}/model.safetensors --surrogate {0}/surrogate.npz --chains 200 --steps 40 --epochs 2 --quiet "
    shown = run(command + "--out {0}/estimate.npz", files)
    assert shown.exit_code == 0, shown.output
    for text in ("this tells nothing", "have not mixed", "expunge distance --by", "keep a deposit", "not written"):
        assert text in shown.stdout
    assert "total variation" not in shown.stdout.replace("total variation 1", "")
    assert not (files / "estimate.npz").exists()
    found = json.loads(run(command + "--json", files).stdout.splitlines()[-1])
    assert found["tells"] is False
    assert found["reasons"]
    from_samples = [line for line in found["estimates"] if line["source"] == "samples"]
    assert [line["value"] for line in from_samples] == [None] * len(from_samples)
    assert found["marginal_lower"] is None


def test_it_ends_within_its_time(files: Path) -> None:
    result = run(
        "distance --model {0}/model.safetensors --surrogate {0}/surrogate.npz --steps 1000000 --minutes 0.05 --json",
        files,
    )
    assert result.exit_code == 0, result.output
    assert "steps" in result.stderr
