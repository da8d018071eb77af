"""Rows that count by their class: as if they were there more often, in every sum, in the refit, and when they leave."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from expunge.bounds.deposit import deposit_bound
from expunge.certificate.dossier import digest_of
from expunge.certificate.verify import verify_statement
from expunge.certificate.wording import WEIGHTED
from expunge.deposit import forecast
from expunge.deposit.evidence import DepositEvidence
from expunge.deposit.file import Deposit, parse_deposit
from expunge.deposit.make import NewDeposit, make_from_rows
from expunge.deposit.membership import charged_sums
from expunge.deposit.region import RetainedProblem, smallest_region
from expunge.deposit.sums import by_class, sums_of
from expunge.deposit.verify import verify_deposits
from expunge.door import ask
from expunge.errors import ModelError, VerificationFailed
from expunge.heads import Rows, head_for
from expunge.model import LinearModel
from expunge.record import TrainingRecord, are_class_weights
from expunge.request.promise import Promise
from expunge.runtime.arrays import double, norm, to_numpy
from expunge.unlearn import unlearn

N, WEIGHTS = 240, (1.0, 0.5, 0.25)


def drawn() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    features = generator.normal(size=(N, 3))
    return features, (features @ generator.normal(size=(3, 3)) + generator.gumbel(size=(N, 3))).argmax(axis=1)


def record(weights: tuple[float, ...] | None = WEIGHTS, loss: str = "softmax") -> TrainingRecord:
    counts = tuple(np.bincount(drawn()[1], minlength=3).tolist())
    return TrainingRecord(N, (0, 1, 2), counts, 0.02, loss, 9.0, False, 0.0, class_weights=weights)


def kept(weights: tuple[float, ...] | None = WEIGHTS, loss: str = "softmax") -> Deposit:
    return made_of(weights, loss).deposit


def made_of(weights: tuple[float, ...] | None = WEIGHTS, loss: str = "softmax") -> NewDeposit:
    features, labels = drawn()
    rows = Rows(features, labels)
    model = LinearModel(np.zeros((3, 3))).with_record(record(weights, loss))
    return make_from_rows(model, model.record, rows, (features, labels), seed=1)


def test_a_weight_of_a_quarter_is_a_quarter_of_four_rows() -> None:
    """A row of weight w among n is as 4 w copies of it among 4 n, in gradient, curvature and third derivatives."""
    features, labels = drawn()
    head = head_for("softmax", l2=0.0, n_classes=3, n_features=3, row_bound=9.0)
    weights = np.random.default_rng(1).normal(size=(3, 3))
    times = np.array([4, 2, 1])[labels]
    often = Rows(np.repeat(features, times, axis=0), np.repeat(labels, times))
    weighted = by_class(Rows(features, labels), record())
    assert isinstance(weighted, Rows)
    assert weighted.weights is not None
    assert weighted.weights.tolist() == [WEIGHTS[label] for label in labels.tolist()]
    one, other = (sums_of(head, weights, rows, third=True) for rows in (weighted, often))
    share = len(often) / (4 * len(features))
    np.testing.assert_allclose(one.gradient, share * other.gradient, atol=1e-7)
    np.testing.assert_allclose(one.curvature.values, share * other.curvature.values, atol=1e-7)
    np.testing.assert_allclose(one.third, share * other.third, atol=1e-7)


def optimum(keep: np.ndarray, l2: float) -> np.ndarray:
    """The same on rows of `drawn`."""
    return minimiser(*(part[keep] for part in drawn()), WEIGHTS, l2, "softmax")


def minimiser(features: np.ndarray, labels: np.ndarray, weights: tuple[float, ...], l2: float, loss: str) -> np.ndarray:
    """The weighted objective's own optimum over these rows, by Newton steps with autograd and nothing of the package."""
    rows, classes = torch.from_numpy(features), torch.from_numpy(labels)
    shares = torch.tensor(weights, dtype=torch.float64)[classes]
    hot = double(torch.nn.functional.one_hot(classes, 3))

    def objective(flat: torch.Tensor) -> torch.Tensor:
        outputs = rows @ flat.view(3, -1).T
        if loss == "softmax":
            losses = torch.nn.functional.cross_entropy(outputs, classes, reduction="none")
        elif loss == "ridge":
            losses = 0.5 * (outputs - (2.0 * hot - 1.0)).square().sum(dim=1)
        else:
            losses = torch.nn.functional.softplus(-(2.0 * hot - 1.0) * outputs).sum(dim=1)
        return (shares * losses).mean() + 0.5 * l2 * flat.square().sum()

    at = torch.zeros(3 * features.shape[1], dtype=torch.float64)
    value = float(objective(at))
    for _ in range(60):
        gradient = torch.autograd.functional.jacobian(objective, at)
        step = torch.linalg.solve(torch.autograd.functional.hessian(objective, at), gradient)
        while float(objective(at - step)) > value and float(norm(step)) > 1e-13:
            step = step / 2.0
        at = at - step
        value = float(objective(at))
    return to_numpy(at.view(3, -1))


@pytest.mark.parametrize("loss", ["softmax", "one-vs-rest", "ridge"])
@pytest.mark.parametrize("seed", range(2))
def test_the_refit_with_the_same_weights_is_inside_whatever_the_weights(loss: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    count, width = int(generator.integers(60, 200)), int(generator.integers(1, 4))
    features = generator.normal(size=(count, width)) * generator.lognormal(0.0, 1.0, size=(count, 1))
    labels = (features @ generator.normal(size=(width, 3)) + generator.gumbel(size=(count, 3))).argmax(axis=1)
    labels[:3] = range(3)
    drawn_weights = 10.0 ** generator.uniform(-3.0, 0.0, 3)
    weights = tuple((drawn_weights / drawn_weights.max()).tolist())
    l2, bound = 10.0 ** generator.uniform(-3.0, -1.0), float(np.linalg.norm(features, axis=1).max()) * 1.01
    counts = tuple(np.bincount(labels, minlength=3).tolist())
    told = TrainingRecord(count, (0, 1, 2), counts, l2, loss, bound, False, 0.0, class_weights=weights)
    rows = Rows(features, labels)
    model = LinearModel(np.zeros((3, width))).with_record(told)
    with patch.object(forecast, "GROUPS", ((10**9, 2),)):
        assert model.record is not None
        deposit = make_from_rows(model, model.record, rows, (features, labels), seed=1).deposit
    finite = 0
    for gone_rows in (1, 3, 8):
        chosen = generator.choice(count, gone_rows, replace=False)
        keep = np.setdiff1d(np.arange(count), chosen)
        request = ask(None, (features[chosen], labels[chosen]), None, Promise(1.0, 1e-3), deposit=deposit)
        retained = deposit.sums.without(charged_sums(deposit, request.forget, request.membership))
        result = smallest_region(
            RetainedProblem(deposit.setting, retained, deposit.penalty(retained.count), deposit.shape)
        )
        if result is None:
            continue
        finite += 1
        off = deposit.setting.centred(
            deposit.anchor + result.update - minimiser(features[keep], labels[keep], weights, l2, loss)
        )
        assert float(norm(off @ deposit.shape[0])) <= deposit_bound(result.facts).radius + 1e-11
    assert finite >= 1


def test_the_anchor_is_the_weighted_optimum_and_the_refit_is_inside_the_region() -> None:
    deposit, (features, labels) = kept(), drawn()
    best = optimum(np.arange(N), 0.02)
    np.testing.assert_allclose(made_of().optimum, best, rtol=1e-8, atol=1e-9)
    noise = (deposit.anchor - best) @ deposit.shape[0]
    assert 0.3 < float(norm(noise)) / (deposit.numbers.anchor_noise * math.sqrt(6.0)) < 2.0  # 6 of 9 are not centred
    made = unlearn(deposit.model, (features[:4], labels[:4]), epsilon=1.0, delta=1e-3, deposit=deposit, noise="exact")
    content = made.certificate.content
    updated = _updated(deposit, (features[:4], labels[:4]))
    away = (updated - optimum(np.arange(4, N), 0.02)) @ made.deposit.shape[0]
    assert float(norm(away)) <= content["bound"]["total"]
    assert content["model"]["class_weights"] == list(WEIGHTS)
    assert WEIGHTED in content["limits"]
    plain = unlearn(kept(None).model, (features[:4], labels[:4]), epsilon=1.0, delta=1e-3, deposit=kept(None))
    assert WEIGHTED not in plain.statement.content["limits"]


def _updated(deposit: Deposit, forget: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    request = ask(None, forget, None, Promise(1.0, 1e-3), deposit=deposit)
    return deposit.anchor + DepositEvidence.gather(request).step().update


def test_statement_dossier_file_and_auditor_agree_on_the_weights() -> None:
    features, labels = drawn()
    deposit = parse_deposit(kept().to_bytes(), __file__)  # type: ignore[arg-type]
    assert deposit.record.class_weights == WEIGHTS
    made = unlearn(deposit.model, (features[:3], labels[:3]), epsilon=1.0, delta=1e-3, deposit=deposit)
    assert verify_statement(made.statement, None, made.certificate)
    assert verify_deposits(made.certificate, made.deposit, deposit, (features[:3], labels[:3]))
    assert made.statement.content["model"]["weighted"] is True
    assert "class_weights" not in made.statement.content["model"]
    forged = copy.deepcopy(made.certificate)
    forged.content["model"]["class_weights"] = [1.0, 2.0, 0.5]
    forged.content["digest"] = digest_of(forged.content)
    with pytest.raises(VerificationFailed, match=r"model\.class_weights"):
        verify_deposits(forged, made.deposit)


def test_what_weights_cannot_be_used_with_is_refused() -> None:
    features, labels = drawn()
    deposit = kept()
    trained = deposit.model.with_record(replace(deposit.record, noised=False, residual=0.0))
    with pytest.raises(ModelError, match="class weights"):
        unlearn(trained, (features[:3], labels[:3]), (features, labels), epsilon=1.0, delta=1e-3, distance="same")
    other = deposit.model.with_record(replace(deposit.record, class_weights=(1.0, 1.0, 1.0), noised=False))
    with pytest.raises(ModelError, match="class_weights"):
        unlearn(other, (features[:3], labels[:3]), epsilon=1.0, delta=1e-3, deposit=deposit)
    assert by_class(Rows(np.zeros((1, 3)), np.array([0])), record(None)).has_weights is False


@pytest.mark.parametrize("weights", [(1.0, 0.5), (0.5, 0.5, 1.5), (1.0, 0.0, 1.0), (1.0, float("nan"), 0.5), (1, 1, 1)])
def test_weights_that_cannot_be_are_refused(weights: tuple[float, ...]) -> None:
    assert not are_class_weights(weights, 3)
    odd = replace(record(WEIGHTS), weights_sha256="0" * 64).to_json().replace("[1.0, 0.5, 0.25]", str(list(weights)))
    with pytest.raises(ModelError, match=r"not JSON|class_weights"):
        TrainingRecord.from_json(odd, "the record")
