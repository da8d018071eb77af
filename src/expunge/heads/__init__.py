"""What is minimised: loss, gradient, curvature, change of gradient, constants."""

from __future__ import annotations

from expunge.errors import OptionError
from expunge.heads.linear import Curvature, LinearHead, Logistic, OneVsRest, Ridge, Softmax
from expunge.heads.rows import Block, Rows, RowSet
from expunge.record import Constants

HEADS: dict[str, type[LinearHead]] = {head.about.name: head for head in (Softmax, OneVsRest, Logistic, Ridge)}


def head_for(loss: str, *, l2: float, n_classes: int, n_features: int, row_bound: float) -> LinearHead:
    """The linear head whose loss is called `loss` (`softmax`, `logistic`, `one-vs-rest`, `ridge`)."""
    many = sorted(name for name, head in HEADS.items() if not head.about.one_row)
    if loss not in HEADS or (n_classes > 1 and loss not in many):
        raise OptionError(
            f"loss {loss!r} is not known, or not of {n_classes} rows of weights",
            f"for a linear head with a row a class it must be one of {', '.join(many)}",
            "Choose the loss the model was trained with.",
        )
    return HEADS[loss](l2=l2, n_classes=n_classes, n_features=n_features, row_bound=row_bound)


__all__ = [
    "HEADS",
    "Block",
    "Constants",
    "Curvature",
    "LinearHead",
    "Logistic",
    "OneVsRest",
    "Ridge",
    "RowSet",
    "Rows",
    "Softmax",
    "head_for",
]
