"""Each metric by its literal form, where it shows something, and where it is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score, recall_score
from sklearn.model_selection import StratifiedShuffleSplit, cross_val_score

import expunge
from evaluate import reference
from experiments.datasets.splits import class_split
from experiments.shared.paper_task import paper_splits
from expunge.errors import DataError
from expunge.evaluate.case import Case, Splits, make_case
from expunge.evaluate.methods import MethodResult, plain_noise
from expunge.evaluate.metrics import (
    accuracies,
    accuracy,
    attack_membership,
    confidences,
    describe_fit,
    forget_score,
    membership,
    of_other_classes,
    relearn,
    relearn_time,
    row_epsilons,
    row_points,
    score_model,
)
from expunge.heads import Rows
from expunge.runtime import arrays as engine
from expunge.runtime.arrays import to_numpy
from expunge.train import train


def test_accuracies_by_hand(case: Case) -> None:
    for part, score in accuracies(case.retrained, case).items():
        rows = case.rows[part]
        hits = [int((case.retrained @ x).argmax()) == int(y) for x, y in zip(rows.features, rows.labels, strict=True)]
        assert score.value == sum(hits) / len(hits)
    constant = Rows(np.zeros((4, 50)), np.array([0, 0, 1, 2]))
    assert accuracy(case.retrained, constant) == 0.5


def test_confidences_equal_the_literal_form() -> None:
    generator = np.random.default_rng(3)
    models = generator.standard_normal((130, 4, 6))
    features, labels = generator.standard_normal((9, 6)), generator.integers(0, 4, 9)
    found = confidences(torch.from_numpy(models), Rows(torch.from_numpy(features), torch.from_numpy(labels)))
    np.testing.assert_allclose(confidences(models, Rows(features, labels)), found, rtol=1e-13, atol=1e-13)
    expected = [
        [reference.confidence(model, row, label) for row, label in zip(features, labels, strict=True)]
        for model in models
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_one_weight_vector_has_the_confidences_of_two_rows() -> None:
    generator = np.random.default_rng(4)
    one = generator.standard_normal((70, 1, 6))
    rows = Rows(generator.standard_normal((5, 6)), np.array([0, 1, 1, 0, 1]))
    two = np.concatenate([-one / 2, one / 2], axis=1)
    np.testing.assert_allclose(confidences(one, rows), confidences(two, rows), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0, 20.0])
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_equals_the_literal_form(shift: float, scale: float) -> None:
    generator = np.random.default_rng(int(10 * shift))
    unlearned = shift + scale * generator.standard_normal((24, 5))
    retrained = generator.standard_normal((24, 5))
    expected = [reference.row_epsilon(unlearned[:, row], retrained[:, row]) for row in range(5)]
    assert row_epsilons(unlearned, retrained).tolist() == expected
    assert forget_score(unlearned, retrained).value == reference.forget_score(unlearned, retrained)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 6), min_size=6, max_size=6), st.lists(st.integers(0, 6), min_size=6, max_size=6))
def test_equal_values_are_never_told_apart(first: list[int], second: list[int]) -> None:
    one, two = np.array(first, dtype=float)[:, None], np.array(second, dtype=float)[:, None]
    assert row_epsilons(one, two)[0] == reference.row_epsilon(one[:, 0], two[:, 0])


def test_few_models_are_refused() -> None:
    score = forget_score(np.zeros((5, 2)), np.zeros((5, 2)))
    assert score.value is None
    assert "20" in score.flags[0]
    with pytest.raises(ValueError, match="both sides"):
        forget_score(np.zeros((20, 2)), np.zeros((21, 2)))


def test_points_halve_from_bucket_to_bucket_and_end() -> None:
    assert row_points(np.array([5.4999, 5.5, 6.0]), 400).tolist() == [2.0**-10, 2.0**-11, 0.0]


def test_retraining_is_its_own_ceiling(case: Case) -> None:
    """Two independent sets of retrained models: the score is below 1 by the noise of N models alone, alike for every draw."""
    outcome = MethodResult(case.retrained, plain_noise(0.01, case.weights))
    scores = []
    for seed in range(3):
        generator = np.random.default_rng(seed)
        pair = [confidences(outcome.ensemble(64, generator), case.rows["forget"]) for _ in range(2)]
        scores.append(forget_score(*pair))
    values = [score.value for score in scores]
    assert max(values) - min(values) < 4 * max(score.error for score in scores)
    original = MethodResult(case.weights, plain_noise(0.01, case.weights))
    generator = np.random.default_rng(9)
    pair = [confidences(one.ensemble(64, generator), case.rows["forget"]) for one in (original, outcome)]
    assert forget_score(*pair).value < 0.5 * min(values)


def test_equals_cross_validation() -> None:
    generator = np.random.default_rng(0)
    forget, test = generator.exponential(1.0, 60), generator.exponential(1.5, 60)
    losses = np.concatenate([test, forget])[:, None]
    member = np.repeat([0, 1], 60)
    splits = StratifiedShuffleSplit(n_splits=5, test_size=12, random_state=3)
    expected = cross_val_score(LogisticRegression(), losses, member, cv=splits)
    assert attack_membership(forget, test, 3).value == float(np.mean(expected))


def test_the_sets_are_balanced_and_what_was_not_forgotten_is_found() -> None:
    generator = np.random.default_rng(1)
    found = attack_membership(generator.normal(0.0, 1.0, 50), generator.normal(2.0, 1.0, 5000), 0)
    assert found.value > 0.5 + 4 * found.error
    assert 0.25 / found.error**2 <= 100  # rows that were held out once


def test_a_retrained_model_gives_half(case: Case) -> None:
    """Forget and test rows are alike to it: 50 % within four of its own errors."""
    found = membership(case.retrained, case, 0)
    assert abs(found.value - 0.5) < 4 * found.error


@pytest.mark.parametrize(
    ("forget", "test", "flag"),
    [
        (np.arange(19.0), np.arange(100.0), "at least 20"),
        (np.arange(100.0), np.arange(19.0), "at least 20"),
        (np.ones(30), np.ones(40), "equal"),
        (np.full(30, 150.0), np.full(30, 1e6), "equal"),  # all 100 after the cap
    ],
)
def test_an_attack_that_would_mean_nothing_is_refused(forget: np.ndarray, test: np.ndarray, flag: str) -> None:
    found = attack_membership(forget, test, 0)
    assert found.value is None
    assert flag in found.flags[0]


def test_other_classes_are_told_from_chance() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, 2000)
    assert not of_other_classes(labels[:1000], labels[1000:])
    assert not of_other_classes(labels[:30], labels[30:])
    assert of_other_classes(np.zeros(50, dtype=int), labels)
    assert of_other_classes(labels[labels < 5], labels[labels >= 5])


def test_class_unlearning_has_no_membership_attack_membership() -> None:
    whole = paper_splits(1, 2000)
    features, labels = whole.source
    stay, go = class_split(labels, [0])
    splits = Splits((features[stay], labels[stay]), (features[go], labels[go]), whole.test)
    made = make_case(splits, l2=0.02, max_norm=20.0)
    found = membership(made.retrained, made, 0)
    assert found.value is None
    assert "class unlearning" in found.flags[0]


def literal(weights: np.ndarray, case: Case, seed: int) -> int:
    """Adam as its paper states it, on shuffled batches of 512, in numpy."""
    features, labels = to_numpy(case.rows["forget"].features), to_numpy(case.rows["forget"].labels)
    share = lambda w: np.mean((features @ w.T).argmax(1) == labels)  # noqa: E731
    goal = share(to_numpy(case.weights)) - 0.005
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


def test_equals_the_literal_form_relearn() -> None:
    case = make_case(paper_splits(2, 8000), l2=0.02, max_norm=20.0)  # 720 rows to forget: two batches a round
    found = relearn_time(case.retrained, case, 5)
    assert found.value == literal(to_numpy(case.retrained).copy(), case, 5)
    assert found.value > 2


def test_relearning_goes_where_torch_s_adam_goes() -> None:
    rng = np.random.default_rng(0)
    rows, start = rng.normal(size=(600, 4)), rng.normal(size=(3, 4))
    visited: list[np.ndarray] = []

    def accuracy_at(at: np.ndarray) -> float:
        visited.append(at)
        return 0.0 if len(visited) < 40 else 1.0

    def gradient_at(at: np.ndarray, batch: np.ndarray) -> np.ndarray:
        return np.tanh(at @ rows[batch].T) @ rows[batch]

    assert relearn(start, 600, goal=1.0, accuracy_at=accuracy_at, gradient_at=gradient_at, seed=7).value == 39
    parameter, order = torch.nn.Parameter(torch.from_numpy(start.copy())), np.random.default_rng(7)
    adam = torch.optim.Adam([parameter], lr=1e-3)
    batches = [part for _ in range(20) for part in np.split(order.permutation(600), [512])]
    for batch, reached in zip(batches, visited[1:], strict=False):
        parameter.grad = torch.from_numpy(gradient_at(engine.to_numpy(parameter.detach()), batch))
        adam.step()
        np.testing.assert_allclose(reached, engine.to_numpy(parameter.detach()), rtol=1e-13)


def test_relearning_that_says_nothing_is_flagged(case: Case) -> None:
    forget = case.rows["forget"]
    small = replace(case, rows={**case.rows, "forget": Rows(forget.features[:19], forget.labels[:19])})
    for weights, task, value, flag in (
        (case.weights, case, 0, "never left"),
        (case.retrained, small, None, "19 forget rows"),
        (-1e3 * case.weights, case, None, "not back"),
    ):
        found = relearn_time(weights, task, 0)
        assert found.value == value
        assert flag in found.flags[0]


@pytest.mark.parametrize("loss", ["softmax", "ridge"])
@pytest.mark.parametrize("classes", [2, 4])
def test_they_are_scikit_learn_s(loss: str, classes: int) -> None:
    rng = np.random.default_rng(classes)
    X = rng.normal(size=(300, 5))
    y = np.array(["a", "b", "c", "d"])[(X @ rng.normal(size=(5, classes)) + rng.gumbel(size=(300, classes))).argmax(1)]
    model = expunge.train(X, y, l2=0.01, max_norm=5.0, loss=loss)
    found, said = score_model(model, (X, y)), model.predict(X)
    assert found.accuracy == pytest.approx(accuracy_score(y, said)) == pytest.approx(model.score(X, y))
    assert found.balanced == pytest.approx(balanced_accuracy_score(y, said))
    assert [each.right for each in found.classes] == pytest.approx(recall_score(y, said, average=None))
    assert found.majority == max(np.mean(y == each) for each in set(y))
    assert sum(each.rows for each in found.classes) == found.rows == 300


def test_classes_that_do_not_occur_do_not_count_and_unknown_ones_are_refused() -> None:
    X = np.array([[1.0], [-1.0], [2.0], [-2.0]])
    model = expunge.train(X, [1, 0, 1, 0], l2=0.1, max_norm=3.0)
    alone = score_model(model, (X[:1], [1]))
    assert (alone.balanced, alone.majority, len(alone.classes)) == (1.0, 1.0, 1)
    with pytest.raises(DataError, match="is not a class of the model"):
        score_model(model, (X, [1, 0, 2, 0]))
    with pytest.raises(DataError, match="no labels"):
        score_model(model, pd.DataFrame({"a": [1.0]}))


def test_training_says_how_it_fits_beside_guessing() -> None:
    labels = np.where(np.arange(600) < 420, 0, 1)
    rng = np.random.default_rng(1)
    rows = 0.1 * rng.normal(size=(600, 3))
    model = train(rows, labels, l2=10.0, max_norm=1.0)
    fit = describe_fit(model, (rows, labels))
    assert fit.scores.majority == 0.7
    assert fit.scores.accuracy == pytest.approx((model.predict(rows) == labels).mean())
    assert fit.scores.classes[1].right == pytest.approx((model.predict(rows) == labels)[labels == 1].mean())
    one_class = describe_fit(train(np.abs(rows), labels, l2=1e3, max_norm=1.0), (np.abs(rows), labels))
    assert [each.right for each in one_class.scores.classes] == [1.0, 0.0]
    assert one_class.warnings == (
        "the model is no better than always naming the most frequent class",
        "no row of class 1 is classified right",
    )
