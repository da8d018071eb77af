"""CSV that a spreadsheet shows as text: a cell that could be taken for a formula gets a quote in front."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from expunge.model import LinearModel
from expunge.record import RIDGE
from expunge.rows.columns import match_record
from expunge.rows.features import as_table, require_finite
from expunge.runtime.arrays import Array
from expunge.runtime.values import safe_cell


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table, every cell quoted and safe."""
    stream = io.StringIO()
    writer = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    writer.writerow([safe_cell(cell) for cell in header])
    for row in rows:
        writer.writerow([safe_cell(cell) for cell in row])
    return stream.getvalue()


# Predictions as a CSV file: a line a row, its label and, where the model has them, the probability of each class.


DIGITS = 6
BLOCK = 1 << 15  # rows that are predicted and written at a time
NAME = "the rows to predict"


def predictions(model: LinearModel, features: Any) -> tuple[bytes, int]:
    """The file's content, and how many rows it has; no cell of it is taken for a formula."""
    given = match_record(features, model.record, model.n_features, NAME)
    rows = as_table(given[0] if isinstance(given, tuple) else given, NAME)
    bare = model.record is not None and model.record.loss == RIDGE.name
    headings = [] if bare else [f"probability of {label}" for label in model.classes]
    content = [csv_text(["row", "predicted", *headings], []).encode()]
    for start in range(0, len(rows), BLOCK):
        part = rows[start : start + BLOCK]
        require_finite(part, NAME, start)
        content.append(_lines(model, part, start, bare))
    return b"".join(content), len(rows)


def _lines(model: LinearModel, rows: Array, start: int, bare: bool) -> bytes:
    """The lines of some rows, by Arrow: Python's own writer takes longer than everything else together."""
    names = pa.array([safe_cell(label).replace('"', '""') for label in model.classes], pa.string())
    chosen = pc.index_in(pa.array(model.predict(rows)), pa.array(list(model.classes)))
    cells = [pa.array(np.arange(start + 1, start + 1 + len(rows))).cast(pa.string()), names.take(chosen)]
    shares = np.zeros((len(rows), 0)) if bare else model.predict_proba(rows)
    for share in np.rint(shares.T * 10**DIGITS).astype(np.int64):
        digits = pc.utf8_lpad(pa.array(share).cast(pa.string()), DIGITS + 1, "0")
        cells.append(pc.utf8_replace_slice(digits, 1, 1, "."))
    lines = pc.binary_join_element_wise(*cells, '","')
    text = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), '"\r\n"')[0].as_py()
    return f'"{text}"\r\n'.encode()
