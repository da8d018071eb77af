"""Audits: confidence bounds, runs of the mechanism, tasks, certificates."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from evaluate.reference import binomial_tail
from expunge.bounds.calibration import delta_of, mu_for
from expunge.evaluate.audit import (
    TASKS,
    audit,
    clopper_pearson_upper,
    lower_bound,
    make_task,
    mu_lower,
    noised_runs,
    statistics,
    unlearned_runs,
    whiten,
)
from expunge.evaluate.metrics import epsilon_lower
from expunge.mechanism import certify, judge
from expunge.runtime.arrays import to_numpy


@pytest.mark.parametrize(("count", "total"), [(0, 10), (3, 10), (9, 10), (120, 1000)])
def test_clopper_pearson_is_where_the_binomial_tail_is_the_failure(count: int, total: int) -> None:
    upper = float(clopper_pearson_upper(count, total, 0.01))
    assert binomial_tail(count, total, upper) == pytest.approx(0.01, rel=1e-9)
    assert float(clopper_pearson_upper(total, total, 0.01)) == 1.0


@pytest.mark.parametrize("mu", [0.5, 1.0, 4.0])
def test_rates_of_the_best_test_give_mu_and_epsilon_back(mu: float) -> None:
    threshold = np.linspace(-1.0, mu + 1.0, 41)
    positive, negative = norm.sf(threshold), norm.cdf(threshold - mu)
    np.testing.assert_allclose(mu_lower(positive, negative), mu, rtol=1e-9)
    for epsilon in (0.1, 1.0, 3.0):
        found = epsilon_lower(positive, negative, delta_of(epsilon, mu))
        assert np.all(found <= epsilon + 1e-9)
    best = mu / 2 + 1.0 / mu  # where the likelihood ratio is e^1
    rates = np.array(norm.sf(best)), np.array(norm.cdf(best - mu))
    assert float(epsilon_lower(*rates, delta_of(1.0, mu))) == pytest.approx(1.0, rel=1e-9)


def test_bounds_hold_as_often_as_they_say() -> None:
    """200 audits of two normal laws at 90 %: the bound is above the truth in no more than 10 %, give or take chance."""
    generator = np.random.default_rng(0)
    above = 0
    for _ in range(200):
        one, two = {"x": 1.0 + generator.standard_normal(1000)}, {"x": generator.standard_normal(1000)}
        above += lower_bound(one, two, 1e-3, confidence=0.9).mu > 1.0
    assert above <= 20 + 3 * math.sqrt(18)


def test_the_other_direction_and_the_better_statistic_are_found() -> None:
    generator = np.random.default_rng(1)
    noise = generator.standard_normal((2, 4000))
    found = lower_bound({"useless": noise[0], "lower": noise[0] - 2}, {"useless": noise[1], "lower": noise[1]}, 1e-3)
    assert found.statistic == "lower"
    assert not found.larger_is_unlearned
    assert 1.6 < found.mu < 2.0


def test_rates_are_those_of_the_runs_that_did_not_choose() -> None:
    generator = np.random.default_rng(5)
    one, two = 1.5 + generator.standard_normal(1000), generator.standard_normal(1000)
    found = lower_bound({"x": one}, {"x": two}, 1e-3, confidence=0.98)
    missed, alarms = int(np.sum(one[1::2] < found.threshold)), int(np.sum(two[1::2] >= found.threshold))
    assert found.false_negative_upper == float(clopper_pearson_upper(missed, 500, 0.01))
    assert found.false_positive_upper == float(clopper_pearson_upper(alarms, 500, 0.01))
    rates = np.array(found.false_positive_upper), np.array(found.false_negative_upper)
    assert found.mu == float(mu_lower(*rates))
    assert found.epsilon == float(epsilon_lower(*rates, 1e-3))


def test_the_claim_is_what_the_noise_has_left_of_delta() -> None:
    task = make_task("sampled", 2.0, 1e-2)
    found = audit(task, runs=200, seed=0)
    left = certify(task.request, task.measured, insecure_test_seed=0).certificate.content["noise"]["delta_for_noise"]
    assert left < 1e-2
    assert found.mu_claimed == pytest.approx(mu_for(2.0, left), rel=1e-9)


def test_runs_of_the_mechanism_do_not_contradict_it() -> None:
    """The claim is tight here, so the bound comes close to it: 99.9 % confidence, seeded."""
    task = make_task("tight", 20.0, 1e-2)
    found = audit(task, runs=4_000, seed=11)
    assert not found.contradicted
    assert found.true_distance / found.sigma == pytest.approx(found.mu_claimed, rel=1e-3)
    assert 0.85 * found.mu_claimed < found.lower.mu <= found.mu_claimed
    assert found.lower.epsilon <= 20.0


def test_a_deposit_s_noise_is_not_contradicted_and_half_of_it_is_found() -> None:
    """The bound is not far from tight here: what is observed comes to a good part of the claim."""
    task = make_task("deposit", 20.0, 1e-2)
    found = audit(task, runs=2_000, seed=11)
    assert not found.contradicted
    assert 0.7 < found.true_distance / found.bound < 1.0
    assert 0.5 * found.mu_claimed < found.lower.mu <= found.mu_claimed
    noise = judge(task.request, task.measured, insecure=True)[1].noise
    assert noise is not None
    shaped = task.measured.shaped(noise)
    updated, goal = to_numpy(task.updated), to_numpy(task.retrained)
    less = replace(shaped, scale=shaped.scale / 2)
    sides = (noised_runs(weights, less, 2_000, seed=k) for k, weights in enumerate((updated, goal)))
    lower = lower_bound(*(statistics(side, updated, goal, shaped.shape) for side in sides), 1e-2)
    assert lower.mu > mu_for(20.0, 1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-3), (20.0, 1e-2)])
def test_twenty_thousand_runs_on_every_task(name: str, epsilon: float, delta: float) -> None:
    task = make_task(name, epsilon, delta)
    found = audit(task, runs=20_000, seed=12)
    assert found.lower.runs == 10_000
    assert not found.contradicted


def test_runs_are_the_mechanism_itself_and_batches_its_sampler() -> None:
    """Each run is `certify`, and a batch of reference runs has the law of as many single ones (a two-sample test)."""
    task = make_task("tight", 5.0, 1e-2)
    models = unlearned_runs(task.request, task.measured, 3, seed=4)
    for run in range(3):
        single = to_numpy(certify(task.request, task.measured, insecure_test_seed=4 * 2**32 + run).model.matrix())
        assert np.array_equal(models[run], single)
    assert np.array_equal(unlearned_runs(task.request, task.measured, 2, seed=4, first=1), models[1:])
    noise = judge(task.request, task.measured, insecure=True)[1].noise
    assert noise is not None
    updated, retrained = to_numpy(task.updated), to_numpy(task.retrained)
    batch = noised_runs(updated, noise, 500, seed=1)
    assert np.array_equal(np.ldexp(batch, -noise.grid_exponent), np.rint(np.ldexp(batch, -noise.grid_exponent)))
    single = unlearned_runs(task.request, task.measured, 500, seed=2)
    one, two = (statistics(part, updated, retrained) for part in (single, batch))
    assert lower_bound(one, two, 1e-3).mu == 0.0


def test_the_projection_is_standard_normal_about_the_true_mu() -> None:
    task = make_task("tight", 5.0, 1e-2)
    updated, retrained = to_numpy(task.request.weights + task.measured.step.update), to_numpy(task.retrained)
    sigma = certify(task.request, task.measured, insecure_test_seed=0).certificate.sigma
    values = (
        statistics(unlearned_runs(task.request, task.measured, 2000, seed=3), updated, retrained)["projection"] / sigma
    )
    mu = np.linalg.norm(updated - retrained) / sigma
    assert abs(values.mean() - mu) < 4 / math.sqrt(2000)
    assert abs(values.std() - 1) < 4 / math.sqrt(4000)


def test_a_bound_above_the_claim_is_called_a_contradiction() -> None:
    task = make_task("tight", 5.0, 1e-2)
    found = audit(task, runs=400, seed=1)
    assert "not contradicted" in found.sentence
    worse = replace(found, lower=replace(found.lower, mu=found.mu_claimed * 1.001))
    assert worse.contradicted
    assert "CONTRADICTED" in worse.sentence
    assert replace(found, lower=replace(found.lower, epsilon=5.1)).contradicted


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_sound_and_their_bound_covers_the_truth(name: str) -> None:
    task = make_task(name, 1.0, 1e-3)
    shape = None if task.request.deposit is None else task.request.deposit.ellipsoid
    away = to_numpy(task.request.weights + task.measured.step.update - task.retrained)
    true = float(np.linalg.norm(whiten(shape, away[None])))
    total = certify(task.request, task.measured, insecure_test_seed=0).certificate.total
    assert 0 < true <= total
    if name == "tight":
        assert total < true * (1 + 1e-4)
    if name == "deposit":
        assert total < true * 1.45
