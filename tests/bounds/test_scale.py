"""How the noise's scale is chosen: words, levels, and that every rounding goes up."""

from __future__ import annotations

import math

import pytest

from expunge.bounds.calibration import (
    EXACTLY,
    LEVELS,
    LOWEST_LEVEL,
    ON_LADDER,
    POLICY,
    REHEARSAL,
    Scale,
    asked_scale,
    count_levels,
    is_level,
    is_power_of_four,
    level_above,
    power_of_four,
    power_of_two,
    publishable,
)
from expunge.errors import OptionError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ON_LADDER),
        ("request", ON_LADDER),
        ("exact", EXACTLY),
        (0.5, Scale(POLICY, 0.5)),
        (1, Scale(POLICY, 1.0)),
        ("0.01", Scale(POLICY, 0.01)),
        (" 1e-3 ", Scale(POLICY, 1e-3)),
        ("rows:10", Scale(REHEARSAL, rows=10)),
        (Scale(POLICY, 0.25, 4), Scale(POLICY, 0.25, 4)),
    ],
)
def test_ways_to_ask(given: object, expected: Scale) -> None:
    assert asked_scale(given) == expected


@pytest.mark.parametrize(
    "given",
    ["", "much", "rows:", "rows:0", "rows:-1", "rows:1.5", "0", "-1", "nan", "inf", "1e300", 1e-9, True, "row:1"],
)
def test_what_is_none_of_them_is_refused_with_the_remedy(given: object) -> None:
    with pytest.raises(OptionError, match=r"noise .*rows:10"):
        asked_scale(given)


def test_what_tells_who_left_cannot_be_asked_for_where_it_is_published() -> None:
    assert publishable("0.5").value == 0.5
    with pytest.raises(OptionError, match="who left"):
        publishable("exact")


@pytest.mark.parametrize("kind", ["policy", "guess"])
def test_a_policy_has_a_value_and_nothing_else_does(kind: str) -> None:
    with pytest.raises(OptionError):
        Scale(kind)
    with pytest.raises(OptionError):
        Scale("ladder", 0.5)


def test_a_level_is_the_next_power_of_two_and_never_below() -> None:
    for exponent in range(-20, 60):
        level = math.ldexp(1.0, exponent)
        assert level_above(level) == level
        assert is_level(level)
        assert level_above(math.nextafter(level, math.inf)) == 2.0 * level
        assert level_above(math.nextafter(level, 0.0)) == level
        assert not is_level(math.nextafter(level, math.inf))
    assert level_above(0.0) == level_above(1e-300) == LOWEST_LEVEL
    assert level_above(2.0**1000) == 2.0**1000
    assert level_above(math.nextafter(2.0**1000, math.inf)) == level_above(math.inf) == math.inf
    assert not is_level(math.inf)
    assert not is_level(0.0)
    assert not is_level(LOWEST_LEVEL / 2)


def test_rungs_are_counted_from_public_numbers() -> None:
    """From 2^-20 to the first level at which noise is as long as weights of this l2 can be."""
    l2, classes, parameters = 0.01, 10, 640
    longest = math.sqrt(2.0 * 0.7 * classes / l2)
    ladder = [math.ldexp(1.0, k) for k in range(-20, 20)]
    useful = [level for level in ladder if level / 2.0 * math.sqrt(parameters) < longest]
    assert count_levels(l2, classes, parameters, 2.0**-8) == len(useful)
    assert count_levels(l2, classes, parameters, 2.0 * useful[-1]) == len(useful) + 1, (
        "what somebody insisted on counts too"
    )


def test_a_scale_at_its_limits_and_just_beyond() -> None:
    for kind in (POLICY, LEVELS):
        for value in (2.0**-20, 1e6):
            assert Scale(kind, value).value == value
        for value in (math.nextafter(2.0**-20, 0.0), math.nextafter(1e6, math.inf), 1.05e6):
            with pytest.raises(OptionError, match="a standard deviation from"):
                Scale(kind, value)
    assert Scale(REHEARSAL, rows=1).rows == 1
    assert Scale(REHEARSAL, rows=2**53).rows == 2**53
    for rows in (0, 2**53 + 1, True):
        with pytest.raises(OptionError, match="at least one row"):
            Scale(REHEARSAL, rows=rows)


def test_the_last_level_covers_the_longest_weights_and_no_more() -> None:
    """`sqrt(1.4 K / l2)` of one parameter, a hair below and above 4; of fewer than two classes as of two."""
    for l2, highest in ((14.0 / 16.0 * 1.01, 2), (14.0 / 16.0 * 0.99, 3)):
        assert count_levels(l2, 10, 1, 2.0**-20) == highest + 21
    assert count_levels(2.8 / 16.0 * 1.01, 1, 1, 2.0**-20) == count_levels(2.8 / 16.0 * 1.01, 2, 1, 2.0**-20) == 23
    assert count_levels(1e18, 2, 10**6, 2.0**-20) == 1, "there is one at least"


def test_powers_of_two_and_four_are_the_next_ones_and_nothing_that_is_unknown_has_one() -> None:
    for exponent in range(-60, 61):
        exact = 2.0**exponent
        assert power_of_two(exact) == exact
        assert power_of_two(math.nextafter(exact, math.inf)) == 2.0 * exact
        assert power_of_two(math.nextafter(exact, 0.0)) == exact
        four = 4.0 ** math.ceil(exponent / 2)
        assert power_of_four(exact) == four
        assert power_of_four(math.nextafter(exact, math.inf)) == 4.0 ** (exponent // 2 + 1)
        assert is_power_of_four(exact) == (exponent % 2 == 0)
        assert not is_power_of_four(math.nextafter(exact, math.inf))
    for unknown in (math.inf, math.nan, 1.7e308, math.nextafter(2.0**1022, math.inf)):  # 4**512 is no double
        assert power_of_two(unknown) == power_of_four(unknown) == math.inf
    assert power_of_two(0.0) == 0.0, "what is charged for nothing"
    for none in (0.0, -1.0, -4.0, math.inf, math.nan):
        assert not is_power_of_four(none)
