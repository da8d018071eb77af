"""CSV that a spreadsheet shows as text: a cell that could be taken for a formula gets a quote in front."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from expunge.runtime.cells import safe_cell


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table, every cell quoted and safe."""
    stream = io.StringIO()
    writer = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    writer.writerow([safe_cell(cell) for cell in header])
    for row in rows:
        writer.writerow([safe_cell(cell) for cell in row])
    return stream.getvalue()
