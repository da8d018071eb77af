"""What is promised: every way in which it cannot be, and what stands where nothing was said."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from expunge.bounds import PaperConstants
from expunge.distance import Distance, Estimation
from expunge.errors import OptionError
from expunge.request.guarantee import LARGEST_EPSILON, SMALLEST_DELTA, STEPS, Guarantee, check_budget, wanted_distance
from expunge.request.series import Series

SAME = Distance("same", 0.0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"epsilon": 0.0}, "above 0"),
        ({"epsilon": -1.0}, "above 0"),
        ({"epsilon": math.inf}, "above 0"),
        ({"epsilon": math.nan}, "above 0"),
        ({"epsilon": 2 * LARGEST_EPSILON}, "promises nothing"),
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
    ],
)
def test_what_cannot_be_promised_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Guarantee(**({"epsilon": 1.0, "delta": 1e-5, "distance": SAME} | changed))


def test_the_ends_of_a_budget_are_allowed() -> None:
    for epsilon in (1e-30, LARGEST_EPSILON):
        for delta in (SMALLEST_DELTA, 1.0 - 2.0**-53):
            check_budget(epsilon, delta)


def test_the_step_follows_the_bound_where_none_is_named() -> None:
    assert Guarantee(1.0, 1e-5, SAME).step == "converged"
    assert Guarantee(1.0, 1e-5, SAME, bound="paper").step == "newton"
    assert [Guarantee(1.0, 1e-5, SAME, step=step).step for step in STEPS] == list(STEPS)
    assert Guarantee(1.0, 1e-5, SAME, bound="paper").paper
    assert not Guarantee(1.0, 1e-5, SAME).paper


def test_a_distance_may_be_words_a_value_or_an_estimate_made_before() -> None:
    assert wanted_distance("chi2:0.1") == (Distance("chi2", 0.1), None)
    assert wanted_distance("estimate:kl") == (Estimation("kl"), None)
    assert wanted_distance(SAME) == (SAME, None)
    made = SimpleNamespace(wanted=Estimation("means"))
    assert wanted_distance(made) == (Estimation("means"), made)


def test_matched_classes_are_part_of_the_distance() -> None:
    for given in ("same", "chi2:0.1", "estimate", SAME, Estimation("kl")):
        assert not wanted_distance(given)[0].matched
        assert wanted_distance(given, match_classes=True)[0].matched


@pytest.mark.parametrize("given", [0.1, None, ("same", 0.0), object()])
def test_what_is_no_distance_is_refused(given: object) -> None:
    with pytest.raises(OptionError, match="words, a Distance or an Estimation"):
        wanted_distance(given)
