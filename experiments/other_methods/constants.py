"""What the peers' proofs ask of a loss, from the head's constants in closed form."""

from __future__ import annotations

from dataclasses import dataclass

from expunge.errors import OptionError
from expunge.heads import LinearHead


@dataclass(frozen=True)
class Descent:
    """Constants of the regularised objective over rows within the norm bound, and of descent on it.

    `lipschitz` is of the loss without its regulariser: that is the same with and without a row, so it is no part of how
    far one row's leaving can move a gradient.
    """

    strong: float
    smooth: float
    lipschitz: float
    curvature_change: float  # Lipschitz constant of a row's curvature in its outputs

    def gradient_shift(self, count: int, n_source: int) -> float:
        """How far the mean gradient can move at any weights when `count` of `n_source` rows leave.

        It is `count/n_source` times the difference of the mean gradients of those that stay and those that leave.
        """
        if not 0 < count < n_source:
            raise ValueError(f"{count} of {n_source} rows leave: some must leave and some stay")
        return 2.0 * count * self.lipschitz / n_source

    @property
    def fastest(self) -> float:
        """The step size that contracts most."""
        return 2.0 / (self.smooth + self.strong)

    def contraction(self, step: float) -> float:
        """How much nearer two points come in one step of descent of this size."""
        if not 0.0 < step <= self.fastest * (1.0 + 1e-12):
            raise ValueError(f"a step of {step}: it must be above 0 and at most {self.fastest}")
        return 1.0 - step * self.strong


def constants_of(head: LinearHead) -> Descent:
    """Those of a linear head whose gradient is bounded whatever the weights are."""
    if head.constant_curvature:
        raise OptionError(
            f"the loss {head.name}",
            "its gradient grows with the weights, and the peers' proofs need it bounded",
            "Compare the peers on softmax, logistic or one-vs-rest.",
        )
    found = head.constants(0.0)
    return Descent(
        found.strong_convexity, found.smoothness, found.lipschitz, found.hessian_lipschitz / head.row_bound**3
    )
