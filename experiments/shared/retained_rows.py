"""Unlearn (-) with the surrogate in the place of the retained rows: `(n-m) (g_S(w+u) - g_S(w)) = m g_U(w)`.

The matrix of this step, `(n-m) H_S`, is always positive definite, so the step is solved to the end. Definite is not
right: where the surrogate bends less than the retained rows do, the step goes too far, and `curvature` says how much
less it bends, along the step and along the way that retraining takes.
"""

from __future__ import annotations

import math
from typing import Any

from experiments.shared.as_written import Fixed
from experiments.shared.checks import check, mean_difference, paper_delta
from experiments.shared.comparison import scores_of
from experiments.shared.paper_noise import PAPER_DELTA, PAPER_EPSILON
from expunge.bounds.calibration import sigma_classical
from expunge.evaluate.case import Case
from expunge.evaluate.evaluation import evaluate
from expunge.evaluate.methods import plain_noise
from expunge.runtime.arrays import Array, norm
from expunge.runtime.progress import Progress, silent
from expunge.solve.newton import RetainedEquation, newton_step

NAME = "Unlearn (-), retained rows"


def step_of_retained_rows(case: Case, seed: int, progress: Progress = silent) -> dict[str, Any]:
    """Scores under the paper's noise, what the solver left, both ratios of curvature, true distance and Deltas."""
    surrogate, forget, n = case.rows["surrogate"], case.rows["forget"], len(case.rows["train"])
    kept, gone = n - len(forget), len(forget) * case.objective.gradient(case.weights, forget)
    equation = RetainedEquation(case.objective, case.weights, gone, surrogate, kept)
    step = newton_step(equation, single=False, progress=progress)
    delta = paper_delta(case, math.inf, len(surrogate))
    sigma = sigma_classical(delta, PAPER_EPSILON, PAPER_DELTA)
    method = Fixed(case.weights + step.update, plain_noise(sigma, step.update), NAME)
    shift = mean_difference(case, step.update, surrogate)
    training = norm(case.objective.gradient(case.weights, case.rows["train"]))
    bound = (n / kept * training + step.residual / kept + shift) / case.objective.l2
    return {
        "scores": scores_of(evaluate(case, [method], seed, n_models=0, progress=progress)),
        "left": step.residual / step.residual_at_start,
        "curvature": {
            "step": curvature_ratio(case, step.update),
            "retraining": curvature_ratio(case, case.retrained - case.weights),
        },
        "checks": [check(NAME, norm(method.updated - case.retrained), bound, delta, shift=shift)],
    }


def curvature_ratio(case: Case, direction: Array) -> float:
    """`d' H_R d / d' H_S d` at the trained weights: 1 where the surrogate bends as the retained rows do."""
    bent = [
        float((case.objective.curvature(case.weights, case.rows[part]).product(direction) * direction).sum())
        for part in ("retain", "surrogate")
    ]
    return bent[0] / bent[1]
