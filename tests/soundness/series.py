"""Ten deletions from one model, each bound beside the retraining without all rows that have left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from expunge.evidence import build_claim
from expunge.mechanism import measure
from expunge.request.promise import Series
from expunge.runtime.arrays import to_numpy
from soundness.families import dense, labelled, loss_of, ones_of, zipf
from soundness.judging import COUNTABLE, EPSILON, Outcome, radius_of
from soundness.problems import Problem, exact, request_of

LENGTH = 10
NAME = "series of ten"


def series_problem(seed: int) -> Problem:
    """Categorical rows or dense ones, in turn."""
    rng = np.random.default_rng([18, seed])

    def draw(k: int) -> np.ndarray:
        return ones_of(rng.choice(30, size=k, p=zipf(30)), 30) if seed % 2 else dense(rng, k)

    X, S = draw(200), draw(150)
    return Problem(seed, X, labelled(rng, X, 2), np.arange(0), S, **loss_of(seed))


def series_outcomes(seed: int, length: int = LENGTH) -> Iterator[Outcome]:
    """A bound a deletion; those who leave are one, two or three at a time."""
    whole = series_problem(seed)
    trained = exact(whole, slice(None)).weights
    gone, past = 0, None
    for position in range(1, length + 1):
        leaving = np.arange(gone, gone + 1 + (seed + position) % 3)
        gone = int(leaving[-1]) + 1
        problem = Problem(**{**vars(whole), "forgotten": leaving})
        series = Series(length, position, past)
        # every step is given a tenth of what is spent, so that all of them hold together with probability 1 - COUNTABLE
        request = request_of(problem, trained, delta=COUNTABLE / 0.41, epsilon=EPSILON, series=series)
        measured = measure(request, seed=seed)
        past = request.next_past()
        target = exact(whole, np.arange(len(whole.X)) >= gone, start=trained)
        bound, stated = radius_of(build_claim(request, measured), COUNTABLE)
        truth = float(np.linalg.norm(target.weights - to_numpy(request.weights + measured.step.update)))
        yield Outcome(NAME, seed, "quantile", stated, bound, truth, target.error, 0.0)
