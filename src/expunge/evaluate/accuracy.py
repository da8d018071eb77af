"""Accuracy on each part of the data."""

from __future__ import annotations

import math

from torch import Tensor

from expunge.evaluate.case import Case
from expunge.evaluate.score import Score
from expunge.heads import Rows

PARTS = ("train", "test", "retain", "forget")


def accuracy(weights: Tensor, rows: Rows) -> float:
    """Share of rows whose largest output is their own class; the first of equal outputs counts.

    One weight vector is that of the second of two classes, whose output counts against zero.
    """
    hits = 0
    for block in rows.blocks():
        outputs = block.features @ weights.T
        chosen = outputs.argmax(dim=1) if len(weights) > 1 else (outputs[:, 0] > 0.0).long()
        hits += int((chosen == block.labels).sum())
    return hits / len(rows)


def accuracies(weights: Tensor, case: Case) -> dict[str, Score]:
    """Train (retain and forget together), test, retain and forget accuracy, with binomial errors."""
    shares_right = {}
    for part in PARTS:
        value = accuracy(weights, case.rows[part])
        shares_right[part] = Score(value, math.sqrt(value * (1.0 - value) / len(case.rows[part])))
    return shares_right
