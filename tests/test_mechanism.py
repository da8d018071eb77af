"""The mechanism from end to end: what is published, what is refused, what the caller keeps."""

import numpy as np
import pytest
import torch

import expunge
from asking import asked
from expunge.mechanism import certify, measure
from expunge.noise import delta_of
from expunge.train import train


def task(n: int = 300, d: int = 6, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((2 * n, d))
    y = (2 * x @ generator.standard_normal((d, classes)) + generator.gumbel(size=(2 * n, classes))).argmax(axis=1)
    return x, y


@pytest.fixture(scope="module")
def parts():
    x, y = task()
    return {"source": (x[:300], y[:300]), "surrogate": (x[300:], y[300:]), "forget": (x[:4], y[:4])}


@pytest.mark.parametrize("loss", ["softmax", "ridge"])
@pytest.mark.parametrize("bias", [False, True])
def test_published_weights_are_updated_weights_plus_noise_of_sigma(parts, loss, bias) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0, loss=loss, bias=bias)
    request = asked(model, parts["forget"], parts["surrogate"], epsilon=1.0, delta=1e-3, distance="same", force=True)
    measured = measure(request)
    updated = (request.weights + measured.step.update).numpy()
    draws = [certify(request, measured) for _ in range(300)]
    noise = np.stack([draw.model.matrix().numpy() - updated for draw in draws]) / draws[0].certificate.sigma
    # 300 x p standard normal values: their standard deviation is within 5 of its own standard errors of 1
    assert abs(noise.std() - 1) < 5 / np.sqrt(2 * noise.size)
    assert abs(noise.mean()) < 5 / np.sqrt(noise.size)
    assert draws[0].model.record.noised
    assert draws[0].model.record.n_source == 296


def test_the_claimed_delta_is_what_sigma_gives(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    certificate = expunge.unlearn(
        model, parts["forget"], parts["surrogate"], epsilon=0.7, delta=1e-4, distance="chi2:0.2", force=True
    ).certificate
    failures = sum(certificate.content["noise"]["failures"].values())
    assert delta_of(0.7, certificate.total / certificate.sigma) + failures <= 1e-4
    assert delta_of(0.7, 1.001 * certificate.total / certificate.sigma) + failures > 1e-4


def test_nothing_of_the_caller_is_changed(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=0.5)
    copies = [np.array(array) for pair in parts.values() for array in pair]
    weights = model.weight.clone()
    expunge.unlearn(model, parts["forget"], parts["surrogate"], epsilon=1.0, delta=1e-3, distance="same", force=True)
    assert all(
        np.array_equal(a, b) for a, b in zip(copies, [array for pair in parts.values() for array in pair], strict=True)
    )
    assert torch.equal(weights, model.weight)


def test_arrays_and_tensors_give_the_same_certificate(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    facts = {
        "n_source": 300,
        "l2": 0.05,
        "loss": "softmax",
        "max_norm": 2.0,
        "training_residual": model.record.residual,
    }
    asked = {"epsilon": 1.0, "delta": 1e-3, "distance": "same", "force": True, "insecure_test_seed": 3}
    arrays = expunge.unlearn(model.weight.numpy(), parts["forget"], parts["surrogate"], **asked, **facts)
    tensors = expunge.unlearn(
        model.weight,
        tuple(map(torch.from_numpy, parts["forget"])),
        tuple(map(torch.from_numpy, parts["surrogate"])),
        **asked,
        **facts,
    )
    assert torch.equal(arrays.model.weight, tensors.model.weight)
    assert arrays.certificate.total == tensors.certificate.total


def test_surrogate_labels_may_be_left_out(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    asked = {"epsilon": 1.0, "delta": 1e-3, "distance": "same", "force": True, "insecure_test_seed": 3}
    with_labels = expunge.unlearn(model, parts["forget"], parts["surrogate"], **asked)
    without = expunge.unlearn(model, parts["forget"], parts["surrogate"][0], **asked)
    assert with_labels.certificate.total == without.certificate.total


def test_float32_rows_and_weights_keep_the_bound(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0, store="float32")
    assert model.weight.dtype == torch.float32
    exact = measure(
        asked(model, parts["forget"], parts["surrogate"], epsilon=1.0, delta=1e-3, distance="same", force=True)
    )
    request = asked(
        model,
        parts["forget"],
        parts["surrogate"],
        epsilon=1.0,
        delta=1e-3,
        distance="same",
        force=True,
        dtype="float32",
    )
    rough = measure(request)
    assert float((exact.step.update - rough.step.update).norm()) < 1e-5 * float(exact.step.update.norm())
    retrained = train(parts["source"][0][4:], parts["source"][1][4:], l2=0.05, max_norm=2.0).matrix()
    result = certify(request, rough)
    assert result.model.weight.dtype == torch.float32
    assert float((retrained - request.weights - rough.step.update).norm()) <= result.certificate.total


def test_a_fresh_sample_of_the_same_population_is_within_the_bound_in_every_repetition() -> None:
    """The sampling term with real samples: 60 pairs of source and surrogate, true distance beside Delta."""
    for seed in range(60):
        x, y = task(n=150, seed=100 + seed)
        model = train(x[:150], y[:150], l2=0.05, max_norm=2.0)
        request = asked(model, (x[:5], y[:5]), (x[150:], y[150:]), epsilon=1.0, delta=1e-2, distance="same", force=True)
        measured = measure(request)
        retrained = train(x[5:150], y[5:150], l2=0.05, max_norm=2.0).matrix()
        bound = certify(request, measured).certificate.total
        assert float((retrained - request.weights - measured.step.update).norm()) <= bound


def test_noise_that_swamps_the_weights_is_refused_with_the_epsilon_that_would_do(parts) -> None:
    model = train(*parts["source"], l2=1e-3, max_norm=2.0)
    asked = {"delta": 1e-3, "distance": "chi2:1"}
    with pytest.raises(expunge.UselessModel) as refusal:
        expunge.unlearn(model, parts["forget"], parts["surrogate"], epsilon=0.01, **asked)
    would_do = float(refusal.value.required.split()[1])
    expunge.unlearn(model, parts["forget"], parts["surrogate"], epsilon=would_do * 1.01, **asked)
    with pytest.raises(expunge.UselessModel):
        expunge.unlearn(model, parts["forget"], parts["surrogate"], epsilon=would_do * 0.95, **asked)


def test_a_noised_model_is_not_unlearned_again(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    asked = {"epsilon": 1.0, "delta": 1e-3, "distance": "same", "force": True}
    published = expunge.unlearn(model, parts["forget"], parts["surrogate"], **asked).model
    with pytest.raises(expunge.ModelError, match="noised"):
        expunge.unlearn(published, parts["forget"], parts["surrogate"], **asked)


def test_rows_that_are_not_the_source_are_not_taken_for_it(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    x, y = parts["source"]
    other = np.concatenate([x[:299], x[299:] + 0.5])
    with pytest.raises(expunge.DataError, match="not the rows"):
        expunge.unlearn(model, parts["forget"], (other, y), epsilon=1.0, delta=1e-3, distance="source", force=True)


def test_the_source_itself_gives_a_tiny_proven_bound(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    certificate = expunge.unlearn(
        model, parts["forget"], parts["source"], epsilon=1.0, delta=1e-3, distance="source"
    ).certificate
    assert certificate.status == "proven"
    assert certificate.total < 1e-6


def test_the_classical_formula_is_refused_where_its_delta_is_wrong(parts) -> None:
    model = train(*parts["source"], l2=2.0, max_norm=1.0)
    asked = {"delta": 1e-5, "distance": "tv:0.001", "bound": "paper", "force": True}
    assert (
        expunge.unlearn(model, parts["forget"], parts["surrogate"], epsilon=0.9, **asked).certificate.status
        == "conditional"
    )
    with pytest.raises(expunge.VacuousClaim, match="classical"):
        expunge.unlearn(model, parts["forget"], parts["surrogate"], epsilon=20.0, **asked)
