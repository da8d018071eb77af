"""Audits: confidence bounds, runs of the mechanism, tasks, certificates, and the audit without a source."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from evaluate.reference import binomial_tail
from expunge.bounds.calibration import delta_of, mu_for
from expunge.errors import DataError, ModelError, OptionError
from expunge.evaluate import audit as audit_campaign
from expunge.evaluate.audit import (
    TASKS,
    Runs,
    audit,
    certificate_task,
    clopper_pearson_upper,
    conclude,
    lower_bound,
    make_task,
    mu_lower,
    noised_runs,
    run_audits,
    setting_of,
    shaped_runs,
    smaller_losses,
    source_free,
    source_free_from_files,
    statistics,
    task_from_files,
    unlearned_runs,
    whiten,
)
from expunge.evaluate.metrics import epsilon_lower
from expunge.heads import Rows, head_for
from expunge.mechanism import certify, judge
from expunge.model import one_row_a_class
from expunge.rows.output import open_run
from expunge.runtime.progress import silent
from expunge.train import minimise, train


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


def test_a_constant_is_told_from_noise() -> None:
    noise = np.random.default_rng(1).standard_normal(2000)
    assert lower_bound({"x": np.zeros(2000)}, {"x": noise}, 1e-3).mu > 2.0


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


def test_a_deposit_s_noise_is_not_contradicted() -> None:
    """The bound is not far from tight here: what is observed comes to a good part of the claim."""
    task = make_task("deposit", 20.0, 1e-2)
    found = audit(task, runs=4_000, seed=11)
    assert not found.contradicted
    assert 0.7 < found.true_distance / found.bound < 1.0
    assert 0.5 * found.mu_claimed < found.lower.mu <= found.mu_claimed


def test_noise_of_half_a_deposit_s_is_found() -> None:
    task = make_task("deposit", 20.0, 1e-2)
    noise = judge(task.request, task.measured, insecure=True)[1].noise
    assert noise is not None
    shaped = task.measured.shaped(noise)
    updated, goal = (task.request.weights + task.measured.step.update).numpy(), task.retrained.numpy()
    less = replace(shaped, scale=shaped.scale / 2)
    sides = (shaped_runs(weights, less, 4_000, seed=k) for k, weights in enumerate((updated, goal)))
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
        single = certify(task.request, task.measured, insecure_test_seed=4 * 2**32 + run).model.matrix().numpy()
        assert np.array_equal(models[run], single)
    issued = certify(task.request, task.measured, insecure_test_seed=0).certificate
    exponent = issued.content["noise"]["grid_exponent"]
    updated = (task.request.weights + task.measured.step.update).numpy()
    batch = noised_runs(updated, issued.sigma, exponent, 500, seed=1)
    assert np.array_equal(np.ldexp(batch, -exponent), np.rint(np.ldexp(batch, -exponent)))
    single = unlearned_runs(task.request, task.measured, 500, seed=2)
    retrained = task.retrained.numpy()
    one, two = (statistics(part, updated, retrained) for part in (single, batch))
    assert lower_bound(one, two, 1e-3).mu == 0.0


def test_the_projection_is_standard_normal_about_the_true_mu() -> None:
    task = make_task("tight", 5.0, 1e-2)
    updated, retrained = (task.request.weights + task.measured.step.update).numpy(), task.retrained.numpy()
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


def test_parts_are_joined_and_kept_ones_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_campaign, "BATCH", 300)
    task, collect, parts = make_task("tight", 1.0, 1e-2), audit_campaign.collect, []

    def counting(*given: Any) -> Any:
        parts.append(collect(*given))
        return parts[-1]

    monkeypatch.setattr(audit_campaign, "collect", counting)
    setting = setting_of([task], 800)
    first = run_audits([task], 800, 0.95, open_run(tmp_path / "p", setting), silent)
    assert [len(next(iter(part.unlearned.values()))) for part in parts] == [300, 300, 200]
    assert first["tight"] == conclude(task, Runs.join(parts), confidence=0.95)
    again = run_audits([task], 800, 0.95, open_run(tmp_path / "p", setting), silent)
    assert len(parts) == 3
    assert again == first


def test_the_setting_names_claim_model_and_facts() -> None:
    task = make_task("tight", 1.0, 1e-2)
    (described,) = setting_of([task], 10)["tasks"]
    assert (described["task"], described["epsilon"], described["delta"]) == ("tight", 1.0, 1e-2)
    assert described["model"] == task.request.subject.sha256
    assert described["facts"]["l2"] == task.request.record.l2
    assert np.isfinite(list(described["facts"].values())).all()


def test_what_is_missing_is_named() -> None:
    with pytest.raises(OptionError, match="--model, --forget"):
        task_from_files(Path("c.json"), None, Path("r.npz"), None, None, None)
    with pytest.raises(OptionError, match="--published, --forget, --fresh"):
        source_free_from_files(None, None, None, None, None)


def test_a_model_of_one_vector_is_compared_with_the_two_rows_it_became(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    X = rng.standard_normal((300, 3))
    y = np.where(X[:, 0] + rng.standard_normal(300) > 0.0, "yes", "no")
    one = train(X[:200], y[:200], l2=0.05, max_norm=5.0, loss="logistic", bias=True)
    two, other = one_row_a_class(one), train(X[:200, :2], y[:200], l2=0.05, max_norm=5.0, bias=True)
    for name, model in (("one", one), ("two", two), ("other", other)):
        model.save(tmp_path / f"{name}.safetensors")
    for name, part in (("forget", slice(0, 30)), ("fresh", slice(200, 300))):
        np.savez(tmp_path / f"{name}.npz", X=X[part], y=y[part])
    rows = (tmp_path / "forget.npz", tmp_path / "fresh.npz", None)
    found = source_free_from_files(tmp_path / "two.safetensors", tmp_path / "one.safetensors", *rows)
    assert found.before == found.after
    assert found.before_p == found.after_p
    same = source_free_from_files(tmp_path / "one.safetensors", tmp_path / "one.safetensors", *rows)
    assert same.before == same.after
    with pytest.raises(ModelError, match=r"--before .* shape \(2, 3\).*Give the model that it was unlearned from"):
        source_free_from_files(tmp_path / "two.safetensors", tmp_path / "other.safetensors", *rows)


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_sound_and_their_bound_covers_the_truth(name: str) -> None:
    task = make_task(name, 1.0, 1e-3)
    shape = None if task.request.deposit is None else task.request.deposit.ellipsoid
    away = (task.request.weights + task.measured.step.update - task.retrained).numpy()
    true = float(np.linalg.norm(whiten(shape, away[None])))
    total = certify(task.request, task.measured, insecure_test_seed=0).certificate.total
    assert 0 < true <= total
    if name == "tight":
        assert total < true * (1 + 1e-4)
    if name == "deposit":
        assert total < true * 1.45


def test_a_certificate_can_be_audited_in_its_own_setting() -> None:
    task = make_task("sampled", 1.0, 1e-3)
    issued = certify(task.request, task.measured, insecure_test_seed=1).certificate
    model, digest = task.request.subject.model, task.request.subject.sha256
    generator = np.random.default_rng(0)  # the task's own rows
    labels = np.arange(500) % 3
    features = np.eye(3, 5)[labels] + 0.7 * generator.standard_normal((500, 5))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    surrogate = (task.request.surrogate.features.numpy(), task.request.surrogate.labels.numpy())
    rows = (features[30:300], labels[30:300]), (features[:30], labels[:30])
    again = certificate_task(issued, model, digest, *rows, surrogate)
    assert again.request.promise.epsilon == task.request.promise.epsilon
    assert again.request.promise.delta == task.request.promise.delta
    assert again.request.distance == task.request.distance
    assert torch.equal(again.retrained, task.retrained)
    with pytest.raises(ModelError, match="digests"):
        certificate_task(issued, model, "0" * 64, *rows, surrogate)
    with pytest.raises(DataError, match="source of 300"):
        certificate_task(issued, model, digest, rows[1], rows[1], surrogate)
    with pytest.raises(DataError, match="no surrogate"):
        certificate_task(issued, model, digest, *rows, None)


def test_a_certificate_of_a_deposit_can_be_audited_in_its_own_setting() -> None:
    from expunge.unlearn import unlearn
    from small_deposit import N_SOURCE, kept, rows, trained

    before, digest = kept().deposit, trained().sha256()
    issued = unlearn(trained(), rows(1, 2), epsilon=1.0, delta=1e-3, deposit=before)
    stays = rows(0, *range(3, N_SOURCE))
    task = certificate_task(issued.certificate, trained(), digest, stays, rows(1, 2), None, before)
    assert certify(task.request, task.measured, insecure_test_seed=0).certificate.sigma == issued.certificate.sigma
    for deposit in (None, issued.deposit):
        with pytest.raises(DataError, match="from before"):
            certificate_task(issued.certificate, trained(), digest, stays, rows(1, 2), None, deposit)
    with pytest.raises(DataError, match="398"):
        certificate_task(issued.certificate, trained(), digest, rows(3), rows(1, 2), None, before)


def rows(count: int, seed: int) -> Rows:
    generator = np.random.default_rng(seed)
    return Rows(
        torch.from_numpy(generator.standard_normal((count, 90))), torch.from_numpy(generator.integers(0, 2, count))
    )


HEAD = head_for("softmax", l2=1e-3, n_classes=2, n_features=90, row_bound=20.0)


FORGET, REST, FRESH = rows(60, 1), rows(60, 2), rows(200, 3)


WHOLE = Rows(torch.cat([FORGET.features, REST.features]), torch.cat([FORGET.labels, REST.labels]))


def test_forgetting_that_was_skipped_is_found() -> None:
    trained = minimise(HEAD, WHOLE)
    found = source_free(HEAD, trained, FORGET, FRESH, before=trained)
    assert found.after_p < 0.001
    assert "TRACE FOUND" in found.sentence
    assert found.outcome == "failed"


def test_retraining_leaves_no_trace() -> None:
    found = source_free(HEAD, minimise(HEAD, REST), FORGET, FRESH, before=minimise(HEAD, WHOLE))
    assert found.before_p < 0.001
    assert "no trace found, though" in found.sentence
    assert found.outcome == "passed"
    assert abs(found.after.value - 0.5) < 4 * found.after.error


def test_no_power_is_said_to_be_none() -> None:
    retrained = minimise(HEAD, REST)
    same, alone = (source_free(HEAD, retrained, FORGET, FRESH, before=before) for before in (retrained, None))
    assert "no power" in same.sentence
    assert "not known" in alone.sentence
    assert same.outcome == alone.outcome == "unknown"


def test_the_area_is_the_share_of_pairs() -> None:
    generator = np.random.default_rng(0)
    forget, fresh = generator.integers(0, 5, 25).astype(float), generator.integers(0, 5, 30).astype(float)
    score, chance = smaller_losses(forget, fresh, 0)
    pairs = [1.0 if a < b else 0.5 if a == b else 0.0 for a in forget for b in fresh]
    assert score.value == pytest.approx(np.mean(pairs), rel=1e-12)
    assert 0 < chance <= 1


def test_meaningless_comparisons_are_refused() -> None:
    weights = torch.zeros(2, 90, dtype=torch.float64)
    assert "equal" in source_free(HEAD, weights, FORGET, FRESH).sentence
    assert source_free(HEAD, weights, FORGET, FRESH).outcome == "unknown"
    few = Rows(FORGET.features[:19], FORGET.labels[:19])
    assert "at least 20" in source_free(HEAD, minimise(HEAD, REST), few, FRESH).sentence
    other = Rows(FORGET.features, torch.zeros_like(FORGET.labels))
    assert "other classes" in source_free(HEAD, minimise(HEAD, REST), other, FRESH).sentence
