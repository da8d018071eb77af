"""How far a long piece of work is, and how long it may take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]


def silent(stage: str, done: int, total: int | None) -> None:
    """The progress of nobody."""


Advance = Callable[[int, int | None], None]  # products done, products expected


def unwatched(done: int, total: int | None) -> None:
    """Nobody is told."""


def expected(done: int, size: float, start: float, goal: float) -> int | None:
    """How many iterations it will take from `start` to `goal` if the size goes on falling as in those done so far.

    >>> expected(10, 1e-2, 1.0, 1e-8)
    40
    """
    if not 0.0 < goal < start or not 0.0 < size < 0.9 * start:
        return None
    return max(done, math.ceil(done * math.log(start / goal) / math.log(start / size)))


# Time that a piece of work may take: it is cut where it would take longer, and the clock says what -----------------

Clock = Callable[[], float]


class Budget:
    """Seconds from now on; None for as long as it takes.

    >>> budget = Budget(60.0, clock=iter((0.0, 6.0, 61.0)).__next__)
    >>> budget.fitting(10, 1000), budget.spent  # ten took six seconds: a hundred fit
    (100, True)
    """

    def __init__(self, seconds: float | None = None, clock: Clock = time.monotonic) -> None:
        self.seconds, self.clock = seconds, clock
        self.begun = 0.0 if seconds is None else clock()

    @property
    def limited(self) -> bool:
        return self.seconds is not None

    @property
    def left(self) -> float:
        """Seconds that are left, infinite without a limit."""
        return math.inf if self.seconds is None else self.seconds - (self.clock() - self.begun)

    @property
    def spent(self) -> bool:
        return self.left <= 0.0

    def part(self, share: float) -> Budget:
        """A share of what is left, from now on."""
        return self if self.seconds is None else Budget(max(0.0, share * self.left), self.clock)

    def fitting(self, done: int, total: int) -> int:
        """How many of the total will fit, at the speed of those done since it began; never fewer than are done."""
        if self.seconds is None or done <= 0:
            return total
        passed = self.clock() - self.begun
        return total if passed <= 0.0 else max(done, min(total, math.floor(done * self.seconds / passed)))


NO_LIMIT = Budget()
