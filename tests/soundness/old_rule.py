"""The rule of certificates of schemas 1 and 2, `seen`, by plain formulas: kept to show that this suite can fail.

The surrogate stands for all of the source, forgotten rows included, and what was seen of the change of gradient on it stands
for the population's.
"""

from __future__ import annotations

import math

import numpy as np

import reference
from soundness.judging import Outcome
from soundness.problems import Array, Problem, exact


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


def bound_of(problem: Problem, trained: Array, update: Array, failure: float) -> float:
    """The old bound, under `same`: training, solver, rounding, and Klein and Rio's tail of both sample means."""
    n, m, s = len(problem.X), len(problem.forgotten), len(problem.S)
    table = change_table(problem, trained, update)
    mean = table.mean(axis=0)
    centred = table - mean
    squares = (centred**2).sum(axis=1)
    top = max(float(np.linalg.eigvalsh(centred @ centred.T / s)[-1]), 0.0)
    steepest = float(np.linalg.norm(update, 2)) * (0.5 if problem.loss == "softmax" else 1.0)
    worst = steepest * problem.max_norm**2 + float(np.linalg.norm(mean))
    events, unseen = 1, 0.0
    if float(np.linalg.norm(problem.S, axis=1).max()) < (1.0 - 1e-6) * problem.max_norm:  # longer rows may exist
        events = 3
        expected = n * min(1.0, math.log(3.0 / failure) / s)
        share = math.log(3.0 / failure)
        unseen = min(float(n), expected + math.sqrt(2.0 * expected * share) + share / 3.0)
    log_failure = math.log(events / failure)
    expected = math.sqrt(float(squares.mean()) * (1.0 / n + 1.0 / s))
    step = math.sqrt(float(squares.max())) / min(n, s)
    linear, proxy = 3.0 * step * log_failure, top * (1.0 / n + 1.0 / s) + 2.0 * step * expected
    excess = 0.5 * (linear + math.sqrt(linear**2 + 8.0 * proxy * log_failure))
    training = reference.exact_gradient_norm(trained, problem.X, problem.y, problem.l2, problem.loss)
    left = float(np.linalg.norm(left_of(problem, trained, update))) + 1e-10
    return (n * (training + expected + excess + worst * unseen / n) + left) / (n - m) / problem.l2


def old_outcome(family: str, problem: Problem, delta: float) -> Outcome:
    """The old bound beside the truth."""
    trained = exact(problem, slice(None)).weights
    target = exact(problem, problem.kept, start=trained)
    update = step_of(problem, trained)
    failure = 0.4 * delta
    bound = bound_of(problem, trained, update, failure)
    truth = float(np.linalg.norm(target.weights - trained - update))
    return Outcome(family, problem.seed, "usual", failure, bound, truth, target.error, 0.0)
