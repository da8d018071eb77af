"""Distances as they are declared and estimated, and as they are refused."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.distance import (
    KINDS,
    ChiSquare,
    Distance,
    Estimation,
    Kind,
    Means,
    kind_named,
    parse_distance,
    parse_route,
    tv_upper_from_chi_square,
    tv_upper_from_kl,
)
from expunge.errors import OptionError

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=100)


@pytest.mark.parametrize(
    "text", ["same", "source", "tv:0.25", "chi2:1.5", "kl:0.125", "tv:0", "tv:1", "chi2:12", "kl:1e-06", " kl:5e-1 "]
)
def test_text_is_read_and_comes_back(text: str) -> None:
    distance = parse_distance(text)
    kind, _, value = text.strip().partition(":")
    assert (distance.kind, distance.value) == (kind, float(value or 0.0))
    assert distance.between == "populations"
    assert distance.provenance == ("measured" if kind == "source" else "declared")
    assert str(distance) == text or text.startswith(" ")
    if kind != "same":
        assert parse_distance(text, between="samples").between == "samples"


@REPRODUCIBLE
@given(kind=st.sampled_from(["chi2", "kl"]), value=st.floats(min_value=0.0, max_value=1e300))
def test_every_finite_value_is_read_as_written(kind: str, value: float) -> None:
    assert parse_distance(f"{kind}:{value!r}") == Distance(kind, value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wasserstein:1", "one of same, tv, chi2, kl, source, or estimate"),
        ("deposit", "one of same, tv, chi2, kl, source, or estimate"),
        ("means:0.1", "or estimate"),
        ("", "is not known"),
        ("TV:0.1", "is not known"),
        ("same:0", "takes no value"),
        ("source:", "takes no value"),
        ("tv", "needs one"),
        ("kl:", "needs one"),
        ("chi2:much", "Write for example chi2:0.1"),
        ("tv:nan", "finite number"),
        ("kl:inf", "finite number"),
        ("chi2:-0.1", "at least 0"),
        ("tv:1.01", "between 0 and 1"),
    ],
)
def test_text_that_means_nothing_is_refused_with_what_would(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_distance(text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *((("tv", 0.1, between), "one of populations, samples") for between in ("", "rows", "population")),
        *(((kind, value), "takes no value") for kind in ("same", "source") for value in (0.1, 1.0)),
        *(((kind, value), "finite number") for kind in KINDS for value in (-1e-9, math.nan, math.inf, -math.inf)),
        (("tv", math.nextafter(1.0, 2.0)), "between 0 and 1"),
        (("same", 0.0, "samples"), "not the same set"),
        *(
            (("chi2", 0.1, "populations", "", sampling), "strict, seen, or within")
            for sampling in ("loose", "within", "within:", "within:0.99", "within:nan", "within:1e7", "within:2x")
        ),
        *(((kind, 0.0, "populations", "guessed"), "Leave the provenance out") for kind in KINDS),
        *(((kind, 0.0, "populations", "measured"), "it is ") for kind in ("same", "tv", "chi2", "kl", "means")),
        *(((kind, 0.0, "populations", "declared"), "it is ") for kind in ("source", "deposit", "means")),
        *(((kind, 0.0, "populations", "", "strict", True), "classes are its own") for kind in ("source", "deposit")),
        (("same", 0.0, "populations", "", "strict", 1), "True or False"),
    ],
)
def test_what_a_distance_cannot_be(given: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Distance(*given)


def test_what_a_distance_can_be() -> None:
    assert Distance("tv", 1.0).value == 1.0
    assert Distance("chi2", 1.5).value == Distance("kl", 1.5).value == 1.5
    assert parse_distance("chi2:0.1").sampling == Distance("chi2", 0.1).sampling == "strict"
    assert parse_distance("tv:0.1", sampling="seen").sampling == "seen"
    within = parse_distance("same", sampling="within:1.5")
    assert (within.within, within.counts_unlike) == (1.5, True)
    assert [Distance("same", 0.0, sampling=each).counts_unlike for each in ("strict", "seen")] == [True, False]
    for kind in KINDS:
        usual = {"source": "measured", "deposit": "measured", "means": "estimated"}.get(kind, "declared")
        assert Distance(kind, 0.0).provenance == Distance(kind, 0.0, provenance=usual).provenance == usual
    for kind in ("same", "tv", "chi2", "kl"):
        assert Distance(kind, 0.0, provenance="estimated").provenance == "estimated"
        assert Distance(kind, 0.0, matched=True).matched
    with pytest.raises(FrozenInstanceError):
        Distance("tv", 0.1).value = 0.0  # type: ignore[misc]


def test_meaning_says_which_way_round() -> None:
    assert len({Distance(kind, 0.0).meaning for kind in KINDS}) == len(KINDS)
    for kind in ("chi2", "kl"):
        assert "of the source's feature distribution relative to the surrogate's" in Distance(kind, 0.1).meaning


# What follows from each kind ------------------------------------------------------------------------------------


def test_a_sampling_term_and_the_eigenvalue_are_due_where_rows_are_sampled() -> None:
    for kind in KINDS:
        sampled = kind not in ("source", "deposit")
        assert Distance(kind, 0.0).samples_rows == Distance(kind, 0.0).needs_eigenvalue == sampled
    between = {kind: Distance(kind, 0.0, "samples") for kind in KINDS if kind != "same"}
    assert not any(distance.samples_rows for distance in between.values())
    assert {kind for kind, distance in between.items() if distance.needs_eigenvalue} == {"chi2", "kl"}


def test_shift_in_closed_form() -> None:
    """For a deviation of 2, a supremum of 3 and a centred supremum of 6."""
    by_hand = {
        ("tv", 0.5): 3.0,  # 2 * 0.5 * 3
        ("chi2", 0.25): 1.0,  # 0.5 * 2
        ("kl", 0.5): 3.0,  # 2 * 1 + 6 * 0.5 / 3
        ("same", 0.0): 0.0,
        ("source", 0.0): 0.0,
        ("deposit", 0.0): 0.0,
    }
    for (kind, value), shift in by_hand.items():
        distance = Distance(kind, value)
        assert distance.shift(2.0, 3.0, 6.0) == distance.mean_shift(2.0, 3.0, 6.0) == shift
        moved = shift if kind in ("tv", "chi2", "kl") else 0.0
        assert distance.moment_shift(2.0, 3.0, 6.0) == moved
    assert Distance("means", 0.5).moment_shift(2.0, 3.0, 6.0) == 0.0


def test_each_kind_implies_the_total_variation_of_its_inequality() -> None:
    for value in (0.0, 0.2, 1.0):
        assert Distance("tv", value).tv_upper == value
        assert Distance("chi2", value).tv_upper == tv_upper_from_chi_square(value)
        assert Distance("kl", value).tv_upper == tv_upper_from_kl(value)
    assert [Distance(kind, 0.0).tv_upper for kind in ("same", "source", "deposit")] == [0.0] * 3


def test_a_difference_of_means_says_nothing_of_anything_else() -> None:
    assert Means().mean_shift(0.25, 1.0, 2.0, 3.0) == 0.25
    with pytest.raises(OptionError, match="nothing of any other"):
        Means().shift(0.25, 1.0, 2.0, 3.0)
    with pytest.raises(OptionError, match="no total variation follows"):
        Means().tv_upper(0.25)


def test_a_name_stands_for_one_kind_and_an_unknown_one_raises() -> None:
    assert type(kind_named("chi2")) is ChiSquare
    for odd in ("hellinger", "", None, 3):
        with pytest.raises(OptionError, match="is not known"):
            kind_named(odd)


def test_what_each_kind_allows_and_needs() -> None:
    def those(name: str) -> set[str]:
        return {kind for kind, law in KINDS.items() if getattr(law, name)}

    assert those("takes_value") == {"tv", "chi2", "kl", "means"}
    assert those("one_population") == {"same", "source", "deposit"}
    assert those("is_source") == {"source"}
    assert those("stands_in") == set(KINDS) - {"deposit"}
    assert those("between_samples") == set(KINDS) - {"same"}
    assert those("rows_unlike_any") == {"tv"}, "a divergence relative to the surrogate allows no row it lacks"
    assert those("uses_deviation") == {"chi2", "kl"}
    assert those("moves_moments") == {"tv", "chi2", "kl"}
    assert those("assumption") == {"means"}
    assert {kind: law.largest_value for kind, law in KINDS.items()} == {**dict.fromkeys(KINDS), "tv": 1.0}


def test_a_new_kind_stands_in_may_be_declared_between_sets_and_has_rows_the_surrogate_has() -> None:
    class Plain(Kind):
        name, meaning = "plain", "a distance that says no more of itself"

        def shift(self, value: float, deviation: float, supremum: float, centred_supremum: float) -> float:
            return value * deviation

        def tv_upper(self, value: float) -> float:
            return value

    kind = Plain()
    assert (kind.takes_value, kind.stands_in, kind.between_samples, kind.moves_moments) == (True, True, True, True)
    assert (kind.one_population, kind.is_source, kind.rows_unlike_any, kind.uses_deviation) == (False,) * 4
    assert (kind.largest_value, kind.assumption) == (None, None)
    assert kind.provenances == ("declared", "estimated")
    assert kind.mean_shift(0.5, 3.0, 7.0, 9.0) == 1.5


# Estimates --------------------------------------------------------------------------------------------------------


def test_routes() -> None:
    assert parse_route("estimate") == parse_route("estimate:means") == "means"
    assert parse_route("estimate:kl") == "kl"
    assert parse_route("chi2:0.1") is None
    with pytest.raises(OptionError, match="route 'tv'"):
        Estimation(parse_route("estimate:tv") or "")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"support": "cube"}, "support 'cube'"),
        ({"sampling": "loose"}, "sampling 'loose'"),
        ({"mean": np.zeros(2)}, "one of mean and covariance"),
        ({"covariance": np.eye(2)}, "one of mean and covariance"),
        ({"support": "gaussian", "mean": np.zeros(2)}, "one of mean and covariance"),
        ({"mean": np.zeros(2), "covariance": np.eye(2)}, "moments with support ball"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        Estimation(**options)
    assert Estimation(support="gaussian", mean=np.zeros(2), covariance=np.eye(2)).mean is not None


def test_what_is_done_where_nothing_is_said_is_what_the_paper_does() -> None:
    usual = Estimation()
    assert (usual.route, usual.support, usual.sampling) == ("means", "ball", "strict")
    assert (usual.chains, usual.steps, usual.epochs, usual.seed) == (1000, 4000, 500, 0)
    assert usual.step_size is usual.mean is usual.covariance is None
    assert not usual.matched
    assert (usual.is_source, usual.samples_rows, str(usual)) == (False, True, "estimate:means")


@pytest.mark.parametrize(
    ("name", "lowest", "highest", "below", "beyond"),
    [
        ("chains", 100, 10_000_000, 99, 10_000_001),
        ("steps", 8, 10_000_000, 7, 10_000_001),
        ("epochs", 1, 10**12, 0, None),
        ("seed", 0, 2**62 - 1, -1, 2**62),
        ("step_size", 1e-30, 1e30, np.nextafter(1e-30, 0.0), np.nextafter(1e30, np.inf)),
    ],
)
def test_options_at_their_limits_and_just_beyond(
    name: str, lowest: float, highest: float, below: float, beyond: float | None
) -> None:
    for value in (lowest, highest):
        assert getattr(Estimation(**{name: value}), name) == value
    for value in (below, beyond):
        if value is not None:
            with pytest.raises(OptionError, match=name.replace("_", " ")):
                Estimation(**{name: value})
