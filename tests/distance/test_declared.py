"""A declared distance: what it accepts, what it refuses, and which inequality it stands for."""

import math
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.distance import KINDS, Distance, parse_distance
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
