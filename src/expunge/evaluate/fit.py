"""How a model fits the rows it was trained on, beside what guessing would give: a look before the source goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from expunge.evaluate.case import Labelled, prepared_rows
from expunge.heads.scaling import FEW, Scaling
from expunge.model import LinearModel
from expunge.record import Label
from expunge.request.scaling import scaling_words


@dataclass(frozen=True)
class Fit:
    """Accuracy on the training rows, the share of the most frequent class, accuracy by class, rows that were scaled."""

    accuracy: float
    majority: float
    by_class: tuple[tuple[Label, float], ...]
    scaling: Scaling

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with such a model, if anything."""
        said = [scaling_words(self.scaling, "the source")] if self.scaling.share > FEW else []
        if self.accuracy <= self.majority:
            said.append("the model is no better than always naming the most frequent class")
        never = [repr(label) for label, share in self.by_class if share == 0.0]
        if never:
            said.append(f"no row of class {', '.join(never[:12])} is classified right")
        return tuple(said)

    def to_json(self) -> dict[str, Any]:
        by_class = [{"class": label, "accuracy": share} for label, share in self.by_class]
        return asdict(self) | {"by_class": by_class, "warnings": list(self.warnings)}


def fit_of(model: LinearModel, source: Labelled) -> Fit:
    """How the model fits these rows; it must have a record."""
    assert model.record is not None
    rows = prepared_rows(source, model, model.record, "the source")
    weights, n_classes = model.matrix(), len(model.record.classes)
    right, counts = torch.zeros(n_classes, dtype=torch.float64), torch.zeros(n_classes, dtype=torch.float64)
    for block in rows.blocks():
        outputs = block.features @ weights.T
        hits = (outputs.argmax(dim=1) if len(weights) > 1 else (outputs[:, 0] > 0).long()) == block.labels
        right += torch.bincount(block.labels[hits], minlength=n_classes)
        counts += torch.bincount(block.labels, minlength=n_classes)
    shares = (right / counts.clamp(min=1.0)).tolist()
    by_class = tuple(zip(model.record.classes, shares, strict=True))
    assert rows.scaling is not None
    return Fit(float(right.sum() / counts.sum()), float(counts.max() / counts.sum()), by_class, rows.scaling)
