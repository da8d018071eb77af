"""Training tangent weights to the optimum, while the source exists."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from expunge.data import as_labels, encode
from expunge.errors import DataError
from expunge.heads.tangent import ACCURATE, Tangent, TangentRows
from expunge.networks.tangent_model import TangentModel, network_digest, weights_digest
from expunge.record import Label, TrainingRecord
from expunge.request.execution import computing_device
from expunge.runtime.checks import positive
from expunge.runtime.progress import Progress, silent
from expunge.solve.conjugate import solve_conjugate
from expunge.solve.operators import MatrixFree

MAX_REFINEMENTS = 5


def train_tangent(
    network: nn.Module,
    inputs: Any,
    labels: Any,
    *,
    l2: float,
    max_norm: float,
    names: tuple[str, ...] | None = None,
    block: int = 64,
    device: str = "cpu",
    progress: Progress = silent,
) -> TangentModel:
    """Train tangent weights to the optimum, while the source exists.

    `names`: see `last_parameters`; None is all of them.
    """
    positive(l2, "l2", "Give the lambda of (lambda/2)||v||^2 beside the mean loss.")
    positive(max_norm, "max_norm", "Choose it before looking at the rows.")
    place = computing_device(device)
    objective = Tangent(network, l2=float(l2), max_norm=float(max_norm), names=names, block=block, device=place)
    examples = torch.as_tensor(inputs)
    values = as_labels(labels, len(examples), "the source")
    unique, counts = np.unique(values, return_counts=True)
    classes: tuple[Label, ...] = tuple(value.item() for value in unique)
    progress("Jacobian norms", 0, None)
    rows = objective.rows(examples, encode(values, classes, "the source"))
    if rows.offsets.shape[1] != len(classes):
        raise DataError(
            f"the network has {rows.offsets.shape[1]} outputs and the source {len(classes)} classes",
            "one output a class is needed",
            "Replace the network's last layer by one with as many outputs.",
        )
    weights, left = minimise_tangent(objective, rows, progress=progress)
    record = TrainingRecord(
        n_source=len(rows),
        classes=classes,
        class_counts=tuple(int(count) for count in counts),
        l2=float(l2),
        loss=Tangent.about.name,
        max_norm=float(max_norm),
        bias=False,
        residual=left + objective.rounding(weights, rows),
        weights_sha256=weights_digest(weights.cpu()),
        encoder=network_digest(network, objective.names),
    )
    return TangentModel(weights.cpu(), objective.names, record)


def minimise_tangent(
    objective: Tangent, rows: TangentRows, start: Tensor | None = None, progress: Progress = silent
) -> tuple[Tensor, float]:
    """The optimum for these rows, and the norm of the gradient there: conjugate gradients until they no longer help."""
    if start is None:
        start = torch.zeros(objective.n_parameters, dtype=torch.float64, device=objective.device)
    operator = MatrixFree(lambda direction: objective.product(direction, rows))
    weights, gradient = start, objective.gradient(start, rows)
    for done in range(MAX_REFINEMENTS):
        progress("Conjugate gradients", done, None)
        trial = weights + solve_conjugate(operator, -gradient, ACCURATE, torch.float64).solution
        image = objective.gradient(trial, rows)
        if not float(image.norm()) < 0.5 * float(gradient.norm()):
            break
        weights, gradient = trial, image
    return weights, float(gradient.norm())
