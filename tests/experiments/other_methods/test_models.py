"""Many models side by side are the same as one after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.other_methods.langevin import near_rest
from experiments.other_methods.models import Forgotten, descend, gradients, hessian, pull_of, solved, timed, within
from expunge.evaluate.case import Case, Splits, make_case
from expunge.evaluate.methods import plain_noise


def some(case: Case, count: int = 3) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_normal((count, *case.weights.shape)))


def test_gradients_are_those_of_each_model(unit: Case) -> None:
    models = some(unit)
    retain = unit.rows["retain"]
    found = gradients(unit.objective, models, retain, pull_of(unit.objective, retain))
    for model, gradient in zip(models, found, strict=True):
        torch.testing.assert_close(gradient, unit.objective.gradient(model, unit.rows["retain"]))


def test_descent_ends_at_the_optimum(unit: Case) -> None:
    found = descend(unit.objective, some(unit), unit.rows["retain"], 400, 2.0 / 0.6)
    torch.testing.assert_close(found, unit.retrained.expand_as(found), rtol=0.0, atol=1e-9)


def test_only_long_models_are_scaled() -> None:
    models = torch.tensor([[[3.0, 4.0]], [[0.3, 0.4]], [[0.0, 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(within(models, 1.0), torch.tensor([[[0.6, 0.8]], [[0.3, 0.4]], [[0.0, 0.0]]]).double())


def test_an_ensemble_is_what_was_drawn(unit: Case) -> None:
    models = some(unit)
    outcome = Forgotten(models.mean(dim=0), None, models=models)
    generator = np.random.default_rng(1)
    assert torch.equal(outcome.ensemble(2, generator), models[:2])
    more = outcome.ensemble(50, generator)
    assert torch.equal(more[:3], models)
    assert all(any(torch.equal(one, known) for known in models) for one in more)
    spread = outcome.ensemble(3, generator, plain_noise(0.5, models[0])) - models
    assert 0.1 < float(spread.std()) < 1.0
    noised = Forgotten(models[0], plain_noise(0.5, models[0]))
    assert float((noised.ensemble(4, generator) - models[0]).abs().min()) > 0.0


def test_a_deletion_is_timed_alone_and_done_for_all(unit: Case) -> None:
    sizes = []

    def delete(models: torch.Tensor) -> torch.Tensor:
        sizes.append(len(models))
        return 2.0 * models

    models = some(unit)
    found, seconds = timed(delete, models)
    assert torch.equal(found, 2.0 * models)
    assert sizes == [1, 2]
    assert seconds > 0.0
    assert timed(delete, models[:1])[0].shape == pytest.approx((1, *unit.weights.shape))
    assert torch.equal(timed(delete, models, alone=False)[0], 2.0 * models)
    assert sizes == [1, 2, 1, 3]


@pytest.mark.parametrize("loss", ["softmax", "one-vs-rest"])
def test_the_hessian_in_blocks_is_the_dense_one(loss: str) -> None:
    generator = np.random.default_rng(2)
    y = np.arange(90) % 3
    X = 0.3 * generator.standard_normal((90, 4)) + 0.3 * np.eye(3, 4)[y]
    splits = Splits((X[:80], y[:80]), (X[80:85], y[80:85]), (X[85:], y[85:]))
    case = make_case(splits, l2=0.1, max_norm=2.0, loss=loss)
    dense = case.objective.curvature(case.weights, case.rows["train"]).dense()
    blocks = hessian(case.objective, case.weights, case.rows["train"])
    assert len(blocks) == (1 if loss == "softmax" else 3)
    torch.testing.assert_close(torch.block_diag(*blocks), dense)
    values = torch.from_numpy(generator.standard_normal((3, 4)))
    found = solved(torch.linalg.cholesky(blocks), values)
    torch.testing.assert_close(dense @ found.reshape(-1), values.reshape(-1))
    drawn = near_rest(case, 0.5, 4000, np.random.default_rng(0)).flatten(1)
    torch.testing.assert_close(torch.cov(drawn.T), 0.25 * torch.linalg.inv(dense), rtol=0.2, atol=0.1)
