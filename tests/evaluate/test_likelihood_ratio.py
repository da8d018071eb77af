"""U-LiRA against its literal form."""

from __future__ import annotations

import numpy as np
import pytest

from evaluate import reference
from expunge.evaluate.metrics import LikelihoodRatio, Score, likelihood_ratio


@pytest.mark.parametrize("shift", [0.0, 0.7, 3.0])
def test_equals_the_literal_form(shift: float) -> None:
    generator = np.random.default_rng(2)
    unlearned, retrained = shift + generator.standard_normal((30, 4)), 1.5 * generator.standard_normal((30, 4))
    found = likelihood_ratio(unlearned, retrained)
    assert isinstance(found, LikelihoodRatio)
    assert found.rows.tolist() == reference.likelihood_ratio(unlearned, retrained)
    assert found.worst == max(found.rows)
    tried, hits = 30, round(30 * found.worst)
    above = 1 - reference.binomial_tail(hits - 1, tried, found.worst_lower)
    assert above == pytest.approx(0.001 / 4, rel=1e-6)


def test_one_row_that_was_not_forgotten_is_found_among_many() -> None:
    generator = np.random.default_rng(0)
    unlearned, retrained = generator.standard_normal((400, 50)), generator.standard_normal((400, 50))
    unlearned[:, 17] += 3.0
    found = likelihood_ratio(unlearned, retrained)
    assert isinstance(found, LikelihoodRatio)
    assert int(found.rows.argmax()) == 17
    assert found.worst_lower > 0.8
    assert abs(found.mean.value - 0.5) < 0.03


def test_one_distribution_shows_nothing() -> None:
    generator = np.random.default_rng(0)
    found = likelihood_ratio(generator.standard_normal((400, 50)), generator.standard_normal((400, 50)))
    assert isinstance(found, LikelihoodRatio)
    assert found.worst_lower < 0.5


@pytest.mark.parametrize("count", [10, 19])
def test_few_models_and_equal_confidences_are_refused(count: int) -> None:
    assert isinstance(likelihood_ratio(np.zeros((count, 3)), np.ones((count, 3))), Score)
    assert isinstance(likelihood_ratio(np.zeros((50, 3)), np.zeros((50, 3))), Score)
