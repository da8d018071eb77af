"""Surrogates whose classes have other proportions than the source's, and rows with weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import reference
from expunge import LinearModel, train
from expunge.heads import Rows, head_for

Array = Any


def example(loss: str, seed: int = 0, n: int = 60, width: int = 4, classes: int = 3) -> dict[str, Any]:
    """Rows with whole-number weights, and the same rows repeated as often."""
    rng = np.random.default_rng([seed, n])
    X, y = reference.random_rows(rng, n, width, classes)
    times = rng.integers(0, 4, n)
    times[0] = 5
    weights = torch.tensor(times / times.mean())
    once = Rows(torch.tensor(X), torch.tensor(y), weights)
    repeated = Rows(torch.tensor(np.repeat(X, times, axis=0)), torch.tensor(np.repeat(y, times)))
    head = head_for(loss, l2=0.1, n_classes=classes, n_features=width, row_bound=1.0)
    W, U = (torch.tensor(rng.normal(size=(classes, width))) for _ in range(2))
    return {"once": once, "repeated": repeated, "head": head, "W": W, "U": U, "X": X, "times": times}


def shifted_problem(
    seed: int, n: int = 600, s: int = 500
) -> tuple[LinearModel, Array, Array, Array, tuple[Array, Array]]:
    """Three classes of Gaussian rows; source and surrogate differ in class proportions alone. Also source and its labels."""
    rng = np.random.default_rng([77, seed])
    centres = rng.normal(size=(3, 6))

    def draw(count: int, shares: Array) -> tuple[Array, Array]:
        y = np.concatenate([np.arange(3), rng.choice(3, size=count - 3, p=shares)])
        X = centres[y] + rng.normal(size=(count, 6))
        return X / np.linalg.norm(X, axis=1, keepdims=True), y

    X, y = draw(n, rng.dirichlet(np.ones(3)) * 0.5 + 0.5 / 3)
    S = draw(s, rng.dirichlet(np.ones(3)) * 0.5 + 0.5 / 3)
    model = train(X, y, l2=0.05, max_norm=1.0)
    return model, X, y, rng.permutation(n)[: int(rng.integers(1, 60))], S
