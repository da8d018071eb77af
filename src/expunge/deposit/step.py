"""The step from the retained rows' sums: Newton's, and with third derivatives on to the root of a quadratic.

Softmax does not see what is added to all classes alike, and at the optimum the weights of all classes sum to zero (or,
for an intercept that is free, can be taken to). So everything happens among weights whose classes sum to zero: the
direction common to all classes is made stiff, in every matrix by the same amount.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from expunge.deposit.matrices import UNIT_ROUNDOFF, Blocks, Norm
from expunge.deposit.sums import Gauge, Sums, along, pull

MOST_STEPS = 60  # by the same matrix, towards the root of a quadratic
AT_REST = 2.0**-5  # of what float64 made of the gradient: to go on from there would hardly make a region smaller


@dataclass(frozen=True)
class Penalty:
    """`(l2/2) ||W||^2` on the columns that are penalised: all, or all but a free intercept, the last."""

    l2: float
    free: bool = False

    def diagonal(self, like: Tensor) -> Tensor:
        """Of the Hessian, K x d."""
        values = torch.full_like(like, self.l2)
        if self.free:
            values[:, -1] = 0.0
        return values


@dataclass(frozen=True)
class Setting:
    """What hardly changes from deletion to deletion: the anchor, the rows' bounds, the kind of loss.

    `shift_free`: the loss does not see what is added to all classes (softmax), and outputs compete in pairs. `stiff` is
    what is added to the direction common to all classes.
    """

    anchor: Tensor
    row_bound: float
    gauges: tuple[Gauge, ...]
    quadratic: bool
    shift_free: bool
    stiff: float = 0.0

    def centred(self, weights: Tensor) -> Tensor:
        """Without what is common to all classes, where that is not seen."""
        return weights - weights.mean(dim=0, keepdim=True) if self.shift_free else weights

    def stiffened(self, matrix: Blocks) -> Blocks:
        """With the direction common to all classes made stiff."""
        if not self.shift_free:
            return matrix
        classes, width = self.anchor.shape
        values = matrix.values.clone()
        view = values.view(classes, width, classes, width)
        view.diagonal(dim1=1, dim2=3).add_(self.stiff / classes)
        return Blocks(values, matrix.joint)

    def penalised(self, matrix: Blocks, penalty: Penalty) -> Blocks:
        """With the regulariser on the diagonal."""
        diagonal = penalty.diagonal(self.anchor)
        return matrix.plus(diagonal.reshape(1, -1) if matrix.joint else diagonal[: len(matrix.values)])


@dataclass(frozen=True)
class RetainedProblem:
    """What step and region follow from: the retained rows' sums and regulariser, and the factor of the noise's shape.

    `system` is the norm of `H' + reg`, in which steps are solved.
    """

    setting: Setting
    sums: Sums
    penalty: Penalty
    shape: Tensor

    @cached_property
    def gradient(self) -> Tensor:
        """`g' + reg w`, classes centred."""
        anchor = self.setting.anchor
        return self.setting.centred(self.sums.gradient + self.penalty.diagonal(anchor) * anchor)

    @cached_property
    def system(self) -> Norm:
        norm = self._system
        assert norm is not None
        return norm

    @cached_property
    def _system(self) -> Norm | None:
        return Norm.of(self.setting.penalised(self.setting.stiffened(self.sums.curvature), self.penalty))

    @property
    def solvable(self) -> bool:
        """Whether `H' + reg` is positive definite."""
        return self._system is not None

    def left(self, update: Tensor) -> Tensor:
        """`g' + (H' + reg) u`: what an update leaves of the linearised gradient."""
        return self.setting.centred(self.gradient + self.system.matrix.product(update))

    @cached_property
    def linear_step(self) -> Tensor:
        """`u = -(H' + reg)^-1 g'`, refined."""
        centred, system = self.setting.centred, self.system
        update = centred(-system.solved(self.gradient))
        for _ in range(2):
            update = centred(update - system.solved(self.gradient + system.matrix.product(update)))
        return update

    def third_order_step(self) -> tuple[Tensor, Tensor, int]:
        """From the linear step on to `g' + (H' + reg) u + T'[u, u]/2 = 0`, what is left of it, and how many steps.

        By its Jacobian at the linear step, as far as that falls; where that is not definite, or leads no further, by
        `H' + reg`.
        """
        third, joint, update, system = self.sums.third, self.sums.curvature.joint, self.linear_step, self.system
        assert third is not None
        change = along(third, update, joint=joint)
        left = self.setting.centred(self.left(update) + 0.5 * change.product(update))
        jacobian = Norm.of(system.matrix.combined(1.0, change, 1.0))
        ways = [system] if jacobian is None else [system, jacobian]
        lost = (update.numel() + 32) * UNIT_ROUNDOFF * float(self.gradient.norm())
        rest = AT_REST * max(self.sums.gradient_error, lost)
        for step in range(1, MOST_STEPS):
            if float(left.norm()) <= rest:
                return update, left, step
            further = self.setting.centred(update - ways[-1].solved(left))
            beyond = self.setting.centred(self.left(further) + pull(third, further, joint=joint))
            if float(beyond.norm()) < float(left.norm()):
                update, left = further, beyond
            elif len(ways) == 1:
                return update, left, step
            else:
                ways.pop()
        return update, left, MOST_STEPS
