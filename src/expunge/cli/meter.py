"""How far a stage is, how fast it goes, how long it will take: from the times at which it reported."""

from __future__ import annotations

import re
import time
from collections.abc import Callable


class Meter:
    """Reports of one stage. A stage that counts something says what in parentheses: `Lanczos (rows)`.

    >>> meter = Meter("Lanczos (rows)", clock=iter((0.0, 2.0)).__next__)
    >>> meter.at(0, 1000)
    >>> meter.at(200, 1000)
    >>> meter.line()
    'Lanczos: 200 of 1,000 rows, 100 rows/s, 8 s left'
    """

    def __init__(self, stage: str, clock: Callable[[], float] = time.monotonic) -> None:
        named = re.fullmatch(r"(.*?)(?: \((\w+)\))?", stage)
        assert named is not None
        self.name, self.unit, self.clock = named[1], named[2] or "", clock
        self.begun = self.now = 0.0
        self.first: int | None = None
        self.done, self.total = 0, None  # type: int, int | None
        self.shown: float | None = None

    def at(self, done: int, total: int | None) -> None:
        """It is here now. A stage that steps back has begun anew."""
        self.now = self.clock()
        if self.first is None or done < self.done:
            self.begun, self.first = self.now, done
        self.done, self.total = done, total

    def due(self, seconds: float) -> bool:
        """Whether that long has gone by since this last said yes."""
        if self.shown is not None and self.now - self.shown < seconds:
            return False
        self.shown = self.now
        return True

    @property
    def rate(self) -> float | None:
        """Units a second since it began."""
        if self.first is None or self.now <= self.begun or self.done <= self.first:
            return None
        return (self.done - self.first) / (self.now - self.begun)

    def reading(self) -> str:
        """How many, how fast, how long still."""
        unit = f" {self.unit}" if self.unit else ""
        parts = [f"{self.done:,}" + ("" if self.total is None else f" of {self.total:,}") + unit]
        if self.rate is not None:
            parts.append(f"{_short(self.rate)}{unit}/s")
            if self.total is not None:
                parts.append(f"{_time(max(0, self.total - self.done) / self.rate)} left")
        return ", ".join(parts)

    def line(self) -> str:
        return f"{self.name}: {self.reading()}" if self.done or self.total else f"{self.name} ..."


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _time(seconds: float) -> str:
    """
    >>> _time(4000.0), _time(75.0), _time(3.2)
    ('1 h 6 min', '1 min 15 s', '3 s')
    """
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
