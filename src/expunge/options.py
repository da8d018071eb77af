"""Options that several stages take: what each may be, and the errors for what it may not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from expunge.errors import OptionError
from expunge.model import LARGEST, SMALLEST

STEPS = ("converged", "newton", "balanced")
BOUNDS = ("residual", "paper")
DTYPES = {"float64": torch.float64, "float32": torch.float32}
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


def positive(value: float, name: str, remedy: str) -> float:
    """The value as a float, if it is a number above 0 whose powers stay within float64."""
    number = not isinstance(value, bool) and isinstance(value, (int, float, np.floating, np.integer))
    if not number or not 0 < value < math.inf:
        raise OptionError(f"{name} {value}", "it must be a finite number above 0", remedy)
    if not SMALLEST <= value <= LARGEST:
        raise OptionError(f"{name} {value}", f"it must lie between {SMALLEST:g} and {LARGEST:g}", remedy)
    return float(value)


def choice(value: str, options: Sequence[str], name: str) -> str:
    """The value, if it is one of the options."""
    if value not in options:
        raise OptionError(
            f"{name} {value!r}", f"it must be one of {', '.join(options)}", f"Choose one of them for {name}."
        )
    return value


def computing_device(name: str) -> torch.device:
    """The torch device of that name, if it can be used here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (
        RuntimeError,
        AssertionError,
        NotImplementedError,
        ImportError,
        AttributeError,
        TypeError,
        ValueError,
    ) as error:
        raise OptionError(
            f"device {name!r} ({type(error).__name__})", "a device torch can use here is needed", "Use cpu."
        ) from error
    return device
