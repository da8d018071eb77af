"""Heads and rows to try them on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import reference
from expunge.heads import LinearHead, Rows, head_for

Array = Any


def made(loss: str, classes: int, width: int, *, l2: float = 0.03, bound: float = 1.0) -> LinearHead:
    return head_for(loss, l2=l2, n_classes=classes, n_features=width, row_bound=bound)


def example(
    loss: str, shape: tuple[int, int, int], *, bias: bool = False, bound: float = 1.5
) -> tuple[LinearHead, Array, Array, Array, Array]:
    """A head, weights, an update, features and labels."""
    classes, width, n = shape
    rng = np.random.default_rng([classes, width, n, bias])
    X, y = reference.random_rows(rng, n, width, classes, max_norm=bound, bias=bias)
    row_bound = math.hypot(bound, 1.0) if bias else bound
    head = made(loss, classes, X.shape[1], bound=row_bound)
    W = rng.normal(size=(classes, X.shape[1])) * 2
    return head, W, rng.normal(size=W.shape), X, y


def rows_of(X: Array, y: Array, dtype: torch.dtype = torch.float64) -> Rows:
    return Rows(torch.tensor(X, dtype=dtype), torch.tensor(y, dtype=torch.int64))


def unit(rng: np.random.Generator, *shape: int) -> Array:
    drawn = rng.normal(size=shape)
    return drawn / np.linalg.norm(drawn)


def close(actual: Any, expected: Any) -> bool:
    return bool(np.allclose(actual, expected, rtol=1e-11, atol=1e-12))
