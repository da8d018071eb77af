"""Beside the other heads of a task: a ridge head with a deposit, whose step is retraining but for rounding.

Least squares with targets -1 and 1 on the same rows. Its gradient does not bend, so a deposit knows all there is to
know and the noise has only rounding to hide, whatever epsilon is. The price is the loss: what a ridge head retrained
would have is in the tables too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.shared.certified import Parts
from experiments.shared.ours import RIDGE, Asked, best_of, checked, deposit_of
from experiments.shared.rivals import CHOSEN, RETRAIN_RIDGE, USUAL, Task, accuracies, device_name, task_of
from expunge.evaluate.case import Case
from expunge.evidence import Measurement
from expunge.heads import Ridge
from expunge.request.request import Request
from expunge.runtime.arrays import put, size, to_numpy

LOSS = Ridge.about.name
REFINED = 2  # corrections of a solution by its own residual
LONG = np.longdouble


def ridge_task(parts: Parts, wanted: Mapping[str, Any], device: str = "cpu") -> Task:
    """Ridge models and deposits of them: RidgeClassifier's alpha = 1, and every l2 that the other heads may have."""
    return task_of(parts, {**wanted, "loss": LOSS}, device)


def ridge_heads(task: Task, wanted: Mapping[str, Any], count: int, seed: int) -> dict[str, Any]:
    """A cell for every epsilon, what retraining has, and the region beside the truth."""
    cases = task.cases(count, seed)
    checks: list[dict[str, Any]] = []
    found = {l2: AskedRidge(RIDGE, task, l2, cases[l2], False).cells(wanted, checks) for l2 in task.kept}
    scores = {l2: accuracies(case.retrained[None], case.rows["surrogate"]) for l2, case in cases.items()}
    cells = best_of(found, task, wanted)
    for chosen, l2 in ((USUAL, task.usual), (CHOSEN, max(scores, key=scores.__getitem__))):
        accuracy = accuracies(cases[l2].retrained[None], cases[l2].rows["test"])
        own = {"method": RETRAIN_RIDGE, "budget": None, "chosen": chosen, "epsilon": None, "l2": l2}
        cells.append(own | {"accuracy": accuracy, "seconds": None})
    sizes = {"n_source": len(task.parts.source[1]), "n_forget": count}
    sizes |= {"weights": size(task.models[task.usual].matrix())}
    return {**sizes, "device": device_name(task.device), "cells": cells, "checks": checks}


class AskedRidge(Asked):
    """Regions of rounding's size are held against weights with more digits than float64 has."""

    def _check(self, request: Request, measured: Measurement) -> dict[str, Any]:
        updated = to_numpy(request.weights + measured.step.update).astype(LONG)
        away = put((updated - retrained_precisely(self.case)).astype(np.float64), request.weights)
        return checked(self, request, measured, deposit_of(measured).length(away))


def retrained_precisely(case: Case) -> Any:
    """The ridge head of the retained rows: solved in float64, then corrected by residuals in longer numbers."""
    head, rows = case.objective, case.rows["retain"]
    X, l2 = to_numpy(rows.features), head.l2
    long, targets = X.astype(LONG), to_numpy(head.targets(rows.labels, "float64")).astype(LONG)
    factor = np.linalg.cholesky(X.T @ X / len(X) + l2 * np.eye(X.shape[1]))
    weights = to_numpy(case.retrained).astype(LONG)
    for _ in range(REFINED):
        residual = ((long @ weights.T - targets).T @ long / len(X) + l2 * weights).astype(np.float64)
        half = np.linalg.solve(factor, residual.T)
        weights = weights - np.linalg.solve(factor.T, half).T
    return weights
