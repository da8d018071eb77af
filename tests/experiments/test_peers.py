"""Peers beside Expunge at a size that fits a test, through tables and figure."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from experiments import peers
from experiments.datasets.folder import DataFolder
from experiments.protocol.config import config_of
from experiments.protocol.experiment import Record
from experiments.shared.certified import Parts
from experiments.shared.mixture import of_length
from experiments.shared.rivals import compared, task_of

pytestmark = pytest.mark.usefixtures("one_thread")
METHODS = [
    *("Retrain", "Certified removal", "Descent-to-delete", "Langevin", "Noisy fine-tuning"),
    *("Expunge, surrogate", "Expunge, deposit", "Expunge, both"),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[Record]]:
    """Two overlapping classes, one removal, one budget, two epsilons."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    y = 3 + 5 * (np.arange(460) % 2)
    X = np.eye(9, 6)[y] + 0.5 * generator.standard_normal((460, 6)) + 1.2 * (y[:, None] == 8) * np.eye(6)[1]
    np.savez(folder / "cifar10-embeddings.npz", X=X[:400], y=y[:400], X_test=X[400:], y_test=y[400:])
    config = copy.deepcopy(dict(config_of("peers")))
    task = config["run"]["tasks"]["cifar10-3v8"]
    task |= {"epsilons": [0.1, 1.0], "forget": [2], "budgets": [3], "l2": [0.1], "deposits": [0.1], "draws": 3}
    config["run"]["tasks"] = {"cifar10-3v8": task}
    config["run"]["published"] |= {"data": "cifar10", "draws": 2, "l2_by_rows": 1e-4}
    records: list[Record] = []
    for case in peers.cases(config, 1):
        result = json.loads(json.dumps(peers.run(case, config, DataFolder(folder)), allow_nan=False))
        records.append(
            {"key": case.key, "seed": 0, "options": dict(case.options), "result": result, "seconds": 0.0, "run": 0}
        )
    return config, records


def test_every_method_has_a_line_and_no_region_is_too_small(small: tuple[Any, list[Record]]) -> None:
    config, records = small
    published, task = peers.tables(config, records)
    assert [row[0] for row in published.rows] == [*["Descent-to-delete"] * 6, *["Langevin"] * 3]
    assert published.rows[-1][3] == "91"  # as published, at epsilon 5 after one step
    assert [row[0] for row in task.rows] == METHODS
    assert {row[1] for row in task.rows[:5]} == {"retained rows"}
    assert [row[1] for row in task.rows[5:]] == ["surrogate", "deposit", "deposit, surrogate"]
    checks = [check for record in records for check in record["result"].get("checks", ())]
    assert len(checks) == 6
    assert all(0.0 < check["true"] <= check["residual"] for check in checks)


def test_cells_where_expunge_is_behind_are_named(small: tuple[Any, list[Record]]) -> None:
    config, records = small
    records = copy.deepcopy(records)
    for cell in records[1]["result"]["cells"]:
        cell["accuracy"] = {"Expunge, deposit": 0.9, "Langevin": 0.95}.get(cell["method"], 0.8)
    notes = peers.tables(config, records)[1].notes
    deposit = next(note for note in notes if note.startswith("Expunge, deposit"))
    assert "in 6 of 8 cells" in deposit
    assert "behind Langevin with 3 passes at epsilon 0.1 by 5.0; Langevin with 3 passes at epsilon 1 by 5.0." in deposit


def test_where_a_task_names_a_c_retrain_and_expunge_have_it() -> None:
    generator = np.random.default_rng(0)
    X, y = of_length(generator.standard_normal((180, 4)), 1.0), np.arange(180) % 2
    parts = Parts((X[:40], y[:40]), (X[40:150], y[40:150]), (X[150:], y[150:]), (), 0.0)
    wanted = {"inverse_l2": 2.0, "l2": [1.0], "deposits": [], "epsilons": [1.0], "budgets": [1], "radii": [1.0]}
    wanted |= {"gradient": 0.1, "choosing_draws": 1, "draws": 2}
    task = task_of(parts, wanted)
    found = compared(task, wanted, 1, 0)
    cells = {cell["method"]: cell["l2"] for cell in found["cells"]}
    weights = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-10).fit(*parts.source).coef_
    ours = task.cases(1, 0)[0.025].weights.numpy()
    np.testing.assert_allclose(ours[1] - ours[0], weights[0], atol=1e-6)
    assert {cells[name] for name in METHODS if name == "Retrain" or name.startswith("Expunge")} == {0.025}
    assert {check["what"].split("l2 ")[1] for check in found["checks"]} == {"0.025, epsilon 1"}


def test_the_figure_is_drawn(small: tuple[Any, list[Record]]) -> None:
    config, records = small
    figures = peers.figures(config, records)
    assert list(figures) == ["peers-cifar10-3v8.png"]
    assert figures["peers-cifar10-3v8.png"].startswith(b"\x89PNG")
