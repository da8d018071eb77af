"""What is minimised: loss, gradient, curvature, change of gradient, constants."""

from __future__ import annotations

from expunge.errors import OptionError
from expunge.objectives.linear import Constants, Curvature, LinearHead
from expunge.objectives.ridge import Ridge
from expunge.objectives.rows import Block, Rows, RowSet
from expunge.objectives.softmax import Softmax

OBJECTIVES: dict[str, type[LinearHead]] = {Softmax.name: Softmax, Ridge.name: Ridge}


def objective_for(loss: str, *, l2: float, n_classes: int, n_features: int, row_bound: float) -> LinearHead:
    """The objective called `loss` ("softmax" or "ridge")."""
    if loss not in OBJECTIVES:
        raise OptionError(
            f"loss {loss!r} is not known",
            f"it must be one of {', '.join(sorted(OBJECTIVES))}",
            "Choose the loss the model was trained with.",
        )
    return OBJECTIVES[loss](l2=l2, n_classes=n_classes, n_features=n_features, row_bound=row_bound)


__all__ = [
    "OBJECTIVES",
    "Block",
    "Constants",
    "Curvature",
    "LinearHead",
    "Ridge",
    "RowSet",
    "Rows",
    "Softmax",
    "objective_for",
]
