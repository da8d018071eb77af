"""What a spreadsheet would take for a formula, whatever stands before it."""

from __future__ import annotations

import csv
import io
import sys
import unicodedata

import numpy as np
import pytest

from expunge.report import csv_text
from expunge.runtime.cells import safe_cell

UNSEEN = [
    "",
    " ",
    "\u00a0",
    "\u3000",
    "\u2003",
    "\u200b",
    "\ufeff",
    "\u2060",
    "\x1f",
    "\x00",
    "\u3164",
    "\u2800",
    "\ufe0f",
]
SIGNS = ["=", "+", "-", "@", "＝", "＋", "－", "＠", "﹢", "﹣", "﹦", "﹫", "\u2212"]  # noqa: RUF001


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("unseen", UNSEEN)
def test_a_formula_is_text_whatever_stands_before_it(unseen: str, sign: str) -> None:
    for cell in (f"{unseen}{sign}1+1", f"{unseen}{unseen}{sign}", f" {unseen}\u00a0{sign}x"):
        assert safe_cell(cell) == "'" + cell


def test_every_space_and_format_character_is_looked_through() -> None:
    for code in range(sys.maxunicode + 1):
        if chr(code).isspace() or unicodedata.category(chr(code)) in ("Cf", "Zs", "Zl", "Zp", "Cc"):
            assert safe_cell(f"{chr(code)}=1").startswith("'"), hex(code)


@pytest.mark.parametrize("cell", ["a=1", "1-1", "\u00a0name", "person@x", "", "\u3000", "x\u00a0=1", "2026-01-01"])
def test_other_text_stays_as_it_is(cell: str) -> None:
    assert safe_cell(cell) == cell


@pytest.mark.parametrize("cell", ["\tx", "\rx", "\nx"])
def test_what_moves_to_another_cell_is_text(cell: str) -> None:
    assert safe_cell(cell) == "'" + cell


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


def test_numbers_stay_numbers() -> None:
    assert [safe_cell(value) for value in (-1, -2.5, np.float64(-0.5), None, True)] == [
        "-1",
        "-2.5",
        "-0.5",
        "",
        "True",
    ]
