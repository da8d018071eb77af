"""The conditional part of the KL, on distributions whose value is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from expunge.errors import DataError
from expunge.estimate.source import conditional_divergence
from expunge.heads import Rows, Softmax
from expunge.runtime.budget import Budget
from expunge.train import minimise

pytestmark = pytest.mark.usefixtures("one_thread")


def coin(share: float, rows: int, l2: float = 1e-6) -> tuple[Softmax, Rows]:
    """A constant feature, and two labels with this share of the first."""
    head = Softmax(l2=l2, n_classes=2, n_features=1, row_bound=1.0)
    labels = (torch.arange(rows) >= share * rows).long()
    return head, Rows(torch.ones(rows, 1, dtype=torch.float64), labels)


def test_two_coins_differ_by_their_kl() -> None:
    head, rows = coin(0.8, 4000)
    found = conditional_divergence(head, torch.zeros(2, 1, dtype=torch.float64), rows)
    exact = 0.8 * math.log(1.6) + 0.2 * math.log(0.4)
    assert found.value == pytest.approx(exact, abs=2e-3)
    deviation = math.sqrt(0.8 * math.log(1.6) ** 2 + 0.2 * math.log(0.4) ** 2 - exact**2)
    assert found.standard_error == pytest.approx(deviation / math.sqrt(4000), rel=0.02)


def test_row_weights_count() -> None:
    head, rows = coin(0.8, 4000)
    even = Rows(rows.features, rows.labels, torch.where(rows.labels == 0, 0.5 / 0.8, 0.5 / 0.2).double())
    found = conditional_divergence(head, torch.zeros(2, 1, dtype=torch.float64), even)
    assert abs(found.value) < 2e-3
    assert found.standard_error < 1e-3


def test_without_time_for_more_one_fold_alone_is_judged() -> None:
    head, rows = coin(0.8, 4000)
    found = conditional_divergence(head, torch.zeros(2, 1, dtype=torch.float64), rows, budget=Budget(0.0))
    exact = 0.8 * math.log(1.6) + 0.2 * math.log(0.4)
    assert (found.folds, found.n_rows) == (1, 800)
    assert abs(found.value - exact) < 4 * found.standard_error
    deviation = math.sqrt(0.8 * math.log(1.6) ** 2 + 0.2 * math.log(0.4) ** 2 - exact**2)
    assert found.standard_error == pytest.approx(deviation / math.sqrt(800), rel=0.1)


def random_rows(rows: int, width: int, seed: int, rule: np.ndarray | None = None) -> Rows:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, width)) / math.sqrt(width)
    logits = np.zeros((rows, 3)) if rule is None else X @ rule
    y = (logits + rng.gumbel(size=(rows, 3))).argmax(axis=1)
    return Rows(torch.tensor(X), torch.tensor(y))


def test_two_samples_of_one_distribution_differ_by_nothing() -> None:
    rule = np.random.default_rng(1).normal(size=(5, 3)) * 4
    head = Softmax(l2=1e-3, n_classes=3, n_features=5, row_bound=3.0)
    trained = minimise(head, random_rows(4000, 5, 2, rule))
    found = conditional_divergence(head, trained, random_rows(4000, 5, 3, rule))
    assert abs(found.value) < 3 * found.standard_error + 2e-3


def test_a_surrogate_model_is_not_judged_on_its_own_rows() -> None:
    """Labels are pure chance, and there are as many features as a model needs to learn them by heart."""
    rows = random_rows(120, 60, 4)
    head = Softmax(l2=1e-4, n_classes=3, n_features=60, row_bound=3.0)
    uniform = torch.zeros(3, 60, dtype=torch.float64)
    by_heart = minimise(head, rows)
    outputs = rows.features @ by_heart.T
    in_sample = math.log(3) - float(head.losses(outputs, rows.labels).mean())
    assert in_sample > 0.5
    assert conditional_divergence(head, uniform, rows).value < 0.0


def test_a_label_the_model_rules_out_makes_it_infinite() -> None:
    head, rows = coin(0.8, 100)
    found = conditional_divergence(head, torch.tensor([[1e308], [-1e308]], dtype=torch.float64) * 1.5, rows)
    assert found.value == math.inf


def test_weights_that_are_no_numbers_are_an_error() -> None:
    head, rows = coin(1.0, 100)
    with pytest.raises(DataError, match="not a number"):
        conditional_divergence(head, torch.tensor([[math.inf], [-math.inf]], dtype=torch.float64), rows)


def test_too_few_rows_for_the_folds() -> None:
    head, rows = coin(0.5, 8)
    with pytest.raises(DataError, match="8 surrogate rows for 5 folds"):
        conditional_divergence(head, torch.zeros(2, 1, dtype=torch.float64), rows)


def test_the_seed_decides_the_folds_and_nothing_else_is_touched() -> None:
    rows = random_rows(90, 3, 5)
    head = Softmax(l2=1e-2, n_classes=3, n_features=3, row_bound=3.0)
    weights = torch.zeros(3, 3, dtype=torch.float64)
    state = torch.random.get_rng_state()
    first, again, other = (conditional_divergence(head, weights, rows, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.value != other.value
    assert torch.equal(state, torch.random.get_rng_state())
