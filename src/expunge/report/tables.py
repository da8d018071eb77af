"""CSV that a spreadsheet shows as text: a cell that could be taken for a formula gets a quote in front."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from expunge.model import LinearModel
from expunge.record import RIDGE
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


def predictions(model: LinearModel, features: Any) -> tuple[bytes, int]:
    """The file's content, and how many rows it has; no cell of it is taken for a formula."""
    labels = model.predict(features).tolist()
    bare = model.record is not None and model.record.loss == RIDGE.name
    shares = [[] for _ in labels] if bare else model.predict_proba(features).round(DIGITS).tolist()
    headings = [] if bare else [f"probability of {label}" for label in model.classes]
    lines = ([place + 1, label, *shares[place]] for place, label in enumerate(labels))
    return csv_text(["row", "predicted", *headings], lines).encode(), len(labels)
