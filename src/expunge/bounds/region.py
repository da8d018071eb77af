"""What every bound returns: a region around the updated weights that holds the retrained ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from expunge.bounds.sampling import Tail

ROUND_UP = 1.0 + 1e-9  # covers the float64 arithmetic of the terms themselves


@dataclass(frozen=True)
class Term:
    """A part of the radius, with its title and what it stands for, as screens and pages say it."""

    name: str
    title: str
    words: str


GRID = Term("grid", "Noise grid", "weights are rounded before the noise is added, so that no digit leaks")
DRAWING = Term("drawing", "Drawing", "what float64 makes of noise that is longer in some directions than in others")


class Shape(Protocol):
    """What lengths are measured by, and with it the shape of the noise: a `Ball`, or an `Ellipsoid` (ellipsoid.py).

    The covariance that goes with a `scale` is `smallest(scale)^2 I` plus that of `rest`: the first part is drawn
    exactly, by the sampler that also rounds to the grid, the second in float64.
    """

    @property
    def name(self) -> str:
        """What a certificate calls it."""

    def grid_term(self, grid: float) -> float:
        """By how much rounding both models to the grid can move them apart."""

    def drawing(self, scale: float) -> float:
        """By how much what float64 makes of the noise can move them apart."""

    def length(self, scale: float) -> float:
        """Root of the mean square of the noise's plain length."""

    def smallest(self, scale: float) -> float:
        """A standard deviation that the noise has in every direction."""

    def rest(self, scale: float, random_bytes: Callable[[int], bytes]) -> NDArray[np.float64] | None:
        """A draw of what the noise is beyond that; None where it is nothing."""

    def sample(self, scale: float, generator: np.random.Generator) -> NDArray[np.float64]:
        """Noise in plain float64, for predictions and evaluations; never for a model that is published."""


@dataclass(frozen=True)
class Ball:
    """The shape I: plain lengths, the same noise on every weight.

    >>> Ball(16).grid_term(0.5), Ball(16).length(0.25)
    (2.0, 1.0)
    """

    n_parameters: int
    name: str = "ball"

    def grid_term(self, grid: float) -> float:
        """`sqrt(p) grid`."""
        return math.sqrt(self.n_parameters) * grid

    def drawing(self, scale: float) -> float:
        """Nothing: every digit is drawn exactly."""
        return 0.0

    def length(self, scale: float) -> float:
        """`sqrt(p) scale`."""
        return math.sqrt(self.n_parameters) * scale

    def smallest(self, scale: float) -> float:
        return scale

    def rest(self, scale: float, random_bytes: Callable[[int], bytes]) -> NDArray[np.float64] | None:
        return None

    def sample(self, scale: float, generator: np.random.Generator) -> NDArray[np.float64]:
        return generator.normal(size=self.n_parameters) * scale


@dataclass(frozen=True)
class Region:
    """`{v + e : ||e|| <= radius}`, the length measured by a shape; the radius is the sum of named terms.

    `shape` and `provenance` (the weakest of what entered it) are added by `derive`, which knows the whole claim. A
    `tail` is that of a deviation which comes on top of the radius: the noise is then calibrated to its average.

    >>> region = Region("residual", {"training": 0.25, "solver": 0.5})
    >>> 0.75 < region.radius < 0.7500001
    True
    """

    kind: str
    terms: Mapping[str, float]
    shape: Shape | None = None
    provenance: str = ""
    tail: Tail | None = None

    @property
    def radius(self) -> float:
        """Delta, rounded up."""
        return math.fsum(self.terms.values()) * ROUND_UP

    def with_term(self, name: str, value: float) -> Region:
        """The region with one more term."""
        return replace(self, terms={**self.terms, name: value})

    def held(self, failure: float) -> Region:
        """The region without its tail, larger by what the deviation exceeds with at most this probability."""
        if self.tail is None:
            return self
        deviation = self.tail.quantile(failure)
        sampling = self.terms["sampling"] + (deviation if deviation <= self.tail.limit else math.inf)
        return replace(self, terms={**self.terms, "sampling": sampling}, tail=None)
