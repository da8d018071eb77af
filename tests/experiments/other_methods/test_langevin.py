"""Langevin unlearning: its sigma beside the authors' own, shifts beside a plain recursion, and exact Gaussians."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from experiments.other_methods.constants import Descent, constants_of
from experiments.other_methods.langevin import (
    Langevin,
    divergence_published,
    near_rest,
    noisy,
    rho_by_shifts,
    rho_of_sequence,
    sigma_by_shifts,
    sigma_published,
)
from experiments.other_methods.renyi import epsilon_of_rho
from expunge.evaluate.case import Case

MNIST_ROWS = 11_982
MNIST = Descent(1e-6 * MNIST_ROWS, 0.25 + 1e-6 * MNIST_ROWS, 1.0, 0.1)  # the setting of the authors' experiments


@pytest.mark.parametrize(
    ("steps", "epsilon", "theirs"),
    [(1, 0.05, 0.1872), (1, 0.1, 0.094), (1, 1.0, 0.0096), (1, 5.0, 0.0021), (2, 0.1, 0.09368), (5, 1.0, 0.00952)],
)
def test_the_noise_is_what_the_authors_found_for_mnist(steps: int, epsilon: float, theirs: float) -> None:
    """Theirs are the ends of a search by hand, a little above the smallest."""
    ours = sigma_published(MNIST, MNIST_ROWS, 1, steps, 1.0 / MNIST.smooth, epsilon, 1.0 / MNIST_ROWS)
    assert 0.97 * theirs <= ours <= 1.002 * theirs


def test_closed_form_of_the_divergence() -> None:
    """m = 1, M = 1, one of two rows, no steps: `alpha (2/2)^2`; a step of 1 at order 2 shrinks it by sqrt e."""
    constants = Descent(1.0, 1.0, 1.0, 0.0)
    assert divergence_published(3.0, 1.0, constants, 2, 1, 0, 1.0) == pytest.approx(3.0)
    assert divergence_published(2.0, 1.0, constants, 2, 1, 1, 1.0) == pytest.approx(2.0 * math.exp(-0.5))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_the_published_noise_by_trying_orders(epsilon: float) -> None:
    delta, step = 1.0 / MNIST_ROWS, 1.0 / MNIST.smooth
    sigma = sigma_published(MNIST, MNIST_ROWS, 1, 10, step, epsilon, delta)
    orders = 1.0 + np.exp(np.linspace(-3.0, 12.0, 4000))

    def best(noise: float) -> float:
        values = [divergence_published(order, noise, MNIST, MNIST_ROWS, 1, 10, step) for order in orders]
        return float((np.array(values) + math.log(1.0 / delta) / (orders - 1.0)).min())

    assert best(sigma) == pytest.approx(epsilon, rel=1e-4)
    assert best(0.99 * sigma) > epsilon


@pytest.mark.parametrize(("trained", "steps"), [(1, 1), (5, 2), (3, 6)])
def test_shifts_by_the_best_of_all_plans(trained: int, steps: int) -> None:
    """What each step's noise is to hide, found by a numerical search over all plans that end with nothing left."""
    constants, step, sigma, count, rows = Descent(0.3, 1.0, 1.0, 0.1), 0.8, 0.7, 2, 50
    keeps, shift = 1.0 - step * 0.3, step * constants.gradient_shift(count, rows)

    def left(plan: np.ndarray) -> float:
        apart = 0.0
        for number, hidden in enumerate(plan):
            apart = keeps * apart + (shift if number < trained else 0.0) - hidden
        return apart

    found = minimize(
        lambda plan: float((plan**2).sum()) / (4.0 * step * sigma**2),
        np.full(trained + steps, shift),
        constraints=[{"type": "eq", "fun": left}],
        tol=1e-14,
    )
    expected = rho_by_shifts(sigma, constants, rows, count, steps, step, trained)
    assert found.fun == pytest.approx(expected, rel=1e-4)
    assert expected <= rho_by_shifts(sigma, constants, rows, count, steps, step)  # trained to rest is the worst


def test_shifts_are_exact_for_a_parabola() -> None:
    """For `m w^2/2` and gradients that differ by s all laws are Gaussian; their divergence is what the bound says."""
    m, step, sigma, trained, steps, shift = 0.5, 0.7, 0.3, 4, 3, 0.02
    mean, variance = 0.0, 0.0
    for number in range(trained + steps):
        mean = (1.0 - step * m) * mean + (step * shift if number < trained else 0.0)
        variance = (1.0 - step * m) ** 2 * variance + 2.0 * step * sigma**2
    constants = Descent(m, m, shift, 0.0)
    found = rho_by_shifts(sigma, constants, 2, 1, steps, step, trained)
    assert found == pytest.approx(mean**2 / (2.0 * variance), rel=1e-9)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.floats(1e-3, 0.2), st.integers(1, 100), st.integers(1, 50), st.floats(0.01, 10.0), st.floats(1e-8, 0.1))
def test_shifts_keep_the_promise_with_less_noise(
    strong: float, steps: int, count: int, epsilon: float, delta: float
) -> None:
    constants = Descent(strong, 0.25 + strong, 1.0, 0.1)
    step = 1.0 / constants.smooth
    sigma = sigma_by_shifts(constants, 1000, count, steps, step, epsilon, delta)
    rho = rho_by_shifts(sigma, constants, 1000, count, steps, step)
    assert epsilon_of_rho(rho, delta) <= epsilon
    assert epsilon_of_rho(1.01 * rho, delta) > epsilon
    assert sigma <= sigma_published(constants, 1000, count, steps, step, epsilon, delta)
    assert sigma_by_shifts(constants, 1000, count, steps + 1, step, epsilon, delta) < sigma


def test_the_start_of_training_is_nearly_at_rest(unit: Case) -> None:
    """Further steps change neither mean nor spread beyond what four hundred draws tell."""
    generator = np.random.default_rng(0)
    step = 1.0 / constants_of(unit.objective).smooth
    before = near_rest(unit, 0.02, 400, generator)
    after = noisy(unit.objective, before, unit.rows["train"], 25, step, 0.02, generator)
    spread = before.std(dim=0)
    assert float(((after.mean(dim=0) - unit.weights) / spread).abs().max()) < 5.0 / math.sqrt(400)
    assert float((after.std(dim=0) / spread).min()) > 0.8
    assert float((after.std(dim=0) / spread).max()) < 1.3


def test_what_it_hands_back(unit: Case) -> None:
    found = Langevin(1.0, 1e-3, 3, draws=4).run(unit)
    again = Langevin(1.0, 1e-3, 3, draws=4).run(unit)
    wider = Langevin(1.0, 1e-3, 3, draws=4, published=True).run(unit)
    assert found.models is not None
    assert again.models is not None
    assert wider.models is not None
    assert torch.equal(found.models, again.models)
    assert found.models.shape == (4, *unit.weights.shape)
    assert float(wider.models.std(dim=0).mean()) > float(found.models.std(dim=0).mean())
    assert (found.steps, found.needs, found.noise) == (3, "retained rows", None)


def test_a_sequence_of_one_is_one_request_and_shifts_add_up_step_by_step() -> None:
    constants = Descent(0.1, 0.5, 1.0, 0.1)
    one = rho_by_shifts(0.3, constants, 50, 1, 4, 1.0)
    assert rho_of_sequence(0.3, constants, 50, 1, 4, 1.0) == pytest.approx(one)
    keeps, shift = 0.9, 2.0 * 3 / 50 / 0.1  # three rows leave, training was at rest
    for left in (2, 1, 0):
        for _ in range(4):
            shift = keeps * shift + 2.0 * left / (47 + left)
    noise = 2.0 * 0.3**2 / (1.0 - keeps**2)
    assert rho_of_sequence(0.3, constants, 50, 3, 4, 1.0) == pytest.approx(shift**2 / (2.0 * noise))


def test_rows_that_leave_one_by_one_are_forgotten(unit: Case) -> None:
    found = Langevin(5.0, 1e-3, 5, draws=40, sequence=True).run(unit)
    assert found.models is not None
    spread = float(found.models.std(dim=0).norm())
    assert float((found.models.mean(dim=0) - unit.retrained).norm()) < spread
