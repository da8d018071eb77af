"""Methods behind one interface, every metric on each of them, and the table."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.datasets.synthetic import surrogate_rows
from experiments.shared.paper_noise import PaperNoise
from experiments.shared.paper_task import paper_splits
from expunge import unlearn
from expunge.errors import DataError, ModelError, OptionError
from expunge.evaluate.case import Case, Splits, make_case
from expunge.evaluate.evaluation import (
    COLUMNS,
    METRICS,
    Cell,
    MethodScores,
    evaluate,
    evaluate_files,
    legend,
    remarks,
    summarise,
    to_json,
    to_markdown,
)
from expunge.evaluate.methods import (
    CertifiedNoise,
    GivenModel,
    MethodResult,
    Original,
    Retrain,
    UnlearnMinus,
    UnlearnPlus,
    plain_noise,
)
from expunge.evaluate.metrics import Score
from expunge.model import from_matrix
from expunge.runtime.arrays import norm, zeros
from expunge.train import train


@dataclass(frozen=True)
class Bring:
    """A method somebody brings: nothing but a name and a run."""

    name: str = "zeros"

    def run(self, case: Case) -> MethodResult:
        return MethodResult(zeros(case.weights), plain_noise(0.001, case.weights))


def test_both_engines_give_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    splits, tables = paper_splits(1, 2000), []
    noise = CertifiedNoise(2.0, 1e-3)
    for tensors in (True, False):
        monkeypatch.setattr("expunge.runtime.arrays.TENSORS", tensors)
        case = make_case(replace(splits, surrogate=splits.source), l2=0.05, max_norm=20.0)
        assert isinstance(case.weights, torch.Tensor if tensors else np.ndarray)
        methods = [Original(), Retrain(), UnlearnPlus(noise), UnlearnMinus(noise), GivenModel("own", case.trained)]
        tables.append(evaluate(case, methods, 0, n_models=24))
    for ours, theirs in zip(*tables, strict=True):
        assert ours.notes == theirs.notes
        assert list(ours.scores) == list(theirs.scores)
        one, two = ([score.value for score in each.scores.values()] for each in (ours, theirs))
        np.testing.assert_allclose(np.array(one, float), np.array(two, float), rtol=1e-9, atol=1e-9)


def test_every_metric_runs_on_every_method(case: Case) -> None:
    surrogate = surrogate_rows(np.random.default_rng(0), 0.02, 1000)
    given = GivenModel("brought", from_matrix(case.retrained, bias=False, dtype=np.float64))
    methods = [
        Original(),
        Retrain(),
        UnlearnPlus(PaperNoise()),
        UnlearnMinus(PaperNoise(error=0.4), surrogate=surrogate),
        given,
        Bring(),
    ]
    rows = {row.method: row.scores for row in evaluate(case, methods, 0, n_models=64)}
    assert list(rows) == [method.name for method in methods]
    for name, scores in rows.items():
        assert set(scores) == set(METRICS) - ({"fs2"} if name != "Unlearn (-)" else set())
        for metric, score in scores.items():
            if score.value is None:
                assert (name, metric) in {("brought", m) for m in ("fs1", "sigma")}
                assert score.flags
    # a retrained model under its own name or another's: the same accuracies, attack and relearn time
    for metric in ("train", "test", "retain", "forget", "mia", "rt", "distance"):
        assert rows["brought"][metric] == rows["Retrain"][metric]
    assert rows["Unlearn (-)"]["fs1"].value > rows["Unlearn (-)"]["fs2"].value
    assert rows["Original"]["fs1"].value < rows["Retrain"]["fs1"].value


def test_few_forget_rows_are_flagged_everywhere(case: Case) -> None:
    features, labels = case.splits.source
    splits = Splits((features[:-10], labels[:-10]), (features[-10:], labels[-10:]), case.splits.test)
    small = make_case(splits, trained=case.trained)
    (row,) = evaluate(small, [UnlearnPlus(PaperNoise())], 0, n_models=32)
    assert row.scores["mia"].value is None
    assert row.scores["rt"].value is None
    assert "only 10" in row.scores["fs1"].flags[0]


def scores(value: float | None, name: str = "a", *flags: str) -> list[MethodScores]:
    return [MethodScores(name, {"test": Score(value, 0.1, flags)}, ("note",))]


def test_retraining_is_the_optimum_of_the_retained_rows(case: Case) -> None:
    gradient = case.objective.gradient(Retrain().run(case).updated, case.rows["retain"])
    assert float(norm(gradient)) < 1e-10
    assert float(norm(case.objective.gradient(case.weights, case.rows["train"]))) < 1e-10


def test_unlearning_with_the_source_comes_nearer_than_with_a_surrogate(case: Case) -> None:
    surrogate = surrogate_rows(np.random.default_rng(0), 0.1, 1000)
    distances = [
        float(norm(method.run(case).updated - case.retrained))
        for method in (UnlearnPlus(PaperNoise()), UnlearnMinus(PaperNoise(kl=0.1), surrogate=surrogate), Original())
    ]
    assert distances == sorted(distances)


def test_certified_noise_is_that_of_the_mechanism(case: Case) -> None:
    rows = paper_splits(8, 1000).retain
    found = UnlearnMinus(CertifiedNoise(5.0, 1e-3), surrogate=rows).run(case)
    issued = unlearn(case.trained, case.splits.forget, rows, epsilon=5.0, delta=1e-3, distance="same", force=True)
    assert found.sigma == pytest.approx(issued.certificate.sigma, rel=0.05)  # Lanczos starts at random there
    proven = UnlearnPlus(CertifiedNoise(5.0, 1e-3)).run(case)
    assert proven.sigma < found.sigma
    assert float(norm(proven.updated - case.retrained)) < 1e-6


def test_what_does_not_fit_together_is_refused(case: Case) -> None:
    with pytest.raises(DataError, match="surrogate"):
        UnlearnMinus(PaperNoise()).run(case)
    with pytest.raises(DataError, match="trained on 900"):
        make_case(replace(case.splits, retain=case.splits.forget), trained=case.trained)
    with pytest.raises(ModelError, match="l2 and max_norm"):
        make_case(case.splits)
    with pytest.raises(ModelError, match="record"):
        make_case(case.splits, trained=from_matrix(case.weights, bias=False, dtype=np.float64))
    record = replace(case.record, bias=True, free_bias=True)
    with pytest.raises(ModelError, match=r"free bias.*without --free-bias"):
        make_case(case.splits, trained=replace(case.trained, record=record))
    with pytest.raises(ModelError, match="shape"):
        GivenModel("odd", from_matrix(np.zeros((3, 3)), bias=False, dtype=np.float64)).run(case)


def test_means_and_spreads_are_over_seeds() -> None:
    table = summarise([scores(0.5), scores(0.7), scores(None, "a", "odd")])
    cell = table.cells["a"]["test"]
    assert cell == Cell(pytest.approx(0.6), pytest.approx(math.sqrt(0.02)), 2, ("odd",))
    assert summarise([scores(0.5)]).cells["a"]["test"].spread is None
    assert summarise([scores(None)]).cells["a"]["test"].mean is None


def test_the_table_is_written_as_a_page_and_as_json() -> None:
    table = summarise([scores(0.5, "=sum(1)", "odd"), scores(0.7, "=sum(1)")])
    page = to_markdown(table)
    assert "| =sum(1) | 60.0 ± 14.1 |" in page
    assert "- =sum(1) (Test): odd" in page
    content = json.loads(json.dumps(to_json(table), allow_nan=False))
    assert content["methods"]["=sum(1)"]["metrics"]["test"]["seeds"] == 2


def test_what_is_said_of_several_is_said_once() -> None:
    table = summarise([scores(0.5, "a", "odd") + scores(0.6, "b", "odd")])
    assert remarks(table) == ["a, b (Test): odd", "a, b: note"]
    assert legend(table) == [f"Test: {COLUMNS['test'][2]}"]


def test_own_files_must_all_be_there() -> None:
    options = {"label": None, "epsilon": 1.0, "delta": 1e-3, "distance": "same", "n_models": 0, "seeds": 1}
    with pytest.raises(OptionError, match="no --forget, --test, --model"):
        evaluate_files(None, {"retain": Path("r.npz")}, [], **options)


def test_one_weight_vector_is_compared_by_every_way(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    features = generator.standard_normal((260, 3))
    labels = (features[:, 0] + generator.standard_normal(260) > 0).astype(int)
    model = train(features[:200], labels[:200], l2=0.05, max_norm=4.0, loss="logistic")
    model.save(tmp_path / "model.safetensors")
    parts = {}
    sets = {"retain": slice(25, 200), "forget": slice(0, 25), "test": slice(200, 260), "surrogate": slice(100, 260)}
    for name, part in sets.items():
        parts[name] = tmp_path / f"{name}.npz"
        np.savez(parts[name], X=features[part], y=labels[part])
    options = {"label": None, "epsilon": 1.0, "delta": 1e-3, "distance": "same", "n_models": 20, "seeds": 1}
    rows = evaluate_files(tmp_path / "model.safetensors", parts, [], with_deposit=True, **options)[0].cells
    assert list(rows) == ["Original", "Retrain", "Unlearn (+)", "Unlearn (-)", "Deposit"]
    right = np.mean(model.predict(features[200:]) == labels[200:])
    assert rows["Original"]["test"].mean == pytest.approx(float(right))
    assert rows["Deposit"]["fs1"].mean is not None
