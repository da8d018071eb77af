"""Noisy fine-tuning (Koloskova et al. 2025): noisy steps on what stays hide where they started, whatever the loss.

Gradient clipping: the model is clipped to norm C0, then T times

    x <- x - eta (clip(g, C1) + lambda x) + sigma xi

Two models start at most `2 C0` apart, and a step brings them nearer by c = 1 - eta lambda and apart by at most
`2 eta C1`; every step's noise hides a part (privacy amplification by iteration).

Model clipping: T times `x <- clip(x - eta g, C2) + sigma xi`. Two models differ by at most `2 C2` before the noise of a
step, so each step shrinks what tells them apart by the delta of one Gaussian mechanism at the same epsilon (its
contraction coefficient): T steps leave `delta(epsilon, 2 C2/sigma)^T`.

After that, descent without noise on the retained rows is free: it uses nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from experiments.other_methods.constants import constants_of
from experiments.other_methods.models import Forgotten, descend, gradients, pull_of, standard_normal, timed, within
from experiments.other_methods.renyi import SAFETY, require_budget, rho_for
from expunge.bounds.calibration import mu_for
from expunge.evaluate.case import Case
from expunge.runtime.arrays import Array, namespace


def powers(keeps: float, steps: int) -> float:
    """`1 + keeps + ... + keeps^(steps-1)`."""
    return float(steps) if keeps == 1.0 else (1.0 - keeps**steps) / (1.0 - keeps)


def rho_of_clipped(sigma: float, start: float, gradient: float, step: float, decay: float, steps: int) -> float:
    """The number rho of `D(alpha) <= alpha rho` after so many steps with gradients clipped.

    To hide: `2 C0 c^T + 2 eta C1 (1 + c + ... + c^(T-1))`, by noise of `sigma^2 (1 + c^2 + ... + c^(2(T-1)))`.
    """
    keeps = 1.0 - step * decay
    if not (0.0 < keeps <= 1.0 and steps >= 1):
        raise ValueError(f"a step of {step}, a decay of {decay}, {steps} steps: their product must be in [0, 1)")
    apart = 2.0 * start * keeps**steps + 2.0 * step * gradient * powers(keeps, steps)
    return apart**2 / (2.0 * sigma**2 * powers(keeps**2, steps))


def sigma_of_clipped_gradients(
    start: float, gradient: float, step: float, decay: float, steps: int, epsilon: float, delta: float
) -> float:
    """The smallest sigma for which that is (epsilon, delta)."""
    unit = rho_of_clipped(1.0, start, gradient, step, decay, steps)
    return SAFETY * math.sqrt(unit / rho_for(epsilon, delta))


def sigma_of_clipped_models(radius: float, steps: int, epsilon: float, delta: float) -> float:
    """The smallest sigma for which so many steps with the model clipped leave this delta at this epsilon."""
    require_budget(epsilon, delta)
    if steps < 1:
        raise ValueError(f"{steps} steps: at least one adds noise")
    return 2.0 * radius / mu_for(epsilon, delta ** (1.0 / steps))


@dataclass(frozen=True)
class GradientClipping:
    """`noisy` steps with clipped gradients, and descent without noise for the rest of `steps`.

    `start` is C0 and `gradient` C1; the regulariser of the loss is the decay. `alone`: as for Langevin.
    """

    epsilon: float
    delta: float
    steps: int
    noisy: int
    start: float
    gradient: float
    draws: int = 20
    seed: int = 0
    alone: bool = True
    name: ClassVar[str] = "Noisy fine-tuning, gradients clipped"

    def run(self, case: Case) -> Forgotten:
        head, step = case.objective, constants_of(case.objective).fastest
        sigma = sigma_of_clipped_gradients(
            self.start, self.gradient, step, head.l2, self.noisy, self.epsilon, self.delta
        )
        generator, retain = np.random.default_rng([self.seed, 12]), case.rows["retain"]
        pull = pull_of(head, retain)

        def delete(models: Array) -> Array:
            models = within(models, self.start)
            for _ in range(self.noisy):
                of_loss = gradients(head, models, retain, pull) - head.l2 * models
                models = models - step * (within(of_loss, self.gradient) + head.l2 * models)
                models = models + sigma * standard_normal(models, generator)
            return descend(head, models, retain, self.steps - self.noisy, step)

        return _drawn(case, delete, self.draws, self.steps, self.alone)


@dataclass(frozen=True)
class ModelClipping:
    """`noisy` steps with the model clipped to `radius` (C2), and descent without noise for the rest of `steps`.

    `alone`: as for Langevin.
    """

    epsilon: float
    delta: float
    steps: int
    noisy: int
    radius: float
    draws: int = 20
    seed: int = 0
    alone: bool = True
    name: ClassVar[str] = "Noisy fine-tuning, models clipped"

    def run(self, case: Case) -> Forgotten:
        head, step = case.objective, constants_of(case.objective).fastest
        sigma = sigma_of_clipped_models(self.radius, self.noisy, self.epsilon, self.delta)
        generator, retain = np.random.default_rng([self.seed, 13]), case.rows["retain"]
        pull = pull_of(head, retain)

        def delete(models: Array) -> Array:
            for _ in range(self.noisy):
                models = within(models - step * gradients(head, models, retain, pull), self.radius)
                models = models + sigma * standard_normal(models, generator)
            return descend(head, models, retain, self.steps - self.noisy, step)

        return _drawn(case, delete, self.draws, self.steps, self.alone)


def _drawn(case: Case, delete: Callable[[Array], Array], draws: int, steps: int, alone: bool) -> Forgotten:
    starts = namespace(case.weights).broadcast_to(case.weights, (draws, *case.weights.shape))
    models, seconds = timed(delete, starts, alone)
    return Forgotten(models.mean(axis=0), None, models=models, steps=steps, seconds=seconds)
