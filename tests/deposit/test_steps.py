"""The step itself: Newton's by hand, and the root of the quadratic that third derivatives give."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deposit_problems import drawn
from expunge.deposit.setting import Penalty
from expunge.deposit.steps import step_of, third_step
from expunge.deposit.third import pull

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("loss", ["logistic", "softmax", "ridge"])
@pytest.mark.parametrize("seed", range(3))
def test_newton_s_step_by_hand(loss: str, seed: int) -> None:
    problem = drawn(seed, loss)
    sums, penalty = problem.sums.without(problem.of(np.arange(3))), problem.penalty(problem.n - 3)
    stepped = step_of(problem.setting, sums, penalty)
    assert stepped is not None
    update, left, system = stepped
    setting = problem.setting
    gradient = setting.centred(sums.gradient + penalty.diagonal(setting.anchor) * setting.anchor)
    vectors = gradient.reshape(1, -1) if sums.curvature.joint else gradient
    solved = -torch.linalg.solve(system.matrix.values, vectors[..., None])[..., 0].reshape(gradient.shape)
    torch.testing.assert_close(update, setting.centred(solved), rtol=1e-8, atol=1e-12)
    assert float(left.norm()) <= 1e-12 * (1.0 + float(gradient.norm()))


@pytest.mark.parametrize("loss", ["logistic", "one-vs-rest"])
def test_third_derivatives_lead_to_the_root_of_the_quadratic(loss: str) -> None:
    problem = drawn(0, loss)
    sums, penalty = problem.sums.without(problem.of(np.arange(3))), problem.penalty(problem.n - 3)
    stepped = step_of(problem.setting, sums, penalty)
    assert stepped is not None
    assert sums.third is not None
    setting, (newton, _, system) = problem.setting, stepped
    update, left, steps = third_step(setting, sums, penalty, newton, system)
    gradient = setting.centred(sums.gradient + penalty.diagonal(setting.anchor) * setting.anchor)
    bent = pull(sums.third, update, joint=sums.curvature.joint)
    torch.testing.assert_close(setting.centred(gradient + system.matrix.product(update) + bent), left)
    assert float(left.norm()) <= 1e-12 * (1.0 + float(gradient.norm()))
    assert steps >= 1
    assert float((update - newton).norm()) > 1e-9 * float(newton.norm())


def test_a_matrix_that_is_not_definite_has_no_step() -> None:
    problem = drawn(0, "logistic", n=20, width=5)
    sums = problem.sums.without(problem.of(np.arange(19)))
    assert step_of(problem.setting, sums, Penalty(0.0, True)) is None
