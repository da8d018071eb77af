"""How the noise's scale is chosen. It is seen in every published model, so it must not say who left.

policy    a number set before anybody asked, or rehearsed on rows that are nobody's who asks; a request that needs more
          is refused
ladder    the request chooses a noise level, a power of two; which one says something of who left, so a statement says
          how many there were
levels    with a deposit the smallest of a few noise levels, powers of four, that covers the request, from what changes
          no output to what drowns them; a request beyond the last is refused, and a statement says how many there were
exact     what the request needs, to the last digit. It tells who left: for audits and experiments, never published
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from expunge.errors import OptionError

POLICY, LADDER, EXACT, REHEARSAL, LEVELS = "policy", "ladder", "exact", "rows", "levels"
CHOICES = (POLICY, LADDER, EXACT, LEVELS)  # what a scale can have been chosen by; a rehearsal becomes a policy
SET = (POLICY, LEVELS)  # whose scale is a number that somebody set
LOWEST_LEVEL, HIGHEST_LEVEL = 2.0**-20, 2.0**1000  # below the first noise is finer than the finest grid (noise.py)
LARGEST_SCALE = 1e6
LARGEST_POWER = 2.0**1022  # of two and of four
MOST_REHEARSED = 2**53
REMEDY = "Write a standard deviation such as 0.01, rows:10 (as for ten rows), or request."


@dataclass(frozen=True)
class Scale:
    """How the scale is chosen; `value` is a policy's or a deposit's.

    `rows` is how many rows it was rehearsed with, or is to be; for levels how many levels there were.
    """

    kind: str
    value: float | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        if (self.kind not in (*CHOICES, REHEARSAL)) or (self.kind in SET) != (self.value is not None):
            raise OptionError(f"noise {self.kind!r} of {self.value}", "only a policy has a value", REMEDY)
        if self.value is not None and not (
            isinstance(self.value, float) and LOWEST_LEVEL <= self.value <= LARGEST_SCALE
        ):
            raise OptionError(
                f"noise {self.value}",
                f"a standard deviation from 2^-20 to {LARGEST_SCALE:g} is needed",
                REMEDY,
            )
        if self.rows is not None and not (type(self.rows) is int and 1 <= self.rows <= MOST_REHEARSED):
            raise OptionError(f"noise as for {self.rows} rows", "at least one row is needed", REMEDY)


ON_LADDER, EXACTLY = Scale(LADDER), Scale(EXACT)


def asked_scale(noise: Any) -> Scale:
    """How it is asked for: None or `request`, a number, `rows:10`; `exact` for audits.

    >>> asked_scale("rows:10")
    Scale(kind='rows', value=None, rows=10)
    >>> asked_scale("0.25").value
    0.25
    """
    if isinstance(noise, Scale):
        return noise
    if noise is None or noise == "request":
        return ON_LADDER
    if noise == EXACT:
        return EXACTLY
    if isinstance(noise, (int, float)) and not isinstance(noise, bool):
        return Scale(POLICY, float(noise))
    text = str(noise).strip()
    try:
        if text.startswith(f"{REHEARSAL}:"):
            return Scale(REHEARSAL, rows=int(text.partition(":")[2]))
        return Scale(POLICY, float(text))
    except ValueError as error:
        raise OptionError(f"noise {text!r}", "a number, rows:NUMBER or request is needed", REMEDY) from error


def publishable(noise: Any) -> Scale:
    """The scale that is asked for; refused where it must not be published."""
    scale = asked_scale(noise)
    if scale.kind == EXACT:
        raise OptionError("noise exact", "it would tell who left", REMEDY)
    return scale


def power_of_two(value: float) -> float:
    """The smallest power of two that is not below, and 0 of 0; infinite where there is none, or none that is known.

    >>> power_of_two(5.0), power_of_two(4.0), power_of_two(0.0)
    (8.0, 4.0, 0.0)
    """
    if value == 0.0:
        return 0.0
    if not value <= LARGEST_POWER:
        return math.inf
    mantissa, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def power_of_four(value: float) -> float:
    """The smallest power of four that is not below; infinite where there is none, or none that is known.

    >>> power_of_four(5.0), power_of_four(4.0), power_of_four(0.2)
    (16.0, 4.0, 0.25)
    """
    power = power_of_two(value)
    return power if is_power_of_four(power) else 2.0 * power


def is_power_of_four(value: float) -> bool:
    """Whether it is one.

    >>> is_power_of_four(0.25), is_power_of_four(0.5), is_power_of_four(0.3)
    (True, False, False)
    """
    return math.isfinite(value) and value > 0.0 and math.frexp(value)[0] == 0.5 and math.frexp(value)[1] % 2 == 1


def level_above(scale: float) -> float:
    """The lowest level of the ladder, a power of two, that is not below this.

    >>> level_above(0.3), level_above(0.25), level_above(0.0) == 2.0**-20
    (0.5, 0.25, True)
    """
    return max(power_of_two(scale), LOWEST_LEVEL) if scale <= HIGHEST_LEVEL else math.inf


def is_level(scale: float) -> bool:
    """Whether this is a level of the ladder."""
    return math.isfinite(scale) and scale > 0.0 and level_above(scale) == scale


def count_levels(l2: float, classes: int, parameters: int, scale: float) -> int:
    """How many levels of the ladder there were to choose from, from public numbers alone.

    From the lowest to the first at which noise is as long as trained weights can be: an objective that is at most
    `0.7 K` at zero, as that of each loss is, allows `sqrt(1.4 K / l2)`. A scale above that, which somebody insisted
    on, adds the levels up to it.

    >>> count_levels(0.01, 10, 640, 0.25), count_levels(0.01, 10, 640, 4.0)
    (22, 23)
    """
    longest = math.sqrt(1.4 * max(classes, 2) / l2)
    highest = max(level_above(longest / math.sqrt(parameters)), scale)
    return max(1, math.frexp(highest)[1] - math.frexp(LOWEST_LEVEL)[1] + 1)
