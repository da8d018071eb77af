"""What a solver hands back: the result, its evidence, and how it ended, by name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor


class Ending(StrEnum):
    """How an iteration ended. None of them can harm the guarantee: the bound charges what is left."""

    REACHED = "reached"
    STALLED = "stalled"
    LIMIT = "iteration limit"
    STOPPED = "stopped as asked"  # one Newton step was wanted
    NOT_FINITE = "no shift helped"

    @property
    def advice(self) -> str:
        """What to do about it."""
        return {
            Ending.REACHED: "",
            Ending.STALLED: "rounding or the surrogate allow no more; --dtype float64, or a larger l2, may",
            Ending.LIMIT: "use --step balanced, or a larger l2",
            Ending.STOPPED: "use --step converged for what one step leaves out",
            Ending.NOT_FINITE: "the matrix is not finite; check the rows",
        }[self]


@dataclass(frozen=True)
class LinearSolution:
    """An approximate solution of `A x = b` with its residual `||b - A x|| / ||b||`, recomputed afterwards.

    `damping` is what had to be added to A's diagonal, infinite where nothing helped.
    """

    solution: Tensor
    relative_residual: float
    iterations: int
    method: str
    damping: float
    ending: Ending = Ending.REACHED

    @property
    def positive_definite(self) -> bool:
        """Whether A was, as far as the solver noticed."""
        return self.damping == 0.0


@dataclass(frozen=True)
class Step:
    """The update, and the evidence for it: `residual` is `||a(u)||`, recomputed in float64.

    `pull` is what it was held back by.

    `relative_residual` is that of the last linear system.
    """

    update: Tensor
    residual: float
    residual_at_start: float
    iterations: int
    inner_iterations: int
    method: str
    damping: float
    ending: Ending
    pull: float
    relative_residual: float = 0.0

    @property
    def positive_definite(self) -> bool:
        """Whether every linear system was, as far as the solver noticed."""
        return self.damping == 0.0

    @property
    def converged(self) -> bool:
        return self.ending is Ending.REACHED


def relative_residual(residual: Tensor, right: Tensor) -> float:
    """`||residual|| / ||right||` in float64; 0 where the right side is."""
    size = float(right.double().norm())
    return float(residual.double().norm()) / size if size > 0 else 0.0
