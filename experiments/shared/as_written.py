"""Algorithm 1 to the letter: `u = m (n H_S - m H_U)^{-1} g_U`, whether or not that matrix is positive definite.

Expunge damps an indefinite matrix and rejects a step that does not lower the residual. Here neither is done, to see
what the paper's own step gives: the linear system is solved by MINRES, which needs symmetry alone. The bound covers
this update as it does any other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh, minres

from experiments.shared.checks import check, mean_difference, paper_delta
from experiments.shared.comparison import scores_of
from experiments.shared.paper_noise import PAPER_DELTA, PAPER_EPSILON
from expunge.bounds.calibration import sigma_classical
from expunge.evaluate.case import Case
from expunge.evaluate.evaluation import evaluate
from expunge.evaluate.methods import MethodResult, plain_noise
from expunge.noise import Noise
from expunge.runtime.arrays import Array, norm, put, size, to_numpy, zeros
from expunge.runtime.progress import Progress, silent
from expunge.solve.newton import RetainedEquation, SurrogateEquation

NAME = "Unlearn (-), Algorithm 1 as written"
ACCURACY, MOST = 1e-6, 500
EIGENVALUE_ACCURACY, EIGENVALUE_MOST = 1e-2, 100


@dataclass(frozen=True)
class Fixed:
    """A method whose update is known already."""

    updated: Array
    noise: Noise
    name: str = NAME

    def run(self, case: Case) -> MethodResult:
        return MethodResult(self.updated, self.noise)


def solved_as_written(problem: SurrogateEquation) -> tuple[Array, float]:
    """The step, and the share of the right-hand side that MINRES left."""
    matrix, at = _matrix(problem), problem.weights
    wanted = -to_numpy(problem.residual(zeros(at))).reshape(-1)
    solution, _ = minres(matrix, wanted, rtol=ACCURACY, maxiter=MOST)
    left = float(np.linalg.norm(matrix.matvec(solution) - wanted) / np.linalg.norm(wanted))
    return put(solution.reshape(at.shape), at), left


def _matrix(problem: SurrogateEquation) -> LinearOperator:
    """`n H_S - m H_U` at the trained weights."""
    at = problem.weights
    hessian = problem.jacobian(zeros(at), 0.0, None)

    def product(values: NDArray[np.float64]) -> NDArray[np.float64]:
        direction = put(np.asarray(values, dtype=np.float64).reshape(at.shape), at)
        multiplied: NDArray[np.float64] = to_numpy(hessian.product(direction)).reshape(-1)
        return multiplied

    return LinearOperator((size(at), size(at)), matvec=product, dtype=np.float64)


def step_as_written(case: Case, seed: int, progress: Progress = silent) -> dict[str, Any]:
    """Scores, the smallest eigenvalue of `n H_S - m H_U` over n, what MINRES left, and true distance and Deltas."""
    surrogate, forget, n = case.rows["surrogate"], case.rows["forget"], len(case.rows["train"])
    problem = SurrogateEquation(case.objective, case.weights, forget, surrogate, n)
    start = np.random.default_rng(seed).standard_normal(size(case.weights))
    smallest = eigsh(
        _matrix(problem),
        k=1,
        which="SA",
        v0=start,
        tol=EIGENVALUE_ACCURACY,
        maxiter=EIGENVALUE_MOST,
        return_eigenvectors=False,
    )
    update, left = solved_as_written(problem)
    delta = paper_delta(case, math.inf, len(surrogate))
    sigma = sigma_classical(delta, PAPER_EPSILON, PAPER_DELTA)
    method = Fixed(case.weights + update, plain_noise(sigma, update))
    scores = scores_of(evaluate(case, [method], seed, n_models=0, progress=progress))
    shift, kept = mean_difference(case, update, surrogate), n - len(forget)
    gone = len(forget) * case.objective.gradient(case.weights, forget)
    charged = RetainedEquation(case.objective, case.weights, gone, surrogate, kept)
    training = norm(case.objective.gradient(case.weights, case.rows["train"]))
    bound = (n / kept * training + norm(charged.residual(update)) / kept + shift) / case.objective.l2
    return {
        "scores": scores,
        "smallest_eigenvalue": float(smallest[0]) / n,
        "left": left,
        "checks": [check(NAME, norm(method.updated - case.retrained), bound, delta, shift=shift)],
    }
