"""Steps to take: a trained source, a forget set and a surrogate, in numpy and as the library's equation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import reference
from asking import asked
from expunge.heads import Rows, head_for
from expunge.request.request import Request
from expunge.solve.newton import Hessian, SurrogateEquation

Array = Any


def rows_of(X: Array, y: Array, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Rows:
    return Rows(torch.tensor(X, dtype=dtype, device=device), torch.tensor(y, dtype=torch.int64, device=device))


class Example:
    """A trained source, a forget set (its first rows) and a surrogate, in numpy and as the library's problem."""

    def __init__(
        self,
        loss: str = "softmax",
        *,
        classes: int = 3,
        width: int = 5,
        n: int = 150,
        m: int = 15,
        l2: float = 1e-2,
        bound: float = 1.0,
        bias: bool = False,
        seed: int = 0,
        surrogate: Callable[[np.random.Generator, Array], Array] | None = None,
        weights: float | None = None,
        rescale: float = 1.0,
    ) -> None:
        rng = np.random.default_rng([seed, classes, width, n, m])
        self.loss, self.classes, self.n, self.m, self.l2 = loss, classes, n, m, l2
        X, self.y = reference.random_rows(rng, n, width, classes, max_norm=bound, bias=bias)
        S = (
            reference.random_rows(rng, n, width, classes, max_norm=bound, bias=bias)[0]
            if surrogate is None
            else surrogate(rng, X)
        )
        self.X, self.S = X * rescale, S * rescale
        shape = (classes, X.shape[1])
        self.W = (
            reference.retrain(X, self.y, classes, l2, loss).weights
            if weights is None
            else rng.normal(size=shape) * weights
        )
        row_bound = (math.hypot(bound, 1.0) if bias else bound) * rescale
        self.head = head_for(loss, l2=l2, n_classes=classes, n_features=X.shape[1], row_bound=row_bound)

    def problem(
        self,
        *,
        device: str = "cpu",
        surrogate_dtype: torch.dtype = torch.float64,
        forget_dtype: torch.dtype = torch.float64,
    ) -> SurrogateEquation:
        forget = rows_of(self.X[: self.m], self.y[: self.m], forget_dtype, device)
        surrogate = rows_of(self.S, np.zeros(len(self.S), dtype=int), surrogate_dtype, device)
        return SurrogateEquation(self.head, torch.tensor(self.W, device=device), forget, surrogate, self.n)

    def request(self, **options: Any) -> Request:
        """The same, as a user would put it; without a bias."""
        facts = {"n_source": self.n, "l2": self.l2, "loss": self.loss, "max_norm": self.head.row_bound}
        chosen = {"epsilon": 1.0, "delta": 1e-5, "distance": "chi2:0.1", "training_residual": 1e-12, "force": True}
        return asked(self.W, (self.X[: self.m], self.y[: self.m]), self.S, **{**chosen, **facts, **options})

    def jacobian(self, U: Array | float = 0.0) -> Array:
        """n H_S - m H_U, densely."""
        at = self.W + U
        H_U = reference.hessian(at, self.X[: self.m], self.l2, self.loss)
        return self.n * reference.hessian(at, self.S, self.l2, self.loss) - self.m * H_U

    def forget_gradient(self, U: Array | float = 0.0) -> Array:
        return reference.gradient(self.W + U, self.X[: self.m], self.y[: self.m], self.l2, self.loss)

    def residual(self, U: Array) -> Array:
        """a(u) = n (g_S(v) - g_S(w)) - m g_U(v), by loops over examples."""
        change = reference.change_table(self.W, U, self.S, self.loss).mean(axis=0).reshape(U.shape) + self.l2 * U
        forget = reference.mean_gradient(self.W + U, self.X[: self.m], self.y[: self.m], self.l2, self.loss)
        return self.n * change - self.m * forget


def indefinite(loss: str, l2: float, surrogate: int) -> Example:
    """Many features, a fifth forgotten, another sample as surrogate: some directions only the forget set has curvature in."""
    example = Example(
        loss,
        classes=2,
        width=200,
        n=1000,
        m=200,
        l2=l2,
        surrogate=lambda rng, X: reference.random_rows(rng, surrogate, 200, 2)[0],
    )
    assert np.linalg.eigvalsh(example.jacobian())[0] < 0
    return example


def preconditioned(head: Any, weights: torch.Tensor, rows: Rows, preconditioner: Any = None) -> Hessian:
    """The Hessian of one set, with a preconditioner of one's own choice."""
    hessian = Hessian(head.curvature(weights, rows), 1.0, 0.0)
    hessian.preconditioner = preconditioner
    return hessian
