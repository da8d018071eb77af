"""A deposit with a surrogate, from the door to a certificate that verifies: what is refused, said and stated."""

from __future__ import annotations

import contextlib
import copy
from functools import cache
from typing import Any

import numpy as np
import pytest

from beside_problems import MANY, SOURCE, SURROGATE, N, first, kept
from expunge.certificate.claim import ARITHMETIC_SHARE, MOST_ROUTES, SAMPLING_SHARE
from expunge.certificate.dossier import Certificate, digest_of
from expunge.certificate.verify import checks, verify_statement
from expunge.certificate.wording import BESIDE, INDEPENDENT, NOT_CHOSEN, OWN_MEASURE
from expunge.distance import Distance, Estimation
from expunge.door import ask
from expunge.errors import BeyondPolicy, DataError, OptionError, UselessModel, VacuousClaim, VerificationFailed
from expunge.evidence import NOT_NEEDED
from expunge.mechanism import Unlearned
from expunge.request.promise import Promise, Series
from expunge.runtime.arrays import double, to_numpy
from expunge.unlearn import unlearn

EPSILON, DELTA = 1.0, 1e-3


def unlearned(count: int = 800, surrogate: Any = SURROGATE, distance: Any = "same", **options: Any) -> Unlearned:
    model, source = kept(options.pop("loss", "softmax"))
    given: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "noise": "exact"} | options
    return unlearn(model, first(count), surrogate, distance=distance, deposit=source, **given)


def failed(certificate: Certificate) -> list[str]:
    """What does not verify; exact noise is a scale nobody may publish, but one that is recomputed."""
    return [check.name for check in checks(certificate) if not check.passed]


@cache
def conditional() -> Unlearned:
    return unlearned()


def test_a_surrogate_makes_it_conditional_smaller_and_it_verifies() -> None:
    made, alone = conditional(), unlearned(surrogate=None, distance=None)
    content = made.certificate.content
    assert (made.certificate.status, alone.certificate.status) == ("conditional", "proven")
    assert made.certificate.total < alone.certificate.total
    assert failed(made.certificate) == failed(alone.certificate) == []
    assert set(content["bound"]["terms"]) == {"step", "surrogate", "sampling", "arithmetic", "grid", "drawing"}
    assert content["bound"]["inputs"]["sampling_failure"]["value"] * MOST_ROUTES == SAMPLING_SHARE * DELTA
    assert content["noise"]["failures"] == {"arithmetic": ARITHMETIC_SHARE * DELTA, "sampling": SAMPLING_SHARE * DELTA}
    assert content["sizes"]["n_surrogate"] == N
    assert not content["noise"]["averaged"]
    assert content["step"]["kind"] == "converged"
    said = content["assumptions"]
    assert said[0].startswith("Declared: same between populations")
    assert [each for each in said if each in (INDEPENDENT, NOT_CHOSEN, OWN_MEASURE)] == [
        INDEPENDENT,
        NOT_CHOSEN,
        OWN_MEASURE,
    ]
    assert BESIDE in content["limits"]
    assert BESIDE not in alone.certificate.content["limits"]


def test_its_statement_says_the_distance_as_it_was_declared() -> None:
    with pytest.raises(BeyondPolicy, match="more noise than any of the levels"):
        unlearned(1900, None, None, noise=None)
    made, alone = unlearned(MANY, noise=None), unlearned(MANY, None, None, noise=None)
    assert alone.certificate.status == "proven"
    assert made.certificate.content["sigma"] == 0.25 * alone.certificate.content["sigma"]
    verify_statement(made.statement, None, made.certificate)
    assert made.statement.content["distance"]["kind"] == "same"
    assert made.statement.status == "conditional"
    assert OWN_MEASURE in made.statement.content["assumptions"]
    assert "change_mean" not in made.statement.to_json()


def test_the_deposit_alone_is_kept_where_the_noise_would_be_the_same() -> None:
    made = unlearned(5, noise=None)
    assert made.certificate.status == "proven"
    content = made.certificate.content
    assert content["distance"]["kind"] == "deposit"
    assert content["sizes"]["n_surrogate"] == 0
    assert NOT_NEEDED in content["notes"]
    assert NOT_NEEDED not in made.statement.content["notes"]
    assert failed(made.certificate) == []
    verify_statement(made.statement, None, made.certificate)


def test_a_ridge_head_needs_none() -> None:
    made = unlearned(loss="ridge", noise=None)
    assert made.certificate.status == "proven"
    assert failed(made.certificate) == []


@pytest.mark.parametrize("distance", ["chi2:0.02", "kl:0.01", "tv:0.001", Distance("chi2", 0.5, between="samples")])
@pytest.mark.parametrize("loss", ["softmax", "one-vs-rest"])
def test_every_distance_can_be_declared(distance: Any, loss: str) -> None:
    made = unlearned(1600, distance=distance, loss=loss, force=True)
    assert failed(made.certificate) == []
    if made.certificate.status == "conditional":
        sampled = "samples" not in str(made.certificate.content["distance"]["between"])
        assert ("sampling" in made.certificate.content["noise"]["failures"]) == sampled


def test_classes_can_be_matched() -> None:
    X, y = SURROGATE
    few = np.flatnonzero((y != 0) | (np.arange(N) % 2 == 0))
    made = unlearned(1200, surrogate=(X[few], y[few]), match_classes=True, distance="same", force=True)
    assert failed(made.certificate) == []
    if made.certificate.status == "conditional":
        assert made.certificate.content["bound"]["inputs"]["weight_largest"]["value"] > 1.0


def test_they_are_matched_to_what_earlier_deletions_left() -> None:
    model, source = kept()
    earlier = unlearn(model, first(5), epsilon=EPSILON, delta=DELTA, deposit=source)
    gone = SOURCE[0][5:2405], SOURCE[1][5:2405]
    away = Distance("chi2", 0.01, "samples")
    asked = {"epsilon": EPSILON, "delta": DELTA, "noise": "exact", "force": True, "match_classes": True}
    made = unlearn(model, gone, SURROGATE, distance=away, deposit=earlier.deposit, **asked)
    content = made.certificate.content
    assert content["status"] == "conditional"
    assert sum(content["data"]["class_counts"]) == content["sizes"]["n_retain"] == N - 2405
    assert failed(made.certificate) == []


# What a forger might change -------------------------------------------------------------------------------------------


def forged(change: dict[str, float]) -> Certificate:
    content = copy.deepcopy(conditional().certificate.content)
    for name, factor in change.items():
        content["bound"]["inputs"][name]["value"] *= factor
    content["digest"] = digest_of(content)
    return Certificate(content)


# a largest value or eigenvalue may be any number: only the signature tells that it was changed
SMALLER = (
    *("change_trace", "change_longest", "change_mean", "change_together"),
    *("change_each", "sampling_failure", "n_surrogate", "solver", "reach", "shape_ratio", "directions"),
)


@pytest.mark.parametrize("name", SMALLER)
def test_no_fact_can_be_lowered_alone(name: str) -> None:
    with contextlib.suppress(VerificationFailed):
        assert failed(forged({name: 0.5}))


@pytest.mark.parametrize("name", ["sampling_failure", "n_surrogate", "directions", "change_each", "longest_row"])
def test_nor_raised_beyond_what_can_be(name: str) -> None:
    with contextlib.suppress(VerificationFailed):
        assert failed(forged({name: 1000.0}))


@pytest.mark.parametrize("name", ["change_each", "change_mean", "directions"])
def test_no_fact_may_be_missing_or_added(name: str) -> None:
    content = copy.deepcopy(conditional().certificate.content)
    entry = content["bound"]["inputs"].pop(name)
    with pytest.raises(VerificationFailed, match=name):
        checks(Certificate(content))
    content["bound"]["inputs"] |= {name: entry, "weight_largest": entry}
    with pytest.raises(VerificationFailed, match="weight_largest"):
        checks(Certificate(content))


# What is refused ------------------------------------------------------------------------------------------------------


def test_one_without_the_other_is_refused() -> None:
    with pytest.raises(OptionError, match="without a distance"):
        unlearned(distance=None)
    with pytest.raises(OptionError, match="without a surrogate"):
        unlearned(surrogate=None)


@pytest.mark.parametrize("distance", [Estimation("kl"), "source", "estimate", Distance("deposit", 0.0)])
def test_only_a_declared_distance_will_do(distance: Any) -> None:
    with pytest.raises(OptionError, match="with a deposit"):
        unlearned(distance=distance)


def test_noise_that_is_to_be_rehearsed_is_refused() -> None:
    with pytest.raises(OptionError, match="with a deposit"):
        unlearned(noise="rows:10")


def test_the_rows_are_looked_over_as_without_a_deposit() -> None:
    X, y = SURROGATE
    with pytest.raises(DataError, match="at least 100"):
        unlearned(surrogate=(X[:50], y[:50]))
    with pytest.raises(DataError, match="copied"):
        unlearned(surrogate=(np.repeat(X[:100], 40, axis=0), np.repeat(y[:100], 40)))
    with pytest.raises(UselessModel, match="no row of class"):
        unlearned(surrogate=(X[y > 0], y[y > 0]))
    with pytest.raises(UselessModel, match="scaled down"):
        unlearned(surrogate=(X * 100, y))
    with pytest.raises(DataError, match=r"columns|features"):
        unlearned(surrogate=(X[:, :3], y))


def test_sampling_seen_is_refused_where_a_forget_row_shows_more() -> None:
    """Rows whose outputs are decided bend little, and none of them shows what an undecided one does."""
    model, _ = kept()
    X, y = SURROGATE
    outputs = np.sort(X @ to_numpy(double(model.weight)).T + to_numpy(double(model.bias)), axis=1)
    decided = outputs[:, -1] - outputs[:, -2] > 4.0
    given = (X[decided] * 6.0 / np.linalg.norm(X[decided], axis=1, keepdims=True), y[decided])
    with pytest.raises(VacuousClaim, match="the remainder of a forget row's gradient"):
        unlearned(MANY, given, Distance("same", 0.0, sampling="seen"), force=True)


def test_a_series_does_without() -> None:
    _, source = kept()
    place = Series(3, 1, None, None, None)
    with pytest.raises(OptionError, match="in a series"):
        ask(None, first(5), SURROGATE, Promise(EPSILON, DELTA, "same", series=place), deposit=source)
    with pytest.raises(OptionError, match="without a surrogate"):
        ask(None, first(5), None, Promise(EPSILON, DELTA, match_classes=True), deposit=source)
    assert ask(None, first(5), None, Promise(EPSILON, DELTA, series=place), deposit=source).surrogate is None
