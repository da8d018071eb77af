"""Langevin chains against densities that are known: a Gaussian, a linear energy on an interval."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from expunge.errors import DataError, OptionError
from expunge.estimate import LinearEnergy, langevin
from expunge.estimate.langevin import diagnose
from expunge.runtime.arrays import equal, to_numpy


@dataclass(frozen=True)
class Gaussian:
    """`factor` other than 1 spoils the force; -1 is the wrong sign."""

    mean: Tensor
    covariance: Tensor
    factor: float = 1.0

    def log_density(self, points: Tensor) -> Tensor:
        return -0.5 * ((points - self.mean) * self._away(points)).sum(dim=1)

    def force(self, points: Tensor) -> Tensor:
        return -self.factor * self._away(points)

    def _away(self, points: Tensor) -> Tensor:
        return torch.linalg.solve(self.covariance, (points - self.mean).T).T


MEAN = torch.tensor([1.0, -0.5, 0.0], dtype=torch.float64)
COVARIANCE = torch.tensor([[1.0, 0.5, 0.0], [0.5, 2.0, 0.3], [0.0, 0.3, 0.5]], dtype=torch.float64)
STEEP = 3 * torch.randn(5, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def agrees(points: Tensor, mean: np.ndarray, covariance: np.ndarray) -> bool:
    """Mean and covariance within five standard errors of an independent Gaussian sample of this size."""
    x = to_numpy(points)
    n = len(x)
    spread = np.sqrt(np.diag(covariance))
    means = np.abs(x.mean(axis=0) - mean) <= 5 * spread / math.sqrt(n)
    errors = np.sqrt((np.outer(spread, spread) ** 2 + covariance**2) / n)
    return bool(means.all() and (np.abs(np.cov(x.T) - covariance) <= 5 * errors).all())


def chains(count: int, d: int, seed: int = 1) -> Tensor:
    return torch.rand(count, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


@pytest.mark.parametrize("factor", [1.0, 0.5, 2.0])
def test_only_the_right_force_recovers_a_gaussian(factor: float) -> None:
    """Half the force is as noise that is too large by sqrt 2."""
    run = langevin(Gaussian(MEAN, COVARIANCE, factor), chains(4000, 3), n_steps=1500, step=0.01)
    assert agrees(run.points, to_numpy(MEAN), to_numpy(COVARIANCE)) == (factor == 1.0)


def test_a_linear_energy_has_the_gradient_it_says() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias, points, root, mean = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((4, 3), (4,), (20, 3), (3, 3), (3,))
    )
    points.requires_grad_()
    energy = LinearEnergy(weight, bias)
    plain = torch.logsumexp(points @ weight.T + bias, dim=1)
    features = mean + points @ root.T
    white = torch.logsumexp(features @ weight.T + bias, dim=1) - 0.5 * points.square().sum(dim=1)
    for target, expected in ((energy, plain), (energy.whitened(mean, root), white)):
        assert torch.allclose(target.log_density(points), expected)
        assert torch.allclose(target.force(points), torch.autograd.grad(expected.sum(), points)[0])


def test_a_linear_energy_on_an_interval_has_the_mean_that_integration_gives() -> None:
    weight = torch.tensor([[1.5], [-0.5]], dtype=torch.float64)
    x = np.linspace(-1.5, 1.5, 200_001)
    density = np.exp(1.5 * x) + np.exp(-0.5 * x)
    mean = np.trapezoid(x * density, x) / np.trapezoid(density, x)
    second = np.trapezoid(x * x * density, x) / np.trapezoid(density, x)
    error = math.sqrt((second - mean**2) / 4000)
    run = langevin(LinearEnergy(weight), chains(4000, 1), radius=1.5, n_steps=1500, step=0.01)
    assert float(run.points.abs().max()) <= 1.5 + 1e-12
    assert abs(float(run.points.mean()) - mean) < 5 * error + 0.02


def test_chains_in_a_ball_stay_there_and_a_gaussian_reference_tames_the_energy() -> None:
    run = langevin(LinearEnergy(STEEP), chains(500, 4) / 2, n_steps=800, step=0.02, radius=1.0)
    assert float(run.points.norm(dim=1).max()) <= 1.0 + 1e-12
    # with one class the reference is only shifted: N(mean + root root^T w, root root^T)
    one, root = STEEP[:1], torch.diag(torch.tensor([0.2, 0.5, 1.0, 0.1], dtype=torch.float64))
    white = LinearEnergy(one).whitened(torch.zeros(4, dtype=torch.float64), root)
    run = langevin(white, chains(4000, 4), n_steps=700, step=0.02)
    assert agrees(run.points @ root.T, to_numpy(root @ root @ one[0]), to_numpy(root @ root))


def test_unbounded_chains_of_a_linear_model_are_an_error_that_names_the_remedy() -> None:
    with pytest.raises(DataError, match=r"run away.*Give a radius"):
        langevin(LinearEnergy(STEEP), chains(200, 4), n_steps=2000, step=0.02)
    for target, step in ((Gaussian(MEAN, COVARIANCE), 50.0), (Gaussian(MEAN, COVARIANCE, -100.0), 0.4)):
        with pytest.raises(DataError, match="no longer finite"):
            langevin(target, chains(50, 3), n_steps=4000, step=step)


def test_diagnostics_tell_mixed_chains_from_stuck_ones() -> None:
    rng = np.random.default_rng(0)
    mixed = diagnose(rng.normal(size=(2, 50, 200)))
    assert mixed.converged
    assert 0.7 * 50 * 100 < mixed.effective_samples <= 50 * 100
    stuck = diagnose(rng.normal(size=(2, 50, 200)) + 3 * rng.normal(size=(2, 50, 1)))
    assert stuck.r_hat > 2.0
    assert not stuck.converged
    walk = diagnose(np.cumsum(rng.normal(size=(2, 50, 200)), axis=2) + 0.2 * np.arange(200))
    assert walk.effective_samples < 500
    assert walk.drift > 0.5


def test_bad_settings_are_refused_and_the_seed_decides() -> None:
    for bad in ({"step": 0.0}, {"n_steps": 7}, {"radius": 0.0}, {"radius": math.inf}):
        with pytest.raises(OptionError):
            langevin(Gaussian(MEAN, COVARIANCE), chains(5, 3), **bad)
    first, second, other = (
        langevin(Gaussian(MEAN, COVARIANCE), chains(20, 3), n_steps=50, seed=seed).points for seed in (4, 4, 5)
    )
    assert equal(first, second)
    assert not equal(first, other)
