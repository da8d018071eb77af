"""Our experiments at a size that fits a test, and one committed case run again."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import heuristic, mnist_usps, synthetic
from experiments.datasets.folder import DataFolder, DataSet
from experiments.protocol.config import config_of
from experiments.protocol.experiment import Case, Record, Table
from experiments.protocol.store import read_results
from experiments.shared.as_written import step_as_written
from experiments.shared.checks import checked
from experiments.shared.comparison import comparison, differences
from experiments.shared.retained_rows import NAME as RETAINED
from experiments.shared.retained_rows import step_of_retained_rows
from expunge.evaluate.case import Splits, make_case

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


def test_images_of_two_sizes_become_rows_of_one_length() -> None:
    small = DataSet(
        "usps",
        np.full((2, 16, 16), 1.0, np.float32),
        np.array([1, 2]),
        *[np.zeros((1, 16, 16), np.float32)] * 2,
        "",
        "",
    )
    large = DataSet(
        "mnist", np.full((2, 28, 28), 255, np.uint8), np.array([1, 2]), *[np.zeros((1, 28, 28), np.uint8)] * 2, "", ""
    )
    variant = {"size": 28, "low": -0.5, "high": 2.0}
    rows = [mnist_usps.pixel_rows(one, variant, "train")[0] for one in (small, large)]
    assert rows[0].shape == rows[1].shape == (2, 784)
    np.testing.assert_allclose(rows[0], 2.0)
    np.testing.assert_allclose(rows[1], 2.0)
    np.testing.assert_allclose(mnist_usps.pixel_rows(large, variant, "test")[0], -0.5)


def test_ours_beside_the_papers() -> None:
    ours = {("a",): [{"train": 0.50, "rt": 3.0}, {"train": 0.52, "rt": 4.0}], ("b",): [{"train": 0.7, "rt": None}]}
    paper: dict[tuple[str, ...], list[float | str]] = {("a",): [49.0, "7"], ("b",): [75.0]}
    table = comparison("T", ("method",), ours, paper, metrics=("train", "rt"), within=2.0)
    assert table.columns == ("method", "Train %", "paper", "RT", "paper")
    assert table.rows == (("a", "51.0 ± 1.4", "49", "3.5 ± 0.7", "7"), ("b", "70.0", "75", "--", "--"))
    assert table.notes == (
        "1 of 2 accuracies lie within 2 points of the paper's; the farthest is Train of b, by -5.0 points.",
    )
    assert differences(ours, paper, ("train", "rt"))[("a",), "train"] == pytest.approx(2.0)
    with pytest.raises(ValueError, match="2 cells for 1 columns"):
        Table("T", ("a",), (("1", "2"),))


def test_figure_1_is_drawn_from_the_committed_records() -> None:
    results = read_results(RESULTS, "synthetic")
    assert results is not None
    figures = synthetic.figures(config_of("synthetic"), results.records)
    assert list(figures) == list(results.figures)
    assert all(content.startswith(PNG) and len(content) > 10_000 for content in figures.values())


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


def test_retained_rows_for_a_surrogate_lead_to_retraining() -> None:
    result = step_of_retained_rows(make_case(small_splits(False), l2=0.05, max_norm=2.0), 0)
    assert result["curvature"] == pytest.approx({"step": 1.0, "retraining": 1.0}, rel=1e-12)
    assert result["left"] < 1e-8
    assert result["scores"][RETAINED]["distance"] < 1e-8


def test_a_step_is_too_long_where_the_surrogate_does_not_bend() -> None:
    """One feature is 0 in all of its rows: the matrix is definite there by l2 alone."""
    case = make_case(small_splits(True), l2=0.002, max_norm=2.0)
    result = step_of_retained_rows(case, 0)
    (entry,) = result["checks"]
    assert result["left"] < 1e-8
    assert result["curvature"]["step"] > 2.0
    assert entry["true"] == pytest.approx(result["scores"][RETAINED]["distance"])
    assert entry["true"] > float((case.weights - case.retrained).norm())
    assert entry["true"] <= entry["residual"]


def test_forms_of_unlearning_are_counted_apart_and_missing_ones_told() -> None:
    config = {
        "run": {"forget": 0.1, "variants": [{"name": "v"}]},
        "paper": {"within": 3.0, "table7": {"U -> M": {"Retrain": [90.0] * 4, "Unlearn (-)": [90.0] * 4}}},
    }
    parts = dict.fromkeys(("train", "test", "retain", "forget"), 0.91)
    plain = {**parts, "mia": 0.5, "rt": 1.0, "distance": 1.0}
    check = {"what": "Unlearn (-)", "true": 1.0, "residual": 2.0, "paper": 0.5, "shift": 0.0}
    main: Any = {
        "key": "0 U -> M",
        "seed": 0,
        "options": {"variant": "v", "task": "U -> M"},
        "result": {
            "scores": {"Original": plain, "Retrain": plain, "Unlearn (-)": {**plain, "forget": 0.95}},
            "checks": [check],
        },
    }
    retained: Any = {
        **main,
        "options": {"variant": "v", "task": "U -> M", "form": "retained"},
        "result": {
            "scores": {RETAINED: {**plain, "train": 0.86, "test": 0.85, "distance": 2.0}},
            "left": 1e-9,
            "curvature": {"step": 5.0, "retraining": 0.5},
            "checks": [{**check, "what": RETAINED}],
        },
    }
    first, variants, bending, _ = mnist_usps.tables(config, [main, retained])
    assert "retained rows (seeds: 1): 6 of 8" in first.notes[0]
    assert first.notes[0].endswith(f"not {RETAINED} train -4.0, {RETAINED} test -5.0.")
    assert "paper's form (seeds: 1): 7 of 8" in first.notes[1]
    assert variants.rows[0][6:] == ("6 of 8", f"-5.0 ({RETAINED}, test)", "7 of 8", variants.rows[0][9], "1 of 1")
    assert bending.rows[0][3:] == ("1", "2", "1", "2 of 4", "3 of 4", "5", "0.5")
    assert "In 1 of 1 runs it ends farther" in bending.notes[0]
    _, alone, nothing, _ = mnist_usps.tables(config, [main])
    assert alone.rows[0][6:8] == ("--", "--")
    assert nothing.rows == ()
