"""The critic: its value and error by the formulas, the guard, and the best cap."""

import math

import numpy as np
import pytest
import torch

from expunge.estimate.donsker_varadhan import (
    Coordinates,
    Critic,
    FittedCritic,
    TwoSamples,
    best_cap,
    guarded,
    log_denominator,
)
from gaussian_rows import normal


def test_value_and_standard_error_are_the_formulas_of_the_docstring() -> None:
    rows = TwoSamples(normal(50, 2, 1).float(), normal(50, 1, 2).exp().squeeze(1), normal(70, 2, 3).float())
    coordinates = Coordinates.of(rows)
    network = Critic.start(coordinates.gaussian(coordinates.seen(rows)), 8, torch.Generator().manual_seed(0)).copy()
    network.parameters[4].normal_(generator=torch.Generator().manual_seed(1))
    value, square = FittedCritic(coordinates, network, math.inf, 1, 1).report(rows)
    seen = coordinates.seen(rows)
    on_nu, on_rho = network(seen.nu).double().numpy(), np.exp(network(seen.rho).double().numpy())
    w = rows.weights.numpy()
    mean = (w * on_nu).sum() / w.sum()
    assert value == pytest.approx(mean - math.log(on_rho.mean()))
    nu_part = (w**2 * (on_nu - mean) ** 2).sum() / w.sum() ** 2
    assert square == pytest.approx(nu_part + on_rho.var(ddof=1) / on_rho.mean() ** 2 / 70)
    capped, _ = FittedCritic(coordinates, network, 0.0, 1, 1).report(rows)
    assert capped == pytest.approx((w * np.minimum(on_nu, 0)).sum() / w.sum() - math.log(np.minimum(on_rho, 1).mean()))


def test_the_guard_turns_one_log_ratio_into_the_other() -> None:
    ratio = torch.tensor([1e-6, 0.5, 1.0, 40.0, 1e9], dtype=torch.float64)
    assert torch.allclose(guarded(ratio.log()).exp(), ratio / (0.999 + 0.001 * ratio))
    on_nu, on_rho, w = normal(9, 1, 1)[:, 0], normal(7, 1, 2)[:, 0], torch.rand(9, dtype=torch.float64, generator=torch.Generator().manual_seed(3))  # fmt: skip
    expected = 0.999 * on_rho.exp().mean() + 0.001 * (w * on_nu.exp()).mean()
    assert float(log_denominator(on_nu, w, on_rho)) == pytest.approx(math.log(float(expected)))


def test_the_cap_is_the_one_with_the_best_value() -> None:
    """One row of rho lies where T is 100: without a cap it outweighs all others."""
    network = Critic.start(torch.tensor([1.0]), 4, torch.Generator().manual_seed(0))
    rho = torch.zeros(400, 1)
    rho[7] = 100.0
    rows = TwoSamples(torch.ones(200, 1), torch.ones(200, dtype=torch.float64), rho)
    stop = TwoSamples(torch.ones(200, 1), torch.ones(200, dtype=torch.float64), torch.zeros(400, 1))
    top = 100.0 - math.log(800) + math.log(800)
    assert best_cap(network, rows, stop) == pytest.approx(top - 5.0, abs=1e-3)
