"""Results that are refused."""

import math
import re
from dataclasses import replace

import pytest
import torch

import expunge
from deposit_problems import made as made_deposit
from expunge import Statement, verify, verify_statement
from expunge.bounds import Ball, Region
from expunge.bounds.calibration import ON_LADDER, POLICY, Scale, delta_of, level_above, mu_for, sigma_for
from expunge.certificate.claim import ARITHMETIC_SHARE, Claim
from expunge.certificate.derive import Conclusion
from expunge.certificate.dossier import digest_of
from expunge.deposit.file import Deposit
from expunge.desk.policy import Policy
from expunge.distance import Distance
from expunge.noise import calibrated
from expunge.report.card import model_card
from expunge.report.page import decision
from expunge.request.promise import Promise, refuse_unsound
from expunge.train import train


def test_noise_that_swamps_the_weights_is_refused_with_what_would_do(parts) -> None:
    """Epsilon comes last among the remedies, and the one that is named would do."""
    model = train(*parts["source"], l2=0.05, max_norm=2.0, force=True)
    asked = {"delta": 1e-3, "distance": "chi2:1"}
    with pytest.raises(expunge.UselessModel) as refusal:
        expunge.unlearn(model, parts["forget"], parts["surrogate"], epsilon=0.01, **asked)
    said = refusal.value.remedy
    assert said.startswith("Forget fewer rows at once, use a closer or larger surrogate")
    would_do = float(re.findall(r"raise epsilon to ([\d.]+) or more, or insist", said)[0])
    assert would_do <= 10.0
    expunge.unlearn(model, parts["forget"], parts["surrogate"], epsilon=would_do * 1.01, **asked)
    with pytest.raises(expunge.UselessModel):
        expunge.unlearn(model, parts["forget"], parts["surrogate"], epsilon=would_do * 0.95, **asked)


def test_no_refusal_suggests_an_epsilon_that_means_nothing(parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """An l2 so small that only an epsilon in the hundreds would do: it is not named."""
    model = train(*parts["source"], l2=1e-6, max_norm=2.0, force=True)
    with pytest.raises(expunge.UselessModel) as refusal:
        expunge.unlearn(model, parts["forget"], parts["surrogate"], epsilon=1.0, delta=1e-3, distance="tv:0.9")
    assert "epsilon" not in str(refusal.value)
    case = made_deposit("logistic")
    forget, asked = (case.X[:1], case.y[:1]), {"delta": 1e-3, "deposit": case.deposit, "noise": "exact"}
    made = expunge.unlearn(case.model, forget, epsilon=1.0, **asked)
    moved = made.certificate.sigma * made.deposit.output_noise
    monkeypatch.setattr(Deposit, "output_spread", 1e-12)
    with pytest.raises(expunge.UselessModel) as refusal:
        expunge.unlearn(case.model, forget, epsilon=1.0, **asked)
    assert refusal.value.remedy.startswith("Forget fewer rows at once")
    assert "epsilon" not in str(refusal.value)
    monkeypatch.setattr(Deposit, "output_spread", moved / 2)
    with pytest.raises(expunge.UselessModel) as refusal:
        expunge.unlearn(case.model, forget, epsilon=1.0, **asked)
    would_do = float(re.findall(r"raise epsilon to ([\d.]+) or more, or insist", refusal.value.remedy)[0])
    assert 1.0 < would_do <= 10.0
    assert expunge.unlearn(case.model, forget, epsilon=would_do, **asked)


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
    assert f"**{little}" in model_card(made.statement.content, "statement.json")
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
    case = made_deposit("softmax", l2=0.05, n=300)
    asked = {"epsilon": 1.0, "delta": 1e-5, "deposit": case.deposit, "noise": 4.0}
    with pytest.raises(expunge.UselessModel, match="would move a typical output"):
        expunge.unlearn(case.model, (case.X[:1], case.y[:1]), **asked)
    expunge.unlearn(case.model, (case.X[:1], case.y[:1]), **asked, force=True)


CLAIM = Claim(1.0, 1e-3, "residual", {}, Distance("same", 0.0), {}, 100, "operating system")


def derived(radius: float, claim: Claim = CLAIM, **changed: object) -> Conclusion:
    """What the judge would say of a region of this radius."""
    region = Region("residual", {"training": 0.25 * radius, "surrogate": 0.75 * radius}, Ball(100))
    region, noise = calibrated(region, claim.epsilon, claim.delta)
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
    with pytest.raises(expunge.UselessModel) as refusal:
        refuse_unsound(CLAIM, found, 0.0 * weights, force=False)
    assert "epsilon" not in str(refusal.value), "none would do"


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


def test_on_the_ladder_the_epsilon_that_would_do_is_that_of_a_rung() -> None:
    """Weights between two rungs of noise: the lower one has to be enough."""
    found = derived(1.0)
    claim = replace(CLAIM, scale=ON_LADDER)
    rung = level_above(found.required)
    on_rung = replace(found, noise=replace(found.noise, scale=rung))
    weights = torch.zeros(100, dtype=torch.float64)
    weights[0] = 10.0 * rung * 0.9
    with pytest.raises(expunge.UselessModel) as refusal:
        refuse_unsound(claim, on_rung, weights, force=False)
    would_do = float(re.findall(r"raise epsilon to ([\d.]+) or more", refusal.value.remedy)[0])
    assert sigma_for(found.region.radius, 1.01 * would_do, claim.delta) <= rung / 2.0
    assert sigma_for(found.region.radius, 0.99 * would_do, claim.delta) > rung / 2.0
