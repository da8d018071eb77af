"""Algorithm 1 with the noise of the paper's experiments, which certifies nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from expunge.bounds import PaperConstants, paper_bound
from expunge.bounds.calibration import sigma_classical
from expunge.evaluate.case import Case
from expunge.evaluate.methods import MethodResult, plain_noise
from expunge.runtime.arrays import norm
from expunge.solve.newton import SurrogateEquation, newton_step

PAPER_EPSILON, PAPER_DELTA = 5.0 * math.e**3, 1.0
VACUOUS = "noise of the paper's experiments (delta 1, alpha > beta): it certifies nothing"


@dataclass(frozen=True)
class PaperNoise:
    """Algorithm 1 with the paper's constants and formulas, to reproduce its figures.

    alpha = 1 + lambda, beta = L = gamma = 1, epsilon = 5 e^3 and delta = 1, where lambda is l2/2, since the paper's
    loss has `lambda ||W||^2`. `kl` is the divergence of the surrogate relative to the source. With delta = 1 every
    mechanism is certified: such noise proves nothing, Expunge issues no certificate for it, and every outcome says so.
    `error` stands in for the theorem's Delta: the Deltas that the paper prints are larger than its theorem gives.
    """

    kl: float = 0.0
    error: float | None = None
    epsilon: float = PAPER_EPSILON
    delta: float = PAPER_DELTA

    def unlearn(self, case: Case, with_source: bool) -> MethodResult:
        stand_in = case.rows["train" if with_source else "surrogate"]
        forget, n_source = case.rows["forget"], len(case.rows["train"])
        step = newton_step(SurrogateEquation(case.objective, case.weights, forget, stand_in, n_source), single=True)
        bound = paper_bound(
            PaperConstants.of_the_experiments(case.objective.l2 / 2.0),
            n_source=n_source,
            n_forget=len(forget),
            n_surrogate=len(stand_in),
            gradient_norm=norm(case.objective.gradient(case.weights, forget)),
            kl=0.0 if with_source else self.kl,
        )
        notes = (VACUOUS,) if self.delta >= 1 else ("the paper's constants do not hold for this loss",)
        error = bound.radius if self.error is None else self.error
        sigma = sigma_classical(error, self.epsilon, self.delta)
        return MethodResult(case.weights + step.update, plain_noise(sigma, case.weights), notes=notes)
