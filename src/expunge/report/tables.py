"""CSV that a spreadsheet shows as text: a cell that could be taken for a formula gets a quote in front."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

DANGEROUS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001


def safe_cell(value: Any) -> str:
    """A cell's text; numbers stay numbers.

    >>> safe_cell('=HYPERLINK("x")')
    '\\'=HYPERLINK("x")'
    >>> safe_cell(-1.5)
    '-1.5'
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        text = "" if value is None else str(value)
        return "'" + text if text.lstrip(" ").startswith(DANGEROUS) else text
    return repr(value)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table, every cell quoted and safe."""
    stream = io.StringIO()
    writer = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    writer.writerow([safe_cell(cell) for cell in header])
    for row in rows:
        writer.writerow([safe_cell(cell) for cell in row])
    return stream.getvalue()
