"""Estimated distances from end to end: what is sampled, what enters the certificate, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from asking import asked
from digit_rows import digit_case
from expunge import train, unlearn, verify
from expunge.certificate.dossier import Certificate, digest_of
from expunge.distance import Estimation
from expunge.distance.inequalities import tv_upper_from_kl
from expunge.errors import DataError, OptionError, UselessModel, VerificationFailed
from expunge.estimate.comparison import compare
from expunge.estimate.donsker_varadhan import DonskerVaradhanLower
from expunge.estimate.source import ConditionalDivergence, KullbackLeiblerEstimate, require_converged, sample_source

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = Estimation(support="ball", chains=200, steps=400, step_size=0.005, epochs=3)
BUDGET = {"epsilon": 5.0, "delta": 1e-3}


@pytest.fixture(scope="module")
def digits() -> dict[str, Any]:
    return digit_case()


def request_of(digits: dict[str, Any], wanted: Any, **options: Any) -> Any:
    given = BUDGET | {"distance": wanted} | options
    return asked(digits["model"], digits["forget"], digits["surrogate"], **given)


# Sampling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words", "step"),
    [
        ({"support": "ball"}, "ball of radius 1, by reflection", 0.02 / 66),
        ({"support": "projected-ball"}, "ball of radius 1, by projection", 0.02 / 66),
        ({"support": "box", "box": 0.3}, "box from -0.3 to 0.3 in every feature", 0.02 * 0.03),
        ({"support": "gaussian"}, "the surrogate's own moments", 0.02),
        ({"support": "ball", "metropolis": True}, "by reflection", 1 / 64 / 66),
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
    wanted = Estimation(
        support="gaussian", chains=4000, steps=600, step_size=0.1, metropolis=True, mean=mean, covariance=covariance
    )
    request = asked(
        model, (np.ones((1, 3)), [0]), rng.normal(size=(100, 3)), epsilon=1.0, delta=0.1, distance="same", force=True
    )
    found = sample_source(request.weights, model.record, request.surrogate, wanted)
    assert found.rows.features.shape == (4000, 4)
    assert bool((found.rows.features[:, 3] == 1.0).all())
    sampled = found.features.numpy()
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


def test_chains_that_never_move_are_an_error(digits: dict[str, Any]) -> None:
    request = request_of(digits, "same")
    wanted = Estimation(support="ball", metropolis=True, step_size=0.015, chains=100, steps=50)
    with pytest.raises(DataError, match=r"accepted .* % of the steps"):
        sample_source(request.weights, request.record, request.surrogate, wanted)


def test_a_sampler_that_has_not_arrived_is_refused(digits: dict[str, Any]) -> None:
    slow = replace(QUICK, steps=16, step_size=1e-6)
    request = request_of(digits, "same")
    sampled = sample_source(request.weights, request.record, request.surrogate, slow)
    with pytest.raises(DataError, match="not converged"):
        require_converged(sampled)
    with pytest.raises(DataError, match="not converged"):
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


def test_a_negative_estimate_becomes_zero_and_is_kept_as_raw() -> None:
    kl = kl_of(-0.2, 0.05)
    assert (kl.value, kl.upper, kl.tv_upper) == (0.0, 0.0, 0.0)
    assert kl.raw == pytest.approx(-0.15)
    assert kl_of(-0.7, 0.0, error=0.4).upper == pytest.approx(1.6449 * 0.5)  # a poor fit is not a small distance


@pytest.mark.parametrize("kl", [kl_of(math.inf, 0.1), kl_of(0.0, 8.9)])
def test_what_may_be_infinite_never_becomes_a_small_number(kl: KullbackLeiblerEstimate) -> None:
    assert kl.upper == math.inf
    assert kl.tv_upper == 1.0


# Certificates ---------------------------------------------------------------------------------------------------


def test_an_estimate_never_makes_more_than_an_estimated_certificate(digits: dict[str, Any]) -> None:
    result = unlearn(digits["model"], digits["forget"], digits["surrogate"], distance=QUICK, force=True, **BUDGET)
    content = result.certificate.content
    verify(result.certificate)
    assert content["status"] == "estimated"
    assert content["distance"]["kind"] == "means"
    assert content["distance"]["provenance"] == "estimated"
    assert any(sentence.startswith("NOT KNOWN, ESTIMATED: means:") for sentence in content["assumptions"])
    assert content["estimate"]["route"] == "means"
    assert content["estimate"]["diagnostics"]["converged"] is True
    assert content["bound"]["terms"]["surrogate"] == pytest.approx(content["distance"]["value"] / 0.02)  # over l2


def test_the_paper_s_route_is_recomputed_from_its_kl(digits: dict[str, Any]) -> None:
    wanted = replace(QUICK, route="kl")
    result = unlearn(digits["model"], digits["forget"], digits["surrogate"], distance=wanted, force=True, **BUDGET)
    content = result.certificate.content
    verify(result.certificate)
    assert (content["status"], content["distance"]["kind"]) == ("estimated", "tv")
    upper = content["estimate"]["kl"]["upper"]
    assert content["distance"]["value"] == (1.0 if upper is None else tv_upper_from_kl(upper))
    for changed in (
        {"estimate": content["estimate"] | {"kl": content["estimate"]["kl"] | {"upper": 0.01}}},
        {"distance": content["distance"] | {"provenance": "declared"}},
    ):
        forged = content | changed
        forged["digest"] = digest_of(forged)
        with pytest.raises(VerificationFailed):
            verify(Certificate(forged))


def test_the_paper_s_bound_takes_the_paper_s_estimate(digits: dict[str, Any]) -> None:
    options = BUDGET | {"bound": "paper", "constants": "paper", "force": True, "epsilon": 0.9}
    result = unlearn(
        digits["model"], digits["forget"], digits["surrogate"], distance=replace(QUICK, route="kl"), **options
    )
    content = result.certificate.content
    assert content["status"] == "estimated"
    assert content["bound"]["inputs"]["tv_upper"]["value"] == content["distance"]["value"]
    with pytest.raises(OptionError, match="takes a total variation"):
        request_of(digits, QUICK, bound="paper", constants="paper")


def test_an_estimate_goes_with_matched_classes_and_the_balanced_step(digits: dict[str, Any]) -> None:
    options = BUDGET | {"match_classes": True, "step": "balanced", "force": True}
    result = unlearn(digits["model"], digits["forget"], digits["surrogate"], distance=QUICK, **options)
    verify(result.certificate)
    assert result.certificate.content["distance"]["matched"] is True
    assert result.certificate.status == "estimated"


def test_noise_that_swamps_the_weights_is_refused_as_ever(digits: dict[str, Any]) -> None:
    with pytest.raises(UselessModel):
        unlearn(digits["model"], digits["forget"], digits["surrogate"], distance=replace(QUICK, route="kl"), **BUDGET)


# Refused at the door --------------------------------------------------------------------------------------------


def test_a_surrogate_of_five_rows(digits: dict[str, Any]) -> None:
    X, y = digits["surrogate"]
    with pytest.raises(DataError, match="5 rows"):
        asked(digits["model"], digits["forget"], (X[:5], y[:5]), distance="estimate", **BUDGET)
    model = digits["model"]
    with pytest.raises(DataError, match="5 rows"):
        compare(model, (X[:5], y[:5]), record=model.record, wanted=QUICK)


def test_the_surrogate_does_not_vouch_for_itself(digits: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="surrogate's own moments"):
        request_of(digits, Estimation(support="gaussian"))
    request_of(digits, Estimation(support="gaussian", mean=np.zeros(64), covariance=np.eye(64)))


def test_an_estimate_without_its_evidence_or_of_another_route_is_found_out(digits: dict[str, Any]) -> None:
    result = unlearn(digits["model"], digits["forget"], digits["surrogate"], distance=QUICK, force=True, **BUDGET)
    content = result.certificate.content
    bare = {key: value for key, value in content.items() if key != "estimate"}
    other = content | {"estimate": content["estimate"] | {"route": "kl"}}
    for forged in (bare, other):
        with pytest.raises(VerificationFailed):
            verify(Certificate(forged | {"digest": digest_of(forged)}))
