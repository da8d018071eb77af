"""Rounded up: what is printed is never below the number."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from expunge.runtime.rounding import up


@given(value=st.floats(1e-300, 1e300), digits=st.integers(1, 15))
def test_what_is_printed_is_never_below_and_hardly_above(value: float, digits: int) -> None:
    printed = Decimal(up(value, digits))
    assert float(printed) >= value
    assert printed <= Decimal(repr(value)) * (1 + Decimal(10) ** (1 - digits))


def test_numbers_with_few_digits_stay_as_they_are() -> None:
    for value in (1.0, 0.01, 0.1, 5.0, 1e-5, 1e-300, 1234.0):
        assert up(value) == f"{value:g}"
    assert up(1.0000049) == "1.00001"
    assert up(0.99999999) == "1"
