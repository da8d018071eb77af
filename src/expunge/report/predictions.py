"""Predictions as a CSV file: a line a row, its label and, where the model has them, the probability of each class."""

from __future__ import annotations

from typing import Any

from expunge.model import LinearModel
from expunge.record import RIDGE
from expunge.report.tables import csv_text

DIGITS = 6


def predictions(model: LinearModel, features: Any) -> tuple[bytes, int]:
    """The file's content, and how many rows it has; no cell of it is taken for a formula."""
    labels = model.predict(features).tolist()
    bare = model.record is not None and model.record.loss == RIDGE.name
    shares = [[] for _ in labels] if bare else model.predict_proba(features).round(DIGITS).tolist()
    headings = [] if bare else [f"probability of {label}" for label in model.classes]
    lines = ([place + 1, label, *shares[place]] for place, label in enumerate(labels))
    return csv_text(["row", "predicted", *headings], lines).encode(), len(labels)
