"""Linearised networks: exact where the source is at hand, inside the bound where it is not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from expunge import DataError, FileError, ModelError, OptionError, UselessModel, VerificationFailed, verify
from expunge.bounds import retained_bound
from expunge.certificate.claim import retained_facts
from expunge.certificate.dossier import Certificate, digest_of
from expunge.distance import Distance
from expunge.heads.tangent import last_parameters
from expunge.mechanism import measure
from expunge.networks.tangent import read_tangent, tangent_request, train_tangent, unlearn_tangent
from expunge.request.promise import Promise
from tangent_problems import exact, examples, network

pytestmark = pytest.mark.usefixtures("one_thread")


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
    assert float((model.weights + update - retrained).norm()) < 1e-6
    assert float((model.weights - retrained).norm()) > 1e-3, "forgetting must have something to do"


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
    return float((model.weights + measured.step.update - retrained).norm()), bound.radius, bound.terms["surrogate"]


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
    assert torch.equal(again.weights, model.weights)
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
        with pytest.raises(VerificationFailed, match=key):
            verify(Certificate(forged | {"digest": digest_of(forged)}))
    inputs_of = content["bound"]["inputs"]
    measured = inputs_of | {"rounding": inputs_of["rounding"] | {"provenance": "measured"}}
    forged = content | {"bound": content["bound"] | {"inputs": measured}, "assumptions": content["assumptions"][1:]}
    with pytest.raises(VerificationFailed, match="rounding is declared"):
        verify(Certificate(forged | {"digest": digest_of(forged)}))
    assert content["model"]["after"]["sha256"] == result.model.sha256()
    assert content["sizes"]["parameters"] == len(model.weights) == 64 * 12 + 12 + 12 * 3 + 3
    assert any("rounding" in sentence for sentence in content["assumptions"])
    assert result.model.record.n_source == 200, "one digit of 248: how many left is nobody's business"
    spread = float((result.model.weights - model.weights).norm())
    assert spread < 2 * (result.certificate.sigma * math.sqrt(len(model.weights)) + float(model.weights.norm()))
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
    with pytest.raises(DataError, match="at least 100"):
        unlearn_tangent(module, model, forget, (inputs[150:180], labels[150:180]), distance="same", **options)
    with pytest.raises(UselessModel, match="more than half"):
        unlearn_tangent(module, model, (inputs[:100], labels[:100]), rest, distance="same", **options)
    with pytest.raises(DataError, match="outputs and the source 2 classes"):
        train_tangent(module, inputs[:30][labels[:30] < 9], labels[:30][labels[:30] < 9], l2=0.1, max_norm=1.0)
    with pytest.raises(DataError, match="are not classes"):
        unlearn_tangent(module, model, (inputs[:2], np.array([1, 2])), rest, distance="same", **options)
