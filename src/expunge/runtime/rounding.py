"""Numbers for sentences that promise something: never below what they stand for."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context


def up(value: float, digits: int = 6) -> str:
    """A number in so many digits, rounded up from the shortest text that stands for it.

    >>> up(1.0000049), up(1.0), up(1e-5), up(0.01)
    ('1.00001', '1', '1e-05', '0.01')
    """
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value)))
    return f"{float(rounded):.{digits}g}"
