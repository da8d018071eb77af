"""Langevin dynamics: samples of the features that a linear classifier implies.

Their density is `exp(-E(x))` with `E(x) = -logsumexp(W x + b)`.

All chains move at once: a step is two thin matrix products and one draw of noise. For a linear model `exp(-E)` has no
finite integral over R^d, and unbounded chains run away, so a run needs a ball to stay in or a Gaussian reference
density (`LinearEnergy.whitened`). The stationary distribution is off by an error that grows with the step. Diagnostics
are part of the result; chains that are not finite or run away are an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expunge.errors import DataError, OptionError
from expunge.runtime.progress import Progress, silent

RECORDS = 200  # moments at which energy and norm of every chain are stored for the diagnostics
RUNAWAY = 1.2  # factor by which norms may still grow from the third to the fourth quarter of an unbounded run


class Target(Protocol):
    """An unnormalised density over rows: its logarithm up to a constant, and the gradient of that, for each row."""

    def log_density(self, points: Tensor) -> Tensor: ...

    def force(self, points: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class LinearEnergy:
    """`-E(x) = logsumexp(W x + b)`, whose gradient is `W^T softmax(W x + b)`.

    With `gaussian`, `exp(-E)` is multiplied by a standard Gaussian density: `-||x||^2/2` is added.
    """

    weight: Tensor
    bias: Tensor | None = None
    gaussian: bool = False

    def log_density(self, points: Tensor) -> Tensor:
        value = torch.logsumexp(self._outputs(points), dim=1)
        return value - 0.5 * points.square().sum(dim=1) if self.gaussian else value

    def force(self, points: Tensor) -> Tensor:
        force = torch.softmax(self._outputs(points), dim=1) @ self.weight
        return force.sub_(points) if self.gaussian else force

    def whitened(self, mean: Tensor, root: Tensor) -> LinearEnergy:
        """`exp(-E)` times N(mean, root root^T), in coordinates y with `x = mean + root y`.

        There the reference is standard, so that one step size fits every direction.
        """
        bias = self.weight @ mean
        return LinearEnergy(self.weight @ root, bias if self.bias is None else bias + self.bias, gaussian=True)

    def _outputs(self, points: Tensor) -> Tensor:
        return points @ self.weight.T if self.bias is None else torch.addmm(self.bias, points, self.weight.T)


@dataclass(frozen=True)
class Diagnostics:
    """Evidence of convergence, over the second half of the run, for the log density and the norm of the points.

    `r_hat` is the larger split R-hat of the two (1 is perfect, above 1.1 is not converged), `effective_samples` the
    smaller effective sample size over all chains. From the third to the fourth quarter the mean norm grew by `drift`
    standard deviations, and by the factor `growth`.
    """

    r_hat: float
    effective_samples: float
    drift: float
    growth: float

    @property
    def converged(self) -> bool:
        return self.r_hat <= 1.1 and abs(self.drift) <= 1.0


@dataclass(frozen=True)
class LangevinSamples:
    """Where the chains ended after so many steps, one row a chain, and the evidence for it."""

    points: Tensor
    diagnostics: Diagnostics
    steps: int


def langevin(
    target: Target,
    start: Tensor,
    *,
    n_steps: int = 4000,
    step: float = 0.02,
    radius: float | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> LangevinSamples:
    """Run one chain a row of `start`: `x + (step/2) force(x) + sqrt(step) noise`.

    Within a `radius` points beyond it are reflected at the sphere. Steps are taken in as many whole parts as are
    recorded for the diagnostics. The seed only shapes an estimate; it protects nothing.
    """
    if n_steps < 8 or not 0.0 < step < math.inf or (radius is not None and not 0.0 < radius < math.inf):
        raise OptionError(
            f"{n_steps} steps of {step} within {radius}",
            "at least 8 steps are needed, of a size above 0, and a finite radius above 0 if any",
            "The paper uses 4,000 of 0.02; a radius is the model's max_norm.",
        )
    generator = torch.Generator(device=start.device).manual_seed(seed)
    points, noise = start.clone(), torch.empty_like(start)
    every = max(1, n_steps // RECORDS)
    records: list[NDArray[np.float64]] = []
    done = 0
    for done in range(every, n_steps + 1, every):
        for _ in range(every):
            force = target.force(points)
            noise.normal_(generator=generator)
            points.add_(force, alpha=0.5 * step).add_(noise, alpha=math.sqrt(step))
            if radius is not None:
                # below 1 exactly outside the ball; a point beyond twice the radius is reflected to the centre
                points.mul_((2.0 * radius / points.norm(dim=1, keepdim=True) - 1.0).clamp(min=0.0, max=1.0))
        records.append(torch.stack([target.log_density(points), points.norm(dim=1)]).double().cpu().numpy())
        if not np.isfinite(records[-1]).all():
            raise DataError(
                f"after {done} steps a chain is no longer finite",
                "the step must be small against the curvature of the density",
                f"Use a step well below {step:g}, or a radius.",
            )
        progress("Langevin steps", done, n_steps)
    diagnostics = diagnose(np.stack(records, axis=-1))
    if radius is None and diagnostics.growth > RUNAWAY:
        raise DataError(
            f"the chains run away: norms still grew by a factor {diagnostics.growth:.2f} in the last quarter",
            "the density must have a finite integral, which that of a linear model alone has not",
            "Give a radius (max_norm) or a Gaussian reference.",
        )
    return LangevinSamples(points, diagnostics, done)


def diagnose(records: NDArray[np.float64]) -> Diagnostics:
    """Diagnostics from what was recorded: quantities x chains x times."""
    half = records[:, :, records.shape[2] // 2 :]
    r_hats, sizes = zip(*(_split_r_hat_and_size(quantity) for quantity in half), strict=True)
    norms = half[1]
    quarter = norms.shape[1] // 2
    spread = max(float(norms[:, quarter:].std()), 1e-12 * float(np.abs(norms).max()) + 1e-300)
    before, after = float(norms[:, :quarter].mean()), float(norms[:, quarter:].mean())
    return Diagnostics(max(r_hats), min(sizes), (after - before) / spread, after / max(before, 1e-300))


def _split_r_hat_and_size(chains: NDArray[np.float64]) -> tuple[float, float]:
    """Split R-hat and effective sample size (Geyer's initial positive sequence) of chains x times."""
    length = chains.shape[1] // 2
    split = np.concatenate([chains[:, :length], chains[:, length : 2 * length]])
    within = float(split.var(axis=1, ddof=1).mean())
    between = length * float(split.mean(axis=1).var(ddof=1))
    if within <= 0.0:
        return math.inf, 1.0
    total = (length - 1) / length * within + between / length
    centred = split - split.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, n=2 * length, axis=1)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :length].mean(axis=0) / length
    correlation = 1.0 - (within - covariance * length / (length - 1)) / total
    pairs = correlation[: length - length % 2].reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs < 0.0)
    positive = pairs[: ends[0]] if len(ends) else pairs
    time = max(1.0, 2.0 * float(positive.sum()) - 1.0)
    return math.sqrt(total / within), split.size / time
