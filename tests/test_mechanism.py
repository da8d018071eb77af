"""The mechanism from end to end: what is published, what is refused, what the caller keeps."""

import numpy as np
import pytest

import expunge
from asking import asked
from expunge.bounds.calibration import delta_of
from expunge.mechanism import certify, measure
from expunge.runtime.arrays import dtype_name, norm, to_numpy
from expunge.train import train
from three_classes import three_classes


@pytest.mark.parametrize(("loss", "bias"), [("softmax", True), ("ridge", False)])
def test_published_weights_are_updated_weights_plus_noise_of_sigma(parts, loss, bias) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0, loss=loss, bias=bias, force=True)
    request = asked(model, parts["forget"], parts["surrogate"], epsilon=1.0, delta=1e-3, distance="same", force=True)
    measured = measure(request)
    updated = to_numpy(request.weights + measured.step.update)
    draws = [certify(request, measured) for _ in range(100)]
    noise = np.stack([to_numpy(draw.model.matrix()) - updated for draw in draws]) / draws[0].certificate.sigma
    # 100 x p standard normal values: their standard deviation is within 5 of its own standard errors of 1
    assert abs(noise.std() - 1) < 5 / np.sqrt(2 * noise.size)
    assert abs(noise.mean()) < 5 / np.sqrt(noise.size)
    assert draws[0].model.record.noised
    assert draws[0].model.record.n_source == 200, "what is retained, to one digit"


def test_the_claimed_delta_is_what_sigma_gives(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0, force=True)
    certificate = expunge.unlearn(
        model,
        parts["forget"],
        parts["surrogate"],
        epsilon=0.7,
        delta=1e-4,
        distance="chi2:0.2",
        force=True,
        noise="exact",
    ).certificate
    failures = sum(certificate.content["noise"]["failures"].values())
    assert delta_of(0.7, certificate.total / certificate.sigma) + failures <= 1e-4
    assert delta_of(0.7, 1.001 * certificate.total / certificate.sigma) + failures > 1e-4


@pytest.mark.parametrize("l2", [1e-4, 1e-2])
@pytest.mark.parametrize("n_forget", [1, 30])
@pytest.mark.parametrize("distance", ["same", "chi2:0.1"])
def test_balanced_needs_no_more_noise_than_converged(l2: float, n_forget: int, distance: str) -> None:
    """The sampling term is balanced too, where the noise is averaged over its tail and no part of the radius."""
    x, y = three_classes(n=900, seed=2)
    model = train(x[:300], y[:300], l2=l2, max_norm=2.0, force=True)
    asks = {"epsilon": 1.0, "delta": 1e-4, "distance": distance, "noise": "exact", "force": True}
    sigmas = []
    for step in ("converged", "balanced"):
        request = asked(model, (x[:n_forget], y[:n_forget]), (x[300:], y[300:]), step=step, **asks)
        sigmas.append(certify(request, measure(request, seed=0)).certificate.sigma)
    assert sigmas[1] <= sigmas[0] * (1 + 1e-6)
    assert sigmas[1] < 0.97 * sigmas[0] or l2 > 1e-4, "with little regularisation less of an update is better"


def test_float32_rows_and_weights_keep_the_bound(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0, store="float32", force=True)
    assert dtype_name(model.weight.dtype) == "float32"
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
    assert float(norm(exact.step.update - rough.step.update)) < 1e-5 * float(norm(exact.step.update))
    retrained = train(parts["source"][0][4:], parts["source"][1][4:], l2=0.05, max_norm=2.0, force=True).matrix()
    result = certify(request, rough)
    assert dtype_name(result.model.weight.dtype) == "float32"
    assert float(norm(retrained - request.weights - rough.step.update)) <= result.certificate.total


def test_a_fresh_sample_of_the_same_population_is_within_the_bound_in_every_repetition() -> None:
    """The sampling term with real samples: 60 pairs of source and surrogate, true distance beside Delta."""
    for seed in range(60):
        x, y = three_classes(n=150, seed=100 + seed)
        model = train(x[:150], y[:150], l2=0.05, max_norm=2.0, force=True)
        request = asked(model, (x[:5], y[:5]), (x[150:], y[150:]), epsilon=1.0, delta=1e-2, distance="same", force=True)
        measured = measure(request)
        retrained = train(x[5:150], y[5:150], l2=0.05, max_norm=2.0, force=True).matrix()
        bound = certify(request, measured).certificate.total
        assert float(norm(retrained - request.weights - measured.step.update)) <= bound
