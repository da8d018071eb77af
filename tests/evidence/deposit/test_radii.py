"""The public list of radii, by hand."""

from __future__ import annotations

import math

import pytest

from expunge.certificate.kept import MOST_RADII
from expunge.errors import ModelError
from expunge.evidence.deposit.making import Rehearsal, Trial
from expunge.evidence.deposit.radii import radii_for, sizes_for, two_digits


def rehearsed_with(rows: int, *radii: float) -> Rehearsal:
    return Rehearsal(rows, tuple(Trial(radius, None) for radius in radii))


def test_radii_by_hand() -> None:
    """A quarter more than one row needs, half a power of ten apart, to ten times the most; two digits, rounded up."""
    rehearsed = (rehearsed_with(1, 0.4), rehearsed_with(10, 1.2), rehearsed_with(100, 0.9))
    assert radii_for(rehearsed, 0.0) == (0.5, 1.6, 5.0, 16.0)
    assert radii_for((*rehearsed, rehearsed_with(245, 9.0)), 0.0) == (0.5, 1.6, 5.0, 16.0)
    assert radii_for((*rehearsed, rehearsed_with(245, 90.0)), 0.0) == (0.5, 1.6, 5.0, 16.0, 50.0, 160.0)
    assert radii_for(rehearsed, 0.7) == (0.7, 2.3, 7.0, 23.0)
    infinite = (rehearsed_with(1, math.inf), rehearsed_with(10, 0.4, math.inf))
    assert radii_for(infinite, 0.0) == (0.5, 1.6, 5.0)
    wide = radii_for((rehearsed_with(1, 0.4), rehearsed_with(10, 4e5)), 0.0)
    assert wide == (0.5, 5.0, 50.0, 500.0, 5e3, 5e4, 5e5, 5e6)  # no more than eight
    with pytest.raises(ModelError, match="no random row could be forgotten"):
        radii_for((rehearsed_with(1, math.inf),), 0.0)


def test_large_groups_are_covered_by_more() -> None:
    """Which leave the others as they are; a group without a finite region asks for nothing."""
    rehearsed = (rehearsed_with(1, 0.4), rehearsed_with(10, 1.2), rehearsed_with(100, 0.9))
    usual = (0.5, 1.6, 5.0, 16.0)
    for needed, more in (
        ([1.5], ()),
        ([0.05 * math.sqrt(10.0) ** 3 * (1.0 + 5e-10)], (50.0,)),  # a rounding above the last
        ([math.inf], ()),
        ([math.inf, 1.6], (50.0,)),
        ([15.0, 3.0], (50.0, 160.0)),
        ([16.0], (50.0, 160.0, 500.0)),
        ([5e6 / 10**0.5], (160.0, 1600.0, 16000.0, 160000.0, 1600000.0, 16000000.0)),
    ):
        found = radii_for(rehearsed, 0.0, [rehearsed_with(1000, *needed)])
        assert found == (*usual, *more)
        assert len(found) <= MOST_RADII
        assert found[-1] >= 10.0 * max((each for each in needed if math.isfinite(each)), default=0.0)
    wide = (rehearsed_with(1, 0.4), rehearsed_with(10, 4e5))
    assert radii_for(wide, 0.0, [rehearsed_with(1000, 5e7)])[7:] == (5e6, 5e7, 5e8)
    assert len(radii_for(wide, 0.0, [rehearsed_with(1000, 4e8)])) == MOST_RADII == 10


def test_sizes_that_are_rehearsed() -> None:
    assert sizes_for(50) == ((1, 10, 100), ())
    assert sizes_for(1_009) == ((1, 10, 100), ())
    assert sizes_for(1_010) == ((1, 10, 100), (101,))
    assert sizes_for(50_000) == ((1, 10, 100, 500), (5_000,))


def test_one_very_influential_row_does_not_set_the_noise_of_all() -> None:
    ordinary = [0.4] * 23
    assert radii_for((rehearsed_with(1, *ordinary, 400.0),), 0.0) == (0.5, 1.6, 5.0, 16.0, 50.0, 160.0, 500.0)


@pytest.mark.parametrize("value", [1e-9, 0.0123, 0.02, 0.0999, 0.1, 1.0, 9.5, 123.0])
def test_two_digits_are_up_and_by_less_than_the_second(value: float) -> None:
    rounded = two_digits(value)
    power = 10.0 ** (math.floor(math.log10(value)) - 1)
    assert value * (1 - 1e-8) <= rounded <= value + power * (1 + 1e-8)
    assert float(f"{rounded:.1e}") == rounded
