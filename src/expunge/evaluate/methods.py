"""Ways to forget, behind one interface: what comes out is a distribution of models, of which one is published.

`Retrain` starts anew on the retain set, `UnlearnPlus` has the source (the paper's Unlearn (+)), `UnlearnMinus` only a
surrogate (Unlearn (-)), `UnlearnDeposit` a deposit of the source, `GivenModel` is a model somebody brings. Anything
with a name and a `run` is a method.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from expunge.bounds import Ball
from expunge.deposit.make import make_deposit
from expunge.distance import Distance, Estimation
from expunge.door import ask
from expunge.errors import ModelError
from expunge.evaluate.case import Case, Labelled
from expunge.evidence import collect_notes, foresee
from expunge.mechanism import measure
from expunge.model import LinearModel
from expunge.noise import Noise, grid_exponent
from expunge.request.promise import Promise, refuse_unsound
from expunge.rows.columns import order_of
from expunge.runtime.arrays import Array, namespace, put, size


@dataclass(frozen=True)
class MethodResult:
    """Weights before noise (K x d, float64), and the noise that goes with them, if any.

    `drawn` is False for a published model that somebody brings: its noise, if it has any, was drawn once and for all,
    so no more models can be drawn from where it came from.
    """

    updated: Array
    noise: Noise | None
    drawn: bool = True
    notes: tuple[str, ...] = ()

    @property
    def sigma(self) -> float:
        """The noise's scale; 0 without noise."""
        return 0.0 if self.noise is None else self.noise.scale

    def as_one_row(self) -> MethodResult:
        """The difference of two rows of weights, which tells the classes apart, for a model of one weight vector."""
        assert self.noise is not None
        difference, sigma = self.updated[1:] - self.updated[:1], math.sqrt(2.0) * self.sigma
        return replace(self, updated=difference, noise=plain_noise(sigma, difference))

    def ensemble(self, count: int, generator: np.random.Generator, noise: Noise | None = None) -> Array:
        """`count` models at once, count x K x d, with this noise or their own.

        This is the mechanism's own distribution but for its grid, whose step is a millionth of sigma: no metric sees
        that.
        """
        drawn = noise or self.noise
        if drawn is None:
            generator.standard_normal((count, *self.updated.shape))  # what is drawn later does not depend on the method
            return namespace(self.updated).broadcast_to(self.updated, (count, *self.updated.shape))
        draws = np.stack([drawn.shape.sample(drawn.scale, generator) for _ in range(count)])
        return self.updated + put(draws.reshape(count, *self.updated.shape), self.updated)

    def published(self, generator: np.random.Generator) -> Array:
        """One model, as it would be published."""
        return self.ensemble(1, generator)[0]


def plain_noise(sigma: float, weights: Array) -> Noise:
    """Noise of this standard deviation on every weight."""
    return Noise(sigma, grid_exponent(sigma), Ball(size(weights)))


class Method(Protocol):
    """A way to forget: what tables call it, and the weights it ends with, with the noise they are to get."""

    @property
    def name(self) -> str: ...

    def run(self, case: Case) -> MethodResult: ...


class NoiseOf(Protocol):
    """A step and the noise that goes with it, computed from the source itself or from the case's surrogate."""

    def unlearn(self, case: Case, with_source: bool) -> MethodResult: ...


@dataclass(frozen=True)
class CertifiedNoise:
    """What `expunge unlearn` does: step, residual bound, analytic noise. The source counts as distance `source`."""

    epsilon: float
    delta: float
    distance: Distance | Estimation | str = "same"
    step: str | None = None
    match_classes: bool = False

    def unlearn(self, case: Case, with_source: bool) -> MethodResult:
        distance, matched = ("source", False) if with_source else (self.distance, self.match_classes)
        # forced: an evaluation is to show a useless model, not to refuse it
        promise = Promise(self.epsilon, self.delta, distance, step=self.step, force=True, match_classes=matched)
        stand_in = case.splits.source if with_source else case.surrogate
        request = ask(case.trained, case.splits.forget, stand_in, promise)
        measured = measure(request, seed=0)  # of Lanczos' start alone; a fixed one makes evaluations reproducible
        claim, derived = foresee(request, measured)
        refuse_unsound(claim, derived, request.weights, force=True)
        outcome = MethodResult(
            request.weights + measured.step.update, derived.noise, notes=collect_notes(request, measured)
        )
        return outcome if outcome.updated.shape == case.weights.shape else outcome.as_one_row()


@dataclass(frozen=True)
class Original:
    """The trained model as it is: nothing is forgotten. A yardstick, not a method."""

    name: str = "Original"

    def run(self, case: Case) -> MethodResult:
        return MethodResult(case.weights, None)


@dataclass(frozen=True)
class Retrain:
    """Training from scratch on the retain set, to the optimum."""

    name: str = "Retrain"

    def run(self, case: Case) -> MethodResult:
        return MethodResult(case.retrained, None)


@dataclass(frozen=True)
class UnlearnPlus:
    """The paper's Unlearn (+): the source's own Hessian is at hand."""

    noise: NoiseOf
    name: str = "Unlearn (+)"

    def run(self, case: Case) -> MethodResult:
        return self.noise.unlearn(case, with_source=True)


@dataclass(frozen=True)
class UnlearnMinus:
    """The paper's Unlearn (-): only a surrogate is at hand, the case's or one of its own."""

    noise: NoiseOf
    name: str = "Unlearn (-)"
    surrogate: Labelled | None = None

    def run(self, case: Case) -> MethodResult:
        return self.noise.unlearn(case.with_surrogate(self.surrogate or case.surrogate), with_source=False)


@dataclass(frozen=True)
class UnlearnDeposit:
    """What `expunge unlearn --deposit` does: a deposit is made of the source, and the forget rows leave it."""

    epsilon: float
    delta: float
    name: str = "Deposit"

    def run(self, case: Case) -> MethodResult:
        deposit = make_deposit(case.trained, case.splits.source, seed=0).deposit
        # forced: an evaluation is to show a useless model, not to refuse it
        promise = Promise(self.epsilon, self.delta, force=True)
        request = ask(None, case.splits.forget, None, promise, deposit=deposit)
        measured = measure(request)
        noise = foresee(request, measured)[1].noise
        assert noise is not None  # what has none is refused while it is measured
        return MethodResult(request.weights + measured.step.update, measured.shaped(noise), notes=request.notes)


@dataclass(frozen=True)
class GivenModel:
    """A model somebody brings, however it was made."""

    name: str
    model: LinearModel

    def run(self, case: Case) -> MethodResult:
        matrix = self.model.matrix()
        if len(case.weights) == 1 and len(matrix) == 2:  # unlearned with a surrogate, one vector becomes a row a class
            matrix = matrix[1:] - matrix[:1]
        if matrix.shape != case.weights.shape:
            raise ModelError(
                f"{self.name} has weights of shape {tuple(matrix.shape)}, bias included",
                f"the trained model has {tuple(case.weights.shape)}",
                "Compare models of the same features and classes.",
            )
        own = None if self.model.record is None else self.model.record.features
        if own is not None and case.record.features is not None:
            order = order_of(own, case.record.features, f"the model {self.name}")
            width = self.model.n_features
            if order is not None:
                matrix[:, :width] = matrix[:, :width][:, order]
        return MethodResult(matrix, None, drawn=False)
