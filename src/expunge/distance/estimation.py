"""How a distance that nobody knows is to be estimated from the model and the surrogate alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from expunge.distance.declared import SAMPLING
from expunge.errors import OptionError

ROUTES = {"means": "means", "kl": "tv"}  # what is estimated, and the kind of distance it gives
MOST = 10_000_000
SMALLEST, LARGEST = 1e-30, 1e30
SUPPORTS = ("ball", "projected-ball", "box", "gaussian")


@dataclass(frozen=True)
class Estimation:
    """Options of an estimate; its result makes a certificate `estimated`, whatever they are.

    `route` says what enters the bound: `means`, the difference of means that the residual bound needs, or `kl`, the
    paper's KL of the surrogate relative to the source, turned into total variation. `support` makes the model's density
    over features integrable: a ball of radius max_norm (by reflection or projection), a box of half-width `box`
    (max_norm where not given), or a Gaussian reference with `mean` and `covariance`, by default the surrogate's own.
    `step_size` None is 0.02, the paper's, in units of the support's own variance per feature.
    """

    route: str = "means"
    support: str = "ball"
    chains: int = 1000
    steps: int = 4000
    step_size: float | None = None
    metropolis: bool = False
    box: float | None = None
    mean: NDArray[np.float64] | None = None
    covariance: NDArray[np.float64] | None = None
    epochs: int = 500
    seed: int = 0
    sampling: str = "strict"
    matched: bool = False

    def __post_init__(self) -> None:
        for name, value, options in (("route", self.route, ROUTES), ("support", self.support, SUPPORTS)):
            if value not in options:
                raise OptionError(
                    f"{name} {value!r} of an estimate",
                    f"it must be one of {', '.join(options)}",
                    f"Use {next(iter(options))}.",
                )
        if not 100 <= self.chains <= MOST:
            raise OptionError(f"{self.chains} chains", f"from 100 to {MOST:,} are possible", "The paper uses 1,000.")
        if not 8 <= self.steps <= MOST:
            raise OptionError(f"{self.steps} steps", f"from 8 to {MOST:,} are possible", "The paper uses 4,000.")
        if self.epochs < 1:
            raise OptionError(f"{self.epochs} epochs", "at least 1 is needed", "The paper uses 500.")
        if not 0 <= self.seed < 2**62:
            raise OptionError(f"chain seed {self.seed}", "it lies from 0 to 2^62", "Use a small number.")
        if self.sampling not in SAMPLING:
            raise OptionError(f"sampling {self.sampling!r}", f"it must be one of {', '.join(SAMPLING)}", "Use seen.")
        for name, number in (("box", self.box), ("step size", self.step_size)):
            if number is not None and not SMALLEST <= number <= LARGEST:
                raise OptionError(f"{name} {number}", f"it lies from {SMALLEST:g} to {LARGEST:g}", "Leave it out.")
        if self.box is not None and self.support != "box":
            raise OptionError(
                f"box {self.box} with support {self.support}",
                "it goes with support box",
                "Use --support box (support='box').",
            )
        if (self.mean is None) != (self.covariance is None):
            raise OptionError(
                "one of mean and covariance is missing", "a Gaussian reference needs both", "Give both, or neither."
            )
        if self.mean is not None and self.support != "gaussian":
            raise OptionError(
                f"moments with support {self.support}",
                "they describe a Gaussian reference",
                "Use --support gaussian (support='gaussian').",
            )

    @property
    def is_source(self) -> bool:
        """An estimate is for those who have no source."""
        return False

    @property
    def samples_rows(self) -> bool:
        """As for a declared distance between populations."""
        return True

    def __str__(self) -> str:
        return f"estimate:{self.route}"


def parse_route(text: str) -> str | None:
    """`means` for `estimate` and `estimate:means`, `kl` for `estimate:kl`, None for anything that is declared."""
    kind, colon, route = text.strip().partition(":")
    if kind != "estimate":
        return None
    return route if colon else next(iter(ROUTES))
