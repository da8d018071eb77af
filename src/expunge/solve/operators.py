"""Symmetric maps that a solver is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class SymmetricOperator(Protocol):
    """A symmetric linear map on tensors of the weights' shape."""

    def product(self, direction: Tensor) -> Tensor: ...

    def dense(self) -> Tensor: ...

    def precondition(self, residual: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class MatrixFree:
    """A symmetric map that is known by its products alone: no matrix, no preconditioner."""

    product: Callable[[Tensor], Tensor]

    def dense(self) -> Tensor:
        raise NotImplementedError

    def precondition(self, residual: Tensor) -> Tensor:
        return residual.clone()
