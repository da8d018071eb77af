"""Distances as they are declared and estimated, and as they are refused."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.shared.closed_forms import discrete_chi_square, discrete_kl, discrete_tv
from expunge.distance import (
    KINDS,
    ChiSquare,
    Distance,
    Estimation,
    Kind,
    KullbackLeibler,
    Means,
    Same,
    TheSource,
    TotalVariation,
    kind_named,
    parse_distance,
    parse_route,
    register_kind,
    shift_chi_square,
    shift_kullback_leibler,
    shift_total_variation,
    tv_upper_from_chi_square,
    tv_upper_from_kl,
)
from expunge.errors import OptionError

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=100)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("same", "same", 0.0),
        ("source", "source", 0.0),
        ("tv:0.2", "tv", 0.2),
        ("chi2:0.3", "chi2", 0.3),
        (" kl:5e-1 ", "kl", 0.5),
    ],
)
def test_text_is_read(text, kind, value):
    distance = parse_distance(text)
    assert (distance.kind, distance.value, distance.between, distance.provenance) == (
        kind,
        value,
        "populations",
        "measured" if kind == "source" else "declared",
    )


@pytest.mark.parametrize("text", ["source", "tv:0.2", "chi2:0.3", "kl:0.5"])
def test_what_a_distance_is_between_is_kept(text):
    assert parse_distance(text, between="samples").between == "samples"
    assert (
        parse_distance(text, between="populations") == parse_distance(text) != parse_distance(text, between="samples")
    )


@pytest.mark.parametrize(
    "text", ["same", "source", "tv:0.25", "chi2:1.5", "kl:0.125", "tv:0", "tv:1", "chi2:12", "kl:1e-06"]
)
def test_text_comes_back(text):
    assert str(parse_distance(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wasserstein:1", "one of same, tv, chi2, kl, source"),
        ("deposit", "one of same, tv, chi2, kl, source, or estimate"),
        ("", "is not known"),
        ("deposit", "is not known"),
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
def test_text_that_means_nothing_is_refused_with_what_would(text, message):
    with pytest.raises(OptionError, match=message):
        parse_distance(text)


@pytest.mark.parametrize("between", ["", "rows", "population"])
def test_a_distance_is_between_populations_or_samples(between):
    with pytest.raises(OptionError, match="one of populations, samples"):
        Distance("tv", 0.1, between)
    with pytest.raises(OptionError, match="one of populations, samples"):
        parse_distance("tv:0.1", between=between)


@pytest.mark.parametrize("kind", ["same", "source"])
@pytest.mark.parametrize("value", [0.1, 1.0])
def test_kinds_without_a_value_refuse_one(kind, value):
    with pytest.raises(OptionError, match="takes no value"):
        Distance(kind, value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, -math.inf])
def test_no_kind_takes_a_negative_or_infinite_value(kind, value):
    with pytest.raises(OptionError, match="finite number, at least 0"):
        Distance(kind, value)


def test_total_variation_ends_at_one_and_the_others_do_not():
    assert Distance("tv", 1.0).value == 1.0
    with pytest.raises(OptionError, match="between 0 and 1"):
        Distance("tv", math.nextafter(1.0, 2.0))
    assert Distance("chi2", 1.5).value == Distance("kl", 1.5).value == 1.5


def test_a_distance_cannot_be_changed_afterwards():
    with pytest.raises(FrozenInstanceError):
        Distance("tv", 0.1).value = 0.0


def test_what_is_taken_for_rows_unlike_any_that_was_seen_is_kept_and_must_be_known():
    assert parse_distance("chi2:0.1").sampling == Distance("chi2", 0.1).sampling == "strict"
    for text in ("same", "tv:0.1"):
        assert parse_distance(text, sampling="strict").sampling == "strict"
    with pytest.raises(OptionError, match="one of seen, strict"):
        Distance("chi2", 0.1, sampling="loose")


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_source_itself_is_measured(kind):
    usual = {"source": "measured", "deposit": "measured", "means": "estimated"}.get(kind, "declared")
    assert Distance(kind, 0.0).provenance == Distance(kind, 0.0, provenance=usual).provenance == usual
    with pytest.raises(OptionError, match="'source' is measured, 'means' estimated"):
        Distance(kind, 0.0, provenance="declared" if usual == "measured" else "measured")
    with pytest.raises(OptionError, match="'source' is measured, 'means' estimated"):
        Distance(kind, 0.0, provenance="guessed")


@pytest.mark.parametrize("kind", ["same", "tv", "chi2", "kl"])
def test_a_distance_may_be_an_estimate(kind):
    assert Distance(kind, 0.0, provenance="estimated").provenance == "estimated"


def test_two_samples_of_one_population_are_not_the_same_set():
    for declare in (lambda: Distance("same", 0.0, "samples"), lambda: parse_distance("same", between="samples")):
        with pytest.raises(OptionError, match="not the same set"):
            declare()


def test_a_sampling_term_is_due_between_populations_unless_the_surrogate_is_the_source():
    for kind in KINDS:
        assert Distance(kind, 0.0).samples_rows == (kind not in ("source", "deposit"))
    for kind in ("tv", "chi2", "kl", "source"):
        assert not Distance(kind, 0.0, "samples").samples_rows


def test_meaning_says_which_way_round():
    assert len({Distance(kind, 0.0).meaning for kind in KINDS}) == len(KINDS)
    for kind in ("chi2", "kl"):
        assert "of the source's feature distribution relative to the surrogate's" in Distance(kind, 0.1).meaning
    assert "total variation" in Distance("tv", 0.1).meaning
    assert "independent sample of the source's own distribution" in Distance("same", 0.0).meaning
    assert "source itself" in Distance("source", 0.0).meaning


@REPRODUCIBLE
@given(kind=st.sampled_from(["chi2", "kl"]), value=st.floats(min_value=0.0, max_value=1e300))
def test_every_finite_value_is_read_as_written(kind, value):
    assert parse_distance(f"{kind}:{value!r}") == Distance(kind, value)


def test_only_rows_that_stand_in_for_the_source_can_be_matched_to_its_classes():
    for kind in ("same", "tv", "chi2", "kl", "means"):
        assert Distance(kind, 0.0, matched=True).matched
    for kind in ("source", "deposit"):
        with pytest.raises(OptionError, match="the source's classes are its own"):
            Distance(kind, 0.0, matched=True)
    with pytest.raises(OptionError, match="True or False"):
        Distance("same", 0.0, matched=1)


def test_second_moments_move_where_the_source_is_another_law_and_else_stay():
    moments = (2.0, 3.0, 6.0)
    for kind in ("tv", "chi2", "kl"):
        assert Distance(kind, 0.5).moment_shift(*moments) == Distance(kind, 0.5).shift(*moments) > 0.0
    for kind in ("same", "source", "deposit", "means"):
        assert Distance(kind, 0.0).moment_shift(*moments) == 0.0


def test_the_eigenvalue_is_needed_where_rows_are_sampled_or_the_shift_uses_the_spread():
    for kind in KINDS:
        assert Distance(kind, 0.0).needs_eigenvalue == (kind not in ("source", "deposit"))
    needed = {kind for kind in KINDS if kind != "same" and Distance(kind, 0.0, "samples").needs_eigenvalue}
    assert needed == {"chi2", "kl"}


def test_routes() -> None:
    assert parse_route("estimate") == parse_route("estimate:means") == "means"
    assert parse_route("estimate:kl") == "kl"
    assert parse_route("chi2:0.1") is None
    with pytest.raises(OptionError, match="route 'tv'"):
        Estimation(parse_route("estimate:tv") or "")
    with pytest.raises(OptionError, match="or estimate"):
        parse_distance("means:0.1")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"support": "cube"}, "support 'cube'"),
        ({"chains": 99}, "chains 99"),
        ({"mean": np.zeros(2)}, "one of mean and covariance"),
        ({"mean": np.zeros(2), "covariance": np.eye(2)}, "moments with support ball"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        Estimation(**options)


def test_only_an_estimate_is_of_the_kind_means() -> None:
    assert Distance("means", 0.1).provenance == "estimated"
    with pytest.raises(OptionError, match="'means' estimated"):
        Distance("means", 0.1, provenance="declared")


def test_what_is_done_where_nothing_is_said_is_what_the_paper_does() -> None:
    usual = Estimation()
    assert (usual.route, usual.support, usual.sampling) == ("means", "ball", "strict")
    assert (usual.chains, usual.steps, usual.epochs, usual.seed) == (1000, 4000, 500, 0)
    assert usual.step_size is usual.mean is usual.covariance is None
    assert (usual.metropolis, usual.matched) == (False, False)
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


def test_moments_go_with_a_gaussian_reference() -> None:
    given = Estimation(support="gaussian", mean=np.zeros(2), covariance=np.eye(2))
    assert given.mean is not None
    for wrong in ({"covariance": np.eye(2)}, {"support": "gaussian", "mean": np.zeros(2)}):
        with pytest.raises(OptionError, match="one of mean and covariance"):
            Estimation(**wrong)
    with pytest.raises(OptionError, match="sampling 'loose'"):
        Estimation(sampling="loose")


def test_shift_in_closed_form():
    # deviation 2, supremum 3, centred supremum 6
    assert Distance("tv", 0.5).shift(2.0, 3.0, 6.0) == 3.0  # 2 * 0.5 * 3
    assert Distance("chi2", 0.25).shift(2.0, 3.0, 6.0) == 1.0  # 0.5 * 2
    assert Distance("kl", 0.5).shift(2.0, 3.0, 6.0) == 3.0  # 2 * 1 + 6 * 0.5 / 3
    assert Distance("same", 0.0).shift(2.0, 3.0, 6.0) == 0.0
    assert Distance("source", 0.0).shift(2.0, 3.0, 6.0) == 0.0


# Each kind by itself --------------------------------------------------------------------------------------------
AMOUNTS = st.floats(0.0, 10.0)


@REPRODUCIBLE
@given(st.floats(0.0, 1.0), AMOUNTS, AMOUNTS, AMOUNTS)
def test_each_kind_shifts_by_its_own_inequality(value, deviation, supremum, centred):
    moments = (deviation, supremum, centred)
    assert TotalVariation().shift(value, *moments) == shift_total_variation(value, supremum)
    assert ChiSquare().shift(value, *moments) == shift_chi_square(value, deviation)
    assert KullbackLeibler().shift(value, *moments) == shift_kullback_leibler(value, deviation, centred)
    for nothing in (Same(), TheSource()):
        assert nothing.shift(0.0, *moments) == nothing.tv_upper(0.0) == 0.0
    for kind in (TotalVariation(), ChiSquare(), KullbackLeibler()):
        assert kind.mean_shift(value, *moments) == kind.shift(value, *moments)


@REPRODUCIBLE
@given(st.floats(0.0, 1.0))
def test_each_kind_implies_the_total_variation_of_its_inequality(value):
    assert TotalVariation().tv_upper(value) == value
    assert ChiSquare().tv_upper(value) == tv_upper_from_chi_square(value)
    assert KullbackLeibler().tv_upper(value) == tv_upper_from_kl(value)


def test_two_points_are_no_further_apart_than_any_kind_says():
    """A coin of 0.3 against one of 0.5: every kind, given its exact distance, covers the true shift of 0.2."""
    source, surrogate = np.array([0.7, 0.3]), np.array([0.5, 0.5])
    values = {
        "tv": discrete_tv(source, surrogate),
        "chi2": discrete_chi_square(source, surrogate),
        "kl": discrete_kl(source, surrogate),
    }
    for name, value in values.items():
        assert kind_named(name).shift(value, 0.5, 1.0, 0.5) >= 0.2 * (1 - 1e-12), name
        assert kind_named(name).tv_upper(value) >= 0.2 * (1 - 1e-12), name


def test_a_difference_of_means_says_nothing_of_anything_else():
    means = Means()
    assert means.mean_shift(0.25, 1.0, 2.0, 3.0) == 0.25
    with pytest.raises(OptionError, match="nothing of any other"):
        means.shift(0.25, 1.0, 2.0, 3.0)
    with pytest.raises(OptionError, match="no total variation follows"):
        means.tv_upper(0.25)
    assert means.provenances == ("estimated",)


def test_a_name_stands_for_one_kind_and_an_unknown_one_raises():
    register_kind(ChiSquare())  # the same again is no matter

    class Other(Same):
        name = "chi2"

    with pytest.raises(OptionError, match="'chi2' is taken"):
        register_kind(Other())
    assert type(kind_named("chi2")) is ChiSquare
    for odd in ("hellinger", "", None, 3):
        with pytest.raises(OptionError, match="is not known"):
            kind_named(odd)


def test_what_each_kind_allows_and_needs():
    def of(name):
        return {kind: getattr(law, name) for kind, law in KINDS.items()}

    def those(name):
        return {kind for kind, is_so in of(name).items() if is_so}

    assert those("takes_value") == {"tv", "chi2", "kl", "means"}
    assert those("one_population") == {"same", "source", "deposit"}
    assert those("is_source") == {"source"}
    assert those("stands_in") == set(KINDS) - {"deposit"}
    assert those("between_samples") == set(KINDS) - {"same"}
    assert those("rows_unlike_any") == {"tv"}, "a divergence relative to the surrogate allows no row it lacks"
    assert those("uses_deviation") == {"chi2", "kl"}
    assert those("moves_moments") == {"tv", "chi2", "kl"}
    assert of("largest_value") == {**dict.fromkeys(KINDS), "tv": 1.0}
    assert {kind for kind, sentence in of("assumption").items() if sentence} == {"means"}


def test_a_new_kind_stands_in_may_be_declared_between_sets_and_has_rows_the_surrogate_has():
    class Plain(Kind):
        name, meaning = "plain", "a distance that says no more of itself"

        def shift(self, value, deviation, supremum, centred_supremum):
            return value * deviation

        def tv_upper(self, value):
            return value

    kind = Plain()
    assert (kind.takes_value, kind.stands_in, kind.between_samples, kind.moves_moments) == (True, True, True, True)
    assert (kind.one_population, kind.is_source, kind.rows_unlike_any, kind.uses_deviation) == (False,) * 4
    assert (kind.largest_value, kind.assumption) == (None, None)
    assert kind.provenances == ("declared", "estimated")
    assert kind.mean_shift(0.5, 3.0, 7.0, 9.0) == 1.5
