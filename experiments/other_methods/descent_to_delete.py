"""Descent-to-delete (Neel, Roth and Sharifi-Malvajerdi 2021), strongly convex: descend on what stays, then add noise.

The state before noise is kept secret and descended from. Descent contracts by g = (beta - m)/(beta + m) a step, with
step size 2/(beta + m), so after I steps the weights are near the retained rows' optimum, whatever they started from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from experiments.other_methods.constants import Descent, constants_of
from experiments.other_methods.models import Forgotten, descend, left_by_requests, timed
from experiments.other_methods.renyi import SAFETY, require_budget
from expunge.bounds.calibration import sigma_for
from expunge.evaluate.case import Case
from expunge.evaluate.methods import plain_noise
from expunge.runtime.arrays import Array


def rate(constants: Descent) -> float:
    """`(beta - m)/(beta + m)`, how much nearer one step of the fastest descent comes."""
    return (constants.smooth - constants.strong) / (constants.smooth + constants.strong)


def distance_upper(constants: Descent, n_source: int, count: int, steps: int, residual: float = 0.0) -> float:
    """How far the weights can be from those of training on the retained rows.

    The optimum moves by at most the shift of the gradient over m when rows leave, and each step contracts. Training
    ends where the gradient is at most `residual` long, with the rows and without them.
    """
    moved = (constants.gradient_shift(count, n_source) + residual) / constants.strong
    return rate(constants) ** steps * moved + residual / constants.strong


def sequence_upper(constants: Descent, n_source: int, count: int, steps: int, residual: float = 0.0) -> float:
    """The same when the rows leave one by one, with so many steps for each: what is left of each request goes on."""
    shrunk, away = rate(constants) ** steps, residual / constants.strong
    for gone in range(count):
        away = shrunk * (away + constants.gradient_shift(1, n_source - gone) / constants.strong)
    return away + residual / constants.strong


def sigma_published(constants: Descent, n_source: int, count: int, steps: int, epsilon: float, delta: float) -> float:
    """The paper's noise, `4 sqrt 2 M g^I / (m n (1 - g^I) (sqrt(ln(1/delta) + epsilon) - sqrt(ln(1/delta))))`.

    It allows for requests before this one, and for training that stopped early; `count` rows count as often.
    """
    require_budget(epsilon, delta)
    shrunk, log = rate(constants) ** steps, math.log(1.0 / delta)
    gap = epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))
    moved = 2.0 * math.sqrt(2.0) * constants.gradient_shift(count, n_source) / constants.strong
    return SAFETY * moved * shrunk / ((1.0 - shrunk) * gap)


def sigma_tight(
    constants: Descent,
    n_source: int,
    count: int,
    steps: int,
    epsilon: float,
    delta: float,
    residual: float = 0.0,
    sequence: bool = False,
) -> float:
    """The smallest noise its proof allows from a model trained to the optimum, or nearly."""
    require_budget(epsilon, delta)
    upper = sequence_upper if sequence else distance_upper
    return sigma_for(upper(constants, n_source, count, steps, residual), epsilon, delta)


@dataclass(frozen=True)
class DescentToDelete:
    """So many steps of descent on the retained rows, then noise; `published` takes the paper's own noise.

    `sequence`: the rows leave one by one, with so many steps for each. `ends` are where descent ended and its seconds,
    by l2 and steps: they depend on no epsilon, and runs on the same rows may share them.
    """

    epsilon: float
    delta: float
    steps: int
    published: bool = False
    sequence: bool = False
    ends: dict[tuple[float, int], tuple[Array, float]] = field(default_factory=dict, compare=False)
    name: ClassVar[str] = "Descent-to-delete"

    def run(self, case: Case) -> Forgotten:
        constants = constants_of(case.objective)
        asked = (constants, len(case.rows["train"]), len(case.rows["forget"]), self.steps, self.epsilon, self.delta)
        residual = case.record.residual
        assert residual is not None  # the case's model was trained on its source
        sigma = sigma_tight(*asked, residual=residual, sequence=self.sequence)
        sigma = sigma_published(*asked) if self.published else sigma
        sets = left_by_requests(case.rows, self.sequence)

        def delete(models: Array) -> Array:
            for retained in sets:
                models = descend(case.objective, models, retained, self.steps, constants.fastest)
            return models

        key = case.objective.l2, self.steps
        if key not in self.ends:
            self.ends[key] = timed(delete, case.weights[None])
        updated, seconds = self.ends[key]
        seconds /= len(sets)
        return Forgotten(updated[0], plain_noise(sigma, updated[0]), steps=self.steps, seconds=seconds)
