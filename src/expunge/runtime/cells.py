"""Cells of a CSV file that a spreadsheet shows as text and never computes."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

FORMULA = "=+-@−"  # noqa: RUF001 - what a spreadsheet takes for a formula; the last is the minus sign of mathematics
SKIPPED = "ZCM"  # categories that show nothing by themselves: separators, controls and format, marks
BLANK = '"\u115f\u1160\u2800\u3164\uffa0'  # a quote, which ends or begins a cell; letters and a symbol drawn as nothing
BREAKS = re.compile("([;,\t\r\n])")  # where a file may be split into cells, whatever it was written with


def safe_cell(value: Any) -> str:
    """A cell's text, with a quote in front where it could be taken for a formula; numbers stay numbers.

    A spreadsheet may split at semicolons what was written with commas, quotes or not: so every part between commas,
    semicolons, tabs and line breaks is looked at like a cell. Whatever is not seen before the first sign is looked
    through, since spreadsheets trim it: spaces of every width, controls, marks. Signs in another width (`＝`) count as
    what they stand for.

    >>> safe_cell('=HYPERLINK("x")')
    '\\'=HYPERLINK("x")'
    >>> safe_cell('\\u3000@SUM(1)')
    "'\\u3000@SUM(1)"
    >>> safe_cell('x;=cmd')
    "x;'=cmd"
    >>> safe_cell(-1.5)
    '-1.5'
    """  # noqa: RUF002
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        text = "" if value is None else str(value)
        moved = text.startswith(("\t", "\r", "\n"))  # these alone move what follows into another cell
        return "".join("'" + part if _as_formula(part) else part for part in BREAKS.split("'" * moved + text))
    return str(value)


def _as_formula(text: str) -> bool:
    for sign in text:
        if unicodedata.category(sign)[0] not in SKIPPED and sign not in BLANK:
            return unicodedata.normalize("NFKC", sign)[:1] in tuple(FORMULA)
    return False
