"""Tangent weights: trained, unlearned with a surrogate, and deposited."""

from __future__ import annotations

import functools
import json
import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from expunge import desk, verify
from expunge.bounds import retained_bound
from expunge.certificate.claim import retained_facts
from expunge.certificate.dossier import Certificate, digest_of
from expunge.certificate.verify import checks, verify_statement
from expunge.deposit.file import Deposit, parse_deposit
from expunge.deposit.forecast import forecast
from expunge.deposit.membership import answers
from expunge.deposit.verify import verify_deposits
from expunge.distance import Distance
from expunge.errors import DataError, FileError, ModelError, OptionError, UselessModel, VerificationFailed
from expunge.heads.tangent import Tangent, last_parameters
from expunge.mechanism import Unlearned, measure
from expunge.networks.tangent import (
    TangentModel,
    deposit_tangent,
    make_tangent_deposit,
    objective_of,
    read_tangent,
    tangent_request,
    train_tangent,
    unlearn_tangent,
)
from expunge.request.promise import Promise
from expunge.runtime.arrays import equal, norm, to_numpy
from expunge.unlearn import unlearn
from tangent_problems import exact, examples, network

# Tangent weights as a file: they come back as they went, and go with one network only.


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model() -> TangentModel:
    module = network(0)
    return train_tangent(module, *examples(60, 1), l2=0.05, max_norm=1.5, names=last_parameters(module, 2))


def test_it_goes_with_the_network_it_was_linearised_at(model: TangentModel) -> None:
    assert objective_of(network(0), model, 8, "cpu").n_parameters == len(model.weights)
    for other in (network(1), network(0, width=5)):
        with pytest.raises(ModelError, match="not the one"):
            objective_of(other, model, 8, "cpu")
    with pytest.raises(ModelError, match="not the one"):
        objective_of(network(0), replace(model, names=model.names[:1]), 8, "cpu")


# Tangent weights are trained to the optimum that a dense solve finds.


@pytest.mark.parametrize("max_norm", [0.7, 50.0])
@pytest.mark.parametrize("l2", [1e-3, 0.5])
def test_the_optimum_is_that_of_the_normal_equations(l2: float, max_norm: float) -> None:
    module, (inputs, labels) = network(3), examples(40, 4)
    names = last_parameters(module, 4)
    model = train_tangent(module, inputs, labels, l2=l2, max_norm=max_norm, names=names)
    best = exact(module, inputs, labels, l2, max_norm, names)
    torch.testing.assert_close(model.weights, best, rtol=1e-7, atol=1e-9)
    objective = Tangent(module, l2=l2, max_norm=max_norm, names=names)
    gradient = objective.gradient(model.weights, objective.rows(inputs, torch.from_numpy(labels)))
    assert model.record.residual is not None
    assert float(norm(gradient)) <= model.record.residual, "the record bounds what is left from above"


def test_the_record_says_what_the_source_was() -> None:
    names = np.array(["ash", "birch", "cedar"])
    inputs, labels = examples(31, 5)
    record = train_tangent(network(1), inputs, names[labels], l2=0.1, max_norm=2.0).record
    assert record.classes == ("ash", "birch", "cedar")
    assert record.class_counts == (11, 10, 10)
    assert (record.n_source, record.l2, record.max_norm, record.loss) == (31, 0.1, 2.0, "tangent")
    assert record.provenance == "measured"


# Linearised networks: exact where the source is at hand, inside the bound where it is not.


@pytest.mark.parametrize("last", [2, 4])
@pytest.mark.parametrize("whole_class", [False, True])
def test_with_the_source_unlearning_is_retraining(last: int, whole_class: bool) -> None:
    module, (inputs, labels) = network(0), examples(60, 1)
    names = last_parameters(module, last)
    options = {"l2": 0.05, "max_norm": 1.5, "names": names}
    model = train_tangent(module, inputs, labels, **options)
    torch.testing.assert_close(model.weights, exact(module, inputs, labels, **options), atol=1e-9, rtol=0)
    gone = labels == 0 if whole_class else np.arange(60) < 6
    source = (inputs, labels)
    promise = Promise(1.0, 1e-5, Distance("source", 0.0))
    update = measure(tangent_request(module, model, (inputs[gone], labels[gone]), source, promise)).step.update
    retrained = exact(module, inputs[~gone], labels[~gone], **options)
    assert float(norm(model.weights + update - retrained)) < 1e-6
    assert float(norm(model.weights - retrained)) > 1e-3, "forgetting must have something to do"


def one_case(seed: int) -> tuple[float, float, float]:
    """(true distance to retraining, bound, surrogate term) of a random problem on a few points, each counted several times."""
    random = np.random.default_rng(seed)
    module = network(seed, width=int(random.integers(1, 4)), outputs=3)
    points, labels = examples(9, seed)
    points = points * float(random.uniform(0.3, 3))
    in_source, in_surrogate = (random.integers(1, 6, 9) for _ in range(2))
    options = {"l2": float(10 ** random.uniform(-2, 0)), "max_norm": float(random.uniform(0.5, 3))}
    source = np.repeat(np.arange(9), in_source)
    standing = np.repeat(np.arange(9), in_surrogate)
    gone = np.sort(random.choice(len(source), int(random.integers(1, 4)), replace=False))
    kept = np.delete(source, gone)
    model = train_tangent(module, points[source], labels[source], **options)
    # the surrogate stands for the rows that are retained
    p, q = np.bincount(kept, minlength=9) / len(kept), in_surrogate / in_surrogate.sum()
    kind = ("tv", "chi2", "kl")[seed % 3]
    held = p > 0
    logarithms = np.log(p[held] / q[held])
    value = {"tv": abs(p - q).sum() / 2, "chi2": ((p - q) ** 2 / q).sum(), "kl": p[held] @ logarithms}[kind]
    distance = Distance(kind, float(value) * (1 + 1e-12), "samples")
    forget = (points[source[gone]], labels[source[gone]])
    promise = Promise(1.0, 1e-6, distance, force=True)
    request = tangent_request(module, model, forget, (points[standing], labels[standing]), promise)
    measured = measure(request, seed=seed)
    bound = retained_bound(retained_facts(measured.facts), distance, averaged=False)
    names = tuple(name for name, _ in module.named_parameters())
    retrained = exact(module, points[kept], labels[kept], names=names, **options)
    return float(norm(model.weights + measured.step.update - retrained)), bound.radius, bound.terms["surrogate"]


def check_cases(seeds: range) -> None:
    found = [one_case(seed) for seed in seeds]
    assert all(distance <= total for distance, total, _ in found)
    assert any(distance > total - surrogate for distance, total, surrogate in found), "without that term it would fail"
    assert max(distance / total for distance, total, _ in found) > 0.02, "a bound this loose would show nothing"


def test_the_bound_holds_with_a_surrogate() -> None:
    check_cases(range(24))


@pytest.mark.slow
def test_the_bound_holds_with_a_surrogate_in_200_cases() -> None:
    check_cases(range(200))


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Tensor, np.ndarray]:
    """A network pretrained on digits 0 to 4, with three outputs for digits 7 to 9."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.from_numpy(images / 16).float()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 5))
    public = labels < 5
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(pixels[public]), torch.from_numpy(labels[public])).backward()
        optimiser.step()
    module[2] = nn.Linear(12, 3)
    private = labels >= 7
    return module, pixels[private], labels[private]


def test_the_whole_way_with_a_certificate(digits: tuple[nn.Module, Tensor, np.ndarray], tmp_path: Path) -> None:
    module, inputs, labels = digits
    model = train_tangent(module, inputs[:250], labels[:250], l2=1e-3, max_norm=1.0)
    assert np.mean(model.predict(module, inputs[250:]) == labels[250:]) > 0.8
    (tmp_path / "m.safetensors").write_bytes(model.to_bytes())
    again = read_tangent(tmp_path / "m.safetensors")
    assert again.record == model.record
    assert again.names == model.names
    assert equal(again.weights, model.weights)
    assert len({model.sha256() for _ in range(20)}) == 1
    content = model.to_bytes()
    for bad in (content[:-8], content.replace(b"parameters", b"paramesers"), content[:-1] + bytes([content[-1] ^ 1])):
        (tmp_path / "bad.safetensors").write_bytes(bad)
        with pytest.raises((ModelError, FileError)):
            read_tangent(tmp_path / "bad.safetensors")
    forget, surrogate = (inputs[:2], labels[:2]), (inputs[250:], labels[250:])
    result = unlearn_tangent(module, model, forget, surrogate, epsilon=1e4, delta=1e-3, distance="same", force=True)
    content = json.loads(result.certificate.to_json())
    assert all(check.passed for check in verify(result.certificate))
    assert content["status"] == "conditional"
    for part, key, value in (("model", "loss", "module"), ("model", "max_norm", 0.5)):
        forged = content | {part: content[part] | {key: value}}
        with pytest.raises(VerificationFailed, match=f"{key}|row_bound"):
            verify(Certificate(forged | {"digest": digest_of(forged)}))
    inputs_of = content["bound"]["inputs"]
    measured = inputs_of | {"rounding": inputs_of["rounding"] | {"provenance": "measured"}}
    forged = content | {"bound": content["bound"] | {"inputs": measured}, "assumptions": content["assumptions"][1:]}
    with pytest.raises(VerificationFailed, match="rounding"):
        verify(Certificate(forged | {"digest": digest_of(forged)}))
    assert content["model"]["after"]["sha256"] == result.model.sha256()
    assert content["sizes"]["parameters"] == len(model.weights) == 64 * 12 + 12 + 12 * 3 + 3
    assert any("rounding" in sentence for sentence in content["assumptions"])
    assert result.model.record.n_source == 200, "one digit of 248: how many left is nobody's business"
    spread = float(norm(result.model.weights - model.weights))
    assert spread < 2 * (result.certificate.sigma * math.sqrt(len(model.weights)) + float(norm(model.weights)))
    with pytest.raises(ModelError, match="noised result"):
        unlearn_tangent(module, result.model, forget, surrogate, epsilon=1.0, delta=1e-3, distance="same")


def test_a_class_is_gone(digits: tuple[nn.Module, Tensor, np.ndarray]) -> None:
    module, inputs, labels = digits
    names = last_parameters(module, 2)
    model = train_tangent(module, inputs[:250], labels[:250], l2=0.01, max_norm=3.0, names=names)
    gone = labels[:250] == 8
    result = unlearn_tangent(
        module,
        model,
        (inputs[:250][gone], labels[:250][gone]),
        (inputs[:250], labels[:250]),
        epsilon=1e4,
        delta=1e-3,
        distance="source",
        force=True,
    )
    answers = result.model.predict(module, inputs[250:])
    tested = labels[250:]
    assert np.mean(answers[tested == 8] == 8) < 0.1
    before = model.predict(module, inputs[250:])
    others = tested != 8
    assert np.mean(answers[others] == tested[others]) >= np.mean(before[others] == tested[others]) - 0.02
    assert any("every row of class 8 is forgotten" in note for note in result.certificate.content["notes"])


def test_what_is_refused(digits: tuple[nn.Module, Tensor, np.ndarray]) -> None:
    module, inputs, labels = digits
    model = train_tangent(module, inputs[:150], labels[:150], l2=0.05, max_norm=1.0, names=last_parameters(module, 2))
    options = {"epsilon": 1.0, "delta": 1e-3}
    forget, rest = (inputs[:2], labels[:2]), (inputs[150:], labels[150:])
    other = nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 3))
    with pytest.raises(ModelError, match="not the one"):
        unlearn_tangent(other, model, forget, rest, distance="same", **options)
    with pytest.raises(DataError, match="the source had 150"):
        unlearn_tangent(module, model, forget, rest, distance="source", **options)
    with pytest.raises(OptionError, match="must be declared"):
        unlearn_tangent(module, model, forget, rest, distance="estimate", **options)
    with pytest.raises(OptionError, match="as for 10 rows of a network"):
        unlearn_tangent(module, model, forget, rest, distance="same", noise="rows:10", **options)
    with pytest.raises(DataError, match="at least 100"):
        unlearn_tangent(module, model, forget, (inputs[150:180], labels[150:180]), distance="same", **options)
    with pytest.raises(UselessModel, match="more than half"):
        unlearn_tangent(module, model, (inputs[:100], labels[:100]), rest, distance="same", **options)
    with pytest.raises(DataError, match="outputs and the source 2 classes"):
        train_tangent(module, inputs[:30][labels[:30] < 9], labels[:30][labels[:30] < 9], l2=0.1, max_norm=1.0)
    with pytest.raises(DataError, match="are not classes"):
        unlearn_tangent(module, model, (inputs[:2], np.array([1, 2])), rest, distance="same", **options)


# Deposits of tangent weights: retraining to rounding for any number of examples, and everything else refused.


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
    promise = Promise(0.01, 1e-6)
    request = tangent_request(network(0), trained(), rows(*range(count)), None, promise, deposit=kept())
    updated = request.weights + measure(request).step.update
    assert float(norm(updated[0] - retrained)) <= 1e-8 * float(norm(retrained))
    assert float(norm(trained().weights - retrained)) > 1e-5, "forgetting must have something to do"
    result = forgotten(count)
    certificate = result.certificate
    assert (certificate.status, certificate.content["bound"]["convention"]) == ("conditional", "exact")
    assert certificate.content["assumptions"] == ["These facts were declared, not checked: rounding."]
    assert result.deposit.length(updated - retrained) <= certificate.total < 1e-7
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
    assert 0.5 < deposit.length(deposit.anchor - weights) / expected < 1.5
    assert float(norm(deposit.reference_weights[0] - weights)) <= 1e-8 * float(norm(weights))


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
    with pytest.raises(VerificationFailed, match="rounding"):
        verify(Certificate(content | {"digest": digest_of(content)}))


def test_members_and_what_forgetting_costs() -> None:
    found = answers(kept(), rows(4, 9))
    assert [each.there for each in found] == [True, True]
    stranger = answers(kept(), (source()[0][:1] + 1.0, source()[1][:1]))
    assert [each.there for each in stranger] == [False]
    made = make_tangent_deposit(network(0), trained(), *source(), seed=1)
    expected = forecast(made.deposit, made.people, made.rows, seed=4)  # with others hundred rows may cost no point
    correct = np.mean(trained().predict(network(0), source()[0]) == source()[1])
    assert expected.accuracy == pytest.approx(float(correct), abs=1e-12)
    assert all(each.without_region == 0 for each in expected.losses)
    assert {expected.affordable(epsilon, "at_once") for epsilon in (0.1, 1.0, 5.0)} <= {10, 24}, (
        "noise costs nothing, whatever epsilon"
    )


# Refused ----------------------------------------------------------------------------------------------------------------


def test_examples_that_were_never_there_or_left_or_were_rounded() -> None:
    inputs, labels = source()
    options = {"epsilon": 1.0, "delta": 1e-6, "deposit": kept()}
    with pytest.raises(DataError, match="not in what is left"):
        unlearn_tangent(network(0), trained(), (inputs[:1] + 1.0, labels[:1]), **options)
    with pytest.raises(DataError, match="more often than what is left"):
        unlearn_tangent(network(0), trained(), rows(3, 3), **options)
    copy = (torch.from_numpy(np.round(to_numpy(inputs[:2]).astype(np.float64), 6)), labels[:2])
    with pytest.raises(DataError, match="rounded copies"):
        unlearn_tangent(network(0), trained(), copy, **options)
    after = forgotten(2).deposit
    with pytest.raises(DataError, match="not in what is left"):
        forgotten(1, deposit=after)
    with pytest.raises(DataError, match="at least one row must be retained"):
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
    with pytest.raises(OptionError, match="with a deposit"):
        unlearn_tangent(network(0), trained(), rows(1), source(), deposit=kept(), **budget)
    with pytest.raises(OptionError, match="surrogate"):
        unlearn_tangent(network(0), trained(), rows(1), source(), **budget)
    with pytest.raises(OptionError, match="expunge tangent unlearn"):
        unlearn(None, rows(1), deposit=kept(), **budget)
    with pytest.raises(OptionError, match="expunge tangent unlearn"):
        desk.create_desk(tmp_path / "desk", None, None, desk.Policy(1.0, 1e-6, "deposit"), deposit=kept())
