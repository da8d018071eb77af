"""`expunge reproduce` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from expunge.cli import main
from expunge.reproduce.config import configs

pytestmark = pytest.mark.usefixtures("one_thread")


def run(*line: object) -> Result:
    return CliRunner().invoke(main, ["reproduce", *map(str, line)])


def test_the_list_names_every_experiment_and_what_it_needs(tmp_path: Path) -> None:
    result = run("--list", "--data", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert all(name in result.stdout for name in configs())
    assert "MISSING" in result.stdout
    assert "NOT the paper's own" in result.stdout
    arrays = {"X": np.zeros((2, 3)), "y": np.array([0, 1]), "X_test": np.zeros((1, 3)), "y_test": np.array([0])}
    np.savez(tmp_path / "usps.npz", **arrays)
    found = {one["name"]: one for one in json.loads(run("--list", "--data", tmp_path, "--json").stdout)["experiments"]}
    assert found["mnist-usps"]["needs"] == {"mnist": False, "usps": True}


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    for line, message in (
        ((), "no NAME"),
        (("table1",), "must be one of synthetic"),
        (("mnist-usps",), "no --data folder"),
        (("mnist-usps", "--data", tmp_path), "does not hold mnist"),
        (("--page", tmp_path / "page.md", "--out", tmp_path), "no results in"),
    ):
        result = run(*line)
        assert result.exit_code == 2
        assert message in result.stderr
    assert not list(tmp_path.iterdir())
