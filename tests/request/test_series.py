"""Many requests one after the other, beside exact retraining: the bound holds at every one, and nothing is carried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

from asking import asked
from expunge.certificate.claim import due_failures
from expunge.certificate.derive import derive_region
from expunge.desk import Policy, accept, create_desk, models, run, verify_desk
from expunge.distance import parse_distance
from expunge.errors import OptionError
from expunge.evaluate.demo import digits
from expunge.evidence import build_claim
from expunge.mechanism import measure
from expunge.request.promise import Series
from expunge.request.request import read_anchored
from expunge.runtime.arrays import norm
from expunge.train import train

L2 = 0.1
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("steps", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_many_requests_beside_exact_retraining(steps: int, tmp_path: Path) -> None:
    data = digits()
    X, y = data["source"]
    policy = Policy(epsilon=0.5, delta=1e-4, distance="same", planned=steps, total_epsilon=10.0, force=True)
    desk = create_desk(tmp_path / "d", train(X, y, l2=L2, max_norm=1.0), data["surrogate"], policy)
    for index in range(steps):
        accept(desk, X[index : index + 1], y[index : index + 1], f"case {index}")
        (made,) = run(desk).published
        model, past = read_anchored(desk.layout.state_of(index + 1))
        retrained = train(X[index + 1 :], y[index + 1 :], l2=L2, max_norm=1.0)
        again = asked(
            model,
            (X[: index + 1], y[: index + 1]),
            data["surrogate"],
            epsilon=0.5,
            delta=1e-4,
            distance="same",
            force=True,
        )
        updated = again.weights + measure(again, seed=1).step.update
        distance = float(norm(retrained.matrix() - updated))
        assert distance <= made.certificate.total, f"request {index + 1}"
        assert past.n_rows == index + 1
    assert distance > 1e-4, "there was something to bound"
    verify_desk(desk)
    facts = models(desk)
    accountant = pld.PLDAccountant()
    for entry in facts:
        accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier=1.0 / entry["mu"]))
    spent = sum(made.statement.content["noise"]["failures"].values())
    said = accountant.get_epsilon(policy.delta - spent)
    assert made.composition.epsilon == pytest.approx(said, rel=1e-6)
    assert made.composition.models == steps


def problem(seed: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, size=60)
    y[:classes] = np.arange(classes)
    X = generator.normal(size=(60, 5)) + 0.8 * np.eye(classes, 5)[y]
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


@pytest.mark.parametrize("loss", ["softmax", "ridge"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_series_with_distances_that_are_known(loss: str, bias: bool, seed: int) -> None:
    """The surrogate is the source as it was: what is retained has chi-square M/(n-M) after M rows are gone."""
    X, y = problem(seed, 3)
    n = len(X)
    model = train(X, y, l2=0.05, max_norm=1.0, loss=loss, bias=bias)
    order = np.random.default_rng(seed + 100).permutation(np.arange(3, n))
    gone = np.zeros(n, dtype=bool)
    past, radius = None, 0.0
    for position, size in enumerate((9, 1, 2, 1), start=1):
        rows, order = order[:size], order[size:]
        gone[rows] = True
        chi2 = float(gone.sum() / (n - gone.sum())) * (1 + 1e-12)
        request = asked(
            model,
            (X[rows], y[rows]),
            (X, y),
            epsilon=1.0,
            delta=1e-3,
            distance=parse_distance(f"chi2:{chi2!r}", between="samples"),
            force=True,
            series=Series(4, position, past),
        )
        measured = measure(request, seed=seed)
        past = request.next_past()
        retrained = train(X[~gone], y[~gone], l2=0.05, max_norm=1.0, loss=loss, bias=bias)
        distance = float(norm(retrained.matrix() - request.weights - measured.step.update))
        radius = derive_region(build_claim(request, measured)).radius
        assert distance <= radius
        assert request.n_forget == gone.sum()
    assert distance > 1e-3 * radius, "a bound this loose would show nothing"


def test_what_was_forgotten_before_counts() -> None:
    """Left out of the second deletion, the rows of the first would still be in the model."""
    X, y = problem(3, 3)
    start = train(X, y, l2=0.01, max_norm=1.0)
    options = {"epsilon": 1.0, "delta": 1e-3, "force": True}
    known = parse_distance("chi2:0", between="samples")
    first = asked(start, (X[3:30], y[3:30]), (X, y), distance=known, series=Series(2), **options)
    left = (X[np.r_[0:3, 31:60]], y[np.r_[0:3, 31:60]])
    second, alone = (
        asked(start, (X[30:31], y[30:31]), left, distance=known, series=Series(2, 2, past), **options)
        for past in (first.next_past(), None)
    )
    retrained = train(*left, l2=0.01, max_norm=1.0).matrix()
    distances, radii = [], []
    for request in (second, alone):
        measured = measure(request, seed=1)
        distances.append(float(norm(retrained - request.weights - measured.step.update)))
        radii.append(derive_region(build_claim(request, measured)).radius)
    assert distances[0] <= radii[0]
    assert distances[1] > radii[1], "so the test can fail"


def test_failures_are_spread_and_add_up() -> None:
    own, spread = (due_failures(1e-4, parse_distance("same"), averaged=False, planned=planned) for planned in (1, 10))
    assert spread["sampling"] == pytest.approx(own["sampling"] / 10)
    assert sum(spread.values()) == pytest.approx(sum(own.values()))
    assert spread["sequence"] == pytest.approx(9 * (spread["sampling"] + spread["eigenvalue"]))


def test_impossible_places_and_the_papers_bound_are_refused() -> None:
    for change in ({"planned": 0}, {"planned": 2, "position": 3}, {"position": 0}):
        with pytest.raises(OptionError, match="no more than planned can follow"):
            replace(Series(5), **change)
    X, y = np.eye(4), np.arange(4) % 2
    with pytest.raises(OptionError, match="carried forward"):
        asked(X[:2], (X, y), X, epsilon=1.0, delta=0.1, distance="same", bound="paper", series=Series(2))
