"""Many requests one after the other, beside exact retraining: the carried bound holds at every one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

from expunge.demo import digits
from expunge.desk import Policy, accept, create_desk, models, run, verify_desk
from expunge.mechanism import certify, handed_on, measure
from expunge.model import read_model
from expunge.request import make_request
from expunge.sequence import Sequence, spread_failures, weaker
from expunge.train import train

L2 = 0.1
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("steps", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_many_requests_beside_exact_retraining(steps: int, tmp_path: Path) -> None:
    data = digits()
    X, y = data["source"]
    policy = Policy(epsilon=0.5, delta=1e-4, distance="same", planned=steps, total_epsilon=10.0, force=True)
    desk = create_desk(tmp_path / "d", train(X, y, l2=L2, max_norm=1.0), data["surrogate"], policy)
    for index in range(steps):
        accept(desk, X[index : index + 1], y[index : index + 1], f"case {index}")
        (made,) = run(desk).published
        state, _ = read_model(desk.layout.state_of(index + 1))
        retrained = train(X[index + 1 :], y[index + 1 :], l2=L2, max_norm=1.0)
        distance = float((retrained.matrix() - state.matrix()).norm())
        carried = state.record.residual / L2
        assert distance <= carried, f"request {index + 1}"
        assert carried <= made.certificate.total
        assert state.record.n_source == len(X) - index - 1
    assert distance > 1e-4, "there was something to bound"
    verify_desk(desk)
    facts = models(desk)
    accountant = pld.PLDAccountant()
    for entry in facts:
        accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier=1.0 / entry["mu"]))
    said = accountant.get_epsilon(policy.delta - facts[-1]["failures"])
    assert made.composition.epsilon == pytest.approx(said, rel=1e-6)
    assert made.composition.models == steps


def test_the_carried_bound_is_the_sum_of_its_parts() -> None:
    """`G' = l2 Delta'`, and Delta' holds `n/(n-m) G / l2` as its training term."""
    data = digits()
    X, y = data["source"]
    model = train(X, y, l2=L2, max_norm=1.0)
    options = {"epsilon": 1.0, "delta": 1e-4, "distance": "same", "force": True}
    first = make_request(model, (X[:2], y[:2]), data["surrogate"], series=Sequence(4), **options)
    step = measure(first, seed=1)
    carried = handed_on(first, step)
    terms = {name: value for name, value in certify(first, step).certificate.terms.items() if name != "grid"}
    assert carried.record.residual == pytest.approx(L2 * sum(terms.values()), rel=1e-7)
    assert carried.record.residual >= L2 * sum(terms.values())
    assert not carried.record.noised
    second = make_request(carried, (X[2:5], y[2:5]), data["surrogate"], series=Sequence(4, 2, "declared"), **options)
    bound = certify(second, measure(second, seed=1)).certificate.terms
    n = len(X) - 2
    assert bound["training"] == pytest.approx(n / (n - 3) * carried.record.residual / L2, rel=1e-12)
    assert second.weights.equal(first.weights + step.step.update), "exactly where the last one stopped"


def test_failures_are_spread_and_add_up() -> None:
    own = {"sampling": 4e-5, "eigenvalue": 1e-6}
    spread = spread_failures(own, 10)
    assert spread["sampling"] == pytest.approx(4e-6)
    assert sum(spread.values()) == pytest.approx(sum(own.values()))
    assert spread["sequence"] == pytest.approx(9 * (spread["sampling"] + spread["eigenvalue"]))
    assert spread_failures(own, 1) == own
    assert spread_failures({}, 10) == {}


def test_the_weaker_provenance_wins() -> None:
    assert weaker("derived", "estimated") == "estimated"
    assert weaker("declared", "measured") == "declared"


@pytest.mark.parametrize("change", [{"planned": 0}, {"planned": 2, "position": 3}, {"position": 0}])
def test_impossible_places(change: dict[str, int]) -> None:
    from expunge.errors import OptionError

    with pytest.raises(OptionError):
        replace(Sequence(5), **change)


def test_the_papers_bound_cannot_be_carried() -> None:
    from expunge.errors import OptionError

    X, y = np.eye(4), np.arange(4) % 2
    with pytest.raises(OptionError, match="carried forward"):
        make_request(X[:2], (X, y), X, epsilon=1.0, delta=0.1, distance="same", bound="paper", series=Sequence(2))
