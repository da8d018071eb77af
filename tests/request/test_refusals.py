"""Results that are refused."""

import math
from dataclasses import replace

import pytest
import torch

import expunge
from deposit_problems import made as made_deposit
from expunge import Statement, verify, verify_statement
from expunge.bounds import Ball, Region
from expunge.bounds.calibration import POLICY, Scale, delta_of, mu_for
from expunge.certificate.claim import ARITHMETIC_SHARE, Claim
from expunge.certificate.derive import Conclusion
from expunge.certificate.dossier import digest_of
from expunge.desk.policy import Policy
from expunge.distance import Distance
from expunge.noise import calibrate_noise
from expunge.report.page import decision
from expunge.request.promise import Promise, refuse_unsound
from expunge.train import train


def test_noise_that_swamps_the_weights_is_refused_with_what_to_do(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0, force=True)
    asked = {"epsilon": 0.01, "delta": 1e-3, "distance": "chi2:1"}
    with pytest.raises(expunge.UselessModel, match="would swamp the weights") as refusal:
        expunge.unlearn(model, parts["forget"], parts["surrogate"], **asked)
    for remedy in ("Forget fewer rows at once", "a closer or larger surrogate", "expunge plan", "--force"):
        assert remedy in refusal.value.remedy
    assert expunge.unlearn(model, parts["forget"], parts["surrogate"], **asked, force=True)


def test_an_epsilon_that_means_nothing_is_refused_or_said_first() -> None:
    """Epsilon 30 was issued as proven, right at most 100 % of the time."""
    case = made_deposit("softmax")
    asked = {"delta": 1e-3, "deposit": case.deposit}
    forget = (case.X[:1], case.y[:1])
    with pytest.raises(expunge.UselessModel, match=r"epsilon 30; above 10 .* 99.99 %.*usual"):
        expunge.unlearn(case.model, forget, epsilon=30.0, **asked)
    assert expunge.unlearn(case.model, forget, epsilon=10.0, **asked)
    made = expunge.unlearn(case.model, forget, epsilon=11.0, force=True, **asked)
    little = "NEXT TO NOTHING IS PROMISED: at epsilon 11 "
    for content in (made.statement.content, made.certificate.content):
        assert content["guarantee"].startswith(little)
        assert content["notes"][0].startswith(little)
        assert decision(content, public=content is made.statement.content).startswith(little)
    verify(made.certificate)
    verify_statement(made.statement)
    forged = dict(made.statement.content)
    forged["guarantee"] = forged["guarantee"].split("time. ")[1]
    forged["digest"] = digest_of(forged)
    with pytest.raises(expunge.VerificationFailed, match="guarantee"):
        verify_statement(Statement(forged))
    with pytest.raises(expunge.UselessModel, match="epsilon 30"):
        Policy(30.0, 1e-3, "deposit").check()
    Policy(30.0, 1e-3, "deposit", force=True).check()
    paper = Promise(100.0, 0.5, Distance("same", 0.0), bound="paper")  # nothing is proven with it, and it is said
    assert paper.epsilon == 100.0


def test_the_classical_formula_is_refused_where_its_delta_is_wrong(parts) -> None:
    model = train(*parts["source"], l2=2.0, max_norm=1.0, force=True)
    asked = {"delta": 1e-5, "distance": "tv:0.001", "bound": "paper", "force": True, "noise": "exact"}
    assert (
        expunge.unlearn(model, parts["forget"], parts["surrogate"], epsilon=0.9, **asked).certificate.status
        == "conditional"
    )
    with pytest.raises(expunge.VacuousClaim, match="classical"):
        expunge.unlearn(model, parts["forget"], parts["surrogate"], epsilon=20.0, **asked)


def test_noise_that_float64_cannot_draw_is_refused_by_force_or_not() -> None:
    """What may be lost of delta when noise is drawn counts `1 + e^epsilon` times."""
    case = made_deposit("ridge")
    asked = {"delta": 1e-5, "deposit": case.deposit, "noise": "exact", "force": True}
    with pytest.raises(expunge.VacuousClaim, match="float64 may make"):
        expunge.unlearn(case.model, (case.X[:1], case.y[:1]), epsilon=60.0, **asked)


def test_beside_a_radius_of_rounding_alone_the_noise_is_long_enough_for_its_drawing() -> None:
    """A ridge head's radius is rounding alone: noise as short as that would be lost in the weights' last digits."""
    case = made_deposit("ridge")
    made = expunge.unlearn(
        case.model, (case.X[:1], case.y[:1]), epsilon=1.0, delta=1e-5, deposit=case.deposit, noise="exact", force=True
    )
    terms = made.certificate.terms
    assert 0.0 < terms["drawing"] < made.certificate.total
    assert made.certificate.total <= made.certificate.sigma * mu_for(1.0, 1e-5 * (1.0 - ARITHMETIC_SHARE)) * (1 + 1e-9)


def test_noise_that_drowns_the_outputs_is_refused_unless_forced() -> None:
    case = made_deposit("softmax")
    asked = {"epsilon": 1.0, "delta": 1e-5, "deposit": case.deposit, "noise": 64.0}
    with pytest.raises(expunge.UselessModel, match="would move a typical output"):
        expunge.unlearn(case.model, (case.X[:1], case.y[:1]), **asked)
    expunge.unlearn(case.model, (case.X[:1], case.y[:1]), **asked, force=True)


CLAIM = Claim(1.0, 1e-3, "residual", {}, Distance("same", 0.0), {}, 100, "operating system")


def derived(radius: float, claim: Claim = CLAIM, **changed: object) -> Conclusion:
    """What the judge would say of a region of this radius."""
    region = Region("residual", {"training": 0.25 * radius, "surrogate": 0.75 * radius}, Ball(100))
    region, noise = calibrate_noise(region, claim.epsilon, claim.delta)
    delta = delta_of(claim.epsilon, region.radius / noise.scale)
    made = Conclusion(region, noise, noise.scale, claim.delta, delta, "", "", (), ())
    return replace(made, **changed)


def test_weights_as_long_as_the_noise_are_where_a_model_begins_to_be_of_use() -> None:
    found = derived(1.0)
    length = 10.0 * found.noise.scale
    assert length == pytest.approx(found.noise.length)
    weights = torch.zeros(100, dtype=torch.float64)
    weights[0] = length * 1.001
    refuse_unsound(CLAIM, found, weights, force=False)
    with pytest.raises(expunge.UselessModel, match="largest term of the bound is surrogate"):
        refuse_unsound(CLAIM, found, weights / 1.01, force=False)
    refuse_unsound(CLAIM, found, weights / 1.01, force=True)


def test_a_claim_that_says_nothing_is_refused_by_force_or_not() -> None:
    region = Region("paper", {"newton": 1.0, "surrogate": math.inf})
    infinite = Conclusion(region, None, math.inf, 1e-3, 1.0, "none", "", (), ())
    wrong = derived(1e-3, delta_at_sigma=1.1e-3)
    for force in (False, True):
        with pytest.raises(expunge.VacuousClaim, match=r"infinite \(surrogate\)"):
            refuse_unsound(CLAIM, infinite, torch.ones(100), force)
        with pytest.raises(expunge.VacuousClaim, match=r"true delta is 0\.0011"):
            refuse_unsound(CLAIM, wrong, torch.ones(100), force)


@pytest.mark.parametrize("force", [False, True])
def test_more_noise_than_was_set_is_refused_without_a_number(force: bool) -> None:
    found = derived(1.0)
    short = replace(found, noise=replace(found.noise, scale=0.99 * found.required))
    policy = replace(CLAIM, scale=Scale(POLICY, short.noise.scale))
    with pytest.raises(expunge.BeyondPolicy) as refusal:
        refuse_unsound(policy, short, torch.ones(100), force)
    assert not any(character.isdigit() for character in str(refusal.value))
