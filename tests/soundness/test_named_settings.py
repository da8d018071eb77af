"""The settings in which certificates were once false although every declared fact was true, by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from asking import asked
from expunge.bounds.calibration import delta_of
from expunge.certificate.derive import derive
from expunge.errors import Refused
from expunge.evidence import build_claim
from expunge.mechanism import judge, measure
from expunge.request.promise import refuse_unsound
from expunge.runtime.arrays import norm, to_numpy
from expunge.train import train
from soundness.families import one_hot
from soundness.judging import TIMES, USUAL, explained
from soundness.problems import Array, Problem, exact, request_of

pytestmark = pytest.mark.usefixtures("one_thread")


def issued(problem: Problem, epsilon: float) -> float | None:
    """The realised delta of what is issued without force; None where its noise is refused.

    It is asked for with force, since an epsilon of 50 is refused by itself.
    """
    trained = exact(problem, slice(None)).weights
    request = request_of(problem, trained, delta=USUAL, epsilon=epsilon)
    try:
        measured = measure(request, seed=problem.seed)
        claim, derived = judge(request, measured, insecure=True)
        refuse_unsound(claim, derived, request.weights, force=False)
    except Refused:
        return None
    target = exact(problem, problem.kept, start=trained)
    truth = float(np.linalg.norm(target.weights - to_numpy(request.weights + measured.step.update)))
    return delta_of(epsilon, truth / derived.sigma)


@pytest.mark.parametrize("problems", [6, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("epsilon", [1.0, 50.0])
def test_refusing_large_noise_does_not_select_what_was_underestimated(problems: int, epsilon: float) -> None:
    """One-hot rows, 300 levels, s = 300: once 22 were issued, and 20 of them were false. At epsilon 50 most are issued."""
    found = [
        issued(one_hot(seed, levels=300, n=1000, s=300, loss="softmax", l2=0.01), epsilon) for seed in range(problems)
    ]
    given = [delta for delta in found if delta is not None]
    print(f"epsilon {epsilon:g}: {len(given)} of {problems} issued, largest delta {max(given, default=0.0):.2g}")
    assert explained(sum(delta > TIMES * USUAL for delta in given), problems, 1.0 / TIMES)
    assert epsilon < 50 or len(given) > problems / 2


# The source itself, and rows that only pass for it ------------------------------------------------------------------------


def passing_for(X: Array, y: Array, weights: Array, l2: float, fixed: int) -> Array:
    """Other rows on which the gradient at the weights vanishes too; the first `fixed` stay as they are."""
    labels = torch.from_numpy(np.where(np.arange(len(weights)) == y[:, None], 1.0, -1.0))
    W, kept = torch.from_numpy(weights), torch.from_numpy(X[:fixed])

    def gradient(rows: torch.Tensor) -> torch.Tensor:
        every = torch.cat([kept, rows])
        return ((every @ W.T - labels).T @ every / len(every) + l2 * W).flatten()

    rows = torch.from_numpy(0.9 * X[fixed:][::-1].copy())
    for _ in range(50):
        left = gradient(rows)
        if float(norm(left)) < 1e-16:
            break
        jacobian = torch.func.jacrev(gradient)(rows).flatten(1)
        rows = rows - (torch.linalg.pinv(jacobian) @ left).reshape(rows.shape)
    return to_numpy(torch.cat([kept, rows]))


def test_rows_that_only_pass_for_the_source_prove_nothing() -> None:
    """They hold the forget rows, there are as many, and the gradient on them is as small as at training."""
    X, y = reference.random_rows(np.random.default_rng(4), 120, 4, 2)
    X *= 0.5
    model = train(X, y, l2=0.05, max_norm=1.0, loss="ridge")
    other = passing_for(X, y, to_numpy(model.weight), 0.05, 6)
    assert np.linalg.norm(other, axis=1).max() <= 1.0
    assert np.abs(other - X).max() > 0.1
    options = {"epsilon": 1.0, "delta": 1e-5, "distance": "source", "force": True}
    request = asked(model, (X[:6], y[:6]), (other, y), **options)
    measured = measure(request, seed=0)
    derived = derive(build_claim(request, measured))
    target = reference.retrain(X[6:], y[6:], 2, 0.05, "ridge")
    truth = float(np.linalg.norm(target.weights - to_numpy(request.weights + measured.step.update)))
    assert truth > derived.region.radius, "the rows are not the source's"
    assert derived.status == "conditional"
