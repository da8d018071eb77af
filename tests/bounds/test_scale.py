"""How the noise's scale is chosen: words, rungs, and that every rounding goes up."""

from __future__ import annotations

import math

import pytest

from expunge.bounds.scale import (
    EXACTLY,
    LOWEST_RUNG,
    ON_LADDER,
    POLICY,
    REHEARSAL,
    Scale,
    asked_scale,
    on_ladder,
    publishable,
    rung_above,
    rungs,
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


def test_a_rung_is_the_next_power_of_two_and_never_below() -> None:
    for exponent in range(LOWEST_RUNG, 60):
        rung = math.ldexp(1.0, exponent)
        assert rung_above(rung) == rung
        assert on_ladder(rung)
        assert rung_above(math.nextafter(rung, math.inf)) == 2.0 * rung
        assert rung_above(math.nextafter(rung, 0.0)) == rung
        assert not on_ladder(math.nextafter(rung, math.inf))
    assert rung_above(0.0) == rung_above(1e-300) == math.ldexp(1.0, LOWEST_RUNG)
    assert rung_above(math.inf) == math.inf
    assert not on_ladder(math.inf)
    assert not on_ladder(0.0)
    assert not on_ladder(math.ldexp(1.0, LOWEST_RUNG - 1))


def test_rungs_are_counted_from_public_numbers() -> None:
    """From 2^-20 to the first rung at which noise is as long as weights of this l2 can be."""
    l2, classes, parameters = 0.01, 10, 640
    longest = math.sqrt(2.0 * 0.7 * classes / l2)
    ladder = [math.ldexp(1.0, k) for k in range(LOWEST_RUNG, 20)]
    useful = [rung for rung in ladder if rung / 2.0 * math.sqrt(parameters) < longest]
    assert rungs(l2, classes, parameters, 2.0**-8) == len(useful)
    assert rungs(l2, classes, parameters, 2.0 * useful[-1]) == len(useful) + 1, "what somebody insisted on counts too"
