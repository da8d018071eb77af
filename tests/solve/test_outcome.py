"""What a solver hands back: every ending has a name and advice, and residuals are plain quotients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from expunge.solve.outcome import Ending, LinearSolution, Step, relative_residual


def test_every_ending_but_the_wanted_one_comes_with_advice() -> None:
    assert Ending.REACHED.advice == ""
    others = [ending.advice for ending in Ending if ending is not Ending.REACHED]
    assert all(others)
    assert len(set(others)) == len(others) == 4


@pytest.mark.parametrize("ending", Ending)
def test_only_a_goal_that_was_reached_is_convergence(ending: Ending) -> None:
    step = Step(torch.zeros(1), 0.0, 1.0, 1, 1, "cholesky", 0.0, ending, 0.0)
    assert step.converged == (ending is Ending.REACHED)


@pytest.mark.parametrize(("damping", "definite"), [(0.0, True), (1e-300, False), (float("inf"), False)])
def test_whatever_had_to_be_shifted_was_not_positive_definite(damping: float, definite: bool) -> None:
    solution = LinearSolution(torch.zeros(1), 0.0, 1, "cholesky", damping)
    step = Step(torch.zeros(1), 0.0, 1.0, 1, 1, "cholesky", damping, Ending.REACHED, 0.0)
    assert solution.positive_definite == step.positive_definite == definite


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_a_relative_residual_is_a_quotient_in_float64(size: float, scale: float) -> None:
    left, right = torch.tensor([3.0 * size, 4.0 * size]), torch.tensor([[0.0, scale]])
    expected = float(left.double().norm()) / float(right.double().norm())
    assert relative_residual(left, right) == pytest.approx(expected, rel=1e-12)
    assert expected == pytest.approx(5.0 * size / scale, rel=1e-6)
    assert relative_residual(left, torch.zeros(2)) == 0.0
