"""Options that must be numbers, or one of a few words."""

from __future__ import annotations

import csv
import io
import itertools
import math
import sys
import unicodedata
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.errors import OptionError
from expunge.report import csv_text
from expunge.runtime.values import LARGEST, SMALLEST, choice, positive, safe_cell, up


@given(st.floats(SMALLEST, LARGEST))
def test_a_number_above_zero_comes_back_as_it_went(value: float) -> None:
    assert positive(value, "l2", "") == value
    assert type(positive(np.float64(value), "l2", "")) is float


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, True, "1", None, 1j, [1.0], 10**400])
def test_what_is_no_number_above_zero_is_refused_with_the_remedy(value: object) -> None:
    with pytest.raises(OptionError, match=r"l2.*Give lambda") as refused:
        positive(value, "l2", "Give lambda.")  # type: ignore[arg-type]
    assert refused.value.remedy == "Give lambda."


@pytest.mark.parametrize("value", [SMALLEST / 2, 2 * LARGEST, 5e-324, 1e308])
def test_what_would_leave_float64_by_its_powers_is_refused(value: float) -> None:
    with pytest.raises(OptionError, match=r"between 1e-30 and 1e\+30"):
        positive(value, "max_norm", "")
    assert positive(SMALLEST, "", "") ** 10 > 0
    assert math.isfinite(positive(LARGEST, "", "") ** 10)


def test_a_word_is_one_of_those_there_are() -> None:
    assert choice("b", ("a", "b"), "step") == "b"
    with pytest.raises(OptionError, match="step 'c'; it must be one of a, b"):
        choice("c", ("a", "b"), "step")


@given(value=st.floats(1e-300, 1e300), digits=st.integers(1, 15))
def test_what_is_printed_is_never_below_and_hardly_above(value: float, digits: int) -> None:
    printed = Decimal(up(value, digits))
    assert float(printed) >= value
    assert printed <= Decimal(repr(value)) * (1 + Decimal(10) ** (1 - digits))


UNSEEN = ["", " ", *"\u00a0\u3000\u2003\u200b\ufeff\u2060\x1f\x00\u3164\u2800\ufe0f"]
SIGNS = ["=", "+", "-", "@", "＝", "＋", "－", "＠", "﹢", "﹣", "﹦", "﹫", "\u2212"]  # noqa: RUF001


def test_a_formula_is_text_whatever_stands_before_it() -> None:
    for sign, unseen in itertools.product(SIGNS, UNSEEN):
        for cell in (f"{unseen}{sign}1+1", f"{unseen}{unseen}{sign}", f" {unseen}\u00a0{sign}x"):
            assert safe_cell(cell) == "'" + cell


def test_every_space_and_format_character_is_looked_through() -> None:
    for code in range(sys.maxunicode + 1):
        if chr(code).isspace() or unicodedata.category(chr(code)) in ("Cf", "Zs", "Zl", "Zp", "Cc"):
            assert safe_cell(f"{chr(code)}=1").startswith("'"), hex(code)


def test_other_text_and_numbers_stay_and_what_moves_to_another_cell_is_text() -> None:
    for cell in ("a=1", "1-1", "\u00a0name", "person@x", "", "\u3000", "x\u00a0=1", "2026-01-01"):
        assert safe_cell(cell) == cell
    for cell in ("\tx", "\rx", "\nx"):
        assert safe_cell(cell) == "'" + cell
    values = [-1, -2.5, np.float64(-0.5), None, True]
    assert [safe_cell(value) for value in values] == ["-1", "-2.5", "-0.5", "", "True"]


@pytest.mark.parametrize(
    "cell", ["x;=cmd", 'x;"=cmd"', "x,=cmd", "x\t=cmd", "x\n=cmd", "x; \u200b=cmd", "a;b;@x;c", ";;=1"]
)
@pytest.mark.parametrize("separator", [";", ",", "\t"])
def test_no_cell_is_a_formula_however_the_file_is_split(cell: str, separator: str) -> None:
    """As a spreadsheet does it that takes a quote in the middle of a cell for a quote, and one that knows no quotes."""
    for text in (csv_text(["n", "cell"], [[1, cell], [2, cell]]), csv_text([cell, "n"], [[cell, -1]])):
        lenient = [each for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) for each in row]
        bare = [each.strip('"') for line in text.splitlines() for each in line.split(separator)]
        for each in (*lenient, *bare):
            assert each == "-1" or not each.lstrip(' \u200b"').startswith(("=", "+", "-", "@")), (each, text)
