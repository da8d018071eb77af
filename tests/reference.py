"""Naive forms to test against: per-example loops, dense Kronecker Hessians, exact retraining, divergences from counts.

Written from the formulas alone, in numpy, with W a K x d matrix, features an n x d table and labels 0 .. K-1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from expunge.runtime.arrays import to_numpy

Array = Any


# One example at a time ------------------------------------------------------------------------------------------


def one_hot(label: int, classes: int, loss: str) -> Array:
    """0/1 for softmax, -1/+1 for ridge."""
    target = np.zeros(classes)
    target[label] = 1.0
    return target if loss == "softmax" else 2.0 * target - 1.0


def link(outputs: Array, loss: str) -> Array:
    if loss == "ridge":
        return outputs
    powers = np.exp(outputs - outputs.max())
    return powers / powers.sum()


def example_loss(W: Array, x: Array, label: int, loss: str) -> float:
    outputs = W @ x
    if loss == "ridge":
        return 0.5 * float(((outputs - one_hot(label, len(W), loss)) ** 2).sum())
    return -float(np.log(link(outputs, loss)[label]))


def example_gradient(W: Array, x: Array, label: int, loss: str) -> Array:
    return np.outer(link(W @ x, loss) - one_hot(label, len(W), loss), x)


def example_hessian(W: Array, x: Array, loss: str) -> Array:
    """p x p, weights in row-major order."""
    p = link(W @ x, loss)
    curvature = np.eye(len(W)) if loss == "ridge" else np.diag(p) - np.outer(p, p)
    return np.kron(curvature, np.outer(x, x))


def example_change(W: Array, U: Array, x: Array, loss: str) -> Array:
    """phi_U(x) as a difference of two whole gradients; the label is arbitrary."""
    return example_gradient(W + U, x, 0, loss) - example_gradient(W, x, 0, loss)


def mean_loss(W: Array, X: Array, y: Array, l2: float, loss: str) -> float:
    return sum(example_loss(W, x, k, loss) for x, k in zip(X, y, strict=True)) / len(X) + 0.5 * l2 * float((W**2).sum())


def mean_gradient(W: Array, X: Array, y: Array, l2: float, loss: str) -> Array:
    return sum(example_gradient(W, x, k, loss) for x, k in zip(X, y, strict=True)) / len(X) + l2 * W


def mean_hessian(W: Array, X: Array, l2: float, loss: str) -> Array:
    return sum(example_hessian(W, x, loss) for x in X) / len(X) + l2 * np.eye(W.size)


def change_table(W: Array, U: Array, X: Array, loss: str) -> Array:
    """phi_U of each row, flattened: rows x p."""
    return np.stack([example_change(W, U, x, loss).reshape(-1) for x in X])


def autograd_objective(W: torch.Tensor, X: torch.Tensor, y: torch.Tensor, l2: float, loss: str) -> torch.Tensor:
    """The objective in torch's own words, for autograd."""
    outputs = X @ W.T
    if loss == "softmax":
        data = torch.nn.functional.cross_entropy(outputs, y)
    else:
        signs = torch.full_like(outputs, -1.0)
        signs[torch.arange(len(y)), y] = 1.0
        data = 0.5 * torch.nn.functional.mse_loss(outputs, signs, reduction="sum") / len(y)
    return data + 0.5 * l2 * W.pow(2).sum()


# The same in more digits ----------------------------------------------------------------------------------------


def exact_gradient(W: Array, X: Array, y: Array, l2: float, loss: str) -> Array:
    """The gradient with 64-bit mantissas (numpy's longdouble): rounding 2,048 times below float64's."""
    W, X = np.asarray(W, np.longdouble), np.asarray(X, np.longdouble)
    outputs = X @ W.T
    rows = np.arange(len(X))
    if loss == "softmax":
        outputs = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        outputs /= outputs.sum(axis=1, keepdims=True)
        outputs[rows, y] -= 1
    else:
        outputs += 1
        outputs[rows, y] -= 2
    return outputs.T @ X / len(X) + np.longdouble(l2) * W


def exact_gradient_norm(W: Array, X: Array, y: Array, l2: float, loss: str) -> float:
    """Its norm, rounded up."""
    return float(np.sqrt((exact_gradient(W, X, y, l2, loss) ** 2).sum())) * (1.0 + 2.0**-50)


# Whole sets at once, for retraining -----------------------------------------------------------------------------


def product(left: Array, right: Array) -> Array:
    """A matrix product in torch, whose threads a test can limit."""
    return to_numpy(torch.from_numpy(left) @ torch.from_numpy(right))


def solve(matrix: Array, right: Array) -> Array:
    return to_numpy(torch.linalg.solve(torch.from_numpy(matrix), torch.from_numpy(right)))


def predictions(W: Array, X: Array, loss: str) -> Array:
    outputs = product(X, W.T)
    if loss == "ridge":
        return outputs
    outputs = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return outputs / outputs.sum(axis=1, keepdims=True)


def gradient(W: Array, X: Array, y: Array, l2: float, loss: str) -> Array:
    targets = np.stack([one_hot(k, len(W), loss) for k in range(len(W))])[y]
    return product((predictions(W, X, loss) - targets).T, X) / len(X) + l2 * W


def hessian(W: Array, X: Array, l2: float, loss: str) -> Array:
    """diag(p) - p p^T on the classes, x x^T on the features: block k gets X^T diag(p_k) X, all minus (p (x) x)(p (x) x)^T."""
    classes, width = W.shape
    if loss == "ridge":
        return np.kron(np.eye(classes), product(X.T, X) / len(X)) + l2 * np.eye(W.size)
    p = predictions(W, X, loss)
    long = (p[:, :, None] * X[:, None, :]).reshape(len(X), -1)
    matrix = -product(long.T, long)
    for k in range(classes):
        block = slice(k * width, (k + 1) * width)
        matrix[block, block] += product((X * p[:, k, None]).T, X)
    return matrix / len(X) + l2 * np.eye(W.size)


def objective(W: Array, X: Array, y: Array, l2: float, loss: str) -> float:
    outputs = product(X, W.T)
    if loss == "ridge":
        targets = np.stack([one_hot(k, len(W), loss) for k in range(len(W))])[y]
        data = 0.5 * ((outputs - targets) ** 2).sum(axis=1).mean()
    else:
        top = outputs.max(axis=1)
        data = (top + np.log(np.exp(outputs - top[:, None]).sum(axis=1)) - outputs[np.arange(len(X)), y]).mean()
    return float(data + 0.5 * l2 * (W**2).sum())


@dataclass(frozen=True)
class Retrained:
    """A minimiser, and how far it can be from the exact one (its own gradient norm over l2)."""

    weights: Array
    gradient_norm: float
    error: float


def retrain(X: Array, y: Array, classes: int, l2: float, loss: str, start: Array | None = None) -> Retrained:
    """Exact retraining: plain dense Newton with step halving, until the gradient stops falling; below 1e-10 or an error."""
    W = np.zeros((classes, X.shape[1])) if start is None else np.array(start, dtype=float)
    g = gradient(W, X, y, l2, loss)
    for _ in range(100):
        size = np.linalg.norm(g)
        if size < 1e-15:
            break
        direction = -solve(hessian(W, X, l2, loss), g.reshape(-1)).reshape(W.shape)
        value, scale = objective(W, X, y, l2, loss), 1.0
        while (
            size > 1e-6
            and scale > 1e-6
            and objective(W + scale * direction, X, y, l2, loss) > value + 1e-4 * scale * float((g * direction).sum())
        ):
            scale /= 2
        trial = W + scale * direction
        g_trial = gradient(trial, X, y, l2, loss)
        if size < 1e-10 and np.linalg.norm(g_trial) >= 0.5 * size:
            break
        W, g = trial, g_trial
    norm = exact_gradient_norm(W, X, y, l2, loss)
    assert norm < 1e-10, f"retraining stopped at a gradient of norm {norm}"
    return Retrained(W, norm, norm / l2)


# Distances between empirical distributions ----------------------------------------------------------------------


def total_variation(rho: Array, nu: Array) -> float:
    return 0.5 * float(np.abs(rho - nu).sum())


def chi_square(rho: Array, nu: Array) -> float:
    """Of rho relative to nu; infinite where rho has mass that nu lacks."""
    if np.any((nu == 0) & (rho > 0)):
        return float("inf")
    seen = nu > 0
    return float(((rho[seen] - nu[seen]) ** 2 / nu[seen]).sum())


def kullback_leibler(rho: Array, nu: Array) -> float:
    """KL(rho || nu)."""
    if np.any((nu == 0) & (rho > 0)):
        return float("inf")
    seen = rho > 0
    return max(0.0, float((rho[seen] * np.log(rho[seen] / nu[seen])).sum()))


# Everyday material ----------------------------------------------------------------------------------------------


def random_rows(
    rng: np.random.Generator,
    n: int,
    d: int,
    classes: int,
    *,
    max_norm: float = 1.0,
    bias: bool = False,
    freedom: float = 3.0,
) -> tuple[Array, Array]:
    """Student t features cut back to `max_norm`, a column of ones where there is a bias, labels from a noisy linear rule."""
    X = rng.standard_t(freedom, size=(n, d)) * max_norm / np.sqrt(d)
    X *= np.minimum(1.0, max_norm * (1 - 1e-15) / np.linalg.norm(X, axis=1, keepdims=True))
    y = (X @ rng.normal(size=(d, classes)) * 3 / max_norm + rng.gumbel(size=(n, classes))).argmax(axis=1)
    return (np.hstack([X, np.ones((n, 1))]) if bias else X), y
