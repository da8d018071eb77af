"""The paper's membership attack: against a literal form, and what makes it meaningless."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedShuffleSplit, cross_val_score

from experiments.datasets.splits import class_split
from experiments.shared.paper_task import paper_splits
from expunge.evaluate.case import Case, Splits, make_case
from expunge.evaluate.metrics import attack_membership, membership, of_other_classes, row_losses


def test_equals_cross_validation() -> None:
    generator = np.random.default_rng(0)
    forget, test = generator.exponential(1.0, 60), generator.exponential(1.5, 60)
    losses = np.concatenate([test, forget])[:, None]
    member = np.repeat([0, 1], 60)
    splits = StratifiedShuffleSplit(n_splits=5, test_size=12, random_state=3)
    expected = cross_val_score(LogisticRegression(), losses, member, cv=splits)
    assert attack_membership(forget, test, 3).value == float(np.mean(expected))


def test_sets_are_balanced_and_losses_capped() -> None:
    generator = np.random.default_rng(1)
    small, large = generator.exponential(1.0, 50), generator.exponential(1.0, 5000)
    found = attack_membership(small, large, 0)
    assert found.error == 0.5 / np.sqrt(found.error and round(0.25 / found.error**2))
    assert 0.25 / found.error**2 <= 100


assert attack_membership(np.full(30, 150.0), np.full(30, 1e6), 0).value is None  # all 100 after the cap


def test_a_retrained_model_gives_half(case: Case) -> None:
    """Forget and test rows are alike to it: 50 % within four of its own errors."""
    found = membership(case.retrained, case, 0)
    assert abs(found.value - 0.5) < 4 * found.error


def test_what_was_not_forgotten_is_found() -> None:
    generator = np.random.default_rng(0)
    found = attack_membership(generator.normal(0.0, 1.0, 500), generator.normal(2.0, 1.0, 500), 0)
    assert found.value > 0.5 + 4 * found.error


@pytest.mark.parametrize(("forget", "test"), [(19, 100), (100, 19)])
def test_fewer_than_twenty_rows_are_refused(forget: int, test: int) -> None:
    generator = np.random.default_rng(0)
    found = attack_membership(generator.normal(size=forget), generator.normal(size=test), 0)
    assert found.value is None
    assert "at least 20" in found.flags[0]


def test_equal_losses_are_refused() -> None:
    found = attack_membership(np.ones(30), np.ones(40), 0)
    assert found.value is None
    assert "equal" in found.flags[0]


def test_other_classes_are_told_from_chance() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, 2000)
    assert not of_other_classes(labels[:1000], labels[1000:])
    assert not of_other_classes(labels[:30], labels[30:])
    assert of_other_classes(np.zeros(50, dtype=int), labels)
    assert of_other_classes(labels[labels < 5], labels[labels >= 5])


def test_losses_are_those_of_the_objective(case: Case) -> None:
    rows = case.rows["test"]
    mean = (
        row_losses(case.objective, case.retrained, rows).mean()
        + 0.5 * case.objective.l2 * float(case.retrained.norm()) ** 2
    )
    assert mean == pytest.approx(case.objective.loss(case.retrained, rows), rel=1e-12)


def test_class_unlearning_has_no_membership_attack_membership() -> None:
    whole = paper_splits(1, 2000)
    features, labels = whole.source
    stay, go = class_split(labels, [0])
    splits = Splits((features[stay], labels[stay]), (features[go], labels[go]), whole.test)
    made = make_case(splits, l2=0.02, max_norm=20.0)
    found = membership(made.retrained, made, 0)
    assert found.value is None
    assert "class unlearning" in found.flags[0]
