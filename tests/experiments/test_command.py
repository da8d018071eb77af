"""`python -m experiments` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from experiments.__main__ import main
from experiments.protocol.config import configs
from small_experiment import CONFIG, make_folder

pytestmark = pytest.mark.usefixtures("one_thread")


def run(*line: object) -> Result:
    return CliRunner().invoke(main, [*map(str, line)])


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


def test_the_help_names_every_experiment_and_how_to_run_one() -> None:
    text = run("--help").stdout
    assert all(name in text for name in configs())
    assert "python -m experiments synthetic" in text


def test_all_of_it_ends_with_a_page_and_says_what_was_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs_folder, data = make_folder(tmp_path)
    (configs_folder / "heuristic.toml").write_text(
        CONFIG.replace("order = 1", "order = 2").replace('["mnist", "usps"]', '["adult"]')
    )
    monkeypatch.setattr("experiments.protocol.config.config_folder", lambda: configs_folder)
    line = ("all", "--data", data, "--seeds", 1, "--jobs", 1, "--out", tmp_path / "out", "--json")
    result = run(*line)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["written"]["mnist-usps"]["cases"] == 6
    assert "left out: heuristic, whose data is not there (adult" in result.stderr
    page = (tmp_path / "out" / "reproduction.md").read_text()
    assert "| mnist-usps | 8 | 0 |" in page  # two cases with two checks each, four with one; none above
    assert "contents differ from the mnist known here" in page
    before = (tmp_path / "out" / "mnist-usps.json").read_bytes()
    assert run(*line).exit_code == 0
    assert (tmp_path / "out" / "mnist-usps.json").read_bytes() == before
    assert (tmp_path / "out" / "reproduction.md").read_text() == page


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
