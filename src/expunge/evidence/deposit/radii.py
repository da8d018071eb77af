"""The public list of radii that a deposit's noise is taken from, by what was rehearsed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from expunge.certificate.kept import MOST_RADII
from expunge.errors import ModelError

MARGIN = 1.25  # above what rehearsed groups needed
BEYOND = 10.0  # times what rehearsed groups usually need: the last radius, at least
APART = math.sqrt(10.0)  # radii of the list, or more where that would make too many
MOST_STEPS = 7  # of the list as far as ordinary requests go
SIZES = (1, 10, 100)  # rows that are rehearsed with, and one in a hundred of the source, and one in ten


class Rehearsed(Protocol):
    """What random groups of so many rows would need."""

    @property
    def finite(self) -> list[float]:
        """The radii of the groups that have one, from the smallest."""

    @property
    def usual(self) -> float:
        """What nine in ten of them need at most."""


def sizes_for(count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many rows of a source are rehearsed with: as requests usually have, and as large ones have, if that is more.

    >>> sizes_for(30_000), sizes_for(700)
    (((1, 10, 100, 300), (3000,)), ((1, 7, 10, 100), ()))
    """
    ordinary = tuple(sorted({*SIZES, count // 100} - {0}))
    return ordinary, (count // 10,) if count // 10 > ordinary[-1] else ()


def radii_for(rehearsed: Sequence[Rehearsed], least: float, large: Sequence[Rehearsed] = ()) -> tuple[float, ...]:
    """The public list of radii.

    It begins with what one random row usually needs, with a margin, covers everything that was rehearsed, and goes on
    to ten times what groups usually need, half a power of ten apart, or more: that is never more than eight. Others
    follow to ten times what the `large` groups need, of which few are tried; there are ten at most.
    """
    sizes = [each for each in rehearsed[: len(SIZES)] if each.finite and each.usual > 0.0]
    if not sizes:
        raise ModelError(
            "no random row could be forgotten with a finite bound",
            "a deposit is of use where some can",
            "Train with a larger l2, or leave out features that are combinations of others.",
        )
    needed = [max(MARGIN * each.usual, least) for each in sizes]
    seen = MARGIN * max(max(each.finite, default=0.0) for each in rehearsed)
    first, last = needed[0], max(seen, BEYOND * max(needed))
    usual = [first, *_up_to(first, last, APART, MOST_STEPS)]
    furthest = BEYOND * max((max(each.finite, default=0.0) for each in large), default=0.0)
    further = _up_to(usual[-1], furthest, APART, MOST_RADII - len(usual))
    return tuple(two_digits(each) for each in (*usual, *further))


def _up_to(first: float, last: float, apart: float, most: int) -> list[float]:
    """What comes after the first, so far apart that no more reach the last; nothing where the first does."""
    if last <= first:
        return []
    steps = min(max(math.ceil(math.log(last / first) / math.log(apart) - 1e-9), 1), most)
    apart = max(apart, (last / first) ** (1.0 / steps))
    return [first * apart**step for step in range(1, steps + 1)]


def two_digits(value: float) -> float:
    """Rounded up to two significant digits.

    >>> two_digits(0.01234), two_digits(0.02)
    (0.013, 0.02)
    """
    power = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / power - 1e-9) * power:.1e}")
