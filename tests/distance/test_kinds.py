"""Each kind of distance against the inequality it stands for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.shared.closed_forms import discrete_chi_square, discrete_kl, discrete_tv
from expunge.distance import KINDS, Distance
from expunge.distance.inequalities import (
    shift_chi_square,
    shift_kullback_leibler,
    shift_total_variation,
    tv_upper_from_chi_square,
    tv_upper_from_kl,
)
from expunge.distance.kinds import (
    ChiSquare,
    Kind,
    KullbackLeibler,
    Means,
    Same,
    TheSource,
    TotalVariation,
    kind_named,
    register_kind,
)
from expunge.errors import OptionError

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=100)


def test_the_kinds():
    assert tuple(KINDS) == ("same", "tv", "chi2", "kl", "source", "deposit", "means")


def test_shift_in_closed_form():
    # deviation 2, supremum 3, centred supremum 6
    assert Distance("tv", 0.5).shift(2.0, 3.0, 6.0) == 3.0  # 2 * 0.5 * 3
    assert Distance("chi2", 0.25).shift(2.0, 3.0, 6.0) == 1.0  # 0.5 * 2
    assert Distance("kl", 0.5).shift(2.0, 3.0, 6.0) == 3.0  # 2 * 1 + 6 * 0.5 / 3
    assert Distance("same", 0.0).shift(2.0, 3.0, 6.0) == 0.0
    assert Distance("source", 0.0).shift(2.0, 3.0, 6.0) == 0.0


positive = st.floats(min_value=0.0, max_value=1e6)


@REPRODUCIBLE
@given(value=st.floats(min_value=0.0, max_value=1.0), deviation=positive, supremum=positive, centred=positive)
def test_shift_is_the_inequality_of_its_kind(value, deviation, supremum, centred):
    assert Distance("tv", value).shift(deviation, supremum, centred) == shift_total_variation(value, supremum)
    assert Distance("chi2", value).shift(deviation, supremum, centred) == shift_chi_square(value, deviation)
    assert Distance("kl", value).shift(deviation, supremum, centred) == shift_kullback_leibler(
        value, deviation, centred
    )


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
    assert of("first_schema") == {**dict.fromkeys(KINDS, 1), "means": 2}
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
    assert (kind.largest_value, kind.assumption, kind.first_schema) == (None, None, 1)
    assert kind.provenances == ("declared", "estimated")
    assert kind.mean_shift(0.5, 3.0, 7.0, 9.0) == 1.5
