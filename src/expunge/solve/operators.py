"""Symmetric maps that a solver is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class SymmetricOperator(Protocol):
    """A symmetric linear map on tensors of the weights' shape."""

    def product(self, direction: Tensor) -> Tensor:
        """The map's value."""

    def dense(self) -> Tensor:
        """Its matrix, one row and column a weight."""

    def precondition(self, residual: Tensor) -> Tensor:
        """Roughly the map's inverse, symmetric and positive definite."""


@dataclass(frozen=True)
class MatrixFree:
    """A symmetric map that is known by its products alone: no matrix, no preconditioner."""

    product: Callable[[Tensor], Tensor]

    def dense(self) -> Tensor:
        raise NotImplementedError

    def precondition(self, residual: Tensor) -> Tensor:
        return residual.clone()
