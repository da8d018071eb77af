"""The door in Python: what may be given, and that nothing of it is changed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import expunge
import expunge.sklearn
from expunge.runtime.arrays import copy, equal, to_numpy
from expunge.train import train


def test_nothing_of_the_caller_is_changed(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=0.5, force=True)
    copies = [np.array(array) for pair in parts.values() for array in pair]
    weights = copy(model.weight)
    expunge.unlearn(model, parts["forget"], parts["surrogate"], epsilon=1.0, delta=1e-3, distance="same", force=True)
    assert all(
        np.array_equal(a, b) for a, b in zip(copies, [array for pair in parts.values() for array in pair], strict=True)
    )
    assert equal(weights, model.weight)


def test_arrays_tensors_and_surrogates_without_labels_give_the_same_certificate(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0, force=True)
    residual = model.record.residual
    facts = {"n_source": 300, "l2": 0.05, "loss": "softmax", "max_norm": 2.0, "training_residual": residual}
    asked = {"epsilon": 1.0, "delta": 1e-3, "distance": "same", "force": True, "insecure_test_seed": 3}
    arrays = expunge.unlearn(to_numpy(model.weight), parts["forget"], parts["surrogate"], **asked, **facts)
    forget, surrogate = (tuple(map(torch.from_numpy, parts[name])) for name in ("forget", "surrogate"))
    tensors = expunge.unlearn(model.weight, forget, surrogate[0], **asked, **facts)
    assert equal(arrays.model.weight, tensors.model.weight)
    assert arrays.certificate.total == tensors.certificate.total


@pytest.mark.parametrize("size", [1e-8, 1e-9, 1e-29])
@pytest.mark.parametrize("distance", ["same", "kl:0.1", "tv:0.01"])
def test_rows_so_short_that_nothing_of_their_change_is_left(
    size: float, distance: str, parts, within: Callable[[float], Any]
) -> None:
    """The gradient's change is 0 on every surrogate row in float64, and its supremum is not: the search for noise ends."""
    (X, y), (S, t) = ((size * part[0], part[1]) for part in (parts["source"], parts["surrogate"]))
    model = train(X, y, l2=0.1, max_norm=10.0 * size)
    with within(20):
        made = expunge.unlearn(model, (X[:1], y[:1]), (S, t), epsilon=1.0, delta=1e-4, distance=distance, force=True)
    assert made.certificate.total < made.certificate.sigma


def out_of_range(entry: str) -> Any:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(150, 3)), rng.integers(0, 2, 150)
    short, plain = 1e-105 * X, LogisticRegression(fit_intercept=False)
    model = train(X, y, l2=0.01, max_norm=9.0)
    tiny = replace(model.record, max_norm=1e-103, residual=None, provenance="declared")
    options = {"epsilon": 1.0, "delta": 1e-3, "distance": "same", "force": True}
    made: dict[str, Callable[[], Any]] = {
        "deposit": lambda: expunge.deposit(model.with_record(tiny), short, y, seed=1),
        "forget": lambda: expunge.unlearn(model, (short[:2], y[:2]), (X, y), **options),
        "surrogate": lambda: expunge.unlearn(model, (X[:2], y[:2]), (short, y), **options),
        "stream": lambda: expunge.unlearn(model, (X[:2], y[:2]), expunge.stream(lambda: iter([(short, y)])), **options),
        "record": lambda: expunge.unlearn(model.with_record(tiny), (X[:2], y[:2]), (X, y), **options),
        "scikit-learn": lambda: expunge.sklearn.deposit(plain.fit(short, y), short, y, seed=1),
        "l2": lambda: expunge.sklearn.deposit(plain.set_params(C=1e40).fit(X, y), X, y, seed=1),
    }
    return made[entry]()


@pytest.mark.parametrize("entry", ["deposit", "forget", "surrogate", "stream", "record", "scikit-learn", "l2"])
def test_rows_or_records_whose_powers_leave_float64_are_refused_in_memory_too(entry: str) -> None:
    """Third derivatives of rows of 1e-105 are 0, and so was the bound on their error: `proven`, and false."""
    with pytest.raises(expunge.InputError, match=r"has length|between 1e-30 and 1e\+30"):
        out_of_range(entry)
