"""The door: what a request holds once it is through, and in which order it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import expunge
from expunge.bounds import PaperConstants
from expunge.distance import Distance
from expunge.door import ask
from expunge.errors import DataError, ModelError, OptionError
from expunge.model import LinearModel
from expunge.request.promise import Execution, Promise, Series
from expunge.request.request import Past
from expunge.runtime.arrays import double, dtype_name, equal, to_numpy, zeros

Parts = dict[str, tuple[np.ndarray, np.ndarray]]
PROMISE = Promise(1.0, 1e-3, Distance("same", 0.0))


@pytest.fixture(scope="module")
def model(parts: Parts) -> LinearModel:
    return expunge.train(*parts["source"], l2=0.05, max_norm=2.0, force=True)


def test_a_request_holds_the_sets_made_ready_and_sizes_that_follow(model: LinearModel, parts: Parts) -> None:
    request = ask(model, parts["forget"], parts["surrogate"], PROMISE, execution=Execution(dtype="float32"))
    assert (request.n_source, request.n_forget, request.n_surrogate) == (300, 4, 300)
    assert equal(request.weights, model.matrix())
    assert request.record is model.record
    assert request.distance is PROMISE.distance
    assert dtype_name(request.forget.features.dtype) == "float64", (
        "the evidence is summed in float64 whatever rows are kept in"
    )
    assert dtype_name(request.surrogate.dtype) == "float32"
    for rows in (request.forget, request.surrogate):
        assert float(np.linalg.norm(double(rows.features), axis=1).max()) <= 2.0 * (1 + 1e-6)
    assert request.constants is None


def test_constants_are_there_for_the_papers_bound_alone(model: LinearModel, parts: Parts) -> None:
    given = PaperConstants(1.0, 2.0, 3.0, 4.0)
    for constants, expected in ((given, given), ("paper", PaperConstants.of_the_experiments(0.05))):
        paper = Promise(1.0, 1e-3, Distance("tv", 0.01), bound="paper", constants=constants)
        assert ask(model, parts["forget"], parts["surrogate"], paper).constants == expected


def test_a_later_place_in_a_series_is_noted(model: LinearModel, parts: Parts) -> None:
    gone = Past((zeros(model.matrix()) + 0.5), (1, 0, 2))
    first, third = (
        ask(model, parts["forget"], parts["surrogate"], Promise(1.0, 1e-3, PROMISE.distance, series=series))
        for series in (Series(5), Series(5, 3, gone))
    )
    assert not any("earlier" in note for note in first.notes)
    assert any("3 rows were forgotten before, in 2 earlier deletions" in note for note in third.notes)
    assert (first.n_forget, third.n_forget) == (4, 7)
    np.testing.assert_allclose(to_numpy(third.forgotten), to_numpy(first.forgotten + 0.5), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"forget": lambda X, y: (X[:0], y[:0])}, DataError, "no rows"),
        ({"forget": lambda X, y: (X[:, :3], y)}, DataError, "features"),
        ({"forget": lambda X, y: (X, y + 9)}, DataError, "label"),
        ({"surrogate": lambda X, y: (X * np.inf, y)}, DataError, "finite"),
        ({"surrogate": lambda X, y: (X[:3], y[:3])}, DataError, "at least 100 are needed"),
        ({"execution": Execution(device="abacus")}, OptionError, "abacus"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    changed: dict[str, Any], error: type[Exception], words: str, model: LinearModel, parts: Parts
) -> None:
    sets = {name: changed.pop(name, lambda X, y: (X, y))(*parts[name]) for name in ("forget", "surrogate")}
    with pytest.raises(error, match=words):
        ask(model, sets["forget"], sets["surrogate"], PROMISE, **changed)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"fixed_c": 2.0}, "fixed C"),
        ({"free_bias": True}, "intercept is free"),
        ({"free_bias": True, "fixed_c": 2.0}, "free"),
    ],
)
def test_without_a_deposit_every_weight_must_be_regularised_alike(
    changed: dict[str, Any], words: str, parts: Parts
) -> None:
    """A free intercept has no strong convexity, and at a fixed C fewer rows have another l2: no bound holds for either."""
    biased = expunge.train(*parts["source"], l2=0.05, max_norm=2.0, bias=True, force=True)
    with_reference = biased.with_record(replace(biased.record, **changed))  # type: ignore[type-var]
    with pytest.raises(ModelError, match=words):
        ask(with_reference, parts["forget"], parts["surrogate"], PROMISE)


def test_a_deposit_s_bound_needs_a_deposit(model: LinearModel, parts: Parts) -> None:
    kept = Promise(1.0, 1e-3, Distance("deposit", 0.0), step="newton", bound="deposit")
    with pytest.raises(OptionError, match="none was given"):
        ask(model, parts["forget"], parts["surrogate"], kept)
    for given in ("deposit", Distance("deposit", 0.0)):
        with pytest.raises(OptionError):
            expunge.unlearn(model, parts["forget"], parts["surrogate"], epsilon=1.0, delta=1e-3, distance=given)


def test_a_model_without_a_record_needs_its_facts(model: LinearModel, parts: Parts) -> None:
    with pytest.raises(ModelError, match="no training record"):
        ask(LinearModel(model.weight), parts["forget"], parts["surrogate"], PROMISE)
