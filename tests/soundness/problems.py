"""A problem with everything known: source, forget set, surrogate, what may be declared of them, and the exact retraining."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import reference
from asking import asked
from expunge.distance import Distance
from expunge.networks.tangent import TangentModel, network_digest, tangent_request, weights_digest
from expunge.record import TrainingRecord
from expunge.request.promise import Promise
from expunge.request.request import Request

Array = Any
SAME = Distance("same", 0.0, sampling="strict")


@dataclass(frozen=True)
class Problem:
    """Rows as they enter the objective (no bias, none longer than `max_norm`), and a distance that is true of them."""

    seed: int
    X: Array
    y: Array
    forgotten: Array
    S: Array
    S_labels: Array | None = None
    classes: int = 2
    l2: float = 0.01
    loss: str = "ridge"
    max_norm: float = 1.0
    distance: Distance = SAME
    step: str = "converged"

    @property
    def kept(self) -> Array:
        """Which rows stay."""
        kept = np.ones(len(self.X), dtype=bool)
        kept[self.forgotten] = False
        return kept


def exact(problem: Problem, rows: Array, start: Array | None = None) -> reference.Retrained:
    """The minimiser on these rows; its own gradient, in more digits than float64, says how far off it can be."""
    X, y, l2 = problem.X[rows], problem.y[rows], problem.l2
    if problem.loss == "softmax":
        return reference.retrain(X, y, problem.classes, l2, problem.loss, start=start)
    targets = np.where(np.arange(problem.classes) == y[:, None], 1.0, -1.0)
    n, width = X.shape
    if width <= n:
        weights = np.linalg.solve(X.T @ X / n + l2 * np.eye(width), X.T @ targets / n).T
    else:
        weights = (X.T @ np.linalg.solve(X @ X.T / n + l2 * np.eye(n), targets / n)).T
    norm = reference.exact_gradient_norm(weights, X, y, l2, "ridge")
    assert norm < 1e-10
    return reference.Retrained(weights, norm, norm / l2)


def request_of(problem: Problem, trained: Array, *, delta: float, epsilon: float = 1.0, **changed: Any) -> Request:
    """The problem as a user would put it; forced, so that nothing is left out for being of little use."""
    if problem.loss == "tangent":
        return tangent_request_of(problem, trained, delta, epsilon)
    matched = problem.distance.matched
    counts = np.bincount(problem.y, minlength=problem.classes).tolist() if matched else None
    S = problem.S if problem.S_labels is None else (problem.S, problem.S_labels)
    options: dict[str, Any] = {
        "distance": problem.distance,
        "match_classes": matched,
        "step": problem.step,
        "n_source": len(problem.X),
        "l2": problem.l2,
        "loss": problem.loss,
        "max_norm": problem.max_norm,
        "training_residual": reference.exact_gradient_norm(trained, problem.X, problem.y, problem.l2, problem.loss),
        "class_counts": counts,
        "force": True,
    }
    forget = (problem.X[problem.forgotten], problem.y[problem.forgotten])
    return asked(trained, forget, S, epsilon=epsilon, delta=delta, **(options | changed))


def tangent_request_of(problem: Problem, trained: Array, delta: float, epsilon: float) -> Request:
    """The tangent model of a linear layer whose weights are 0: least squares on its inputs, one Jacobian row a class."""
    layer = torch.nn.Linear(problem.X.shape[1], problem.classes, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(layer.weight)
    weights, names = torch.from_numpy(trained).reshape(-1), ("weight",)
    record = TrainingRecord(
        n_source=len(problem.X),
        classes=tuple(range(problem.classes)),
        class_counts=tuple(np.bincount(problem.y, minlength=problem.classes).tolist()),
        l2=problem.l2,
        loss="tangent",
        max_norm=problem.max_norm,
        bias=False,
        residual=reference.exact_gradient_norm(trained, problem.X, problem.y, problem.l2, "ridge"),
        weights_sha256=weights_digest(weights),
        encoder=network_digest(layer, names),
    )
    forget = (torch.from_numpy(problem.X[problem.forgotten]), problem.y[problem.forgotten])
    surrogate = (torch.from_numpy(problem.S), np.zeros(len(problem.S), dtype=np.int64))
    promise = Promise(epsilon, delta, problem.distance, force=True)
    return tangent_request(layer, TangentModel(weights, names, record), forget, surrogate, promise)
