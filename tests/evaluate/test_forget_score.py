"""The forget score against its slow, literal form, to the last digit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluate import reference
from expunge.evaluate.case import Case
from expunge.evaluate.methods import Outcome, plain_noise
from expunge.evaluate.metrics import confidences, forget_score, row_epsilons, row_points


@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0, 20.0])
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_equals_the_literal_form(shift: float, scale: float) -> None:
    generator = np.random.default_rng(int(10 * shift))
    unlearned = shift + scale * generator.standard_normal((24, 5))
    retrained = generator.standard_normal((24, 5))
    expected = [reference.row_epsilon(unlearned[:, row], retrained[:, row]) for row in range(5)]
    assert row_epsilons(unlearned, retrained).tolist() == expected
    assert forget_score(unlearned, retrained).score.value == reference.forget_score(unlearned, retrained)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 6), min_size=6, max_size=6), st.lists(st.integers(0, 6), min_size=6, max_size=6))
def test_equal_values_are_never_told_apart(first: list[int], second: list[int]) -> None:
    one, two = np.array(first, dtype=float)[:, None], np.array(second, dtype=float)[:, None]
    assert row_epsilons(one, two)[0] == reference.row_epsilon(one[:, 0], two[:, 0])


def test_models_against_themselves_score_the_maximum() -> None:
    values = np.random.default_rng(0).standard_normal((64, 7))
    assert forget_score(values, values).score.value == 1.0
    assert forget_score(values, values[::-1]).score.value == 1.0


def test_models_that_share_nothing_score_nothing() -> None:
    values = np.random.default_rng(0).standard_normal((64, 7))
    found = forget_score(values, values + 100.0)
    assert np.all(found.epsilons == math.inf)
    assert found.score.value == 0.0


def test_a_strictly_rising_transform_changes_nothing() -> None:
    generator = np.random.default_rng(1)
    one, two = generator.standard_normal((40, 3)), 0.4 + generator.standard_normal((40, 3))
    assert row_epsilons(one, two).tolist() == row_epsilons(np.exp(one), np.exp(two)).tolist()
    assert row_epsilons(one, two).tolist() == row_epsilons(two, one).tolist()


def test_few_models_are_refused() -> None:
    score = forget_score(np.zeros((5, 2)), np.zeros((5, 2))).score
    assert score.value is None
    assert "20" in score.flags[0]
    with pytest.raises(ValueError, match="both sides"):
        forget_score(np.zeros((20, 2)), np.zeros((21, 2)))


def test_points_halve_from_bucket_to_bucket_and_end() -> None:
    assert row_points(np.array([5.4999, 5.5, 6.0]), 400).tolist() == [2.0**-10, 2.0**-11, 0.0]


def test_retraining_is_its_own_ceiling(case: Case) -> None:
    """Two independent sets of retrained models: the score is below 1 by the noise of N models alone, alike for every draw."""
    outcome = Outcome(case.retrained, plain_noise(0.01, case.weights))
    scores = []
    for seed in range(3):
        generator = np.random.default_rng(seed)
        pair = [confidences(outcome.ensemble(64, generator), case.rows["forget"]) for _ in range(2)]
        scores.append(forget_score(*pair).score)
    values = [score.value for score in scores]
    assert max(values) - min(values) < 4 * max(score.error for score in scores)
    original = Outcome(case.weights, plain_noise(0.01, case.weights))
    generator = np.random.default_rng(9)
    pair = [confidences(one.ensemble(64, generator), case.rows["forget"]) for one in (original, outcome)]
    assert forget_score(*pair).score.value < 0.5 * min(values)
