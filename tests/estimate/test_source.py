"""The source as a model remembers it, how far the surrogate is from it, and the certificate that follows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import reference
from asking import asked
from digit_rows import QUICK, digit_case
from expunge import train, unlearn, verify
from expunge.certificate.dossier import Certificate, digest_of
from expunge.distance import Estimation, tv_upper_from_kl
from expunge.errors import DataError, OptionError, UselessModel, VerificationFailed
from expunge.estimate.donsker_varadhan import DonskerVaradhanLower
from expunge.estimate.source import (
    ConditionalDivergence,
    KullbackLeiblerEstimate,
    _fluctuations,
    conditional_divergence,
    means_difference,
    sample_source,
)
from expunge.heads import Rows, Softmax
from expunge.runtime.arrays import double, norm, to_numpy
from expunge.train import minimise

pytestmark = pytest.mark.usefixtures("one_thread")


BUDGET = {"epsilon": 5.0, "delta": 1e-3}


@pytest.fixture(scope="module")
def digits() -> dict[str, Any]:
    return digit_case()


def request_of(digits: dict[str, Any], wanted: Any, **options: Any) -> Any:
    given = BUDGET | {"distance": wanted} | options
    return asked(digits["model"], digits["forget"], digits["surrogate"], **given)


@pytest.fixture(scope="module")
def certificate(digits: dict[str, Any]) -> Certificate:
    sets = digits["model"], digits["forget"], digits["surrogate"]
    return unlearn(*sets, distance=QUICK, force=True, **BUDGET).certificate


def forged(content: dict[str, Any], **changed: Any) -> Certificate:
    """The certificate with other facts, or without those that are None, and a digest that fits."""
    content = {name: value for name, value in (content | changed).items() if value is not None}
    return Certificate(content | {"digest": digest_of(content)})


# Sampling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words", "step"),
    [
        ({"support": "ball"}, "ball of radius 1, by reflection", 0.02 / 66),
        ({"support": "gaussian"}, "the surrogate's own moments", 0.02),
        ({"support": "ball", "step_size": 1e-4}, "by reflection", 1e-4),
    ],
)
def test_every_support_gives_admissible_rows(digits: dict[str, Any], options: Any, words: str, step: float) -> None:
    request = request_of(digits, "same")
    wanted = Estimation(chains=100, steps=50, **options)
    found = sample_source(request.weights, request.record, request.surrogate, wanted)
    assert words in found.support
    assert found.step_size == pytest.approx(step, rel=1e-12)
    assert found.features.shape == (100, 64)
    assert float(found.features.norm(dim=1).max()) <= 1.0
    assert bool(torch.isfinite(found.features).all())


def test_a_gaussian_reference_has_the_moments_it_was_given() -> None:
    """With weights of zero the model adds nothing to the reference."""
    rng = np.random.default_rng(1)
    model = train(rng.normal(size=(400, 3)), rng.integers(0, 2, 400), l2=1e3, max_norm=50.0, bias=True)
    assert model.record is not None
    root = rng.normal(size=(3, 3))
    mean, covariance = np.array([1.0, -2.0, 0.5]), root @ root.T
    wanted = Estimation(support="gaussian", chains=4000, steps=600, mean=mean, covariance=covariance)
    request = asked(
        model, (np.ones((1, 3)), [0]), rng.normal(size=(100, 3)), epsilon=1.0, delta=0.1, distance="same", force=True
    )
    found = sample_source(request.weights, model.record, request.surrogate, wanted)
    assert found.rows.features.shape == (4000, 4)
    assert bool((found.rows.features[:, 3] == 1.0).all())
    sampled = to_numpy(found.features)
    scale = np.sqrt(np.diag(covariance))
    assert np.abs((sampled.mean(axis=0) - mean) / scale).max() < 5 / math.sqrt(4000)
    assert np.abs((np.cov(sampled.T) - covariance) / np.outer(scale, scale)).max() < 7 / math.sqrt(4000)


@pytest.mark.parametrize(
    ("mean", "covariance", "match"),
    [
        (np.zeros(63), np.eye(63), "the model has 64 features"),
        (np.zeros(64), np.diag([-1.0] + [1.0] * 63), "not positive semi-definite"),
    ],
)
def test_a_reference_that_is_none(digits: dict[str, Any], mean: Any, covariance: Any, match: str) -> None:
    request = request_of(digits, "same")
    wanted = Estimation(support="gaussian", chains=100, steps=10, mean=mean, covariance=covariance)
    with pytest.raises(OptionError, match=match):
        sample_source(request.weights, request.record, request.surrogate, wanted)


def test_chains_that_have_not_arrived_are_refused(digits: dict[str, Any]) -> None:
    slow = replace(QUICK, steps=16, step_size=1e-6)
    with pytest.raises(DataError, match="have not mixed"):
        unlearn(digits["model"], digits["forget"], digits["surrogate"], distance=slow, **BUDGET)


# From KL to a distance ------------------------------------------------------------------------------------------
def kl_of(conditional: float, raw: float, error: float = 0.0, ceiling: float = 9.0) -> KullbackLeiblerEstimate:
    marginal = DonskerVaradhanLower(
        value=max(0.0, raw), raw=raw, standard_error=error, ceiling=ceiling, epochs=1, best_epoch=1, n_nu=100, n_rho=100
    )
    return KullbackLeiblerEstimate(ConditionalDivergence(conditional, 0.3 if error else 0.0, 5, 100), marginal)


def test_parts_add_up_and_errors_add_in_squares() -> None:
    kl = kl_of(0.1, 0.2, error=0.4)
    assert kl.value == pytest.approx(0.3)
    assert kl.standard_error == pytest.approx(0.5)
    assert kl.upper == pytest.approx(0.3 + 1.6449 * 0.5)
    assert kl.tv_upper == tv_upper_from_kl(kl.upper)


def test_a_negative_estimate_becomes_zero_and_what_may_be_infinite_never_a_small_number() -> None:
    kl = kl_of(-0.2, 0.05)
    assert (kl.value, kl.upper, kl.tv_upper) == (0.0, 0.0, 0.0)
    assert kl.raw == pytest.approx(-0.15)
    assert kl_of(-0.7, 0.0, error=0.4).upper == pytest.approx(1.6449 * 0.5)  # a poor fit is not a small distance
    saturated = kl_of(0.0, 8.9)
    assert (saturated.upper, saturated.tv_upper) == (math.inf, 1.0)


# Certificates ---------------------------------------------------------------------------------------------------
def test_an_estimate_never_makes_more_than_an_estimated_certificate(certificate: Certificate) -> None:
    content = certificate.content
    verify(certificate)
    assert content["status"] == "estimated"
    assert (content["distance"]["kind"], content["distance"]["provenance"]) == ("means", "estimated")
    assert any(sentence.startswith("NOT KNOWN, ESTIMATED: means:") for sentence in content["assumptions"])
    assert content["estimate"]["route"] == "means"
    assert content["estimate"]["diagnostics"]["converged"] is True
    assert content["bound"]["terms"]["surrogate"] == pytest.approx(content["distance"]["value"] / 0.02)  # over l2
    for changed in (None, content["estimate"] | {"route": "kl"}):
        with pytest.raises(VerificationFailed):
            verify(forged(content, estimate=changed))


def test_the_paper_s_route_is_recomputed_from_its_kl(digits: dict[str, Any]) -> None:
    sets, wanted = (digits["model"], digits["forget"], digits["surrogate"]), replace(QUICK, route="kl")
    with pytest.raises(UselessModel):
        unlearn(*sets, distance=wanted, **BUDGET)
    content = unlearn(*sets, distance=wanted, force=True, **BUDGET).certificate.content
    verify(Certificate(content))
    assert (content["status"], content["distance"]["kind"]) == ("estimated", "tv")
    upper = content["estimate"]["kl"]["upper"]
    assert content["distance"]["value"] == (1.0 if upper is None else tv_upper_from_kl(upper))
    for changed in (
        {"estimate": content["estimate"] | {"kl": content["estimate"]["kl"] | {"upper": 0.01}}},
        {"distance": content["distance"] | {"provenance": "declared"}},
    ):
        with pytest.raises(VerificationFailed):
            verify(forged(content, **changed))


def test_the_paper_s_bound_takes_the_paper_s_estimate(digits: dict[str, Any]) -> None:
    options = BUDGET | {"bound": "paper", "constants": "paper", "force": True, "epsilon": 0.9}
    sets, wanted = (digits["model"], digits["forget"], digits["surrogate"]), replace(QUICK, route="kl")
    content = unlearn(*sets, distance=wanted, **options).certificate.content
    assert content["status"] == "estimated"
    assert content["bound"]["inputs"]["tv_upper"]["value"] == content["distance"]["value"]
    with pytest.raises(OptionError, match="takes a total variation"):
        request_of(digits, QUICK, bound="paper", constants="paper")


def test_the_surrogate_does_not_vouch_for_itself(digits: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="surrogate's own moments"):
        request_of(digits, Estimation(support="gaussian"))
    request_of(digits, Estimation(support="gaussian", mean=np.zeros(64), covariance=np.eye(64)))


# The KL of labels, and the difference of means -----------------------------------------------------------------


def coin(share: float, rows: int, l2: float = 1e-6) -> tuple[Softmax, Rows]:
    """A constant feature, and two labels with this share of the first."""
    head = Softmax(l2=l2, n_classes=2, n_features=1, row_bound=1.0)
    labels = (torch.arange(rows) >= share * rows).long()
    return head, Rows(torch.ones(rows, 1, dtype=torch.float64), labels)


def test_two_coins_differ_by_their_kl() -> None:
    head, drawn = coin(0.8, 4000)
    found = conditional_divergence(head, torch.zeros(2, 1, dtype=torch.float64), drawn)
    exact = 0.8 * math.log(1.6) + 0.2 * math.log(0.4)
    deviation = math.sqrt(0.8 * math.log(1.6) ** 2 + 0.2 * math.log(0.4) ** 2 - exact**2)
    assert (found.folds, found.n_rows) == (5, 4000)
    assert found.value == pytest.approx(exact, abs=2e-3)
    assert found.standard_error == pytest.approx(deviation / math.sqrt(4000), rel=0.02)


def test_row_weights_count() -> None:
    head, rows = coin(0.8, 4000)
    even = Rows(rows.features, rows.labels, double(torch.where(rows.labels == 0, 0.5 / 0.8, 0.5 / 0.2)))
    found = conditional_divergence(head, torch.zeros(2, 1, dtype=torch.float64), even)
    assert abs(found.value) < 2e-3
    assert found.standard_error < 1e-3


def random_rows(rows: int, width: int, seed: int, rule: np.ndarray | None = None) -> Rows:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, width)) / math.sqrt(width)
    logits = np.zeros((rows, 3)) if rule is None else X @ rule
    y = (logits + rng.gumbel(size=(rows, 3))).argmax(axis=1)
    return Rows(torch.tensor(X), torch.tensor(y))


def test_a_surrogate_model_is_not_judged_on_its_own_rows() -> None:
    """Labels are pure chance, and there are as many features as a model needs to learn them by heart."""
    rows = random_rows(120, 60, 4)
    head = Softmax(l2=1e-4, n_classes=3, n_features=60, row_bound=3.0)
    uniform = torch.zeros(3, 60, dtype=torch.float64)
    by_heart = minimise(head, rows)
    outputs = rows.features @ by_heart.T
    in_sample = math.log(3) - float(head.losses(outputs, rows.labels).mean())
    assert in_sample > 0.5
    assert conditional_divergence(head, uniform, rows).value < 0.0


def test_weights_that_are_no_numbers_are_an_error() -> None:
    for share, weight in ((1.0, math.inf), (0.8, 1.5e308)):
        head, rows = coin(share, 100)
        with pytest.raises(DataError, match="not a number"):
            conditional_divergence(head, torch.tensor([[weight], [-weight]], dtype=torch.float64), rows)


HEAD = Softmax(l2=0.1, n_classes=3, n_features=4, row_bound=1.0)
RNG = np.random.default_rng(0)
W, U = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4))


def rows_of(rows: int, seed: int, shift: float = 0.0, weights: torch.Tensor | None = None) -> Rows:
    X = np.random.default_rng(seed).normal(size=(rows, 4)) * 0.3 + shift
    return Rows(torch.tensor(X), torch.zeros(rows, dtype=torch.int64), weights)


def found_for(samples: Rows, surrogate: Rows, seed: int = 0):
    return means_difference(HEAD, torch.tensor(W), torch.tensor(U), samples, surrogate, seed=seed)


def test_the_value_is_that_of_the_tables_of_all_phi() -> None:
    samples, surrogate = rows_of(50, 1, 0.3), rows_of(70, 2)
    tables = [reference.change_table(W, U, to_numpy(rows.features), "softmax") for rows in (samples, surrogate)]
    difference = np.linalg.norm(tables[0].mean(axis=0) - tables[1].mean(axis=0))
    found = found_for(samples, surrogate)
    assert found.value == pytest.approx(difference, rel=1e-12)
    assert found.upper > found.value


@pytest.mark.parametrize("weighted", [False, True])
def test_the_bootstrap_moves_a_mean_as_another_sample_would(weighted: bool) -> None:
    weights = torch.tensor(np.random.default_rng(5).uniform(0.1, 3.0, 400)) if weighted else None
    if weights is not None:
        weights = weights / weights.mean()
    rows = rows_of(400, 3, weights=weights)
    drawn = to_numpy(
        _fluctuations(HEAD, torch.tensor(W), torch.tensor(U), rows, 4000, torch.Generator().manual_seed(0))
    )
    phi = reference.change_table(W, U, to_numpy(rows.features), "softmax")
    each = np.ones(400) if weights is None else to_numpy(weights)
    centred = each[:, None] * (phi - (each[:, None] * phi).mean(axis=0))
    covariance = centred.T @ centred / 400**2
    sampled = drawn.T @ drawn / len(drawn)
    assert np.abs(sampled - covariance).max() < 6 * covariance.max() / np.sqrt(4000)


def test_the_upper_value_is_above_the_truth_as_often_as_it_says() -> None:
    weights, update = torch.tensor(W), torch.tensor(U)
    large = [HEAD.change_mean(weights, update, rows_of(400_000, seed, shift)) for seed, shift in ((90, 0.1), (91, 0.0))]
    truth = float(norm(large[0] - large[1]))
    above = sum(found_for(rows_of(200, 2 * k, 0.1), rows_of(300, 2 * k + 1), seed=k).upper >= truth for k in range(100))
    assert above >= 95 - 7
