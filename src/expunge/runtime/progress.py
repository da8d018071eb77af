"""How far a long piece of work is."""

from __future__ import annotations

import math
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
