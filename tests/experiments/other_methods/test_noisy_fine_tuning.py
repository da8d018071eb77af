"""Noisy fine-tuning: one step is output perturbation; more are beside a plain recursion and exact deltas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from experiments.other_methods.noisy_fine_tuning import (
    GradientClipping,
    ModelClipping,
    powers,
    rho_of_clipped,
    sigma_of_clipped_gradients,
    sigma_of_clipped_models,
)
from experiments.other_methods.renyi import epsilon_of_rho
from expunge.bounds.calibration import delta_of, sigma_for
from expunge.evaluate.case import Case


def test_closed_form_of_one_step_and_of_no_decay() -> None:
    assert rho_of_clipped(1.0, 3.0, 2.0, 0.5, 0.2, 1) == pytest.approx((6.0 * 0.9 + 2.0) ** 2 / 2.0)
    # without decay: (2 C0 + 2 eta C1 T)^2 / (2 sigma^2 T)
    assert rho_of_clipped(2.0, 3.0, 2.0, 0.5, 0.0, 4) == pytest.approx((6.0 + 8.0) ** 2 / (2.0 * 4.0 * 4.0))
    assert powers(0.5, 3) == pytest.approx(1.75)
    assert sigma_of_clipped_models(1.5, 1, 1.0, 1e-3) == pytest.approx(sigma_for(3.0, 1.0, 1e-3))


@pytest.mark.parametrize("decay", [0.0, 0.4])
def test_clipped_gradients_by_the_best_of_all_plans(decay: float) -> None:
    start, gradient, step, steps, sigma = 1.0, 0.3, 0.5, 5, 2.0

    def left(plan: np.ndarray) -> float:
        apart = 2.0 * start
        for hidden in plan:
            apart = (1.0 - step * decay) * apart + 2.0 * step * gradient - hidden
        return apart

    found = minimize(
        lambda plan: float((plan**2).sum()) / (2.0 * sigma**2),
        np.full(steps, 0.5),
        constraints=[{"type": "eq", "fun": left}],
        tol=1e-14,
    )
    assert rho_of_clipped(sigma, start, gradient, step, decay, steps) == pytest.approx(found.fun, rel=1e-5)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.floats(0.1, 10.0), st.integers(1, 200), st.floats(0.01, 10.0), st.floats(1e-8, 0.1))
def test_clipped_models_leave_the_delta(radius: float, steps: int, epsilon: float, delta: float) -> None:
    sigma = sigma_of_clipped_models(radius, steps, epsilon, delta)
    assert delta_of(epsilon, 2.0 * radius / sigma) ** steps <= delta * (1.0 + 1e-6)
    assert delta_of(epsilon, 2.02 * radius / sigma) ** steps > delta
    assert sigma_of_clipped_models(radius, steps + 1, epsilon, delta) < sigma


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.floats(0.01, 10.0), st.floats(0.0, 1.0), st.floats(0.0, 0.5), st.integers(1, 200), st.floats(0.01, 10.0),
    st.floats(1e-8, 0.1),
)  # fmt: skip
def test_clipped_gradients_keep_the_promise(
    start: float, gradient: float, decay: float, steps: int, epsilon: float, delta: float
) -> None:
    sigma = sigma_of_clipped_gradients(start, gradient, 0.9, decay, steps, epsilon, delta)
    rho = rho_of_clipped(sigma, start, gradient, 0.9, decay, steps)
    assert epsilon_of_rho(rho, delta) <= epsilon
    assert epsilon_of_rho(1.01 * rho, delta) > epsilon
    assert sigma_of_clipped_gradients(1.1 * start, gradient, 0.9, decay, steps, epsilon, delta) >= sigma
    assert sigma_of_clipped_gradients(start, gradient + 0.1, 0.9, decay, steps, epsilon, delta) > sigma


def test_what_no_formula_is_for_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        sigma_of_clipped_models(1.0, 0, 1.0, 1e-3)
    for step, decay, steps in ((1.0, 1.0, 3), (1.0, 0.1, 0), (-1.0, 0.1, 3)):
        with pytest.raises(ValueError, match="product"):
            rho_of_clipped(1.0, 1.0, 1.0, step, decay, steps)


def test_noise_hides_where_it_started(unit: Case) -> None:
    """After clipping and one noisy step the models lie within the radius and the noise, wherever training ended."""
    sigma = sigma_of_clipped_models(0.5, 1, 1.0, 1e-3)
    models = ModelClipping(1.0, 1e-3, 1, 1, 0.5, draws=40).run(unit).models
    assert models is not None
    lengths = models.flatten(1).norm(dim=1)
    assert float(lengths.max()) < 0.5 + sigma * (math.sqrt(models[0].numel()) + 5.0)
    assert float(models.std(dim=0).mean()) == pytest.approx(sigma, rel=0.2)


@pytest.mark.parametrize(
    "method",
    [GradientClipping(1.0, 1e-3, 200, 2, 1.0, 0.01, draws=3), ModelClipping(1.0, 1e-3, 200, 2, 1.0, draws=3)],
    ids=lambda method: method.name,
)
def test_descent_without_noise_ends_at_retraining(unit: Case, method: GradientClipping | ModelClipping) -> None:
    found = method.run(unit)
    assert found.models is not None
    assert found.steps == 200
    torch.testing.assert_close(found.models, unit.retrained.expand_as(found.models), rtol=0.0, atol=1e-4)


def test_a_clipped_step_is_as_written(unit: Case) -> None:
    """One noisy step with so small an epsilon's noise taken off again by the same draws at another size."""
    small, large = (GradientClipping(1.0, delta, 1, 1, 0.3, 0.01, draws=1).run(unit).models for delta in (1e-3, 1e-9))
    assert small is not None
    assert large is not None
    step = 2.0 / (unit.objective.constants(0.0).smoothness + unit.objective.l2)
    sigmas = [sigma_of_clipped_gradients(0.3, 0.01, step, 0.05, 1, 1.0, delta) for delta in (1e-3, 1e-9)]
    draw = (large - small) / (sigmas[1] - sigmas[0])
    start = unit.weights * (0.3 / unit.weights.norm())
    gradient = unit.objective.gradient(start, unit.rows["retain"]) - 0.05 * start
    clipped = gradient * min(1.0, 0.01 / float(gradient.norm()))
    torch.testing.assert_close(small[0] - sigmas[0] * draw[0], start - step * (clipped + 0.05 * start))
