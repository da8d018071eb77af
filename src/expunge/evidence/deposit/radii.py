"""The public list of radii that a deposit's noise is taken from, by what was rehearsed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from expunge.errors import ModelError

MARGIN = 1.25  # above what rehearsed groups needed
BEYOND = 10.0  # times what rehearsed groups usually need: the last radius, at least
APART = math.sqrt(10.0)  # radii of the list, or more where that would make too many
MOST_STEPS = 7  # of the list: its choice tells at most three bits
SIZES = (1, 10, 100)  # rows that are rehearsed with, and one in a hundred of the source


class Rehearsed(Protocol):
    """What random groups of so many rows would need."""

    @property
    def finite(self) -> list[float]:
        """The radii of the groups that have one, from the smallest."""

    @property
    def usual(self) -> float:
        """What nine in ten of them need at most."""


def radii_for(rehearsed: Sequence[Rehearsed], least: float) -> tuple[float, ...]:
    """The public list of radii, half a power of ten apart, or more: there are never more than eight.

    It begins with what one random row usually needs, with a margin, covers everything that was rehearsed, and goes on
    to ten times what groups usually need.
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
    steps = min(math.ceil(math.log(last / first) / math.log(APART) - 1e-9), MOST_STEPS)
    apart = max(APART, (last / first) ** (1.0 / steps))
    return tuple(two_digits(first * apart**step) for step in range(steps + 1))


def two_digits(value: float) -> float:
    """Rounded up to two significant digits.

    >>> two_digits(0.01234), two_digits(0.02)
    (0.013, 0.02)
    """
    power = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / power - 1e-9) * power:.1e}")
