"""Damped steps one after another: the root in closed form, the naive method, a residual that never rises, every ending."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from expunge.heads.examples import Examples
from expunge.heads.module import ModuleObjective
from expunge.solve.equation import RetainedEquation, SurrogateEquation
from expunge.solve.iterated import FIRST_PULL, PATIENCE, adapted, iterated_step
from expunge.solve.newton import Manner
from expunge.solve.outcome import Ending
from small_networks import examples, trained
from step_problems import Example

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Matrix:
    values: Tensor
    preconditioner = None

    def product(self, direction: Tensor) -> Tensor:
        return self.values @ direction

    def dense(self) -> Tensor:
        return self.values.clone()

    def precondition(self, residual: Tensor) -> Tensor:
        return residual.clone()


@dataclass(frozen=True)
class Made:
    """An equation of one's own, with a Jacobian that need not be its own."""

    left: Any
    bent: Any
    start: Tensor
    dense: bool = True
    scale: int = 2
    n_rows: int = 1

    @property
    def weights(self) -> Tensor:
        return torch.zeros_like(self.start)

    def residual(self, update: Tensor) -> Tensor:
        return self.left(self.start + update)

    def jacobian(self, update: Tensor, pull: float, last: Any) -> Matrix:
        return Matrix(self.bent(self.start + update) + self.scale * pull * torch.eye(len(update), dtype=torch.float64))

    def manner(self) -> Manner:
        return Manner(self.dense, torch.float64, 1e-12)

    def agreed(self, step: Tensor) -> Tensor:
        return step


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("dense", [True, False])
def test_a_linear_equation_is_solved_to_its_goal(dense: bool) -> None:
    """`A u = b`: each step leaves `p (A + p I)^-1` of the residual, with a pull that halves."""
    A, b = torch.diag(vector(1.0, 4.0)), vector(3.0, -2.0)
    equation = Made(lambda at: A @ at - b, lambda at: A, vector(0.0, 0.0), dense)
    step = iterated_step(equation, goal=1e-9)
    assert step.ending is Ending.REACHED
    torch.testing.assert_close(step.update, vector(3.0, -0.5), rtol=1e-8, atol=1e-8)
    first = iterated_step(equation, first_pull=0.5, goal=0.9)
    if dense:
        assert (first.iterations, first.pull) == (1, 0.5)
        torch.testing.assert_close(first.update, vector(3.0 / 2.0, -2.0 / 5.0))
        assert first.residual == pytest.approx(np.hypot(3.0 / 2.0, 2.0 / 5.0))
        assert first.residual_at_start == pytest.approx(np.hypot(3.0, 2.0))


def test_where_the_curvature_is_negative_the_residual_may_rise_on_the_way() -> None:
    """The gradient of `(x^2 - 1)^2 / 4` at 0.1: it rises to 0.385 before the minimum at 1; the maximum at 0 is nearer."""
    equation = Made(lambda at: at**3 - at, lambda at: torch.diag(3 * at**2), vector(0.1))
    step = iterated_step(equation, goal=1e-6)
    assert step.ending is Ending.REACHED
    assert float(0.1 + step.update) == pytest.approx(1.0, abs=1e-6)


def test_a_jacobian_that_tells_a_quarter_of_the_curvature_needs_a_longer_pull_and_gets_there() -> None:
    A, b = torch.diag(vector(1.0, 8.0)), vector(1.0, 1.0)
    equation = Made(lambda at: A @ at - b, lambda at: A / 4, vector(0.0, 0.0))
    step = iterated_step(equation)
    assert step.ending is Ending.REACHED
    assert step.pull > FIRST_PULL


def test_where_the_goal_cannot_be_had_the_smallest_residual_is() -> None:
    floor = 0.5  # a residual that cannot be had: its part out of reach is always there

    def left(at: Tensor) -> Tensor:
        return torch.cat([at[:1] - 1.0, torch.full((1,), floor, dtype=torch.float64)])

    unreachable = Made(left, lambda at: torch.diag(vector(1.0, 1e9)), vector(0.0, 0.0))
    step = iterated_step(unreachable)
    assert step.ending is Ending.STALLED
    assert step.residual == pytest.approx(floor, rel=1e-2)
    assert step.residual == pytest.approx(float(left(step.update).norm()), rel=1e-12)
    assert step.iterations > PATIENCE


def test_where_every_step_leads_up_none_is_made() -> None:
    """The residual turns round wherever one goes: the objective rises along every step."""
    equation = Made(
        lambda at: vector(1.0) if float(at) == 0.0 else vector(-9.0), lambda at: vector(1.0)[None], vector(0.0)
    )
    step = iterated_step(equation)
    assert step.ending is Ending.STALLED
    assert torch.equal(step.update, vector(0.0))
    assert step.residual == step.residual_at_start == 1.0
    assert step.pull == math.inf
    assert step.iterations == PATIENCE


def test_an_equation_that_holds_already_needs_no_step() -> None:
    step = iterated_step(Made(lambda at: 0.0 * at, lambda at: vector(1.0)[None], vector(0.0)))
    assert (step.ending, step.iterations, step.residual) == (Ending.REACHED, 0, 0.0)


def test_pulls_are_adapted_within_limits() -> None:
    assert adapted(1e-8, 1.0) == 1e-8
    assert [adapted(1.0, share) for share in (0.76, 0.75, 0.26, 0.25, math.nan)] == [0.5, 1.0, 1.0, 4.0, 4.0]


def test_a_convex_loss_is_brought_to_the_retrained_weights() -> None:
    """With the source at hand the root is the retrained model, here by a reference that loops over examples."""
    example = Example("softmax", classes=3, width=5, n=150, m=15, l2=1e-2, surrogate=lambda rng, X: X)
    step = iterated_step(example.problem(), goal=1e-8)
    assert step.ending is Ending.REACHED
    retrained = reference.retrain(example.X[15:], example.y[15:], 3, 1e-2, "softmax").weights
    np.testing.assert_allclose(example.W + step.update.numpy(), retrained, atol=1e-6)


@pytest.mark.parametrize("forgotten", [2, 6, 12])
def test_a_network_is_brought_to_rest_on_the_rows_that_stay(forgotten: int) -> None:
    """Of a network trained to rest 1 % of the equation is left; one step of Gauss-Newton leaves up to 94 %."""
    objective = ModuleObjective(trained(), l2=0.1, curvature="hessian")
    inputs, labels = examples(60)
    parts = (slice(60), slice(forgotten), slice(forgotten, 60))
    source, forget, retain = (Examples(inputs[part], labels[part]) for part in parts)
    gradient = forgotten * objective.gradient(objective.weights, forget)
    equations = (
        SurrogateEquation(objective, objective.weights, forget, source, 60),
        RetainedEquation(objective, objective.weights, gradient, retain, 60 - forgotten),
    )
    before = float(objective.gradient(objective.weights, retain).norm())
    for equation in equations:
        step = iterated_step(equation)
        assert step.ending is Ending.REACHED
        assert step.residual < 0.01 * step.residual_at_start
        assert float(objective.gradient(objective.weights + step.update, retain).norm()) < 0.011 * before
