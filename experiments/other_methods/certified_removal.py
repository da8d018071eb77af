"""Certified removal (Guo et al. 2020): the objective is perturbed at training, a Newton step removes rows.

In sums over rows, with b drawn once at training,

    L_b(w) = sum ell(w; x, y) + n lambda ||w||^2 / 2 + <b, w>
    Delta  = k lambda w + sum over the k removed rows of grad ell
    w'     = w + H^-1 Delta          H over the retained rows

The gradient that is left at w' is at most `gamma ||X|| ||H^-1 Delta|| ||X H^-1 Delta||`, where gamma bounds how fast a
row's curvature changes. The perturbation hides a gradient of at most `epsilon sigma / c` with `delta = 1.5
exp(-c^2/2)`. So sigma has to be chosen before anybody asks; where a request leaves more than that, the model is trained
anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np

from experiments.other_methods.constants import constants_of
from experiments.other_methods.models import Clock, Forgotten, hessian, solved, standard_normal
from experiments.other_methods.renyi import require_budget
from expunge.evaluate.case import Case
from expunge.heads import LinearHead, Rows
from expunge.runtime.arrays import Array, namespace, norm, put
from expunge.solve.linear import Preconditioner
from expunge.train import minimise


def perturbation_for(residual: float, epsilon: float, delta: float) -> float:
    """Standard deviation of b that hides a gradient of this norm: `c residual / epsilon`, `c = sqrt(2 ln(1.5/delta))`.

    >>> round(perturbation_for(1.0, 1.0, 1.5 * math.exp(-2.0)), 12)
    2.0
    """
    require_budget(epsilon, delta)
    return math.sqrt(2.0 * math.log(1.5 / delta)) * residual / epsilon


def hidden_by(sigma: float, epsilon: float, delta: float) -> float:
    """The largest gradient that a perturbation of this standard deviation hides."""
    return sigma / perturbation_for(1.0, epsilon, delta)


def residual_upper(curvature_change: float, row_bound: float, spectral: float, moved: float, outputs: float) -> float:
    """`gamma B ||X|| ||H^-1 Delta|| ||X H^-1 Delta||`, in sums over rows; the paper's rows have B = 1."""
    return curvature_change * row_bound * spectral * moved * outputs


@dataclass(frozen=True)
class Removal:
    """A Newton step and the bound on the gradient it leaves."""

    step: Array
    residual: float


def remove(
    head: LinearHead,
    weights: Array,
    retain: Rows,
    forget: Rows,
    known: Array | None = None,
    spectral: float | None = None,
) -> Removal:
    """One Newton step.

    Where they are known: the Hessian of the retained rows' mean in blocks, and the spectral norm of those rows.
    """
    known = hessian(head, weights, retain) if known is None else known
    factors = namespace(known).linalg.cholesky(len(retain) * known)
    step = solved(factors, len(forget) * head.gradient(weights, forget))
    spectral = spectral_norm(retain) if spectral is None else spectral
    outputs = norm(retain.features @ step.T)
    change_of_curvature = constants_of(head).curvature_change
    return Removal(step, residual_upper(change_of_curvature, head.row_bound, spectral, norm(step), outputs))


def spectral_norm(rows: Rows) -> float:
    """`||X||` of so many rows."""
    gram = rows.features.T @ rows.features
    return math.sqrt(float(namespace(gram).linalg.eigvalsh(gram)[-1]))


class Tilted:
    """A head whose mean objective has `<tilt, w>` added; everything else is the head's own."""

    def __init__(self, head: LinearHead, tilt: Array) -> None:
        self.head, self.tilt = head, tilt

    def value_and_gradient(self, weights: Array, rows: Rows) -> tuple[float, Array]:
        """With the tilt."""
        value, gradient = self.head.value_and_gradient(weights, rows)
        return value + float((self.tilt * weights).sum()), gradient + self.tilt

    def gradient(self, weights: Array, rows: Rows) -> Array:
        """With the tilt."""
        return self.head.gradient(weights, rows) + self.tilt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.head, name)


class AtOptimum:
    """The inverse of the Hessian at the unperturbed optimum: near that at any perturbed one, and factorised once."""

    def __init__(self, head: LinearHead, weights: Array, rows: Rows) -> None:
        self.factors = namespace(weights).linalg.cholesky(hessian(head, weights, rows))

    def solve(self, residual: Array) -> Array:
        """Its value."""
        return solved(self.factors, residual)


def perturbed_optimum(
    head: LinearHead, rows: Rows, perturbation: Array, start: Array, near: Preconditioner | None = None
) -> Array:
    """Where `L_b` is smallest."""
    return minimise(cast(LinearHead, Tilted(head, perturbation / len(rows))), rows, start=start, near=near)


@dataclass(frozen=True)
class CertifiedRemoval:
    """A Newton step from a perturbed model.

    sigma hides the largest residual that so many `rehearsals` found, with random rows of the source leaving, or
    `expected`, where they were made before. gamma is the smallest that holds for the loss; the paper's for logistic
    regression, 1/4, is larger. `sequence`: the rows leave one by one, what each step leaves adds up, and `seconds` are
    of one of them. `norms` are spectral norms of the retained rows, by their number: they depend on neither weights nor
    epsilon, and runs on the same rows may share them.
    """

    epsilon: float
    delta: float
    rehearsals: int = 10
    draws: int = 20
    seed: int = 0
    sequence: bool = False
    expected: float | None = None
    norms: dict[int, float] = field(default_factory=dict, compare=False)
    name: ClassVar[str] = "Certified removal"

    def run(self, case: Case) -> Forgotten:
        generator, expected = np.random.default_rng([self.seed, 14]), self.expected
        if expected is None:
            expected = rehearsed(case, self.rehearsals, generator, self.sequence)
        sigma = perturbation_for(expected, self.epsilon, self.delta)
        models, seconds, redrawn = [], 0.0, 0
        near = AtOptimum(case.objective, case.weights, case.rows["train"])
        for number in range(self.draws):
            perturbation = sigma * standard_normal(case.weights, generator)
            weights = perturbed_optimum(case.objective, case.rows["train"], perturbation, case.weights, near)
            clock = Clock(weights.device)
            weights, anew = self._removed(case, weights, perturbation, sigma, near, generator)
            seconds = clock.seconds() if number == 0 else seconds
            models.append(weights)
            redrawn += anew
        drawn = namespace(models[0]).stack(models)
        seconds /= len(case.rows["forget"]) if self.sequence else 1
        return Forgotten(drawn.mean(axis=0), None, models=drawn, steps=1, seconds=seconds, redrawn=redrawn)

    def _removed(
        self,
        case: Case,
        weights: Array,
        perturbation: Array,
        sigma: float,
        near: Preconditioner,
        generator: np.random.Generator,
    ) -> tuple[Array, int]:
        """The weights once all forget rows have left, and how often the model had to be trained anew."""
        head, train = case.objective, case.rows["train"]
        allowed = hidden_by(sigma, self.epsilon, self.delta)
        # training ends near the optimum, not at it: what is left there is left after the step too
        left = len(train) * norm(head.gradient(weights, train) + perturbation / len(train))
        count, anew = len(case.rows["forget"]), 0
        for gone in range(1, count + 1) if self.sequence else (count,):
            stay = len(train) - gone  # the rows to forget are the last of all
            before = stay + 1 if self.sequence else len(train)
            parts = (slice(stay), slice(stay, before))
            retain, forget = (Rows(train.features[part], train.labels[part]) for part in parts)
            if stay not in self.norms:
                self.norms[stay] = spectral_norm(retain)
            removed = remove(head, weights, retain, forget, spectral=self.norms[stay])
            left += removed.residual
            if left <= allowed:
                weights = weights + removed.step
                continue
            fresh = sigma * standard_normal(weights, generator)
            weights = perturbed_optimum(head, retain, fresh, weights, near)
            left = len(retain) * norm(head.gradient(weights, retain) + fresh / len(retain))
            anew += 1
        return weights, anew


def rehearsed(case: Case, count: int, generator: np.random.Generator, sequence: bool = False) -> float:
    """The largest residual bound over so many random removals of as many rows, at the unperturbed optimum.

    In a sequence each row's own, all of them together.
    """
    head, weights, train = case.objective, case.weights, case.rows["train"]
    whole = hessian(head, weights, train)
    size, largest = len(case.rows["forget"]), 0.0
    for _ in range(count):
        order = generator.permutation(len(train))
        together, removals = (1, size) if sequence else (size, 1)
        residual = 0.0
        for start in range(0, together * removals, together):
            gone, stay = order[start : start + together], np.concatenate([order[:start], order[start + together :]])
            places = (put(part, train.labels) for part in (gone, stay))
            forget, retain = (Rows(train.features[part], train.labels[part]) for part in places)
            known = (len(train) * whole - together * hessian(head, weights, forget)) / len(retain)
            residual += remove(head, weights, retain, forget, known).residual
        largest = max(largest, residual)
    return largest
