"""Every metric on every method."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from experiments.datasets.synthetic import surrogate_rows
from experiments.shared.paper_noise import PaperNoise
from expunge.evaluate.case import Case, Splits, make_case
from expunge.evaluate.evaluation import METRICS, MethodScores, evaluate
from expunge.evaluate.methods import GivenModel, Original, Outcome, Retrain, UnlearnMinus, UnlearnPlus, plain_noise
from expunge.evaluate.metrics import Score
from expunge.model import from_matrix


@dataclass(frozen=True)
class Bring:
    """A method somebody brings: nothing but a name and a run."""

    name: str = "zeros"

    def run(self, case: Case) -> Outcome:
        return Outcome(torch.zeros_like(case.weights), plain_noise(0.001, case.weights))


def test_every_metric_runs_on_every_method(case: Case) -> None:
    surrogate = surrogate_rows(np.random.default_rng(0), 0.02, 1000)
    given = GivenModel("brought", from_matrix(case.retrained, bias=False, dtype=torch.float64))
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
                assert (name, metric) in {("brought", m) for m in ("fs1", "lira", "lira_worst", "sigma")}
                assert score.flags
    # a retrained model under its own name or another's: the same accuracies, attack and relearn time
    for metric in ("train", "test", "retain", "forget", "mia", "rt", "distance"):
        assert rows["brought"][metric] == rows["Retrain"][metric]
    assert rows["Unlearn (-)"]["fs1"].value > rows["Unlearn (-)"]["fs2"].value
    assert rows["Original"]["fs1"].value < rows["Retrain"]["fs1"].value
    assert abs(rows["Retrain"]["lira"].value - 0.5) < 0.05
    assert rows["Original"]["lira"].value > 0.9


def test_without_models_or_noise_the_scores_of_many_models_are_left_out(case: Case) -> None:
    (row,) = evaluate(case, [Retrain()], 0, n_models=0)
    assert "fs1" not in row.scores
    (row,) = evaluate(case, [Retrain()], 0, n_models=32)
    assert row.scores["fs1"].value is None


def test_results_follow_from_the_seed(case: Case) -> None:
    first, second, third = (evaluate(case, [UnlearnPlus(PaperNoise())], seed, n_models=32) for seed in (1, 1, 2))
    assert first == second
    assert first != third


def test_few_forget_rows_are_flagged_everywhere(case: Case) -> None:
    features, labels = case.splits.source
    splits = Splits((features[:-10], labels[:-10]), (features[-10:], labels[-10:]), case.splits.test)
    small = make_case(splits, trained=case.trained)
    (row,) = evaluate(small, [UnlearnPlus(PaperNoise())], 0, n_models=32)
    assert row.scores["mia"].value is None
    assert row.scores["rt"].value is None
    assert "only 10" in row.scores["fs1"].flags[0]
    assert "only 10" in row.scores["lira"].flags[0]


def scores(value: float | None, name: str = "a", *flags: str) -> list[MethodScores]:
    return [MethodScores(name, {"test": Score(value, 0.1, flags)}, ("note",))]
