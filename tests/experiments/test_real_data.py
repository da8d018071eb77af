"""Dirichlet splits, forget ratios and the frontier at a size that fits a test: digits play the embeddings."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from experiments import dirichlet, forget_ratio, frontier
from experiments.datasets.folder import DataFolder, DataSet
from experiments.protocol.config import config_of
from experiments.protocol.experiment import Case, Record
from experiments.shared import certified
from experiments.shared.gaps import by_group, gap_table
from experiments.shared.mixture import attack_within_classes, mixture, trained

pytestmark = pytest.mark.usefixtures("one_thread")
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def digits() -> DataSet:
    X, y = load_digits(return_X_y=True)
    return DataSet("cifar10", X[:1400], y[:1400], X[1400:], y[1400:], "", "")


@pytest.fixture(scope="module")
def folder(digits: DataSet, tmp_path_factory: pytest.TempPathFactory) -> DataFolder:
    path = tmp_path_factory.mktemp("data")
    for name in ("cifar10", "stanford-dogs"):
        np.savez(path / f"{name}-embeddings.npz", X=digits.X, y=digits.y, X_test=digits.X_test, y_test=digits.y_test)
    return DataFolder(path)


def record(module: Any, case: Case, config: Any, data: DataFolder) -> Record:
    result = json.loads(json.dumps(module.run(case, config, data), allow_nan=False))
    return {
        "key": case.key,
        "seed": case.seed,
        "options": dict(case.options),
        "result": result,
        "seconds": 0.0,
        "run": 0,
    }


def test_parts_share_no_row_and_their_distances_are_those_of_their_classes(digits: DataSet) -> None:
    parts = mixture(digits, 13.0, 0.1, 1.0, np.random.default_rng(0))
    assert parts.splits.surrogate is not None
    sets = [{row.tobytes() for row in part[0]} for part in (*parts.splits.__dict__.values(),)]
    retain, forget, _, surrogate = sets
    assert not surrogate & (retain | forget)
    assert len(forget) == pytest.approx(0.1 * (len(retain) + len(forget)), abs=1)
    p, q = (np.bincount(labels) / len(labels) for labels in (parts.splits.source[1], parts.splits.surrogate[1]))
    assert parts.chi2 == pytest.approx(float(((p - q) ** 2 / q).sum()))
    assert parts.kl == pytest.approx(float((q * np.log(q / p)).sum()))
    np.testing.assert_allclose(np.linalg.norm(parts.splits.test[0], axis=1), 1.0)


def test_the_attack_cannot_tell_classes(digits: DataSet) -> None:
    """Forget rows of two classes, test rows of ten: the attack within classes sees no difference but a true one."""
    parts = mixture(digits, 100.0, 0.1, 1.0, np.random.default_rng(0))
    features, labels = parts.splits.source
    chosen = np.isin(labels, (0, 1))
    splits = replace(
        parts.splits, forget=(features[chosen], labels[chosen]), retain=(features[~chosen], labels[~chosen])
    )
    case = trained(replace(parts, splits=splits), 0.02, 1.0)
    within = attack_within_classes(case.weights, case, 0)
    assert within is not None
    assert abs(within - 0.5) < 0.15


def test_dirichlet_splits_small(folder: DataFolder) -> None:
    config = copy.deepcopy(dict(config_of("dirichlet")))
    config["run"] |= {
        "concentrations": [13],
        "lengths": {"cifar10": 1.0},
        "models": 20,
        "scan": {"lengths": [1.0, 0.0]},
    }
    config["run"]["estimate"] = {"seeds": 1, "chains": 100, "steps": 16, "epochs": 2}
    cases = dirichlet.cases(config, 2)
    assert [case.options["kind"] for case in cases] == ["table"] * 2 + ["scan"] * 2 + ["estimate"]
    assert len({(case.key, case.seed) for case in cases}) == len(cases)
    records = [record(dirichlet, case, config, folder) for case in cases]
    checks = [one for each in records for one in each["result"].get("checks", ())]
    assert len(checks) == 6
    assert all(one["true"] <= one["residual"] for one in checks)
    assert {one["paper"] is None for one in checks if one["what"].startswith("Unlearn")} == {False}
    accuracies, gaps, attacks, deltas, scores, scan = dirichlet.tables(config, records)
    assert [row[2] for row in accuracies.rows] == ["Retrain", "Unlearn (+)", "Unlearn (-)"]
    assert accuracies.rows[0][4] == "77.6"
    assert attacks.rows[0][4] == "51.14"
    assert [row[2] for row in gaps.rows] == ["Unlearn (+)", "Unlearn (-)"]
    assert "--" not in deltas.rows[0][:11]
    assert len(scores.rows) == 3
    assert [row[1] for row in scan.rows] == ["1 (taken)", "as they come"]
    assert all(content.startswith(PNG) for content in dirichlet.figures(config, records).values())


def test_forget_ratios_small(folder: DataFolder) -> None:
    config = copy.deepcopy(dict(config_of("forget-ratio")))
    config["run"] |= {"ratios": [0.05, 0.1], "length": 1.0, "models": 20, "concentration": 20}
    records = [record(forget_ratio, case, config, folder) for case in forget_ratio.cases(config, 1)]
    small, large = records
    assert small["result"]["n_source"] == large["result"]["n_source"]
    assert small["result"]["kl"] == large["result"]["kl"]
    assert large["result"]["n_forget"] == pytest.approx(2 * small["result"]["n_forget"], abs=1)
    table, gaps, deltas = forget_ratio.tables(config, records)
    assert table.rows[3][:2] == ("0.1", "Retrain")
    assert table.rows[3][3] == "82.9"
    assert len(gaps.rows) == 4
    assert len(deltas.rows) == 6
    assert list(forget_ratio.figures(config, records)) == ["forget-ratio.png"]


def test_gaps_are_taken_seed_by_seed() -> None:
    def seeds(*values: float) -> list[dict[str, float | None]]:
        return [dict.fromkeys(("train", "test", "retain", "forget"), value) for value in values]

    ours = {("d", "13"): {"Retrain": seeds(0.5, 0.9), "Unlearn (+)": seeds(0.5, 0.9), "Unlearn (-)": seeds(0.51, 0.91)}}
    paper = by_group({"13 Retrain": [80.0] * 6, "13 Unlearn (-)": [78.0] * 6}, ("d",))
    table = gap_table("T", ("data", "xi"), ours, paper)
    assert table.rows[0] == ("d", "13", "Unlearn (+)", *("+0.00 ± 0.00", "--") * 4)
    assert table.rows[1][3:5] == ("+1.00 ± 0.00", "-2.0")
    assert table.notes[1] == "The largest mean gap is 1.0 points; in the paper's table it is 2.0."


TASK: dict[str, Any] = {
    "data": "cifar10",
    "classes": [1, 3, 8, 9],
    "components": 10,
    "split": "halves",
    "forget": [1, 0.1],
    "l2": [1e-2, 1e-1],
    "seeds": 1,
    "draws": 4,
    "rehearsals": 1,
}


def test_the_frontier_small(folder: DataFolder) -> None:
    config = copy.deepcopy(dict(config_of("frontier")))
    mixed = TASK | {"classes": [], "components": 0, "split": 50, "l2": [1e-1]}
    halves = TASK | {"forget": [1, 10], "epsilons": [0.1, 1.0, 5.0]}
    config["run"] |= {"epsilons": [0.5, 10.0], "tasks": {"halves": halves, "mixed": mixed}}
    records = [record(frontier, case, config, folder) for case in frontier.cases(config, 3)]
    assert len(records) == 2  # as many seeds as the task wants at most
    assert (
        record(frontier, frontier.cases(config, 1)[0], config, folder) == records[0]
    )  # the same seed, the same numbers
    checks = [one for each in records for one in each["result"]["checks"]]
    assert len(checks) == 6
    assert all(one["true"] <= one["residual"] for one in checks)
    tables = frontier.tables(config, records)
    assert [row[0] for row in tables[0].rows] == ["1", "10"]
    assert tables[0].columns[4:7] == ("eps 0.1", "eps 1", "eps 5")
    ways = [row[1] for row in tables[1].rows]
    assert ways == ["exact chi2", "classes matched"] * 2
    for line in records[1]["result"]["lines"]:
        noise = [one["sigma"] for one in line["outcomes"]]
        assert noise == sorted(noise, reverse=True)  # less noise for a larger epsilon
    assert set(frontier.figures(config, records)) == {"frontier-1.png"}


def test_l2_is_chosen_without_source_or_test_rows(digits: DataSet) -> None:
    parts = certified.parted(digits, TASK, np.random.default_rng(0))
    other = replace(parts, source=parts.surrogate, test=parts.surrogate)
    chosen = [certified.choose_l2(one, TASK, {1: 1, 0.1: 14}, [1.0], 0) for one in (parts, other)]
    assert chosen[0] == chosen[1]
    assert set(chosen[0]) == {1, 0.1}


def test_components_are_the_surrogates(digits: DataSet) -> None:
    """Another source under the same surrogate leaves the test rows' features as they are."""
    parts = certified.parted(digits, TASK, np.random.default_rng(0))
    keep = np.isin(digits.y, TASK["classes"])
    order = np.random.default_rng(0).permutation(int(keep.sum()))
    rows = digits.X[keep].copy()
    rows[order[: len(order) // 2]] = rows[order[: len(order) // 2]][:, ::-1]
    changed = replace(digits, X=rows, y=digits.y[keep])
    again = certified.parted(changed, TASK, np.random.default_rng(0))
    np.testing.assert_allclose(np.abs(again.test[0]), np.abs(parts.test[0]), atol=1e-9)
    assert not np.allclose(again.source[0], parts.source[0])
