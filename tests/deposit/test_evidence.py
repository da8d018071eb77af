"""A deposit as evidence, from the request to what is published: region, noise, facts, and what is kept."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from deposit_problems import made, problem_of
from expunge.bounds.calibration import POLICY, Scale, mu_for
from expunge.bounds.deposit import deposit_bound, reach_used
from expunge.bounds.ellipsoid import drawing_delta
from expunge.certificate.claim import ARITHMETIC_SHARE
from expunge.certificate.statement import statement_of
from expunge.certificate.verify import checks, verify_statement
from expunge.deposit.evidence import COVERED, DepositEvidence, reach_of
from expunge.deposit.file import Deposit
from expunge.errors import BeyondPolicy, VacuousClaim
from expunge.mechanism import carry_out, certify, gather, measure
from expunge.runtime.arrays import size, to_numpy
from expunge.unlearn import unlearn

pytestmark = pytest.mark.usefixtures("one_thread")
Array = Any
MU = mu_for(1.0, 1e-5 * (1.0 - ARITHMETIC_SHARE))
KINDS = [
    ("softmax", {}),
    ("softmax", {"free": True, "fixed_c": True}),
    ("logistic", {"free": True, "fixed_c": True}),
    ("one-vs-rest", {"bias": False}),
    ("ridge", {"free": True}),
]


@pytest.mark.parametrize(("loss", "options"), KINDS)
def test_a_deletion_is_proven_and_its_retrained_weights_are_hidden(loss: str, options: dict[str, Any]) -> None:
    case = made(loss, l2=0.05, n=300, **options)
    which = np.arange(3)
    result = unlearn(
        case.model, (case.X[which], case.y[which]), epsilon=1.0, delta=1e-5, deposit=case.deposit, force=True
    )
    certificate = result.certificate
    assert certificate.status == "proven"
    assert not certificate.content["assumptions"]
    assert [check.name for check in checks(certificate) if not check.passed] == []
    verify_statement(result.statement, None, certificate)
    problem, kept = problem_of(case), np.arange(3, 300)
    sums = problem.sums.without(problem.of(which))
    assert result.deposit.sums.count == sums.count == 297
    measured = measure(case.request(which, force=True))
    v = to_numpy(case.deposit.model.matrix() + measured.step.update)
    shape = result.deposit.shape
    W, uncertain = problem.retrained(kept, v, shape)
    away = problem.length(W - v, shape)
    assert away - uncertain <= certificate.total
    # the noise in units of which the retrained weights are no farther than mu
    assert away / certificate.sigma <= MU
    weights = to_numpy(result.model.matrix())
    assert problem.length(weights - v, shape) < 8.0 * certificate.sigma * math.sqrt(v.size)


@pytest.mark.parametrize(("count", "options"), [(1, {}), (30, {"free": True, "fixed_c": True}), (300, {"bias": False})])
def test_any_number_of_rows_leaves_a_ridge_head_retrained_to_rounding(count: int, options: dict[str, Any]) -> None:
    case = made("ridge", n=600, l2=1e-3, **options)
    problem, which = problem_of(case), np.arange(count)
    v = to_numpy(case.deposit.model.matrix() + measure(case.request(which, epsilon=0.01)).step.update)
    W, uncertain = problem.retrained(np.arange(count, 600), v)
    assert float(np.linalg.norm(W - v)) <= 1e-8 * float(np.linalg.norm(W))
    assert float(np.linalg.norm(W - problem.anchor)) > 1e-5, "forgetting must have something to do"
    forget = (case.X[which], case.y[which])
    result = unlearn(case.model, forget, epsilon=0.01, delta=1e-6, deposit=case.deposit, insecure_test_seed=1)
    certificate = result.certificate
    assert (certificate.status, certificate.content["bound"]["convention"]) == ("proven", "exact")
    assert problem.length(W - v) - uncertain <= certificate.total < 1e-8
    rows = problem.X
    right = [np.mean((rows @ np.asarray(w, float).T).argmax(axis=1) == case.y) for w in (W, result.model.matrix())]
    assert certificate.sigma == result.deposit.levels[0], "epsilon 0.01 costs no more than the least noise there is"
    assert right[1] >= right[0] - 0.01


def test_the_noise_is_the_smallest_level_that_covers() -> None:
    case = made("softmax", l2=0.05, n=300)
    evidence = gather(case.request(np.arange(2)))
    assert isinstance(evidence, DepositEvidence)
    retained = evidence.retained()
    scale, kept = retained.scale, retained.deposit
    assert retained.route == evidence.solution.facts.route
    assert kept is evidence.deposit
    needed = deposit_bound(evidence.solution.facts).radius * COVERED / MU
    assert scale.kind == "levels"
    assert scale.value == min(each for each in kept.levels if each >= needed)
    assert scale.rows == len(kept.levels) == 6


def test_a_level_must_exceed_what_is_needed_by_a_trifle(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = gather(made("softmax", l2=0.05, n=300).request(np.arange(2)))
    needed = deposit_bound(evidence.solution.facts).radius / MU
    for given, taken in (((needed, 9.0), 9.0), ((needed * 1.001, 9.0), needed * 1.001)):
        monkeypatch.setattr(Deposit, "levels", given)
        assert evidence.retained().scale.value == taken
    monkeypatch.setattr(Deposit, "levels", (needed * 0.5,))
    with pytest.raises(BeyondPolicy, match="than any of the levels"):
        evidence.retained()


def test_noise_that_was_set_covers_or_the_request_is_refused() -> None:
    case = made("softmax", l2=0.05, n=300)
    needed = deposit_bound(gather(case.request(np.arange(2))).solution.facts).radius / MU
    scale = gather(case.request(np.arange(2), noise=Scale(POLICY, needed * 1.001))).retained().scale
    assert scale == Scale(POLICY, needed * 1.001)
    with pytest.raises(BeyondPolicy, match=r"more noise than was set"):
        gather(case.request(np.arange(2), noise=Scale(POLICY, needed))).retained()


def test_noise_chosen_exactly_is_for_audits() -> None:
    case = made("softmax", l2=0.05)
    assert gather(case.request(np.arange(2), noise="exact")).retained().scale is None
    result = carry_out(case.request(np.arange(2), noise="exact", force=True))
    assert result is not None
    needed = result.certificate.total / MU
    assert result.certificate.sigma == pytest.approx(needed, rel=1e-6)
    with pytest.raises(Exception, match="level or was set"):
        verify_statement(statement_of(result.certificate), None, None)


def test_an_epsilon_that_draws_of_the_noise_cannot_keep_is_refused() -> None:
    """What is lost in a draw is charged `1 + e^epsilon` times."""
    case = made("softmax", l2=0.05)
    assert carry_out(case.request(np.arange(2), epsilon=20.0, force=True)) is not None
    assert drawing_delta(size(case.model.matrix()), 20.0) < ARITHMETIC_SHARE * 1e-5
    with pytest.raises(VacuousClaim, match="float64 may make"):
        carry_out(case.request(np.arange(2), epsilon=60.0, force=True))


def test_a_larger_level_is_taken_where_float64_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside long weights, noise as short as the first level would be lost in their last digits."""
    evidence = gather(made("softmax", l2=0.05, n=300).request(np.arange(2)))
    needed = deposit_bound(evidence.solution.facts).radius / MU
    monkeypatch.setattr(Deposit, "levels", (needed * 1.01, needed * 1e5))
    for length, taken in ((1e3, needed * 1.01), (1e12, needed * 1e5)):
        long_weights = replace(evidence.solution, update=evidence.solution.update + length)
        assert replace(evidence, solution=long_weights)._scale().value == taken


def test_what_drawing_adds_to_the_region_is_in_the_certificate() -> None:
    case = made("softmax", l2=0.05)
    for noise in (None, "exact"):
        result = carry_out(case.request(np.arange(2), force=True, **({} if noise is None else {"noise": noise})))
        assert result is not None
        certificate = result.certificate
        length = certificate.content["bound"]["inputs"]["weights_length"]["value"]
        drawn = replace(result.deposit.ellipsoid, weights=length).drawing(certificate.sigma)
        assert drawn > 0.0
        assert certificate.content["bound"]["terms"]["drawing"] == pytest.approx(drawn, rel=1e-4, abs=0.0)
        assert certificate.content["bound"]["terms"]["drawing"] >= drawn
        assert certificate.total <= certificate.sigma * MU * (1.0 + 1e-12)


def test_what_is_used_of_the_reach_is_the_nearer_of_two_ends() -> None:
    case = made("logistic", l2=0.05, n=300)
    evidence = gather(case.request(np.arange(3), force=True))
    assert isinstance(evidence, DepositEvidence)
    facts, route, found = (evidence.facts(evidence.step()), evidence.retained().route, evidence.solution)  # type: ignore[arg-type]
    assert found is not None
    radius, used = deposit_bound(found.facts).radius, reach_used(found.facts)
    assert 0.0 < used < 1.0
    assert reach_of(facts, route, radius / used / 2.0) == pytest.approx(2.0 * used, rel=1e-12)
    assert reach_of(facts, route, radius / used * 2.0) == used


def test_a_second_deletion_counts_the_rows_of_the_first() -> None:
    case = made("softmax", l2=0.05)
    first = unlearn(case.model, (case.X[:3], case.y[:3]), epsilon=1.0, delta=1e-5, deposit=case.deposit, force=True)
    second = unlearn(case.model, (case.X[3:5], case.y[3:5]), epsilon=1.0, delta=1e-5, deposit=first.deposit, force=True)
    sizes = second.certificate.content["sizes"]
    assert (sizes["n_source"], sizes["n_forget"], sizes["n_retain"], sizes["n_surrogate"]) == (120, 5, 115, 0)
    assert second.deposit.numbers.generation == 2
    problem = problem_of(case)
    W, _ = problem.retrained(np.arange(5, 120), problem.anchor)
    assert problem.length(to_numpy(second.model.matrix()) - W) < 10.0 * second.certificate.sigma * math.sqrt(12)


def test_rows_beyond_every_bound_are_refused_and_the_message_counts_those_before() -> None:
    case = made("logistic", l2=1e-6, n=60, free=True)
    with pytest.raises(VacuousClaim, match=r"no bound is finite for these 59 rows; a deposit reaches"):
        gather(case.request(np.arange(59)))
    later = replace(case, deposit=replace(case.deposit, numbers=replace(case.deposit.numbers, forgotten=7)))
    with pytest.raises(VacuousClaim, match="after 7 before them"):
        gather(later.request(np.arange(59)))


def test_what_is_published_has_the_covariance_of_the_retained_rows() -> None:
    """Whitened by the shape and the exact part, the noise of many publications is standard normal."""
    case = made("softmax", l2=0.05, width=1, classes=2)
    request = case.request(np.arange(2), force=True)
    measured = measure(request)
    v = to_numpy(case.deposit.model.matrix()) + to_numpy(measured.step.update)
    draws, sigma = [], 0.0
    for seed in range(200):
        result = certify(request, measured, insecure_test_seed=seed)
        sigma = result.certificate.sigma
        draws.append((to_numpy(result.model.matrix()) - v).reshape(-1))
    left = result.deposit
    M0 = np.kron(np.eye(2), to_numpy((left.shape @ left.shape.mT)[0]))
    covariance = sigma**2 * np.linalg.inv(M0) + left.ellipsoid.smallest(sigma) ** 2 * np.eye(len(M0))
    white = np.array(draws) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    assert np.abs(np.linalg.eigvalsh(np.cov(white.T)) - 1.0).max() < 0.5
    assert np.abs(white.mean(axis=0)).max() < 5.0 / math.sqrt(200)


def test_float32_models_are_published_in_float32() -> None:
    case = made("softmax", l2=0.05)
    narrow = replace(case.model, weight=case.model.weight.astype(np.float32), bias=case.model.bias.astype(np.float32))  # type: ignore[union-attr]
    narrow = narrow.with_record(case.model.record)  # type: ignore[arg-type]
    result = unlearn(narrow, (case.X[:2], case.y[:2]), epsilon=1.0, delta=1e-5, deposit=case.deposit, force=True)
    assert result.model.weight.dtype == np.float32
    assert [check.name for check in checks(result.certificate) if not check.passed] == []
