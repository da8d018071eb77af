"""The equation of the step, from what is at hand. The surrogate stands in for the retained rows, or for the whole
source.

    a'(u) = (n-m) (g_S(w+u) - g_S(w)) - m g_U(w),   with Jacobian (n-m) H_S(w+u)                RetainedEquation
    a(u)  = n (g_S(w+u) - g_S(w)) - m g_U(w+u),     with Jacobian n H_S(w+u) - m H_U(w+u)       SurrogateEquation

Both start at `-m g_U(w)`. The second is the paper's: its first Newton iteration is Algorithm 1,
`u = m (n H_S - m H_U)^-1 g_U`. The first charges the forget rows, which u is made from, where they are known, and its
Jacobian is always positive definite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from expunge.heads.curvature import Curvature
from expunge.solve.newton import Manner
from expunge.solve.operators import SymmetricOperator
from expunge.solve.precondition import Preconditioner, precondition


class RetainHessian:
    """`n H_S - m H_U + n pull I`: without a pull, (n - m) times the paper's estimate of the retain set's Hessian."""

    def __init__(
        self, equation: SurrogateEquation, update: Tensor, pull: float, last: SymmetricOperator | None
    ) -> None:
        at = equation.weights + update
        self.n, self.m, self.pull = equation.n_source, len(equation.forget), pull
        self.surrogate = equation.head.curvature(at, equation.surrogate)
        # the forget set's own rows stay float64, for the evidence
        self.forget = equation.head.curvature(at, equation.head.working(equation.forget, equation.surrogate.dtype))
        self._preconditioner: Preconditioner | None = last.preconditioner if isinstance(last, RetainHessian) else None

    @property
    def preconditioner(self) -> Preconditioner | None:
        """Made once, from the first Hessian; None where it has no structure to make one from."""
        if self._preconditioner is None and isinstance(self.surrogate, Curvature):
            self._preconditioner = precondition(self.surrogate, float(self.n), self.pull)
        return self._preconditioner

    def product(self, direction: Tensor) -> Tensor:
        image = self.surrogate.product(direction).add_(direction, alpha=self.pull).mul_(self.n)
        product: Tensor = image.sub_(self.forget.product(direction), alpha=self.m)
        return product

    def dense(self) -> Tensor:
        matrix: Tensor = self.surrogate.dense()
        matrix.diagonal().add_(self.pull)
        return matrix.mul_(self.n).sub_(self.forget.dense(), alpha=self.m)

    def precondition(self, residual: Tensor) -> Tensor:
        return residual.clone() if self.preconditioner is None else self.preconditioner.solve(residual)


@dataclass(frozen=True)
class SurrogateEquation:
    """`a(u) = 0`, from trained weights (float64), forget and surrogate rows, and the source's size."""

    head: Any
    weights: Tensor
    forget: Any
    surrogate: Any
    n_source: int

    @property
    def scale(self) -> int:
        return self.n_source

    @property
    def n_rows(self) -> int:
        return len(self.surrogate)

    def residual(self, update: Tensor) -> Tensor:
        """`a(u)`, float64."""
        change = self.head.change_mean(self.weights, update, self.surrogate) + self.head.l2 * update
        left: Tensor = self.head.gradient(self.weights + update, self.forget)
        residual: Tensor = self.n_source * change - len(self.forget) * left
        return residual

    def jacobian(self, update: Tensor, pull: float, last: SymmetricOperator | None) -> RetainHessian:
        return RetainHessian(self, update, pull, last)

    def manner(self) -> Manner:
        working = self.surrogate.dtype
        return Manner(self.head.dense_pays(self.surrogate), working, self.head.accurate(working), self.head.inexact)

    def agreed(self, step: Tensor) -> Tensor:
        agreed: Tensor = self.surrogate.agreed(step)
        return agreed


class SetHessian:
    """`scale (H + pull I)` of one set.

    Preconditioned by its own structure, by what was made for an earlier one, or by what is `near` its inverse.
    """

    def __init__(
        self,
        curvature: Any,
        scale: float,
        pull: float,
        last: SymmetricOperator | None = None,
        near: Preconditioner | None = None,
    ) -> None:
        self.curvature, self.scale, self.pull = curvature, scale, pull
        self._preconditioner = last.preconditioner if isinstance(last, SetHessian) else near

    @property
    def preconditioner(self) -> Preconditioner | None:
        """Made once, from the first Hessian; None where it has no structure to make one from."""
        if self._preconditioner is None and isinstance(self.curvature, Curvature):
            self._preconditioner = precondition(self.curvature, self.scale, self.pull)
        return self._preconditioner

    def product(self, direction: Tensor) -> Tensor:
        product: Tensor = self.curvature.product(direction).add_(direction, alpha=self.pull).mul_(self.scale)
        return product

    def dense(self) -> Tensor:
        matrix: Tensor = self.curvature.dense()
        matrix.diagonal().add_(self.pull)
        return matrix.mul_(self.scale)

    def precondition(self, residual: Tensor) -> Tensor:
        return residual.clone() if self.preconditioner is None else self.preconditioner.solve(residual)


@dataclass(frozen=True)
class RetainedEquation:
    """`a'(u) = 0`: `forgotten` is the sum of the gradients, at the trained weights, of all rows that leave."""

    head: Any
    weights: Tensor
    forgotten: Tensor
    surrogate: Any
    n_retain: int

    @property
    def scale(self) -> int:
        return self.n_retain

    @property
    def n_rows(self) -> int:
        return len(self.surrogate)

    def residual(self, update: Tensor) -> Tensor:
        """`a'(u)`, float64."""
        change = self.head.change_mean(self.weights, update, self.surrogate) + self.head.l2 * update
        residual: Tensor = self.n_retain * change - self.forgotten
        return residual

    def jacobian(self, update: Tensor, pull: float, last: SymmetricOperator | None) -> SetHessian:
        return SetHessian(self.head.curvature(self.weights + update, self.surrogate), float(self.n_retain), pull, last)

    def manner(self) -> Manner:
        working = self.surrogate.dtype
        return Manner(self.head.dense_pays(self.surrogate), working, self.head.accurate(working), self.head.inexact)

    def agreed(self, step: Tensor) -> Tensor:
        agreed: Tensor = self.surrogate.agreed(step)
        return agreed
