"""Methods behind one interface, every metric on each of them, and the table."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from experiments.datasets.synthetic import surrogate_kl, surrogate_rows
from experiments.shared.paper_noise import VACUOUS, PaperNoise
from experiments.shared.paper_task import paper_splits
from expunge import unlearn
from expunge.bounds import PaperConstants, paper_bound
from expunge.errors import OptionError
from expunge.evaluate.case import Case
from expunge.evaluate.methods import CertifiedNoise, Original, Outcome, Retrain, UnlearnMinus, UnlearnPlus, plain_noise
from expunge.request.promise import check_budget


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
