"""Deposits of tangent weights: retraining to rounding for any number of examples, and everything else refused."""

from __future__ import annotations

import functools
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from expunge import DataError, ModelError, OptionError, VerificationFailed, desk, verify
from expunge.certificate.dossier import Certificate, digest_of
from expunge.certificate.verify import checks, verify_statement
from expunge.deposit.asking import deposit_promise
from expunge.deposit.file import Deposit, parse_deposit
from expunge.deposit.forecast import forecast
from expunge.deposit.membership import answers
from expunge.deposit.verify import verify_deposits, whitened
from expunge.errors import FileError
from expunge.heads.tangent import last_parameters
from expunge.mechanism import Unlearned, measure
from expunge.networks.tangent import (
    TangentModel,
    ask_tangent_deposit,
    deposit_tangent,
    keep_tangent,
    train_tangent,
    unlearn_tangent,
)
from expunge.unlearn import unlearn
from tangent_problems import exact, examples, network

pytestmark = pytest.mark.usefixtures("one_thread")
N = 240
OPTIONS = {"l2": 0.01, "max_norm": 1.5}
NAMES = tuple(name for name, _ in network(0).named_parameters())


@functools.cache
def source() -> tuple[Tensor, np.ndarray]:
    return examples(N, 1)


@functools.cache
def trained() -> TangentModel:
    return train_tangent(network(0), *source(), **OPTIONS)


@functools.cache
def kept() -> Deposit:
    return deposit_tangent(network(0), trained(), *source(), seed=1)


def rows(*numbers: int) -> tuple[Tensor, np.ndarray]:
    inputs, labels = source()
    return inputs[list(numbers)], labels[list(numbers)]


def forgotten(count: int, epsilon: float = 0.01, deposit: Deposit | None = None) -> Unlearned:
    return unlearn_tangent(
        network(0), trained(), rows(*range(count)), epsilon=epsilon, delta=1e-6, deposit=deposit or kept()
    )


@pytest.mark.parametrize("count", [1, 24, N // 2])
def test_any_number_of_examples_leaves_retraining_to_rounding(count: int) -> None:
    inputs, labels = source()
    retrained = exact(network(0), inputs[count:], labels[count:], names=NAMES, **OPTIONS)
    promise = deposit_promise(0.01, 1e-6)
    request = ask_tangent_deposit(network(0), trained(), kept(), rows(*range(count)), promise)
    updated = request.weights + measure(request).step.update
    assert float((updated[0] - retrained).norm()) <= 1e-8 * float(retrained.norm())
    assert float((trained().weights - retrained).norm()) > 1e-5, "forgetting must have something to do"
    result = forgotten(count)
    certificate = result.certificate
    assert (certificate.status, certificate.content["bound"]["convention"]) == ("conditional", "exact")
    assert certificate.content["assumptions"] == ["These facts were declared, not checked: rounding."]
    assert whitened(result.deposit, updated - retrained) <= certificate.total < 1e-7
    assert [check.name for check in checks(certificate) if not check.passed] == []
    verify_statement(result.statement, None, certificate)
    # noise for epsilon 0.01 costs nothing
    tests = examples(3000, 2)
    accuracy = [float(np.mean(m.predict(network(0), tests[0]) == tests[1])) for m in (result.model, without(count))]
    assert accuracy[0] >= accuracy[1] - 0.005


def test_the_anchor_has_noise_that_outputs_and_accuracy_are_not_judged_by() -> None:
    """A square takes noise of any length, which leaves with the step."""
    deposit, weights = kept(), trained().weights
    assert deposit.record.noised
    expected = deposit.numbers.anchor_noise * np.sqrt(len(weights))
    assert 0.5 < whitened(deposit, deposit.anchor - weights) / expected < 1.5
    assert float((deposit.settled[0] - weights).norm()) <= 1e-8 * float(weights.norm())


def without(count: int) -> TangentModel:
    inputs, labels = source()
    return train_tangent(network(0), inputs[count:], labels[count:], **OPTIONS)


def test_one_deletion_after_another_and_what_an_auditor_sees(tmp_path: Path) -> None:
    first = forgotten(3)
    before = parse_deposit(first.deposit.to_bytes(), tmp_path)
    assert before.to_bytes() == first.deposit.to_bytes()
    second = unlearn_tangent(network(0), first.model, rows(7, 8), epsilon=1.0, delta=1e-6, deposit=before)
    sizes = second.certificate.content["sizes"]
    assert (sizes["n_source"], sizes["n_forget"], sizes["n_retain"]) == (N, 5, N - 5)
    assert (sizes["parameters"], sizes["features"], sizes["classes"]) == (27, 27, 3)
    (tmp_path / "model.safetensors").write_bytes(second.model.to_bytes())
    found = verify_deposits(second.certificate, second.deposit, before, None, tmp_path / "model.safetensors")
    assert "deposit: the published weights are where the noise puts them" in {check.name for check in found}
    with pytest.raises(OptionError, match="Leave --forget out"):
        verify_deposits(second.certificate, second.deposit, before, rows(7, 8))
    other = train_tangent(network(0), *source(), **(OPTIONS | {"l2": 0.1}))
    (tmp_path / "other.safetensors").write_bytes(other.to_bytes())
    with pytest.raises(Exception, match="where the noise puts them"):
        verify_deposits(second.certificate, second.deposit, before, None, tmp_path / "other.safetensors")


def test_a_dossier_that_calls_the_network_s_rounding_derived_is_false() -> None:
    content = deepcopy(forgotten(2).certificate.content)
    content["bound"]["inputs"]["rounding"]["provenance"] = "derived"
    content |= {"status": "proven", "assumptions": []}
    with pytest.raises(VerificationFailed, match="rounding is declared"):
        verify(Certificate(content | {"digest": digest_of(content)}))


def test_a_deposit_that_does_not_count_what_the_network_loses_is_none(tmp_path: Path) -> None:
    assert kept().numbers.longest_target > np.sqrt(3.0)
    for value in (0.0, float("inf")):
        broken = replace(kept(), numbers=replace(kept().numbers, longest_target=value))
        with pytest.raises((FileError, ValueError)):
            parse_deposit(broken.to_bytes(), tmp_path)


def test_members_and_what_forgetting_costs() -> None:
    found = answers(kept(), rows(4, 9))
    assert [each.there for each in found] == [True, True]
    stranger = answers(kept(), (source()[0][:1] + 1.0, source()[1][:1]))
    assert [each.there for each in stranger] == [False]
    made = keep_tangent(network(0), trained(), *source(), seed=1)
    expected = forecast(made.deposit, made.rehearsals, made.rows)
    correct = np.mean(trained().predict(network(0), source()[0]) == source()[1])
    assert expected.accuracy == pytest.approx(float(correct), abs=1e-12)
    assert all(size.refused == 0 for size in expected.sizes)
    assert {each.at_once for each in expected.affordable} == {10}, "noise costs nothing, whatever epsilon"


# Refused ----------------------------------------------------------------------------------------------------------------


def test_examples_that_were_never_there_or_left_or_were_rounded() -> None:
    inputs, labels = source()
    options = {"epsilon": 1.0, "delta": 1e-6, "deposit": kept()}
    with pytest.raises(DataError, match="not in what is left"):
        unlearn_tangent(network(0), trained(), (inputs[:1] + 1.0, labels[:1]), **options)
    with pytest.raises(DataError, match="more often than what is left"):
        unlearn_tangent(network(0), trained(), rows(3, 3), **options)
    copy = (torch.from_numpy(np.round(inputs[:2].numpy().astype(np.float64), 6)), labels[:2])
    with pytest.raises(DataError, match="rounded copies"):
        unlearn_tangent(network(0), trained(), copy, **options)
    after = forgotten(2).deposit
    with pytest.raises(DataError, match="not in what is left"):
        forgotten(1, deposit=after)
    with pytest.raises(DataError, match="something must be retained"):
        forgotten(N)


def test_weights_that_are_too_many_are_refused_before_any_work() -> None:
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(2, 4000), nn.Tanh(), nn.Linear(4000, 1))
    many = replace(trained(), weights=torch.zeros(16001, dtype=torch.float64))
    with pytest.raises(ModelError, match=r"16,001 x 16,001.*12,000 weights.*--last"):
        deposit_tangent(wide, many, *source())


def test_other_models_networks_and_sources() -> None:
    inputs, labels = source()
    with pytest.raises(DataError, match="239 rows"):
        deposit_tangent(network(0), trained(), inputs[1:], labels[1:])
    with pytest.raises(DataError, match="gradient has norm"):
        deposit_tangent(network(0), trained(), inputs * 1.01, labels)
    with pytest.raises(ModelError, match="not the one"):
        deposit_tangent(network(1), trained(), inputs, labels)
    with pytest.raises(ModelError, match="noised"):
        deposit_tangent(network(0), forgotten(1).model, inputs, labels)
    other = train_tangent(network(0), inputs, labels, l2=0.02, max_norm=1.5)
    with pytest.raises(ModelError, match="record says l2"):
        unlearn_tangent(network(0), other, rows(1), epsilon=1.0, delta=1e-6, deposit=kept())


def test_what_goes_with_a_deposit_and_what_without(tmp_path: Path) -> None:
    budget = {"epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(OptionError, match="beside a deposit"):
        unlearn_tangent(network(0), trained(), rows(1), source(), deposit=kept(), **budget)
    with pytest.raises(OptionError, match="without a deposit both"):
        unlearn_tangent(network(0), trained(), rows(1), source(), **budget)
    with pytest.raises(OptionError, match="expunge tangent unlearn"):
        unlearn(None, rows(1), deposit=kept(), **budget)
    with pytest.raises(OptionError, match="expunge tangent unlearn"):
        desk.create_desk(tmp_path / "desk", None, None, desk.Policy(1.0, 1e-6, "deposit"), deposit=kept())


# As large as it is meant for --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_five_thousand_weights_of_a_network_on_digits() -> None:
    """Half of the digits are forgotten; the tangent weights are those of two layers, 4,810 of them."""
    images, labels = load_digits(return_X_y=True)
    inputs = torch.from_numpy(images / 16).float()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    names = last_parameters(module, 4)
    options = {"l2": 1e-3, "max_norm": 5.0, "names": names}
    model = train_tangent(module, inputs[:1200], labels[:1200], **options)
    assert len(model.weights) == 4810
    deposit = deposit_tangent(module, model, inputs[:1200], labels[:1200])
    budget = {"epsilon": 0.01, "delta": 1e-6}
    request = ask_tangent_deposit(
        module, model, deposit, (inputs[:600], labels[:600]), deposit_promise(*budget.values())
    )
    updated = (request.weights + measure(request).step.update)[0]
    retrained = train_tangent(module, inputs[600:1200], labels[600:1200], **options)
    assert float((updated - retrained.weights).norm()) <= 1e-8 * float(retrained.weights.norm())
    result = unlearn_tangent(module, model, (inputs[:600], labels[:600]), deposit=deposit, **budget)
    assert (result.certificate.status, result.certificate.total < 1e-5) == ("conditional", True)
    accuracy = [float(np.mean(m.predict(module, inputs[1200:]) == labels[1200:])) for m in (result.model, retrained)]
    assert accuracy[0] >= accuracy[1] - 0.005
