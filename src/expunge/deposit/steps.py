"""The step from the retained rows' sums: Newton's, and with third derivatives on to the root of a quadratic."""

from __future__ import annotations

from torch import Tensor

from expunge.deposit.blocks import UNIT_ROUNDOFF, Norm, factored, norm_of
from expunge.deposit.setting import Penalty, Setting
from expunge.deposit.sums import Sums
from expunge.deposit.third import along, pull

MOST_STEPS = 60  # by the same matrix, towards the root of a quadratic
AT_REST = 2.0**-5  # of what float64 made of the gradient: to go on from there would hardly make a region smaller


def step_of(setting: Setting, sums: Sums, penalty: Penalty) -> tuple[Tensor, Tensor, Norm] | None:
    """`u = -(H' + reg)^-1 g'` with one refinement, what it left, and the norm it was solved in; None where it is not
    definite."""
    system = norm_of(setting.penalised(setting.stiffened(sums.curvature), penalty))
    if system is None:
        return None
    gradient = setting.centred(sums.gradient + penalty.diagonal(setting.anchor) * setting.anchor)
    update = setting.centred(-system.solved(gradient))
    for _ in range(2):
        update = setting.centred(update - system.solved(gradient + system.matrix.product(update)))
    return update, setting.centred(gradient + system.matrix.product(update)), system


def third_step(
    setting: Setting, sums: Sums, penalty: Penalty, update: Tensor, system: Norm
) -> tuple[Tensor, Tensor, int]:
    """From a Newton step on to `g' + (H' + reg) u + T'[u, u]/2 = 0`, by its Jacobian there, as far as that falls.

    Where that is not definite, or leads no further, by `H' + reg`.
    """
    third, joint = sums.third, sums.curvature.joint
    assert third is not None
    gradient = setting.centred(sums.gradient + penalty.diagonal(setting.anchor) * setting.anchor)
    bent = along(third, update, joint=joint)
    left = setting.centred(gradient + system.matrix.product(update) + 0.5 * bent.product(update))
    matrix = system.matrix.combined(1.0, bent, 1.0)
    factor = factored(matrix)
    ways = [system] if factor is None else [system, Norm(matrix, factor)]
    rest = AT_REST * max(sums.gradient_error, (update.numel() + 32) * UNIT_ROUNDOFF * float(gradient.norm()))
    for step in range(1, MOST_STEPS):
        if float(left.norm()) <= rest:
            return update, left, step
        further = setting.centred(update - ways[-1].solved(left))
        beyond = setting.centred(gradient + system.matrix.product(further) + pull(third, further, joint=joint))
        if float(beyond.norm()) < float(left.norm()):
            update, left = further, beyond
        elif len(ways) == 1:
            return update, left, step
        else:
            ways.pop()
    return update, left, MOST_STEPS
