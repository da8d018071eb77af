"""Each kind of distance against the inequality it stands for."""

from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.distance import KINDS, Distance
from expunge.distance.inequalities import shift_chi_square, shift_kullback_leibler, shift_total_variation

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=100)


def test_the_kinds():
    assert tuple(KINDS) == ("same", "tv", "chi2", "kl", "source", "means")


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
