"""What is minimised: loss, gradient, curvature, change of gradient, constants."""

from __future__ import annotations

from expunge.errors import OptionError
from expunge.heads.curvature import Curvature
from expunge.heads.linear import LinearHead
from expunge.heads.ridge import Ridge
from expunge.heads.rows import Block, Rows, RowSet
from expunge.heads.softmax import Softmax
from expunge.record import Constants, register_loss

HEADS: dict[str, type[LinearHead]] = {head.about.name: head for head in (Softmax, Ridge)}


def register_head(head: type[LinearHead]) -> None:
    """Make a linear head, and what certificates have to know of its loss, known under its name."""
    register_loss(head.about)
    HEADS[head.about.name] = head


def head_for(loss: str, *, l2: float, n_classes: int, n_features: int, row_bound: float) -> LinearHead:
    """The linear head whose loss is called `loss` ("softmax" or "ridge")."""
    if loss not in HEADS:
        raise OptionError(
            f"loss {loss!r} is not known",
            f"for a linear head it must be one of {', '.join(sorted(HEADS))}",
            "Choose the loss the model was trained with.",
        )
    return HEADS[loss](l2=l2, n_classes=n_classes, n_features=n_features, row_bound=row_bound)


__all__ = [
    "HEADS",
    "Block",
    "Constants",
    "Curvature",
    "LinearHead",
    "Ridge",
    "RowSet",
    "Rows",
    "Softmax",
    "head_for",
    "register_head",
]
