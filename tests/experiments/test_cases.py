"""Each experiment, small: what it finds is what is known of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from experiments import (
    architectures,
    dirichlet,
    forget_ratio,
    frontier,
    heuristic,
    kept_tangent,
    mixed_linear,
    synthetic,
)
from experiments.datasets.folder import DataFolder, DataSet
from experiments.protocol.config import config_of
from experiments.protocol.experiment import Case, Record
from experiments.protocol.store import read_results
from experiments.shared.as_written import NAME as AS_WRITTEN
from experiments.shared.as_written import step_as_written
from experiments.shared.checks import checked
from experiments.shared.mixture import mixture
from experiments.shared.paper_task import paper_methods, paper_task, published_splits
from experiments.shared.retained_rows import NAME as RETAINED
from experiments.shared.retained_rows import step_of_retained_rows
from expunge.evaluate.case import Splits, make_case
from expunge.runtime.arrays import norm
from expunge.runtime.progress import silent

pytestmark = pytest.mark.usefixtures("one_thread")


RESULTS = Path(__file__).parents[2] / "experiments" / "results"


PNG = b"\x89PNG"


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


@pytest.mark.slow
def test_the_heuristic_small(tmp_path: Path) -> None:
    """Every kind of case, through tables and figures; Dogs are played by three noisy clusters."""
    config = copy.deepcopy(dict(config_of("heuristic")))
    config["run"] |= {"chains": 100, "steps": 16, "epochs": 2, "rows": 300, "many": 120, "zetas": [0.1]}
    config["run"]["dogs"] |= {"concentrations": [13], "length": 1.0}
    generator = np.random.default_rng(0)
    y = np.arange(420) % 3
    X = np.eye(3, 6)[y] + 0.5 * generator.standard_normal((420, 6))
    np.savez(tmp_path / "stanford-dogs-embeddings.npz", X=X[:360], y=y[:360], X_test=X[360:], y_test=y[360:])
    cases = heuristic.cases(config, 1)
    assert {case.options["kind"] for case in cases} == {"dogs", "synthetic", "many"}
    records = [record(heuristic, case, config, DataFolder(tmp_path)) for case in cases]
    assert all(check["true"] <= check["known"] for one in records for check in one["result"].get("checks", ()))
    zeta, dogs, table9 = heuristic.tables(config, records)
    assert [row[1] for row in zeta.rows] == [*heuristic.SUPPORTS, heuristic.MANY]
    assert dogs.rows[0][0] == "13"
    assert [row[1] for row in table9.rows] == ["Original", "Retrain", "Unlearn (+)", "Unlearn (-)"]
    figures = heuristic.figures(config, records)
    assert set(figures) == {"heuristic-figure3.png", "heuristic-figure4.png"}
    assert all(content.startswith(PNG) for content in figures.values())


@pytest.mark.slow
def test_a_committed_case_comes_out_again() -> None:
    """The same seed gives the same numbers, but for the last digits on another machine."""
    results = read_results(RESULTS, "synthetic")
    assert results is not None
    kept = next(one for one in results.records if one["key"] == "fresh" and one["seed"] == 0)
    again = record(synthetic, Case("fresh", 0, kept["options"]), config_of("synthetic"), DataFolder(None))
    for method, scores in kept["result"]["scores"].items():
        assert again["result"]["scores"][method] == pytest.approx(scores, rel=1e-4, abs=2e-3), method


def test_algorithm_1_as_written_is_the_newton_step_where_that_is_defined() -> None:
    """With a surrogate like the source the matrix is positive definite, and both are the same update."""
    generator = np.random.default_rng(3)
    y = np.arange(240) % 3
    X = np.eye(3, 5)[y] + 0.4 * generator.standard_normal((240, 5))
    task = make_case(
        Splits((X[20:120], y[20:120]), (X[:20], y[:20]), (X[:20], y[:20]), (X[120:], y[120:])), l2=0.1, max_norm=5.0
    )
    found = step_as_written(task, 0)
    plain = checked("Unlearn (-)", task, distance="same")
    assert found["smallest_eigenvalue"] > 0
    assert found["left"] < 1e-5
    assert found["checks"][0]["true"] == pytest.approx(plain["true"], rel=1e-4)
    assert found["checks"][0]["residual"] == pytest.approx(plain["known"], rel=1e-3)


def small_splits(surrogate_is_blind: bool) -> Splits:
    generator = np.random.default_rng(0)
    X = generator.uniform(-1.0, 1.0, (200, 4))
    y = (X @ np.array([1.0, -1.0, 2.0, 0.5]) > 0).astype(np.int64)
    X_surrogate = X[20:] * np.array([1.0, 1.0, 0.0 if surrogate_is_blind else 1.0, 1.0])
    return Splits((X[20:], y[20:]), (X[:20], y[:20]), (X[20:60], y[20:60]), (X_surrogate, y[20:]))


def test_a_step_is_too_long_where_the_surrogate_does_not_bend() -> None:
    """One feature is 0 in all of its rows: the matrix is definite there by l2 alone."""
    case = make_case(small_splits(True), l2=0.002, max_norm=2.0)
    result = step_of_retained_rows(case, 0)
    (entry,) = result["checks"]
    assert result["left"] < 1e-8
    assert result["curvature"]["step"] > 2.0
    assert entry["true"] == pytest.approx(result["scores"][RETAINED]["distance"])
    assert entry["true"] > float(norm(case.weights - case.retrained))
    assert entry["true"] <= entry["residual"]


METRICS = {"train", "test", "retain", "forget", "mia", "rt"}


SMALL = {"images": 120, "width": 2, "epochs": 4, "batch": 30}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> DataFolder:
    """Images of ten classes, each of a colour and brightness of its own."""
    folder = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    labels = np.arange(520) % 10
    tones = generator.integers(40, 215, (10, 3, 1, 1))
    pixels = np.clip(tones[labels] + generator.normal(0, 30, (520, 3, 32, 32)), 0, 255).astype(np.uint8)
    np.savez(folder / "cifar10-images.npz", X=pixels[:420], y=labels[:420], X_test=pixels[420:], y_test=labels[420:])
    return DataFolder(folder)


def small(name: str, **changes: Any) -> dict[str, Any]:
    config = copy.deepcopy(dict(config_of(name)))
    config["run"] |= changes
    config["run"]["public"] |= SMALL
    return config


def records_of(module: Any, config: dict[str, Any], data: DataFolder) -> list[Record]:
    found: list[Record] = []
    for case in module.cases(config, 1):
        result = json.loads(json.dumps(module.run(case, config, data, device="cpu", progress=silent), allow_nan=False))
        options = dict(case.options)
        found.append({"key": case.key, "seed": 0, "options": options, "result": result, "seconds": 0.0, "run": 0})
    return found


def test_table_5_has_every_row_and_its_bounds_hold(images: DataFolder) -> None:
    config = small("mixed-linear", private=300, l2=0.01, block=64, epsilons=[1.0])
    (record,) = records_of(mixed_linear, config, images)
    settings = record["result"]["settings"]
    assert set(settings) == {"0.1", "0"}
    for name, setting in settings.items():
        without = {mixed_linear.WITHOUT} if name == "0" else set()
        assert set(setting["scores"]) == {"Original", "Retrain", "Unlearn (+)", "Unlearn (-)", AS_WRITTEN} | without
        assert setting["scores"][AS_WRITTEN]["left"] < 1e-3
        assert all(set(scores) >= METRICS for scores in setting["scores"].values())
    assert settings["0"]["scores"]["Unlearn (+)"]["mia"] is None
    assert settings["0"]["n_forget"] > 0
    for check in record["result"]["checks"]:
        assert check["true"] <= check["residual"]
        if check["what"].startswith("Unlearn (+)"):
            assert check["true"] < 1e-6, "with the source's Hessian the step is retraining"
    written, kept = (settings["0"]["scores"][method] for method in (AS_WRITTEN, "Unlearn (-)"))
    assert written["distance"] < kept["distance"], "without the class's own Hessian the step falls short"
    assert settings["0"]["scores"][mixed_linear.WITHOUT]["distance"] < kept["distance"]
    whole, without = (
        float(check["distance"].removeprefix("chi2:"))
        for check in record["result"]["checks"]
        if check["what"].startswith("Unlearn (-)") and check["what"].endswith(", 0")
    )
    assert without < 0.1 < whole, "the retained rows have none of a class that is a tenth of the surrogate"
    first, *_ = mixed_linear.tables(config, [record])
    assert first.rows[0][:2] == ("0.1", "Retrain")
    assert first.rows[3][:2] == ("0.1", AS_WRITTEN)
    assert "paper" in first.columns


def test_a_tangent_head_with_a_deposit_is_retraining(images: DataFolder) -> None:
    """Of a class too, which moves the weights far; a region below the truth is told."""
    config = small("kept-tangent", private=300, l2=0.01, block=64)
    (record,) = records_of(kept_tangent, config, images)
    result = record["result"]
    assert result["weights"] == 2 * 8 + 8 * 10 + 10
    for (name, found), one in zip(result["settings"].items(), result["checks"], strict=True):
        assert one["what"] == f"With a deposit, {name}"
        assert 0.0 < one["true"] <= one["residual"] == found["radius"] < 1e-4 * found["moved"]
        assert found["noise_length"] < 1e-2 * found["moved"]
        assert found["scores"]["With a deposit"] == found["scores"]["Retrain"]
        assert found["status"] == "conditional"
    assert result["settings"]["0"]["moved"] > 0.1, "forgetting must have something to do"
    outside = [one | {"true": 2.0 * one["residual"]} for one in result["checks"]]
    other = record | {"seed": 1, "result": result | {"checks": outside}}
    (table,) = kept_tangent.tables(config, [record, other])
    assert [row[:2] for row in table.rows[3:]] == [("0", name) for name in ("Original", "Retrain", "With a deposit")]
    assert "BatchNorm2d and Linear" in table.notes[0]
    assert "0.00 points" in table.notes[1]
    assert "2 of 4" in table.notes[2]
    assert kept_tangent.tables(config, []) == []


@pytest.mark.slow
def test_table_6_has_every_architecture_and_its_steps_come_to_rest(images: DataFolder) -> None:
    config = small(
        "architectures",
        l2=dict.fromkeys(architectures.ARCHITECTURES, 0.2),  # at half of it a last digit decides whether steps stall
        private=300,
        components=4,
        components_from=60,
        channels=3,
        splits=5,
        epochs=2,
        batch=30,
    )
    records = records_of(architectures, config, images)
    assert [record["key"] for record in records] == ["L", "C+L", "2C+L"]
    for record in records:
        result = record["result"]
        assert all(set(scores) >= METRICS for scores in result["scores"].values())
        assert max(result["training_gradient"], result["retraining_gradient"]) < 0.01 * result["retain_gradient"]
        exact = result["steps"]["Unlearn (+)"]
        assert exact["ending"] == "reached"
        assert exact["retain_gradient"] < 0.02 * result["retain_gradient"]
        assert result["steps"]["Unlearn (-)"]["residual_ratio"] < 1.0
    linear = records[0]["result"]
    assert linear["steps"]["Unlearn (+)"]["to_retrained"] < 0.05 * linear["to_retrained"], "a convex loss has one rest"
    table, apart, steps = architectures.tables(config, records)
    assert [len(one.rows) for one in (table, apart, steps)] == [12, 9, 6]
    assert "in one seed" in apart.notes[0]


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_the_papers_task_has_its_seven_rows() -> None:
    names = [method.name for method in paper_methods(0, n_rows=20)]
    assert names[:3] == ["Original", "Retrain", "Unlearn (+)"]
    assert len(names) == 8
    rows = paper_task(0, (0.1,), n_rows=1000, n_models=0)
    assert [row.method for row in rows][-1] == "Unlearn (-) zeta 0.1"


def test_the_papers_own_data_set_is_a_partition_of_its_rows() -> None:
    splits = published_splits()
    assert [len(part[0]) for part in (splits.retain, splits.forget, splits.test)] == [12_150, 1350, 1500]
    rows = np.concatenate([splits.retain[0], splits.forget[0], splits.test[0]])
    assert len(np.unique(rows[:, 0])) > 14_900
    assert rows.mean() == pytest.approx(0.0, abs=0.01)
