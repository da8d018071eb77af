"""Peers beside Expunge at a size that fits a test, through tables and figure."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from experiments import peers
from experiments.datasets.folder import DataFolder
from experiments.protocol.config import config_of
from experiments.protocol.experiment import Record
from experiments.shared import ours
from experiments.shared.certified import Parts
from experiments.shared.mixture import of_length
from experiments.shared.ours import DEPOSIT, OURS, RIDGE, SURROGATE, Asked, expunged
from experiments.shared.ridge_heads import retrained_precisely, ridge_task
from experiments.shared.rivals import CHOSEN, RETRAIN_RIDGE, USUAL, Task, retrained, task_of
from expunge.door import ask
from expunge.errors import BeyondPolicy
from expunge.mechanism import measure
from expunge.request.promise import Promise
from expunge.runtime.arrays import equal, to_numpy

pytestmark = pytest.mark.usefixtures("one_thread")
LINES = [
    *(("Retrain", USUAL), ("Retrain", CHOSEN)),
    *((name, CHOSEN) for name in ("Certified removal", "Descent-to-delete", "Langevin", "Noisy fine-tuning")),
    *((name, chosen) for name in OURS for chosen in (USUAL, CHOSEN)),
]
RIDGE_LINES = [(name, chosen) for name in (RETRAIN_RIDGE, RIDGE) for chosen in (USUAL, CHOSEN)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[Record]]:
    """Two overlapping classes, two removals at once and in sequence, one budget, two epsilons."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    y = 3 + 5 * (np.arange(460) % 2)
    X = np.eye(9, 6)[y] + 0.5 * generator.standard_normal((460, 6)) + 1.2 * (y[:, None] == 8) * np.eye(6)[1]
    np.savez(folder / "cifar10-3v8.npz", X=X[:400], y=y[:400], X_test=X[400:], y_test=y[400:])
    config = copy.deepcopy(dict(config_of("peers")))
    task = config["run"]["tasks"]["cifar10-3v8"]
    task |= {"epsilons": [0.1, 1.0], "forget": [0.01], "sequence": [2], "budgets": [3]}
    task |= {"l2": [0.1], "draws": 3}
    config["run"]["tasks"] = {"cifar10-3v8": task}
    config["run"]["published"] |= {"data": "cifar10-3v8", "draws": 2, "l2_by_rows": 1e-4}
    records: list[Record] = []
    for case in peers.cases(config, 1):
        result = json.loads(json.dumps(peers.run(case, config, DataFolder(folder)), allow_nan=False))
        records.append(
            {"key": case.key, "seed": 0, "options": dict(case.options), "result": result, "seconds": 0.0, "run": 0}
        )
    return config, records


@pytest.fixture(scope="module")
def task() -> Task:
    generator = np.random.default_rng(0)
    X, y = of_length(generator.standard_normal((180, 4)), 1.0), np.arange(180) % 2
    parts = Parts((X[:40], y[:40]), (X[40:150], y[40:150]), (X[150:], y[150:]), (), 0.0)
    return task_of(parts, {"l2": [1.0]})


def test_every_method_has_a_line_and_no_region_is_too_small(small: tuple[Any, list[Record]]) -> None:
    config, records = small
    published, losses, standing, _, at_once, in_sequence = peers.tables(config, records)
    assert [row[0] for row in published.rows] == [*["Descent-to-delete"] * 6, *["Langevin"] * 3]
    assert published.rows[-1][3] == "91"  # as published, at epsilon 5 after one step
    assert [(row[0], row[3]) for row in at_once.rows] == LINES + RIDGE_LINES
    assert [(row[0], row[3]) for row in in_sequence.rows] == LINES
    needs = {row[0]: row[1] for row in at_once.rows}
    assert [needs[name] for name in OURS] == ["surrogate", "deposit"]
    assert {needs[name] for name, _ in LINES if name not in OURS} == {"retained rows"}
    assert [row[0] for row in losses.rows] == ["CIFAR-10 3 v 8"]
    assert needs[RIDGE] == "deposit"
    assert [row[-1].split(",")[0] for row in standing.rows] == ["6 of 6", "4 of 4", "10 of 10"]
    assert standing.rows[1][-3:-1] == ("--", "--"), "no ridge head in a sequence"
    checks = [check for record in records for check in record["result"].get("checks", ())]
    assert len(checks) == 10
    assert all(0.0 < check["true"] <= check["residual"] for check in checks)
    assert peers.figures(config, records)["peers-cifar10-3v8.png"].startswith(b"\x89PNG")


def test_a_ridge_head_with_a_deposit_is_retraining_at_any_epsilon(small: tuple[Any, list[Record]]) -> None:
    _, records = small
    (record,) = (one for one in records if one["options"].get("head"))
    assert record["key"].endswith(", ridge")
    by_epsilon: dict[Any, dict[str, float]] = {}
    for cell in record["result"]["cells"]:
        by_epsilon.setdefault(cell["epsilon"], {})[cell["chosen"]] = cell["accuracy"]
    assert by_epsilon[0.1] == by_epsilon[1.0] == by_epsilon[None]
    assert all(0.0 < one["true"] <= one["residual"] < 1e-6 for one in record["result"]["checks"])
    own = [cell for cell in record["result"]["cells"] if cell["method"] == RIDGE]
    assert all(cell["noise"] < 1e-3 for cell in own)


def test_more_digits_than_float64_has(task: Task) -> None:
    """Against exact fractions of the normal equations."""
    made = ridge_task(task.parts, {"l2": [1e-3]})
    assert made.usual == 1.0 / 40.0
    assert set(made.kept) == {made.usual, 1e-3}
    case = made.cases(3, 0)[1e-3]
    W = retrained_precisely(case)
    X = [[Fraction(float(value)) for value in row] for row in to_numpy(case.rows["retain"].features)]
    y = [[Fraction(1 if label == k else -1) for k in range(2)] for label in case.rows["retain"].labels.tolist()]
    l2, n = Fraction(1e-3), len(X)
    matrix = [[sum(row[i] * row[j] for row in X) / n + (l2 if i == j else 0) for j in range(4)] for i in range(4)]
    for k in range(2):
        exact = [Fraction(float(value)) + Fraction(float(value - float(value))) for value in W[k]]
        pulls = [sum(row[i] * goal[k] for row, goal in zip(X, y, strict=True)) / n for i in range(4)]
        left = [sum(matrix[i][j] * exact[j] for j in range(4)) - pulls[i] for i in range(4)]
        assert max(abs(float(one)) for one in left) < 1e-17


def test_the_usual_l2_is_that_of_scikit_learn() -> None:
    X, y = of_length(np.random.default_rng(1).standard_normal((60, 3)), 1.0), np.arange(60) % 3
    weights = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10).fit(X, y).coef_
    three = task_of(Parts((X, y), (X, y), (X, y), (), 0.0), {"l2": []})
    np.testing.assert_allclose(to_numpy(three.models[three.usual].matrix()), weights, atol=1e-6)


def test_usual_lines_have_c_1_and_chosen_ones_the_best_on_validation_rows(task: Task) -> None:
    wanted = {"epsilons": [0.01, 1000.0], "draws": 3, "choosing_draws": 2}
    cases = task.cases(1, 0)
    cells, _ = expunged(task, cases, wanted, sequence=False)
    usual = [cell for cell in (*cells, *retrained(task, cases)) if cell["chosen"] == USUAL]
    assert {cell["l2"] for cell in usual} == {task.usual}
    surrogate = {(cell["epsilon"], cell["chosen"]): cell for cell in cells if cell["method"] == SURROGATE}
    for epsilon in wanted["epsilons"]:
        scores = {
            l2: Asked(SURROGATE, task, l2, cases[l2], False).cells(wanted | {"epsilons": [epsilon]}, [])[0][0]
            for l2 in task.models
        }
        assert scores[surrogate[epsilon, CHOSEN]["l2"]] == max(scores.values())


@pytest.mark.parametrize("name", OURS)
def test_what_is_measured_once_serves_every_epsilon(task: Task, name: str) -> None:
    case = task.cases(2, 0)[task.usual]
    asked = Asked(name, task, task.usual, case, False)
    request, evidence = asked._gathered(*asked._before())
    for epsilon in (0.1, 1.0, 3.0):
        own = replace(request, promise=replace(request.promise, epsilon=epsilon))
        alone = measure(own, seed=0)
        shared = asked._measured(request, evidence, epsilon)
        assert equal(shared.step.update, alone.step.update)
        assert (shared.facts, shared.failures, shared.retained.scale) == (
            alone.facts,
            alone.failures,
            alone.retained.scale,
        )


def test_of_a_sequence_the_last_request_is_that_of_requests_made_one_by_one(task: Task) -> None:
    case = task.cases(3, 0)[task.usual]
    asked = Asked(DEPOSIT, task, task.usual, case, True)
    request, evidence = asked._gathered(*asked._before())
    last = asked._measured(request, evidence, 1.0)
    kept, (features, labels) = task.kept[task.usual], case.splits.forget
    for row in (2, 1, 0):
        one = ask(None, (features[row : row + 1], labels[row : row + 1]), None, Promise(1.0, task.delta), deposit=kept)
        measured = measure(one, seed=0)
        kept = measured.retained.deposit
    assert equal(last.step.update, measured.step.update)
    assert (last.facts, last.retained.scale) == (measured.facts, measured.retained.scale)
    assert kept.numbers.forgotten == 3


def test_a_region_smaller_than_what_training_leaves_is_held_against_a_better_optimum(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, checks = task.cases(1, 0)[1.0], []  # type: ignore[var-annotated]
    case.__dict__["retrained"] = case.retrained + 1e-4  # as if training had ended there
    asked, wanted = Asked(DEPOSIT, task, 1.0, case, False), {"epsilons": [1.0], "draws": 1, "choosing_draws": 1}
    for left in (ours.TRAINED, 1.0):
        monkeypatch.setattr(ours, "TRAINED", left)
        asked.cells(wanted, checks)
    rough, better = checks
    assert rough["true"] > rough["residual"] == better["residual"] > better["true"]


def test_a_refusal_is_a_cell_without_accuracy(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise BeyondPolicy("a", "b", "c")

    monkeypatch.setattr(ours.DepositEvidence, "gather", refused)
    asked = Asked(DEPOSIT, task, task.usual, task.cases(1, 0)[task.usual], False)
    checks: list[Any] = []
    found = asked.cells({"epsilons": [0.1, 1.0], "draws": 2, "choosing_draws": 1}, checks)
    assert [(cell["epsilon"], cell["accuracy"], cell["refused"]) for _, cell in found] == [
        (0.1, None, "BeyondPolicy"),
        (1.0, None, "BeyondPolicy"),
    ]
    assert checks == []


def test_cases_of_one_task_follow_each_other() -> None:
    """They share models and deposits, of which the last task's are kept."""
    made = peers.cases(config_of("peers"), 2)
    assert made[0].key == "published"
    tasks = [(case.seed, case.options["task"]) for case in made]
    changes = sum(one != other for one, other in itertools.pairwise(tasks))
    assert changes + 1 == len(set(tasks))
    assert len({(case.key, case.seed) for case in made}) == len(made)
