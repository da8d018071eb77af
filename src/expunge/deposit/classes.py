"""Rows that count by their class: weights that were fixed at training, and stay as they are when rows leave.

The objective is `mean of s_y ell + (l2/2) ||W||^2` with one s for each class. It has the same optimum as with all s and
l2 divided by the largest s, and so it is kept: no weight is above 1, and everything that bounds a row (its gradient,
its curvature, what float64 loses of it) bounds a weighted one.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from expunge.errors import OptionError
from expunge.heads import Rows, RowSet
from expunge.heads.rows import in_memory
from expunge.record import TrainingRecord


def by_class(rows: RowSet, record: TrainingRecord) -> RowSet:
    """The rows, each with the weight of its class where a record has such weights."""
    if record.class_weights is None:
        return rows
    held: Rows = in_memory(rows, "weights by class")
    weights = torch.tensor(record.class_weights, dtype=torch.float64, device=held.device)
    return replace(held, weights=weights[held.labels])


def require_equal(record: TrainingRecord) -> None:
    """Refuse weights by class where a surrogate stands beside a deposit: its rows would need the same weights."""
    if record.class_weights is not None:
        raise OptionError(
            "a surrogate beside the deposit of a model with class weights",
            "surrogate rows are taken to count alike",
            "Leave surrogate and distance out: the deposit alone is enough.",
        )
