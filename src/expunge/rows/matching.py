"""Row weights that give the surrogate the source's class proportions.

A row of class k gets `(n_k / n) / (s_k / s)`: weighted means over the surrogate are then means over its classes in the
source's proportions. Where source and surrogate differ in those proportions alone, this removes the difference. Rows of
classes that the source had none of are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from expunge.errors import DataError
from expunge.heads import RowSet
from expunge.record import Label


def class_matched(
    rows: RowSet, counts: Sequence[int], classes: Sequence[Label], surrogate_counts: Sequence[int] | None = None
) -> RowSet:
    """The rows of classes that count, weighted (mean 1) so that class k weighs `counts[k]` of `sum(counts)`.

    `found` are the rows of each class that there are, where somebody has counted them already.
    """
    present = torch.tensor(surrogate_counts or class_counts(rows, len(counts)), dtype=torch.float64)
    wanted = torch.tensor(counts, dtype=torch.float64)
    absent = [classes[index] for index in torch.nonzero((wanted > 0) & (present == 0)).reshape(-1).tolist()]
    if absent:
        raise DataError(
            "the surrogate has no rows of class " + ", ".join(repr(value) for value in absent),
            "every class of the source must occur in it for its proportions to be matched",
            "Add rows of these classes; without --match-classes (match_classes) the distance must cover what is "
            "missing.",
        )
    present = torch.where(wanted > 0, present, torch.zeros_like(present))
    share = (wanted / wanted.sum()) / (present / present.sum()).clamp(min=1.0 / float(present.sum()))
    return rows.of_classes(share, present)


def class_counts(rows: RowSet, n_classes: int) -> tuple[int, ...]:
    """How many rows each class has, in one pass."""
    counts = torch.zeros(n_classes, dtype=torch.float64)
    for block in rows.blocks():
        counts += torch.bincount(block.labels, minlength=n_classes).cpu()
    return tuple(int(count) for count in rows.total(counts).tolist())
