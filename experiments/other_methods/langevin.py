"""Langevin unlearning (Chien et al. 2024): noisy descent at training, and the same on what stays at deletion.

    w <- w - eta grad f(w) + sqrt(2 eta) sigma xi

`f` is m-strongly convex and L-smooth and its loss M-Lipschitz; `S` of `n` rows leave. With training run to rest, its
two laws (with and without the rows) are `4 alpha S^2 M^2 / (m sigma^2 n^2)` apart in Renyi divergence of order alpha,
and K more steps on the retained rows shrink that by `exp(-K m eta / alpha)`.

The shift of a gradient can instead be followed from step to step (privacy amplification by iteration, which the
authors use in their later paper on noisy stochastic descent): each step brings both weights nearer by c = 1 - eta m,
and every step's noise hides a part of what is left. Then the divergence is `alpha` times a number that falls like
`c^(2K)`: less noise at every K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from experiments.other_methods.constants import Descent, constants_of
from experiments.other_methods.models import (
    Forgotten,
    gradients,
    hessian,
    left_by_requests,
    pull_of,
    standard_normal,
    timed,
)
from experiments.other_methods.renyi import SAFETY, require_budget, rho_for, smallest_over_orders
from expunge.evaluate.case import Case
from expunge.heads import LinearHead, Rows
from expunge.runtime.arrays import Array, namespace, solve_triangular

TRAINED = 30  # steps of training from a draw of nearly the law at rest


def divergence_published(
    order: float, sigma: float, constants: Descent, n_source: int, count: int, steps: int, step: float
) -> float:
    """The paper's bound on the Renyi divergence of this order after so many steps at deletion."""
    shift, strong = constants.gradient_shift(count, n_source), constants.strong
    return math.exp(-steps * strong * step / order) * order * shift**2 / (strong * sigma**2)


def sigma_published(
    constants: Descent, n_source: int, count: int, steps: int, step: float, epsilon: float, delta: float
) -> float:
    """The smallest sigma for which that is (epsilon, delta) at some order."""
    require_budget(epsilon, delta)
    log = math.log(1.0 / delta)

    def at(order: float) -> float:
        left = epsilon - log / (order - 1.0)
        if left <= 0.0:
            return math.inf
        return divergence_published(order, 1.0, constants, n_source, count, steps, step) / left

    return SAFETY * math.sqrt(smallest_over_orders(at, 1.0 + log / epsilon))


def rho_by_shifts(
    sigma: float, constants: Descent, n_source: int, count: int, steps: int, step: float, trained: int | None = None
) -> float:
    """The number rho of `D(alpha) <= alpha rho`, following shifts; `trained` steps before, to rest if None.

    Both laws start alike; a step of training shifts one of them by at most `step * gradient_shift`. What is to be
    hidden is `z = c^K shift (1 - c^T)/(1 - c)`, the noise that hides it is `sum c^(2j)` over all steps, and the best
    way to spread it is in proportion to `c^j` (Cauchy and Schwarz).
    """
    keeps = constants.contraction(step)
    shifted = constants.gradient_shift(count, n_source) / constants.strong
    reached = 1.0 if trained is None else -math.expm1(trained * math.log(keeps))
    hiding = 1.0 if trained is None else -math.expm1(2 * (trained + steps) * math.log(keeps))
    noise = 2.0 * step * sigma**2 * hiding / (1.0 - keeps**2)
    return (keeps**steps * shifted * reached) ** 2 / (2.0 * noise)


def rho_of_sequence(sigma: float, constants: Descent, n_source: int, count: int, steps: int, step: float) -> float:
    """The same when the rows leave one by one, with so many steps for each, from training run to rest.

    Whoever never had the rows has taken all steps without them. While j of them are left to go, a step shifts by what j
    rows can, and `c^K` of all shifts before is left after each request.
    """
    keeps, strong = constants.contraction(step), constants.strong
    shifted = constants.gradient_shift(count, n_source) / strong
    for still in range(count - 1, -1, -1):
        own = constants.gradient_shift(still, n_source - count + still) / strong if still else 0.0
        shifted = keeps**steps * shifted - own * math.expm1(steps * math.log(keeps))
    noise = 2.0 * step * sigma**2 / (1.0 - keeps**2)
    return shifted**2 / (2.0 * noise)


def sigma_by_shifts(
    constants: Descent,
    n_source: int,
    count: int,
    steps: int,
    step: float,
    epsilon: float,
    delta: float,
    sequence: bool = False,
) -> float:
    """The smallest sigma for which that is (epsilon, delta), from training run to rest."""
    rho = rho_of_sequence if sequence else rho_by_shifts
    unit = rho(1.0, constants, n_source, count, steps, step)
    return SAFETY * math.sqrt(unit / rho_for(epsilon, delta))


@dataclass(frozen=True)
class Langevin:
    """So many noisy steps on the retained rows, from a model trained by noisy steps on all of them.

    `published` takes the paper's own accounting. Training to rest is drawn from the Gaussian that its law nearly is,
    then run for some more steps. `sequence`: the rows leave one by one, with so many steps for each. `alone`: the first
    draw is made alone, and its seconds are what one deletion takes.
    """

    epsilon: float
    delta: float
    steps: int
    published: bool = False
    draws: int = 20
    seed: int = 0
    sequence: bool = False
    alone: bool = True
    name: ClassVar[str] = "Langevin"

    def run(self, case: Case) -> Forgotten:
        head, constants = case.objective, constants_of(case.objective)
        step = 1.0 / constants.smooth
        asked = (constants, len(case.rows["train"]), len(case.rows["forget"]), self.steps, step)
        sigma = (
            sigma_published(*asked, self.epsilon, self.delta)
            if self.published
            else sigma_by_shifts(*asked, self.epsilon, self.delta, self.sequence)
        )
        sets = left_by_requests(case.rows, self.sequence)
        generator = np.random.default_rng([self.seed, 11])
        trained = near_rest(case, sigma, self.draws, generator)
        trained = noisy(head, trained, case.rows["train"], TRAINED, step, sigma, generator)

        def delete(models: Array) -> Array:
            for retained in sets:
                models = noisy(head, models, retained, self.steps, step, sigma, generator)
            return models

        models, seconds = timed(delete, trained, self.alone)
        return Forgotten(models.mean(axis=0), None, models=models, steps=self.steps, seconds=seconds / len(sets))


def noisy(
    head: LinearHead, models: Array, rows: Rows, steps: int, step: float, sigma: float, generator: np.random.Generator
) -> Array:
    """So many steps of noisy descent."""
    size, pull = math.sqrt(2.0 * step) * sigma, pull_of(head, rows)
    for _ in range(steps):
        models = models - step * gradients(head, models, rows, pull) + size * standard_normal(models, generator)
    return models


def near_rest(case: Case, sigma: float, draws: int, generator: np.random.Generator) -> Array:
    """Draws of the Gaussian around the optimum whose covariance is `sigma^2` times the inverse Hessian."""
    xp = namespace(case.weights)
    factors = xp.linalg.cholesky(hessian(case.objective, case.weights, case.rows["train"]))
    drawn = standard_normal(xp.broadcast_to(case.weights, (draws, *case.weights.shape)), generator)
    columns = xp.permute_dims(drawn.reshape(draws, len(factors), -1), (1, 2, 0))
    spread = xp.permute_dims(solve_triangular(factors.mT, columns, upper=True), (2, 0, 1))
    return case.weights + sigma * spread.reshape(draws, *case.weights.shape)
