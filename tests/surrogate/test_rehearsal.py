"""Noise as for so many rows: enough for rows like the surrogate's, and the same whoever asks."""

from __future__ import annotations

import numpy as np
import pytest

from expunge import BeyondPolicy, DataError, OptionError, train, unlearn
from expunge.bounds.calibration import POLICY, is_level
from expunge.door import ask
from expunge.evidence import foresee
from expunge.mechanism import measure
from expunge.model import LinearModel
from expunge.request.promise import Promise
from expunge.request.request import Request
from expunge.runtime.arrays import to_numpy
from expunge.surrogate import MARGIN, rehearse, rehearsed_scale, set_noise

Rows = tuple[np.ndarray, np.ndarray]


def rows(count: int, seed: int) -> Rows:
    labels = np.arange(count) % 3
    features = np.eye(3, 5)[labels] + 0.5 * np.random.default_rng(seed).normal(size=(count, 5))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


@pytest.fixture(scope="module")
def source() -> Rows:
    return rows(1500, 1)


@pytest.fixture(scope="module")
def surrogate() -> Rows:
    return rows(1500, 2)


@pytest.fixture(scope="module")
def model(source: Rows) -> LinearModel:
    return train(*source, l2=0.05, max_norm=1.0)


def request(model: LinearModel, forget: Rows, surrogate: Rows, noise: object, *, matched: bool = False) -> Request:
    promise = Promise(1.0, 1e-3, "same", force=True, noise=noise, match_classes=matched)
    return ask(model, forget, surrogate, promise)


def test_the_noise_is_the_same_whoever_asks(model: LinearModel, source: Rows, surrogate: Rows) -> None:
    asked = [request(model, (source[0][k : k + 1], source[1][k : k + 1]), surrogate, "rows:5") for k in range(6)]
    scales = {set_noise(each, measure, seed=1).promise.noise for each in asked}
    assert len(scales) == 1
    (scale,) = scales
    assert (scale.kind, scale.rows) == (POLICY, 5)
    assert is_level(scale.value)


def test_it_is_enough_for_rows_like_these(model: LinearModel, source: Rows, surrogate: Rows) -> None:
    scale = rehearsed_scale(request(model, (source[0][:1], source[1][:1]), surrogate, None), 5, measure, seed=0)
    for start in range(0, 50, 5):
        forget = source[0][start : start + 5], source[1][start : start + 5]
        asked = request(model, forget, surrogate, "exact")
        assert foresee(asked, measure(asked))[1].required <= scale


def test_it_is_what_a_group_of_surrogate_rows_needs_with_a_margin(
    model: LinearModel, source: Rows, surrogate: Rows
) -> None:
    asked = request(model, (source[0][:1], source[1][:1]), surrogate, None)
    trial, measured = rehearse(asked, 7, measure, seed=3)
    assert len(trial.forget) == 7
    for row in to_numpy(trial.forget.features):
        assert np.abs(surrogate[0] - row).max(axis=1).min() < 1e-12
    needed = MARGIN * foresee(trial, measured)[1].required
    assert needed <= rehearsed_scale(asked, 7, measure, seed=3) <= 2.0 * needed


def test_a_request_beyond_it_is_refused_without_a_number(model: LinearModel, source: Rows, surrogate: Rows) -> None:
    result = unlearn(
        model, (source[0][:1], source[1][:1]), surrogate, epsilon=1.0, delta=1e-3, distance="same", noise="rows:1"
    )
    assert result.statement.content["noise"]["rehearsed_rows"] == 1
    with pytest.raises(BeyondPolicy) as caught:
        unlearn(
            model, (source[0][:300], source[1][:300]), surrogate,
            epsilon=1.0, delta=1e-3, distance="same", noise=result.statement.sigma, force=True,
        )  # fmt: skip
    assert not any(character.isdigit() for character in str(caught.value)), "a number would say who asks"
    assert caught.value.exit_status == 3


def test_more_rows_than_there_are_cannot_be_rehearsed(model: LinearModel, source: Rows, surrogate: Rows) -> None:
    asked = request(model, (source[0][:1], source[1][:1]), surrogate, "rows:751")
    with pytest.raises(DataError, match="at most half"):
        set_noise(asked, measure)


def test_with_matched_classes_a_rehearsal_would_depend_on_who_leaves(
    model: LinearModel, source: Rows, surrogate: Rows
) -> None:
    asked = request(model, (source[0][:1], source[1][:1]), surrogate, "rows:2", matched=True)
    with pytest.raises(OptionError, match="matched classes"):
        set_noise(asked, measure)


def test_noise_that_was_not_rehearsed_promises_nothing(model: LinearModel, source: Rows, surrogate: Rows) -> None:
    asked = request(model, (source[0][:1], source[1][:1]), surrogate, "rows:2")
    with pytest.raises(OptionError, match="not rehearsed"):
        _ = asked.promise.scale
