"""Options that must be numbers, or one of a few words."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from expunge.errors import OptionError

SMALLEST, LARGEST = 1e-30, 1e30  # of l2, norms and constants: beyond this their powers leave float64


def positive(value: float, name: str, remedy: str) -> float:
    """The value as a float, if it is a number above 0 whose powers stay within float64."""
    number = not isinstance(value, bool) and isinstance(value, (int, float, np.floating, np.integer))
    if not number or not 0 < value < math.inf:
        raise OptionError(f"{name} {value}", "it must be a finite number above 0", remedy)
    if not SMALLEST <= value <= LARGEST:
        raise OptionError(f"{name} {value}", f"it must lie between {SMALLEST:g} and {LARGEST:g}", remedy)
    return float(value)


def choice(value: str, options: Sequence[str], name: str) -> str:
    """The value, if it is one of the options."""
    if value not in options:
        raise OptionError(
            f"{name} {value!r}", f"it must be one of {', '.join(options)}", f"Choose one of them for {name}."
        )
    return value
