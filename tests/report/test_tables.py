"""CSV that a spreadsheet shows as text."""

from __future__ import annotations

import csv
import io

import pytest

from expunge.report import csv_text
from hostile import HOSTILE


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@x", "\tx", "\rx", " =1", "＝1", "\u00a0=1", "\u3000@x"])  # noqa: RUF001
def test_formulas_in_csv_are_text(cell: str) -> None:
    ((read,),) = csv.reader(io.StringIO(csv_text([cell], []), newline=""))
    assert read == "'" + cell


@pytest.mark.parametrize("cell", HOSTILE)
def test_csv_comes_back_as_it_went(cell: str) -> None:
    rows = list(csv.reader(io.StringIO(csv_text(["id", "reference"], [[-1, cell], [2.5, None]]), newline="")))
    assert rows[1][0] == "-1"
    assert rows[1][1].removeprefix("'") == cell.removeprefix("'")
    assert not rows[1][1].startswith(("=", "+", "-", "@"))
    assert rows[2] == ["2.5", ""]
