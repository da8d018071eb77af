"""The rule of certificates of schemas 1 and 2, `seen`, by plain formulas: kept to show that this suite can fail.

The surrogate stands for all of the source, forgotten rows included, and what was seen of the change of gradient on it stands
for the population's.
"""

from __future__ import annotations

import math

import numpy as np

import reference
from expunge.bounds import ResidualFacts, residual_bound
from expunge.distance import Distance
from soundness.judging import Outcome
from soundness.problems import Array, Problem, exact

SEEN = Distance("same", 0.0, sampling="seen")


def step_of(problem: Problem, trained: Array) -> Array:
    """Newton's method on `n (g_S(w+u) - g_S(w)) - m g_U(w+u) = 0`, dense."""
    update = np.zeros_like(trained)
    n, m = len(problem.X), len(problem.forgotten)
    for _ in range(20):
        left = left_of(problem, trained, update)
        if np.linalg.norm(left) < 1e-9:  # whatever is left is charged
            break
        at, rows = trained + update, problem.X[problem.forgotten]
        hessian = n * reference.hessian(at, problem.S, problem.l2, problem.loss)
        hessian -= m * reference.hessian(at, rows, problem.l2, problem.loss)
        update = update - reference.solve(hessian, left.reshape(-1)).reshape(update.shape)
    return update


def left_of(problem: Problem, trained: Array, update: Array) -> Array:
    n, m, rows = len(problem.X), len(problem.forgotten), problem.forgotten
    change = change_table(problem, trained, update).mean(axis=0).reshape(update.shape) + problem.l2 * update
    gone = reference.gradient(trained + update, problem.X[rows], problem.y[rows], problem.l2, problem.loss)
    return n * change - m * gone


def change_table(problem: Problem, trained: Array, update: Array) -> Array:
    """phi_u of each surrogate row, flattened."""
    S, loss = problem.S, problem.loss
    moved = reference.predictions(trained + update, S, loss) - reference.predictions(trained, S, loss)
    return (moved[:, :, None] * S[:, None, :]).reshape(len(S), -1)


def facts_of(problem: Problem, trained: Array, update: Array, failure: float) -> ResidualFacts:
    """Every number of the old bound, the eigenvalue exact."""
    table = change_table(problem, trained, update)
    centred = table - table.mean(axis=0)
    squares = (centred**2).sum(axis=1)
    top = float(np.linalg.eigvalsh(centred @ centred.T / len(table))[-1])
    steepest = 0.5 * float(np.linalg.norm(update, 2)) if problem.loss == "softmax" else float(np.linalg.norm(update, 2))
    return ResidualFacts(
        n_source=len(problem.X),
        n_forget=len(problem.forgotten),
        n_surrogate=len(problem.S),
        l2=problem.l2,
        training_residual=reference.exact_gradient_norm(trained, problem.X, problem.y, problem.l2, problem.loss),
        solver_residual=float(np.linalg.norm(left_of(problem, trained, update))),
        rounding=1e-10,
        change_mean=float(np.linalg.norm(table.mean(axis=0))),
        change_eigenvalue=max(top, 0.0),
        change_trace=float(squares.mean()),
        change_fourth=float((squares**2).mean()),
        change_fourth_eigenvalue=float(squares.max()) * max(top, 0.0),
        change_largest=math.sqrt(float(squares.max())),
        change_supremum=steepest * problem.max_norm**2,
        longest_row=float(np.linalg.norm(problem.S, axis=1).max()),
        row_bound=problem.max_norm,
        sampling_failure=failure,
    )


def old_outcome(family: str, problem: Problem, delta: float) -> Outcome:
    """The old bound beside the truth."""
    trained = exact(problem, slice(None)).weights
    target = exact(problem, problem.kept, start=trained)
    update = step_of(problem, trained)
    failure = 0.4 * delta
    bound = residual_bound(facts_of(problem, trained, update, failure), SEEN).radius
    truth = float(np.linalg.norm(target.weights - trained - update))
    return Outcome(family, problem.seed, "usual", failure, bound, truth, target.error, 0.0)
