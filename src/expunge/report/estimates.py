"""Sampled features against the surrogate's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from expunge.estimate.comparison import Comparison
from expunge.heads import Rows
from expunge.report.canvas import new_figure, png

SHOWN = 2000  # points of a set that a scatter plot shows


def principal_components(comparison: Comparison) -> bytes:
    """Sampled features against the surrogate's, along the surrogate's first two principal components."""
    width = comparison.sampled.n_features
    centre, axes = _components(comparison.surrogate, width)
    sets = [
        ("surrogate", comparison.surrogate, "#888888"),
        ("sampled from the model", comparison.sampled.rows, "#c03028"),
    ]
    if comparison.reference is not None:
        sets.append(("reference (real source rows)", comparison.reference, "#2060b0"))
    figure, (panel,) = new_figure(1, 5.0, width=6.5)
    for name, rows, colour in sets:
        places = _project(rows, width, centre, axes)
        panel.scatter(
            places[:, 0], places[:, 1], s=6, alpha=0.5, linewidths=0, color=colour, label=f"{name} ({len(rows):,})"
        )
    panel.set_xlabel("first principal component of the surrogate")
    panel.set_ylabel("second")
    panel.set_title("Features the model implies, against the surrogate's", fontsize=11)
    panel.legend(frameon=False, fontsize=9)
    return png(figure)


def _components(rows: Rows, width: int) -> tuple[Tensor, Tensor]:
    features = rows.features[:, :width].double()
    centre = features.mean(dim=0)
    _, vectors = torch.linalg.eigh((features - centre).T @ (features - centre))
    axes = vectors[:, [-1, max(-2, -width)]]
    return centre, axes * torch.sign(axes.sum(dim=0, keepdim=True) + 1e-300)


def _project(rows: Rows, width: int, centre: Tensor, axes: Tensor) -> Any:
    shown = torch.linspace(0, len(rows) - 1, min(len(rows), SHOWN)).long()
    return ((rows.features[shown][:, :width].double() - centre) @ axes).cpu().numpy()
