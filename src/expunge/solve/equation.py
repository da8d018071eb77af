"""The equations to solve, from what is at hand. The surrogate stands in for the retained rows, or for the whole source.

    a'(u) = (n-m) (g_S(w+u) - g_S(w)) - m g_U(w),   with Jacobian (n-m) H_S(w+u)                RetainedEquation
    a(u)  = n (g_S(w+u) - g_S(w)) - m g_U(w+u),     with Jacobian n H_S(w+u) - m H_U(w+u)       SurrogateEquation
    g(w+u),                                         with Jacobian H(w+u)                        TrainingEquation

The first two start at `-m g_U(w)`. The second is the paper's: its first Newton iteration is Algorithm 1,
`u = m (n H_S - m H_U)^-1 g_U`. The first charges the forget rows, which u is made from, where they are known, and its
Jacobian is always positive definite. The third is what training solves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from expunge.heads.linear import Curvature
from expunge.solve.linear import SymmetricOperator
from expunge.solve.newton import Manner
from expunge.solve.precondition import Preconditioner, precondition


class Hessian:
    """`scale (H + pull I)` of one set, less `n_forget H_U` where there is a second.

    Preconditioned by its own structure, by what was made for an earlier one, or by what is `near` its inverse.
    """

    def __init__(
        self,
        curvature: Any,
        scale: float,
        pull: float,
        last: SymmetricOperator | None = None,
        near: Preconditioner | None = None,
        forget: Any = None,
        n_forget: int = 0,
    ) -> None:
        self.curvature, self.scale, self.pull, self.forget, self.n_forget = curvature, scale, pull, forget, n_forget
        self._preconditioner = last.preconditioner if isinstance(last, Hessian) else near

    @property
    def preconditioner(self) -> Preconditioner | None:
        """Made once, from the first Hessian; None where it has no structure to make one from."""
        if self._preconditioner is None and isinstance(self.curvature, Curvature):
            self._preconditioner = precondition(self.curvature, self.scale, self.pull)
        return self._preconditioner

    def product(self, direction: Tensor) -> Tensor:
        image: Tensor = self.curvature.product(direction).add_(direction, alpha=self.pull).mul_(self.scale)
        return image if self.forget is None else image.sub_(self.forget.product(direction), alpha=self.n_forget)

    def dense(self) -> Tensor:
        matrix: Tensor = self.curvature.dense()
        matrix.diagonal().add_(self.pull)
        matrix.mul_(self.scale)
        return matrix if self.forget is None else matrix.sub_(self.forget.dense(), alpha=self.n_forget)

    def precondition(self, residual: Tensor) -> Tensor:
        return residual.clone() if self.preconditioner is None else self.preconditioner.solve(residual)


class _Equation:
    """What the three have in common: an objective, the weights to start from (float64), the rows gone over."""

    head: Any
    weights: Tensor
    surrogate: Any

    @property
    def n_rows(self) -> int:
        return len(self.surrogate)

    def manner(self) -> Manner:
        working = self.surrogate.dtype
        return Manner(self.head.dense_pays(self.surrogate), working, self.head.accurate(working), self.head.inexact)

    def agreed(self, step: Tensor) -> Tensor:
        agreed: Tensor = self.surrogate.agreed(step)
        return agreed

    def change(self, update: Tensor) -> Tensor:
        """`g(w+u) - g(w)` over the rows, regulariser included."""
        change: Tensor = self.head.change_mean(self.weights, update, self.surrogate) + self.head.l2 * update
        return change


@dataclass(frozen=True)
class SurrogateEquation(_Equation):
    """`a(u) = 0`, from forget and surrogate rows and the source's size."""

    head: Any
    weights: Tensor
    forget: Any
    surrogate: Any
    n_source: int

    @property
    def scale(self) -> int:
        return self.n_source

    def residual(self, update: Tensor) -> Tensor:
        """`a(u)`, float64."""
        left: Tensor = self.head.gradient(self.weights + update, self.forget)
        return self.n_source * self.change(update) - len(self.forget) * left

    def jacobian(self, update: Tensor, pull: float, last: SymmetricOperator | None) -> Hessian:
        at = self.weights + update
        # the forget set's own rows stay float64, for the evidence
        forget = self.head.curvature(at, self.head.working(self.forget, self.surrogate.dtype))
        curvature = self.head.curvature(at, self.surrogate)
        return Hessian(curvature, self.n_source, pull, last, forget=forget, n_forget=len(self.forget))


@dataclass(frozen=True)
class RetainedEquation(_Equation):
    """`a'(u) = 0`: `forgotten` is the sum of the gradients, at the trained weights, of all rows that leave."""

    head: Any
    weights: Tensor
    forgotten: Tensor
    surrogate: Any
    n_retain: int

    @property
    def scale(self) -> int:
        return self.n_retain

    def residual(self, update: Tensor) -> Tensor:
        """`a'(u)`, float64."""
        return self.n_retain * self.change(update) - self.forgotten

    def jacobian(self, update: Tensor, pull: float, last: SymmetricOperator | None) -> Hessian:
        return Hessian(self.head.curvature(self.weights + update, self.surrogate), float(self.n_retain), pull, last)


@dataclass(frozen=True)
class TrainingEquation(_Equation):
    """`g(w+u) = 0`. Somebody who has what is `near` the inverse of the Hessian saves forming Hessians."""

    head: Any
    weights: Tensor
    surrogate: Any  # the source itself
    near: Preconditioner | None = None
    scale = 1

    def residual(self, update: Tensor) -> Tensor:
        """The gradient, float64."""
        gradient: Tensor = self.head.gradient(self.weights + update, self.surrogate)
        return gradient

    def jacobian(self, update: Tensor, pull: float, last: SymmetricOperator | None) -> Hessian:
        return Hessian(self.head.curvature(self.weights + update, self.surrogate), 1.0, pull, last, self.near)

    def manner(self) -> Manner:
        working = self.surrogate.dtype
        dense = self.near is None and self.head.dense_pays(self.surrogate)
        return Manner(dense, working, self.head.accurate(working))
