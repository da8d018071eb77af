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


def test_on_a_screen_it_says_that_nothing_is_proven(files: Path) -> None:
    result = run(COMMAND + "--moments {0}/moments.npz", files)
    assert result.exit_code == 0, result.output
    for text in ("nothing is proven", "split R-hat", "support: Gaussian reference with the moments given", "lower"):
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
