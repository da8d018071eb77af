"""What is compared, and whether it tells anything."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from asking import asked
from digit_rows import QUICK
from expunge.distance import tv_upper_from_kl
from expunge.errors import DataError, ModelError
from expunge.estimate.comparison import Comparison, compare, doubt_chains, doubt_entropy
from expunge.estimate.donsker_varadhan import DonskerVaradhanLower
from expunge.estimate.langevin import Diagnostics
from expunge.mechanism import measure
from expunge.runtime.arrays import equal

pytestmark = pytest.mark.usefixtures("one_thread")


def test_lines_are_the_numbers_they_are_called_by(comparison: Comparison) -> None:
    lines = {(line.name, line.source): line for line in comparison.lines}
    assert len(lines) == len(comparison.lines) == 11
    for kl, source in ((comparison.kl, "samples"), (comparison.reference_kl, "reference")):
        assert kl is not None
        assert lines["KL of features (Donsker-Varadhan)", source].value == kl.marginal.value
        assert lines["KL in all", source].value == kl.value
        assert lines["total variation", source].value == tv_upper_from_kl(kl.upper)
        # `2 TV sup||phi||` bounds what the direct route measures
        direct, by_tv = (lines[f"difference of means, {route}", source] for route in ("direct", "from TV"))
        assert direct.value <= by_tv.value
    assert comparison.means is not None
    direct = lines["difference of means, direct", "samples"]
    assert (direct.value, direct.upper) == (comparison.means.value, comparison.means.upper)
    assert {line.direction for line in comparison.lines} == {"lower", "neither"}, "nothing here is an upper bound"


def test_what_is_infinite_or_tells_nothing_is_null_in_json(comparison: Comparison) -> None:
    first, second, third, *_ = comparison.lines
    lines = (replace(first, value=math.inf, upper=math.nan), second, replace(third, tells=True))
    content = json.loads(json.dumps(replace(comparison, lines=lines).to_dict(), allow_nan=False))
    assert [line["value"] for line in content["estimates"]] == [None, None, third.value]
    assert content["estimates"][0]["upper"] is None
    assert second.value > 0.0, "there is a number, but it tells nothing"
    assert content["tells"] is False
    assert content["surrogate_rows"] == len(comparison.surrogate)


@pytest.mark.parametrize("matched", [False, True])
def test_it_is_about_the_update_and_the_weights_that_unlearning_has(digits: dict[str, Any], matched: bool) -> None:
    model = digits["model"]
    wanted, sets = replace(QUICK, matched=matched), (digits["forget"], digits["surrogate"])
    found = compare(model, sets[1], record=model.record, wanted=wanted, forget=sets[0])
    request = asked(model, *sets, epsilon=1.0, delta=1e-3, distance=wanted, match_classes=matched, force=True)
    if matched:
        assert equal(found.surrogate.weights, request.surrogate.weights)
    assert found.means is not None
    update = measure(replace(request, promise=replace(request.promise, estimate=found.estimate))).step.update
    there = found.estimate.means(request.head, request.weights, update, request.surrogate)
    assert found.means.value == pytest.approx(there.value, rel=1e-6)


def test_what_cannot_be_compared_is_refused(digits: dict[str, Any]) -> None:
    model, (X, y) = digits["model"], digits["surrogate"]
    for rows, match in (((X, None), "no labels"), ((X[:5], y[:5]), "5 rows")):
        with pytest.raises(DataError, match=match):
            compare(model, rows, record=model.record, wanted=QUICK)
    small = replace(model.record, n_source=2, class_counts=None)
    with pytest.raises(ModelError, match="at least one row must be retained"):
        compare(model, (X, y), record=small, wanted=QUICK, forget=digits["forget"])


MIXED = Diagnostics(r_hat=1.01, effective_samples=900.0, drift=0.1, growth=1.0)
FOUND = DonskerVaradhanLower(0.4, 0.4, 0.05, 5.3, 100, 60, 20_000, 1_000)
AGREEING = (0.38, 0.42, 0.41, 0.37, 0.42)


def test_what_is_in_order_tells() -> None:
    assert doubt_chains(MIXED) == doubt_entropy(FOUND, AGREEING) == []


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"r_hat": 1.11}, "have not mixed"),
        ({"drift": -1.2}, "have not mixed"),
        ({"effective_samples": 99.0}, "99 independent samples"),
    ],
)
def test_chains_that_do_not_stand_for_their_density(changed: dict[str, float], match: str) -> None:
    (reason,) = doubt_chains(replace(MIXED, **changed))
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
    (reason,) = doubt_entropy(replace(FOUND, **changed), folds)
    assert match in reason
