"""The only judge: status, sigma and sentences follow from the facts alone."""

import math
from dataclasses import replace

import numpy as np
import pytest

import expunge
from certificates import made
from expunge.bounds import Ball
from expunge.bounds.calibration import EXACTLY, Scale
from expunge.certificate import derive as judge
from expunge.certificate.claim import Fact
from expunge.certificate.derive import (
    bound_named,
    derive,
    derive_region,
    held_region,
    rank_of,
    sentences,
    status_of,
)
from expunge.certificate.dossier import read_claim
from expunge.certificate.verify import checks
from expunge.certificate.wording import AVERAGED, CONSTANTS, INDEPENDENT, OPTIMUM, SEEN
from expunge.distance import Distance, Means
from expunge.errors import OptionError
from expunge.noise import Noise, needed_scale
from expunge.runtime.arrays import to_numpy


@pytest.mark.parametrize(
    ("distance", "options", "status"),
    [
        ("source", {}, "conditional"),
        ("same", {}, "conditional"),
        ("tv:0.01", {}, "conditional"),
        ("kl:0.01", {}, "conditional"),
        (Distance("chi2", 0.1, "samples"), {}, "conditional"),
        ("tv:0.01", {"bound": "paper", "constants": "paper", "step": "newton"}, "estimated"),
        (Distance("chi2", 0.1, "populations", "estimated"), {}, "estimated"),
    ],
)
def test_status_follows_from_where_the_numbers_come_from(distance, options, status) -> None:
    certificate = made(distance, **options).certificate
    assert certificate.status == status
    assert all(check.passed for check in checks(certificate))
    assert bool(certificate.content["assumptions"]) == (status != "proven")


def test_a_declared_record_makes_a_source_certificate_conditional() -> None:
    generator = np.random.default_rng(5)
    x = generator.standard_normal((120, 3)) / 4
    y = (x[:, 0] > 0).astype(int)
    trained = expunge.train(x, y, l2=0.1, max_norm=2.0)
    result = expunge.unlearn(
        to_numpy(trained.weight), (x[:2], y[:2]), (x, y), epsilon=1.0, delta=1e-3, distance="source",
        n_source=120, l2=0.1, loss="softmax", max_norm=2.0, training_residual=1e-9, force=True,
    )  # fmt: skip
    assert result.certificate.status == "conditional"
    assert result.certificate.content["bound"]["inputs"]["l2"]["provenance"] == "declared"
    assert result.certificate.content["bound"]["inputs"]["training_residual"]["provenance"] == "measured"


def test_what_is_derived_depends_on_the_facts_alone(result) -> None:
    claim = read_claim(result.certificate.content)
    assert derive(claim).sigma == result.certificate.sigma
    needed = derive(claim).required
    assert derive(replace(claim, epsilon=2.0)).required < needed <= result.certificate.sigma
    assert derive(replace(claim, delta=5e-4)).required > needed


@pytest.fixture(scope="module")
def claim(result):
    return read_claim(result.certificate.content)


def test_what_is_left_of_delta_is_for_the_noise(claim) -> None:
    derived = derive(replace(claim, failures={"eigenvalue": 1e-4, "sampling": 2e-4}))
    assert derived.delta_for_noise == pytest.approx(claim.delta - 3e-4, rel=1e-12)
    assert 3e-4 < derived.delta_at_sigma <= claim.delta
    assert derived.enough
    assert derived.mu == derived.region.radius / derived.sigma


def test_the_region_that_holds_the_weights_takes_what_is_left_of_delta_for_its_tail(claim) -> None:
    spending = replace(claim, averaged=True, failures={"eigenvalue": 1e-4, "sampling": 5e-4})
    region, held = derive_region(spending), held_region(spending)
    assert region.tail is not None
    assert held.tail is None
    assert held.terms["sampling"] == region.terms["sampling"] + region.tail.quantile(claim.delta - 6e-4)


@pytest.mark.parametrize("value", [math.inf, 1e304])
def test_without_a_finite_region_there_is_no_noise_and_no_promise(claim, value: float) -> None:
    """An infinite term, and one that is hidden by no rung there is."""
    facts = {**claim.facts, "solver_residual": Fact(value, "measured")}
    derived = derive(replace(claim, facts=facts))
    assert (derived.noise, derived.required, derived.sigma) == (None, math.inf, math.inf)
    assert (derived.delta_at_sigma, derived.status, derived.guarantee) == (1.0, "none", "")
    assert not derived.enough
    assert rank_of(replace(claim, facts=facts)) == math.inf


def test_noise_of_a_policy_that_is_too_little_is_not_enough(claim) -> None:
    required = derive(replace(claim, scale=EXACTLY)).required
    for factor, enough in ((0.5, False), (2.0, True)):
        derived = derive(replace(claim, scale=Scale("policy", factor * required)))
        assert derived.sigma == factor * required
        assert derived.enough == enough
    known = derive(replace(claim, scale=EXACTLY))
    assert known.enough, "exactly what is required"
    assert not replace(known, required=math.nextafter(known.sigma, math.inf)).enough


def test_an_unknown_bound_raises() -> None:
    assert [name for name, bound in judge.BOUNDS.items() if bound.provable] == ["residual", "deposit", "curvature"]
    assert [name for name in ("residual", "paper", "deposit") if bound_named(name).kept] == ["deposit"]
    for odd in ("hessian", "", None, 3):
        with pytest.raises(OptionError, match="it must be one of residual, paper, deposit"):
            bound_named(odd)


def test_a_status_is_that_of_the_weakest_fact(claim) -> None:
    between = replace(claim, distance=Distance("chi2", 0.1, "samples"))
    assert status_of(between, "measured") == "proven"
    assert status_of(between, "declared") == "conditional"
    assert status_of(between, "estimated") == status_of(replace(between, tuned=True), "measured") == "estimated"
    assert status_of(claim, "measured") == "conditional", "rows are sampled"
    assert status_of(replace(between, bound="paper"), "measured") == "conditional"
    source = replace(claim, distance=Distance("source", 0.0))
    assert status_of(source, "measured") == "conditional"


@pytest.mark.parametrize(("scale", "required"), [(0.5, math.inf), (math.inf, 0.5), (math.inf, math.inf)])
def test_noise_that_is_endless_or_never_enough_is_none(claim, monkeypatch, scale: float, required: float) -> None:
    def endless(region, *_):
        return region, Noise(scale, -20, Ball(claim.n_parameters)), required

    monkeypatch.setattr(judge, "choose_noise", endless)
    derived = derive(claim)
    assert (derived.noise, derived.required, derived.delta_at_sigma) == (None, math.inf, 1.0)
    assert (derived.status, derived.guarantee, derived.assumptions, derived.limits) == ("none", "", (), ())


@pytest.mark.parametrize("epsilon", [0.1, 3.0])
def test_updates_are_ranked_at_an_epsilon_of_1_and_what_is_left_of_delta(claim, epsilon: float) -> None:
    spending = replace(claim, epsilon=epsilon, failures={"eigenvalue": 1e-4, "sampling": 5e-4})
    left = claim.delta - math.fsum((1e-4, 5e-4))
    assert rank_of(spending) == needed_scale(derive_region(spending), 1.0, left)


def test_what_was_declared_is_said_by_name_and_nothing_else_is(claim) -> None:
    for declared in ((), ("l2",), ("row_bound", "l2")):
        facts = {
            name: replace(fact, provenance="declared" if name in declared else "measured")
            for name, fact in claim.facts.items()
        }
        assumed = sentences(replace(claim, facts=facts), 1.0)[1]
        said = "These facts were declared, not checked: " + ", ".join(sorted(declared)) + "."
        assert [sentence for sentence in assumed if sentence.startswith("These facts")] == ([said] if declared else [])
    for others in (0, 1, 2):
        assumed = sentences(replace(claim, others=others), 1.0)[1]
        assert any(f"Declared: {others} of the forgotten rows" in sentence for sentence in assumed) == (others > 0)


MAY_BE_SAID = {SEEN, INDEPENDENT, AVERAGED, OPTIMUM, CONSTANTS, Means.assumption}


@pytest.mark.parametrize(
    ("change", "distance", "said", "first"),
    [
        ({}, Distance("chi2", 0.1), {INDEPENDENT}, "Declared: chi2:0.1"),
        ({}, Distance("chi2", 0.1, provenance="estimated"), {INDEPENDENT}, "NOT KNOWN, ESTIMATED: chi2:0.1"),
        ({}, Distance("chi2", 0.1, "samples"), set(), "Declared: chi2:0.1"),
        ({}, Distance("chi2", 0.1, "samples", sampling="seen"), set(), "Declared: chi2:0.1"),
        ({}, Distance("means", 0.1), {INDEPENDENT, Means.assumption}, "NOT KNOWN, ESTIMATED: means:0.1"),
        ({"averaged": True}, Distance("same", 0.0), {INDEPENDENT, AVERAGED}, "Declared: same"),
        ({"averaged": True}, Distance("chi2", 0.1, sampling="seen"), {SEEN, INDEPENDENT}, SEEN),
        ({"bound": "paper"}, Distance("chi2", 0.1), {OPTIMUM, CONSTANTS}, "Declared: chi2:0.1"),
    ],
)
def test_what_is_assumed(claim, change, distance, said, first) -> None:
    """The most doubtful first; of sampling only where rows are sampled, and each law's own."""
    assumed = sentences(replace(claim, **{"averaged": False, "distance": distance} | change), 1.0)[1]
    assert {sentence for sentence in assumed if sentence in MAY_BE_SAID} == said
    assert assumed[0].startswith(first)
