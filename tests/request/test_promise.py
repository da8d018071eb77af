"""What is promised: every way in which it cannot be, and what stands where nothing was said."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from asking import asked
from digit_rows import digit_case
from expunge import train
from expunge.bounds import PaperConstants
from expunge.bounds.calibration import sigma_for
from expunge.distance import Distance, Estimation
from expunge.errors import DataError, OptionError
from expunge.request.promise import (
    DTYPES,
    LARGEST_EPSILON,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    STEPS,
    Execution,
    Promise,
    Series,
    budget_notes,
    check_budget,
    computing_device,
)
from expunge.runtime.arrays import engine_dtype

SAME = Distance("same", 0.0)


def completed(**changed: Any) -> Promise:
    promise = Promise(**({"epsilon": 1.0, "delta": 1e-5, "distance": SAME} | changed))
    return promise.complete(deposit=False, surrogate=True)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"epsilon": 0.0}, "above 0"),
        ({"epsilon": -1.0}, "above 0"),
        ({"epsilon": math.inf}, "above 0"),
        ({"epsilon": math.nan}, "above 0"),
        ({"epsilon": 2 * LARGEST_EPSILON}, "promises nothing"),
        ({"epsilon": 0.999 * SMALLEST_EPSILON}, "float64 no longer tells"),
        ({"epsilon": 1e-30}, "float64 no longer tells"),
        ({"delta": 0.0}, "strictly between 0 and 1"),
        ({"delta": -1e-3}, "strictly between 0 and 1"),
        ({"delta": 1.0}, "strictly between 0 and 1"),
        ({"delta": math.nan}, "strictly between 0 and 1"),
        ({"delta": SMALLEST_DELTA / 2}, "at least 1e-300"),
        ({"bound": "none"}, "bound 'none'"),
        ({"step": "leap"}, "step 'leap'"),
        ({"sizes": "neither"}, "sizes 'neither'"),
        ({"bound": "paper", "step": "converged"}, "one Newton step"),
        ({"bound": "paper", "step": "balanced"}, "one Newton step"),
        ({"constants": "paper"}, "only the paper's bound"),
        ({"constants": PaperConstants(1.0, 1.0, 1.0, 1.0)}, "only the paper's bound"),
        ({"bound": "paper", "series": Series(3)}, "carried forward"),
        ({"distance": Distance("deposit", 0.0)}, "some rows stand in"),
        ({"distance": Distance("deposit", 0.0), "bound": "paper"}, "some rows stand in"),
    ],
)
def test_what_cannot_be_promised_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        completed(**changed)


def test_the_ends_of_a_budget_are_allowed() -> None:
    for epsilon in (SMALLEST_EPSILON, LARGEST_EPSILON):
        for delta in (SMALLEST_DELTA, 1.0 - 2.0**-53):
            check_budget(epsilon, delta)


def true_over_claimed(epsilon: float, delta: float) -> float:
    """The delta that the calibrated noise really has, to 400 digits, over the one that was asked for."""
    with mpmath.workdps(400):
        mu, exact = 1 / mpmath.mpf(sigma_for(1.0, epsilon, delta)), mpmath.mpf(epsilon)
        found = mpmath.ncdf(mu / 2 - exact / mu) - mpmath.exp(exact) * mpmath.ncdf(-mu / 2 - exact / mu)
        return float(found / mpmath.mpf(delta))


def test_an_epsilon_is_refused_where_its_noise_would_be_too_small() -> None:
    """Far below the limit the true delta is 399 times the claimed one, and more; at the limit it never exceeds it."""
    assert 398 < true_over_claimed(1e-20, 1e-18) < 400
    assert true_over_claimed(1e-16, 1e-20) > 1e4
    for delta in (1e-2, 1e-5, 1e-10, 1e-20, 1e-50, 1e-100, 1e-200):
        assert true_over_claimed(SMALLEST_EPSILON, delta) <= 1.0 + 1e-6


def test_a_delta_above_one_in_n_is_told_in_plain_words() -> None:
    assert budget_notes(1e-3, 1000) == ()
    (note,) = budget_notes(0.01, 1000)
    assert note.startswith("delta 0.01 is above 1/n (0.001): publishing 10 of 1,000 rows outright")
    assert "more than one person's protection may fail" in note
    assert budget_notes(0.01, 1001) == (note,), "which is handed out, and must not count who left"


def test_the_step_follows_the_bound_where_none_is_named() -> None:
    assert completed().step == "converged"
    assert completed(bound="paper").step == "newton"
    assert [completed(step=step).step for step in STEPS] == list(STEPS)
    assert Promise(1.0, 1e-5, SAME, bound="paper").paper
    assert not Promise(1.0, 1e-5, SAME).paper


def test_a_distance_may_be_words_a_value_or_an_estimate_made_before() -> None:
    made = SimpleNamespace(wanted=Estimation("means"))
    for given, read, estimate in (
        ("chi2:0.1", Distance("chi2", 0.1), None),
        ("estimate:kl", Estimation("kl"), None),
        (SAME, SAME, None),
        (made, Estimation("means"), made),
    ):
        promise = Promise(1.0, 1e-3, given)
        assert (promise.distance, promise.estimate) == (read, estimate)
        assert not promise.distance.matched
        matched = replace(Promise(1.0, 1e-3, given, match_classes=True), epsilon=2.0)
        assert (matched.distance, matched.estimate) == (replace(read, matched=True), estimate)
    for wrong in (0.1, ("same", 0.0), object()):
        with pytest.raises(OptionError, match="words, a Distance or an Estimation"):
            Promise(1.0, 1e-3, wrong)


pytestmark = pytest.mark.usefixtures("one_thread")
BUDGET = {"epsilon": 5.0, "delta": 1e-3}


@pytest.fixture(scope="module")
def digits() -> dict[str, Any]:
    return digit_case()


def test_what_an_estimate_needs(digits: dict[str, Any]) -> None:
    """A loss with probabilities and, for the conditional part, labels."""
    X, y = digits["source"]
    ridge = train(X, y, l2=0.1, max_norm=1.0, loss="ridge")
    with pytest.raises(OptionError, match="only softmax"):
        asked(ridge, digits["forget"], digits["surrogate"], distance="estimate", **BUDGET)
    with pytest.raises(DataError, match="no labels"):
        asked(digits["model"], digits["forget"], digits["surrogate"][0], distance="estimate:kl", **BUDGET)
    asked(digits["model"], digits["forget"], digits["surrogate"][0], distance="estimate", **BUDGET)
    own_moments = Estimation("means", support="gaussian")
    with pytest.raises(OptionError, match="the surrogate's own moments"):
        asked(digits["model"], digits["forget"], digits["surrogate"], distance=own_moments, **BUDGET)


def test_nothing_said_is_float64_on_the_cpu_in_one_process() -> None:
    plain = Execution()
    assert (plain.rows_dtype, plain.place, plain.group.size) == (np.dtype("float64"), "cpu", 1)
    assert {name: Execution(dtype=name).rows_dtype for name in DTYPES} == {
        name: engine_dtype(name, "cpu") for name in DTYPES
    }
    for dtype in ("float16", "bfloat16", "int64", "", "torch.float64"):
        with pytest.raises(OptionError, match="dtype"):
            Execution(dtype=dtype)


def test_a_device_must_be_usable_here_and_is_called_what_tensors_there_call_it() -> None:
    """Else all that compares devices would take what is there for elsewhere, and copy it."""
    assert computing_device("cpu:0") == torch.zeros(1, device="cpu:0").device != torch.device("cpu:0")
    for device in ("abacus", "cuda:99", "meta", "", "cpu:x"):
        with pytest.raises(OptionError, match="Use cpu"):
            computing_device(device)
