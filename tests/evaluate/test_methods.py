"""Methods behind one interface, every metric on each of them, and the table."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from expunge import unlearn
from expunge.bounds import PaperConstants, paper_bound
from expunge.data.splits import class_split
from expunge.data.synthetic import surrogate_kl, surrogate_rows
from expunge.errors import DataError, ModelError, OptionError
from expunge.evaluate.case import Case, Splits, make_case
from expunge.evaluate.evaluation import METRICS, MethodScores, evaluate
from expunge.evaluate.membership import membership
from expunge.evaluate.methods import (
    VACUOUS,
    CertifiedNoise,
    Given,
    Original,
    Outcome,
    PaperNoise,
    Retrain,
    UnlearnMinus,
    UnlearnPlus,
    plain_noise,
)
from expunge.evaluate.paper_task import paper_methods, paper_splits, paper_task, published_splits
from expunge.evaluate.score import Score
from expunge.evaluate.table import (
    Cell,
    scores_from_json,
    scores_to_json,
    shown,
    summarise,
    to_csv,
    to_json,
    to_markdown,
)
from expunge.model import from_matrix
from expunge.request.guarantee import check_budget


def test_retraining_is_the_optimum_of_the_retained_rows(case: Case) -> None:
    gradient = case.objective.gradient(Retrain().run(case).updated, case.rows["retain"])
    assert float(gradient.norm()) < 1e-10
    assert float(case.objective.gradient(case.weights, case.rows["train"]).norm()) < 1e-10


def test_unlearning_with_the_source_comes_nearer_than_with_a_surrogate(case: Case) -> None:
    surrogate = surrogate_rows(np.random.default_rng(0), 0.1, 1000)
    distances = [
        float((method.run(case).updated - case.retrained).norm())
        for method in (UnlearnPlus(PaperNoise()), UnlearnMinus(PaperNoise(kl=0.1), surrogate=surrogate), Original())
    ]
    assert distances == sorted(distances)


def test_the_papers_noise_is_its_formula_and_called_vacuous(case: Case) -> None:
    surrogate = surrogate_rows(np.random.default_rng(0), 0.1, 1000)
    kl = surrogate_kl(0.1)
    found = UnlearnMinus(PaperNoise(kl=kl), surrogate=surrogate).run(case)
    gradient = float(case.objective.gradient(case.weights, case.rows["forget"]).norm())
    bound = paper_bound(
        PaperConstants(1.01, 1.0, 1.0, 1.0), n_source=900, n_forget=90, n_surrogate=1000, gradient_norm=gradient, kl=kl
    )
    assert found.sigma == pytest.approx(bound.radius * math.sqrt(2 * math.log(1.25)) / (5 * math.e**3), rel=1e-12)
    assert found.notes == (VACUOUS,)
    assert PaperNoise(error=0.4).unlearn(case, True).sigma == pytest.approx(0.4 * 0.66805 / 100.4277, rel=1e-4)
    with pytest.raises(OptionError, match="strictly between 0 and 1"):
        check_budget(PaperNoise().epsilon, PaperNoise().delta)  # the mechanism itself still refuses it


def test_certified_noise_is_that_of_the_mechanism(case: Case) -> None:
    rows = paper_splits(8, 1000).retain
    found = UnlearnMinus(CertifiedNoise(5.0, 1e-3), surrogate=rows).run(case)
    issued = unlearn(case.trained, case.splits.forget, rows, epsilon=5.0, delta=1e-3, distance="same", force=True)
    assert found.sigma == pytest.approx(issued.certificate.sigma, rel=0.05)  # Lanczos starts at random there
    proven = UnlearnPlus(CertifiedNoise(5.0, 1e-3)).run(case)
    assert proven.sigma < found.sigma
    assert float((proven.updated - case.retrained).norm()) < 1e-6


def test_an_ensemble_has_the_noise_it_says() -> None:
    weights = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    outcome = Outcome(weights, plain_noise(0.5, weights))
    models = outcome.ensemble(4000, np.random.default_rng(0)).numpy()
    assert np.abs(models.mean(0) - outcome.updated.numpy()).max() < 4 * 0.5 / math.sqrt(4000)
    assert np.abs(models.std(0) - 0.5).max() < 4 * 0.5 / math.sqrt(8000)


@dataclass(frozen=True)
class Bring:
    """A method somebody brings: nothing but a name and a run."""

    name: str = "zeros"

    def run(self, case: Case) -> Outcome:
        return Outcome(torch.zeros_like(case.weights), plain_noise(0.001, case.weights))


def test_every_metric_runs_on_every_method(case: Case) -> None:
    surrogate = surrogate_rows(np.random.default_rng(0), 0.02, 1000)
    given = Given("brought", from_matrix(case.retrained, bias=False, dtype=torch.float64))
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


def test_class_unlearning_has_no_membership_attack() -> None:
    whole = paper_splits(1, 2000)
    features, labels = whole.source
    stay, go = class_split(labels, [0])
    splits = Splits((features[stay], labels[stay]), (features[go], labels[go]), whole.test)
    made = make_case(splits, l2=0.02, max_norm=20.0)
    found = membership(made.retrained, made, 0)
    assert found.value is None
    assert "class unlearning" in found.flags[0]


def test_few_forget_rows_are_flagged_everywhere(case: Case) -> None:
    features, labels = case.splits.source
    splits = Splits((features[:-10], labels[:-10]), (features[-10:], labels[-10:]), case.splits.test)
    small = make_case(splits, trained=case.trained)
    (row,) = evaluate(small, [UnlearnPlus(PaperNoise())], 0, n_models=32)
    assert row.scores["mia"].value is None
    assert row.scores["rt"].value is None
    assert "only 10" in row.scores["fs1"].flags[0]
    assert "only 10" in row.scores["lira"].flags[0]


def test_what_does_not_fit_together_is_refused(case: Case) -> None:
    with pytest.raises(DataError, match="surrogate"):
        UnlearnMinus(PaperNoise()).run(case)
    with pytest.raises(DataError, match="trained on 900"):
        make_case(replace(case.splits, retain=case.splits.forget), trained=case.trained)
    with pytest.raises(ModelError, match="l2 and max_norm"):
        make_case(case.splits)
    with pytest.raises(ModelError, match="record"):
        make_case(case.splits, trained=from_matrix(case.weights, bias=False, dtype=torch.float64))
    with pytest.raises(ModelError, match="shape"):
        Given("odd", from_matrix(torch.zeros(3, 3), bias=False, dtype=torch.float64)).run(case)


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


# The table --------------------------------------------------------------------------------------------------------


def scores(value: float | None, name: str = "a", *flags: str) -> list[MethodScores]:
    return [MethodScores(name, {"test": Score(value, 0.1, flags)}, ("note",))]


def test_means_and_spreads_are_over_seeds() -> None:
    table = summarise([scores(0.5), scores(0.7), scores(None, "a", "odd")])
    cell = table.cells["a"]["test"]
    assert cell == Cell(pytest.approx(0.6), pytest.approx(math.sqrt(0.02)), 2, ("odd",))
    assert summarise([scores(0.5)]).cells["a"]["test"].spread is None
    assert summarise([scores(None)]).cells["a"]["test"].mean is None


def test_the_table_is_written_three_ways() -> None:
    table = summarise([scores(0.5, "=sum(1)", "odd"), scores(0.7, "=sum(1)")])
    page = to_markdown(table)
    assert "| =sum(1) | 60.0 ± 14.1 |" in page
    assert "- =sum(1), Test: odd" in page
    (line,) = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert line["method"] == "'=sum(1)"
    assert float(line["mean"]) == pytest.approx(0.6)
    assert (
        json.loads(json.dumps(to_json(table), allow_nan=False))["methods"]["=sum(1)"]["metrics"]["test"]["seeds"] == 2
    )


def test_no_value_is_shown_as_none() -> None:
    assert shown("test", Cell(None, None, 0, ("odd",))) == "--"
    assert shown("fs1", Cell(0.04567, 0.001, 5, ())) == "0.046 ± 0.001"


def test_scores_survive_the_file() -> None:
    rows = [MethodScores("a", {"mia": Score(None, None, ("x",)), "rt": Score(3.0)}, ("n",))]
    assert scores_from_json(json.loads(json.dumps(scores_to_json(rows)))) == rows
