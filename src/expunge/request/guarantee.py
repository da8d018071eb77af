"""What changes the promise."""

from __future__ import annotations

from dataclasses import dataclass

from expunge.errors import OptionError
from expunge.runtime.checks import positive

STEPS = ("converged", "newton", "balanced")
BOUNDS = ("residual", "paper")
LARGEST_EPSILON, SMALLEST_DELTA = 1e6, 1e-300


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta): what the certificate is to say."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        positive(self.epsilon, "epsilon", "Values from 0.1 to 5 are usual; smaller protects more.")
        if self.epsilon > LARGEST_EPSILON:
            raise OptionError(
                f"epsilon {self.epsilon}",
                f"above {LARGEST_EPSILON:g} it promises nothing",
                "Values from 0.1 to 5 are usual.",
            )
        if 0 < self.delta < SMALLEST_DELTA:
            raise OptionError(f"delta {self.delta}", f"it must be at least {SMALLEST_DELTA:g}", "Use for example 1/n.")
        if not 0 < self.delta < 1:
            raise OptionError(
                f"delta {self.delta}",
                "it must lie strictly between 0 and 1",
                "Use at most 1/n; with delta 1 every mechanism is certified and the certificate says nothing.",
            )
