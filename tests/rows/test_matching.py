"""Surrogate rows weighted to the class counts of what is retained: weights are repeats, moments are weighted, the bound holds and is smaller."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import reference
from asking import asked
from class_shift import example, shifted_problem
from expunge import Distance, unlearn, verify
from expunge.bounds import retained_bound
from expunge.certificate.claim import retained_facts
from expunge.certificate.dossier import Certificate
from expunge.errors import DataError, VacuousClaim
from expunge.heads import Rows
from expunge.mechanism import measure
from expunge.rows import weight_classes

pytestmark = pytest.mark.usefixtures("one_thread")


def test_weights_are_ratios_of_proportions() -> None:
    rows = Rows(torch.zeros(10, 1, dtype=torch.float64), torch.tensor([0] * 5 + [1] * 4 + [2]))
    matched = weight_classes(rows, (20, 80, 0), ("a", "b", "c"))
    assert matched.weights is not None
    torch.testing.assert_close(matched.weights, torch.tensor([0.36] * 5 + [1.8] * 4, dtype=torch.float64))
    assert len(matched) == 9  # the row of a class that the source had none of does not count
    assert matched.largest_weight == pytest.approx(1.8)
    assert matched.effective == pytest.approx(81 / (5 * 0.36**2 + 4 * 1.8**2))
    assert rows.effective == 10
    assert rows.largest_weight == 1.0


def test_a_class_of_the_source_that_is_absent_is_an_error() -> None:
    rows = Rows(torch.zeros(3, 1, dtype=torch.float64), torch.tensor([0, 0, 2]))
    with pytest.raises(DataError, match="no rows of class 'b'"):
        weight_classes(rows, (1, 5, 1), ("a", "b", "c"))


def test_a_pure_shift_of_class_proportions_is_removed_altogether() -> None:
    made = example("softmax", n=90)
    rng = np.random.default_rng(3)
    X, y = made["X"], rng.permutation(np.arange(90) % 3)
    source = Rows(torch.tensor(X), torch.tensor(y))
    times = np.array([1, 4, 9])[y]  # the surrogate: the source's rows, each class repeated another number of times
    surrogate = Rows(torch.tensor(np.repeat(X, times, axis=0)), torch.tensor(np.repeat(y, times)))
    matched = weight_classes(surrogate, (30, 30, 30), (0, 1, 2))
    head, W, U = made["head"], made["W"], made["U"]
    truth = head.change_mean(W, U, source)
    assert float((truth - head.change_mean(W, U, surrogate)).norm()) > 1e-3
    assert float((truth - head.change_mean(W, U, matched)).norm()) < 1e-14


def deltas(seed: int, **options: Any) -> tuple[float, float]:
    """Delta and the true distance to retraining."""
    model, X, y, gone, S = shifted_problem(seed)
    request = asked(model, (X[gone], y[gone]), S, epsilon=1.0, delta=0.01, force=True, **options)
    measured = measure(request, seed=1)
    assert isinstance(request.distance, Distance)
    total = retained_bound(retained_facts(measured.facts), request.distance, averaged=False).radius
    kept = np.setdiff1d(np.arange(len(X)), gone)
    target = reference.retrain(X[kept], y[kept], 3, 0.05, "softmax").weights
    return total, float(np.linalg.norm(target - (request.weights + measured.step.update).numpy()))


def test_the_bound_holds_under_a_shift_of_class_proportions() -> None:
    found = [deltas(seed, distance="same", match_classes=True) for seed in range(40)]
    assert all(truth <= total for total, truth in found)
    assert np.median([total / truth for total, truth in found]) < 35.0


def test_so_it_does_with_what_was_seen_where_that_is_not_refused() -> None:
    """Refused where a forget row changes more than every surrogate row: the surrogate then does not show all there is."""
    distance, found, refused = Distance("same", 0.0, sampling="seen"), [], []
    for seed in range(40):
        try:
            found.append(deltas(seed, distance=distance, match_classes=True))
        except VacuousClaim as refusal:
            refused.append(refusal.found)
    assert 0 < len(refused) < 10
    assert all("a forget row changes by" in words for words in refused)
    assert all(truth <= total for total, truth in found)
    assert np.median([total / truth for total, truth in found]) < 10.0


def certificate(**options: Any) -> Certificate:
    model, X, y, gone, S = shifted_problem(0, n=3000, s=3000)
    made = unlearn(
        model, (X[gone[:1]], y[gone[:1]]), S, epsilon=2.0, delta=1e-3, distance="same", match_classes=True, **options
    )
    return made.certificate


def test_a_certificate_with_matched_classes_says_so_and_verifies() -> None:
    found = certificate()
    verify(found)
    assert found.status == "conditional"
    assert found.content["distance"]["matched"] is True
    assert "weighted so that its classes have the source's proportions" in found.content["distance"]["meaning"]
    assert any("weighted by class" in sentence for sentence in found.content["assumptions"])
    assert 1 < found.content["data"]["effective_surrogate_rows"] < 3000
