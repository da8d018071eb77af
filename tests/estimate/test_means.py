"""The difference of means that the bound needs: the naive value, how it varies, and how often the upper value is above."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from expunge.estimate.source import _fluctuations, means_difference
from expunge.heads import Rows, Softmax

pytestmark = pytest.mark.usefixtures("one_thread")
HEAD = Softmax(l2=0.1, n_classes=3, n_features=4, row_bound=1.0)
RNG = np.random.default_rng(0)
W, U = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4))


def rows_of(rows: int, seed: int, shift: float = 0.0, weights: torch.Tensor | None = None) -> Rows:
    X = np.random.default_rng(seed).normal(size=(rows, 4)) * 0.3 + shift
    return Rows(torch.tensor(X), torch.zeros(rows, dtype=torch.int64), weights)


def found_for(samples: Rows, surrogate: Rows, seed: int = 0):
    return means_difference(HEAD, torch.tensor(W), torch.tensor(U), samples, surrogate, seed=seed)


def test_the_value_is_that_of_the_tables_of_all_phi() -> None:
    samples, surrogate = rows_of(50, 1, 0.3), rows_of(70, 2)
    tables = [reference.change_table(W, U, rows.features.numpy(), "softmax") for rows in (samples, surrogate)]
    difference = np.linalg.norm(tables[0].mean(axis=0) - tables[1].mean(axis=0))
    found = found_for(samples, surrogate)
    assert found.value == pytest.approx(difference, rel=1e-12)
    assert found.upper > found.value
    assert (found.n_samples, found.n_surrogate, found.confidence) == (50, 70, 0.95)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_bootstrap_moves_a_mean_as_another_sample_would(weighted: bool) -> None:
    weights = torch.tensor(np.random.default_rng(5).uniform(0.1, 3.0, 400)) if weighted else None
    if weights is not None:
        weights = weights / weights.mean()
    rows = rows_of(400, 3, weights=weights)
    drawn = _fluctuations(HEAD, torch.tensor(W), torch.tensor(U), rows, 4000, torch.Generator().manual_seed(0)).numpy()
    phi = reference.change_table(W, U, rows.features.numpy(), "softmax")
    each = np.ones(400) if weights is None else weights.numpy()
    centred = each[:, None] * (phi - (each[:, None] * phi).mean(axis=0))
    covariance = centred.T @ centred / 400**2
    sampled = drawn.T @ drawn / len(drawn)
    assert np.abs(sampled - covariance).max() < 6 * covariance.max() / np.sqrt(4000)


def test_the_upper_value_is_above_the_truth_as_often_as_it_says() -> None:
    weights, update = torch.tensor(W), torch.tensor(U)
    large = [HEAD.change_mean(weights, update, rows_of(400_000, seed, shift)) for seed, shift in ((90, 0.1), (91, 0.0))]
    truth = float((large[0] - large[1]).norm())
    above = sum(found_for(rows_of(200, 2 * k, 0.1), rows_of(300, 2 * k + 1), seed=k).upper >= truth for k in range(100))
    assert above >= 95 - 7


def test_more_rows_make_it_tighter() -> None:
    gaps = []
    for size in (200, 20_000):
        found = found_for(rows_of(size, 1, 0.1), rows_of(size, 2))
        gaps.append(found.upper - found.value)
    assert gaps[1] < 0.25 * gaps[0]
