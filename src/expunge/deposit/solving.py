"""The update where there are surrogate rows beside a deposit: Newton's method on `g' + (H' + reg) u + E_S psi_u = 0`.

Its Jacobian `A + H_S(w+u) - H_S(w)`, with `A = H' + reg`, can be indefinite, since the surrogate's rows are not those
that A is of; then A itself is taken. A step is accepted if it reduces what is left, in `A^-1`. Any update is valid:
what is left is measured, and charged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from expunge.deposit.bending import Bending, bending
from expunge.deposit.blocks import Norm
from expunge.deposit.setting import Penalty, Setting
from expunge.deposit.steps import step_of
from expunge.deposit.sums import Gauged, Sums
from expunge.heads import LinearHead, RowSet
from expunge.heads.curvature import Curvature
from expunge.runtime.progress import Progress, silent

MOST_STEPS = 40
MOST_CONJUGATE = 40
ROUGHLY = 1e-2  # of what is left: how far a linear system is solved
GOAL = 1e-10  # of the gradient: far below what the rows can tell
SHORTEST = 2.0**-14  # of a step


@dataclass(frozen=True)
class Solved:
    """The update, what it left of the equation, the surrogate's bending along it, and how it was found."""

    update: Tensor
    left: Tensor
    bends: Bending
    system: Norm
    steps: int
    inner: int
    reached: bool


@dataclass(frozen=True)
class _Equation:
    setting: Setting
    head: LinearHead
    gradient: Tensor
    system: Norm
    rows: RowSet

    def bends(self, update: Tensor) -> Bending:
        return bending(self.head, self.setting.anchor, update, self.rows)

    def left(self, update: Tensor) -> Tensor:
        """`g' + A u + E_S psi_u`."""
        return self.setting.centred(self.gradient + self.system.matrix.product(update) + self.bends(update).mean)

    @cached_property
    def before(self) -> Curvature:
        """The surrogate's Hessian at the anchor."""
        return self.head.curvature(self.setting.anchor, Gauged(self.rows, None))

    def direction(self, update: Tensor, left: Tensor) -> tuple[Tensor | None, int]:
        """Newton's, by conjugate gradients with A as preconditioner; None where the Jacobian is not positive."""
        before, after = self.before, self.head.curvature(self.setting.anchor + update, Gauged(self.rows, None))
        solution, rest = torch.zeros_like(update), -left
        moved = self.system.solved(rest)
        along, size = moved, float((rest * moved).sum())
        goal = size * ROUGHLY**2
        for done in range(MOST_CONJUGATE):
            image = self.system.matrix.product(along) + after.product(along) - before.product(along)
            curved = float((along * image).sum())
            if curved <= 1e-3 * self.system.matrix.form(along):
                return None, done
            solution, rest = solution + (size / curved) * along, rest - (size / curved) * image
            moved = self.system.solved(rest)
            previous, size = size, float((rest * moved).sum())
            if size <= goal:
                break
            along = moved + (size / previous) * along
        return self.setting.centred(solution), done + 1


def solved(
    setting: Setting, head: LinearHead, sums: Sums, penalty: Penalty, rows: RowSet, progress: Progress = silent
) -> Solved | None:
    """The update with these surrogate rows; None where the deposit's own system is not positive definite."""
    stepped = step_of(setting, sums, penalty)
    if stepped is None:
        return None
    start, _, system = stepped
    gradient = setting.centred(sums.gradient + penalty.diagonal(setting.anchor) * setting.anchor)
    equation = _Equation(setting, replace(head, l2=0.0), gradient, system, rows)
    update, left, size = torch.zeros_like(start), gradient, system.dual(gradient)
    goal, inner, steps = size * GOAL, 0, 0
    trial = equation.left(start)
    if system.dual(trial) < size:
        update, left, size = start, trial, system.dual(trial)
    while size > goal and steps < MOST_STEPS:
        progress("Newton iterations with the surrogate", steps, None)
        newton, used = equation.direction(update, left)
        inner += used
        for direction in (newton, setting.centred(-system.solved(left))):
            found = None if direction is None else _shorter(equation, update, direction, size)
            if found is not None:
                break
        if found is None:
            break
        update, left, size = found
        steps += 1
    return Solved(update, left, equation.bends(update), system, steps, inner, size <= goal)


def _shorter(
    equation: _Equation, update: Tensor, direction: Tensor, size: float
) -> tuple[Tensor, Tensor, float] | None:
    """The longest part of the step, halved again and again, that reduces what is left; None where none does."""
    length = 1.0
    while length >= SHORTEST:
        trial = update + length * direction
        left = equation.left(trial)
        reached = equation.system.dual(left)
        if reached <= (1.0 - 0.1 * length) * size:
            return trial, left, reached
        length /= 2.0
    return None
