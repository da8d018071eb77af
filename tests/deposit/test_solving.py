"""The update with surrogate rows: solved, safeguarded, and measured by what it leaves."""

from __future__ import annotations

import pytest
import torch

from beside_problems import Problem, assembled, random_problem
from expunge.deposit.setting import Penalty
from expunge.deposit.solving import Solved, _Equation, solved
from expunge.deposit.sums import sums_of
from expunge.distance import Distance
from expunge.heads import Rows, head_for


def solution_of(problem: Problem) -> Solved:
    retained = problem.retained
    found = solved(problem.setting, problem.head, retained.sums, problem.penalty, problem.asked.rows)
    assert found is not None
    return found


def left_over(problem: Problem, found: Solved) -> torch.Tensor:
    """`g' + (H' + reg) u + E_S psi`, from gradients and a Hessian of their own."""
    setting, sums, S = problem.setting, problem.retained.sums, problem.asked.rows
    gradient = sums.gradient + problem.penalty.diagonal(setting.anchor) * (setting.anchor + found.update)
    before, after = (problem.head.gradient(at, S) for at in (setting.anchor, setting.anchor + found.update))
    linear = sums_of(problem.head, setting.anchor, S).curvature.product(found.update)
    return setting.centred(gradient + sums.curvature.product(found.update) + after - before - linear)


@pytest.mark.parametrize("seed", range(8))
def test_next_to_nothing_is_left_and_it_is_what_is_said(seed: int) -> None:
    problem = random_problem("gaussian", seed)
    assert problem is not None
    found = solution_of(problem)
    assert found.reached
    assert found.system.dual(found.left) <= 1e-9 * found.system.dual(problem.retained.sums.gradient)
    assert torch.allclose(left_over(problem, found), found.left, atol=1e-12)


def test_with_the_retained_rows_themselves_it_is_retraining() -> None:
    problem = random_problem("gaussian", 3)
    assert problem is not None
    retained = problem.retained
    found = solved(problem.setting, problem.head, retained.sums, problem.penalty, problem.kept)
    assert found is not None
    assert problem.off(found.update) < 1e-9


def hostile() -> Problem:
    """Surrogate rows many times longer than the source's: along the update their Hessian falls by more than A is."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn((300, 2), dtype=torch.float64, generator=generator) * 0.2
    labels = (rows[:, 0] + 0.1 * torch.randn(300, dtype=torch.float64, generator=generator) > 0).long()
    labels[:60] = 1 - labels[:60]
    far = torch.randn((200, 2), dtype=torch.float64, generator=generator) * 6.0
    head = head_for("logistic", l2=0.0, n_classes=1, n_features=2, row_bound=30.0)
    surrogate = Rows(far, torch.zeros(200, dtype=torch.int64))
    made = assembled(head, Rows(rows, labels), 60, surrogate, Distance("same", 0.0), penalty=Penalty(1e-3))
    assert made is not None
    return made


def test_an_indefinite_jacobian_is_noticed_and_the_step_is_still_safe() -> None:
    problem = hostile()
    found = solution_of(problem)
    equation = _Equation(problem.setting, problem.head, found.left, found.system, problem.asked.rows)
    far = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    assert equation.direction(far, equation.left(far))[0] is None
    gradient = (
        problem.retained.sums.gradient + problem.penalty.diagonal(problem.setting.anchor) * problem.setting.anchor
    )
    assert found.system.dual(found.left) <= found.system.dual(gradient)
    assert torch.allclose(left_over(problem, found), found.left, atol=1e-12)


def test_a_system_that_is_not_definite_has_no_solution() -> None:
    problem = random_problem("one-hot", 1)
    assert problem is not None
    flat = problem.retained.sums.curvature.times(0.0)
    sums = type(problem.retained.sums)(**{**vars(problem.retained.sums), "curvature": flat})
    assert solved(problem.setting, problem.head, sums, Penalty(0.0), problem.asked.rows) is None
