"""Tangent weights as a linear head: one row of weights, least squares on the rows of Jacobians.

An example with K outputs is K rows `s J_k` of length P with targets `t_k - s f_k` (heads/tangent.py), counted as one: a
mean is over examples. `JacobianRows` forms them a block of examples at a time, which only pays where P is a few
thousand. `JacobianRidge` is what is known of the objective without the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from expunge.heads.linear import UNIT_ROUNDOFF
from expunge.heads.ridge import Ridge
from expunge.heads.rows import Block, RowSet
from expunge.heads.scaling import Scaling
from expunge.heads.tangent import NETWORK_ROUNDOFFS, Tangent, TangentRows
from expunge.record import TANGENT, Loss

LOST_TWICE = 4 * NETWORK_ROUNDOFFS  # of a product of two factors, in each of which J or f and s are off
KEPT_BYTES = 1 << 28  # Jacobians of a set up to this size are formed once and kept


@dataclass(frozen=True)
class JacobianRidge(Ridge):
    """Weights are 1 x P; a row's label is its target itself.

    `outputs` is K, `longest_target` the largest `||t|| + ||s f||` of an example, `row_bound` bounds `||s J||_F`. How
    much a pass through the network loses is not derived: NETWORK_ROUNDOFFS is declared, of J and f, and as much of the
    scale s, which is made from J.
    """

    outputs: int = 1
    longest_target: float = 0.0

    about: ClassVar[Loss] = TANGENT

    def targets(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return labels.to(dtype)[:, None]

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return 0.5 * (outputs - self.targets(labels, outputs.dtype)).square().sum(dim=1)

    def residual_sup(self, weights: Tensor) -> float:
        return float(weights.norm()) * self.row_bound + self.longest_target

    def rounding(self, weights: Tensor, rows: Sized) -> float:
        """Of a mean gradient: K terms an example are summed, and J and f are off by what the network loses."""
        size = float(weights.norm())
        terms = len(rows) * self.outputs + self.n_features + LOST_TWICE + 64
        lost = self.row_bound * terms * (self.residual_sup(weights) + self.row_bound * size)
        return UNIT_ROUNDOFF * (lost + 4 * self.l2 * size)

    def moment_roundoffs(self, n_rows: int) -> int:
        return n_rows * self.outputs + LOST_TWICE + 64


@dataclass(frozen=True)
class JacobianRows(RowSet):
    """Examples, whose blocks are the rows of their Jacobians: K rows an example, one after another."""

    objective: Tangent
    examples: TangentRows

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def labels(self) -> Tensor:
        """Class indices, one an example."""
        return self.examples.labels

    @property
    def outputs(self) -> int:
        return int(self.examples.offsets.shape[1])

    @property
    def n_scaled(self) -> int:  # type: ignore[override]
        return self.examples.n_scaled

    @property
    def scaling(self) -> Scaling:  # type: ignore[override]
        return self.examples.scaling

    @property
    def n_features(self) -> int:
        return self.objective.n_parameters

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64

    @property
    def device(self) -> torch.device:
        return self.objective.device

    @property
    def has_weights(self) -> bool:
        return False

    @property
    def largest_weight(self) -> float:
        return 1.0

    @property
    def effective(self) -> float:
        return float(len(self))

    def of_classes(self, shares: Tensor, counts: Tensor) -> RowSet:
        raise NotImplementedError

    def taken(self, chosen: Tensor) -> JacobianRows:
        """Some of the examples, by number."""
        return JacobianRows(self.objective, self.examples[chosen.to(self.examples.inputs.device)])

    @property
    def longest_target(self) -> float:
        """The largest `||t|| + ||s f||`, rounded up."""
        return (math.sqrt(self.outputs) + float(self.examples.offsets.norm(dim=1).max())) * (1.0 + 2.0**-30)

    def predictions(self, weights: Tensor) -> Tensor:
        """Outputs of the linearised network at weights 1 x P, rows x K."""
        return self.objective.predictions(weights.to(self.device).reshape(-1), self.examples)

    @property
    def _targets(self) -> Tensor:
        return self.objective.targets(self.examples, slice(None)) - self.examples.offsets

    def blocks(self) -> Iterator[Block]:
        yield from self._kept if 8 * len(self) * self.outputs * self.n_features <= KEPT_BYTES else self._formed()

    @cached_property
    def _kept(self) -> tuple[Block, ...]:
        return tuple(self._formed())

    def _formed(self) -> Iterator[Block]:
        start, targets = 0, self._targets
        for jacobians in self.objective.jacobians(self.examples):
            part = slice(start, start + len(jacobians))
            yield Block(jacobians.flatten(0, 1), targets[part].flatten(), None, start)
            start += len(jacobians)
