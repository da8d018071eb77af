"""Relearn time against a literal Adam, and its flags."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from experiments.shared.paper_task import paper_splits
from expunge.evaluate.case import Case, make_case
from expunge.evaluate.metrics import relearn_time
from expunge.heads import Rows


def literal(weights: np.ndarray, case: Case, seed: int) -> int:
    """Adam as its paper states it, on shuffled batches of 512, in numpy."""
    features, labels = case.rows["forget"].features.numpy(), case.rows["forget"].labels.numpy()
    share = lambda w: np.mean((features @ w.T).argmax(1) == labels)  # noqa: E731
    goal = share(case.weights.numpy()) - 0.005
    first, second, step = np.zeros_like(weights), np.zeros_like(weights), 0
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(labels))
        for start in range(0, len(order), 512):
            batch = order[start : start + 512]
            outputs = features[batch] @ weights.T
            chances = np.exp(outputs - outputs.max(1, keepdims=True))
            chances /= chances.sum(1, keepdims=True)
            chances[np.arange(len(batch)), labels[batch]] -= 1
            gradient = chances.T @ features[batch] / len(batch) + case.objective.l2 * weights
            step += 1
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            weights = weights - 1e-3 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
            if share(weights) >= goal:
                return step


def test_equals_the_literal_form() -> None:
    case = make_case(paper_splits(2, 8000), l2=0.02, max_norm=20.0)  # 720 rows to forget: two batches a round
    found = relearn_time(case.retrained, case, 5)
    assert found.value == literal(case.retrained.numpy().copy(), case, 5)
    assert found.value > 2


def test_is_equal_for_equal_models(case: Case) -> None:
    assert relearn_time(case.retrained, case, 1) == relearn_time(case.retrained.clone(), case, 1)


def test_the_original_never_left(case: Case) -> None:
    found = relearn_time(case.weights, case, 0)
    assert found.value == 0
    assert "never left" in found.flags[0]


def test_few_rows_are_refused(case: Case) -> None:
    forget = case.rows["forget"]
    small = replace(case, rows={**case.rows, "forget": Rows(forget.features[:19], forget.labels[:19])})
    assert relearn_time(case.retrained, small, 0).value is None


def test_what_does_not_come_back_is_flagged(case: Case) -> None:
    found = relearn_time(-1e3 * case.weights, case, 0)
    assert found.value is None
    assert "not back" in found.flags[0]
