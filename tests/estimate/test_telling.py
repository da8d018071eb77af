"""When an estimate tells nothing, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from expunge.estimate.comparison import NOTHING_AGAINST, Verdict, of_chains, of_entropy
from expunge.estimate.donsker_varadhan import DonskerVaradhanLower
from expunge.estimate.langevin import Diagnostics

MIXED = Diagnostics(r_hat=1.01, effective_samples=900.0, drift=0.1, growth=1.0, acceptance=1.0)
FOUND = DonskerVaradhanLower(0.4, 0.4, 0.05, 5.3, 100, 60, 20_000, 1_000)
AGREEING = (0.38, 0.42, 0.41, 0.37, 0.42)


def test_what_is_in_order_tells() -> None:
    assert of_chains(MIXED) == []
    assert of_entropy(FOUND, AGREEING) == []
    assert NOTHING_AGAINST.tells
    assert not Verdict(("a reason",)).tells


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"r_hat": 1.11}, "have not mixed"),
        ({"drift": -1.2}, "have not mixed"),
        ({"effective_samples": 99.0}, "99 independent samples"),
    ],
)
def test_chains_that_do_not_stand_for_their_density(changed: dict[str, float], match: str) -> None:
    (reason,) = of_chains(replace(MIXED, **changed))
    assert match in reason


@pytest.mark.parametrize(
    ("changed", "folds", "match"),
    [
        ({"left_out": 2}, AGREEING, "2 features are constant"),
        ({"value": 2.7, "raw": 2.7}, AGREEING, "hardly overlap"),
        ({"value": 0.0, "raw": -0.65, "standard_error": 0.22}, AGREEING, "a fit that failed"),
        ({}, (0.0, 2.0, 0.0, 0.1, 0.0), "disagree on the KL of features: 0, 2"),
    ],
)
def test_an_entropy_that_is_none(changed: dict[str, float], folds: tuple[float, ...], match: str) -> None:
    (reason,) = of_entropy(replace(FOUND, **changed), folds)
    assert match in reason


def test_without_folds_nothing_is_said_of_them() -> None:
    assert of_entropy(FOUND, ()) == []
