"""Linear systems, dense and by conjugate gradients, and the largest eigenvalue from above."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from expunge.runtime.arrays import double, equal, to_numpy
from expunge.solve.linear import (
    EIGENVALUE_SLACK,
    SAMPLING_SLACK,
    lanczos_steps,
    largest_eigenvalue_upper,
    solve_conjugate,
    solve_dense,
)
from expunge.solve.newton import Manner, solve_linear
from step_problems import Array, Example, indefinite

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_zero_right_hand_side_has_the_zero_solution() -> None:
    example = Example()
    operator = example.problem().jacobian(torch.zeros(3, 5, dtype=torch.float64), 0.0, None)
    zero = torch.zeros(3, 5, dtype=torch.float64)
    for dense in (True, False):
        solved = solve_linear(operator, zero, Manner(dense, torch.float64, 1e-10), 1e-10)
        assert equal(solved.solution, zero)
        assert solved.relative_residual == 0.0


@pytest.mark.parametrize("dense", [True, False])
def test_a_shifted_solution_reports_the_residual_of_the_matrix_as_it_is(dense: bool) -> None:
    """Not of the shifted one, which it solves well."""
    example = indefinite("ridge", 1e-4, 1000)
    operator = example.problem().jacobian(torch.zeros(2, 200, dtype=torch.float64), 0.0, None)
    right = torch.tensor(example.m * example.forget_gradient())
    solved = solve_linear(operator, right, Manner(dense, torch.float64, 1e-10), 1e-10)
    left = to_numpy(right).reshape(-1) - example.jacobian() @ to_numpy(solved.solution).reshape(-1)
    assert not solved.positive_definite
    assert solved.damping > 0
    assert solved.relative_residual == pytest.approx(np.linalg.norm(left) / np.linalg.norm(to_numpy(right)), rel=1e-8)
    assert solved.relative_residual > 1e-6


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("loss", ["softmax", "ridge"])
def test_conjugate_gradients_and_cholesky_agree(loss: str, seed: int) -> None:
    example = Example(loss, classes=4, width=7, n=300, m=40, l2=10.0 ** -(1 + seed % 3), seed=seed)
    operator = example.problem().jacobian(torch.zeros(4, 7, dtype=torch.float64), 0.0, None)
    right = torch.tensor(np.random.default_rng(seed).normal(size=(4, 7)))
    direct = solve_linear(operator, right, Manner(True, torch.float64, 1e-12), 1e-12)
    iterated = solve_linear(operator, right, Manner(False, torch.float64, 1e-12), 1e-12)
    exact = np.linalg.solve(example.jacobian(), to_numpy(right).reshape(-1)).reshape(4, 7)
    assert (direct.method, iterated.method) == ("cholesky", "conjugate gradients")
    assert np.allclose(direct.solution, exact, rtol=1e-8, atol=1e-11)
    assert np.allclose(iterated.solution, exact, rtol=1e-8, atol=1e-11)
    assert direct.positive_definite
    assert iterated.positive_definite


@pytest.mark.parametrize("tolerance", [0.3, 1e-2, 1e-6])
@pytest.mark.parametrize("working", [torch.float64, torch.float32])
def test_a_solver_s_residual_is_recomputed_and_true(tolerance: float, working: torch.dtype) -> None:
    example = Example(classes=4, width=9, n=200, m=20, l2=1e-2)
    problem = example.problem(surrogate_dtype=working, forget_dtype=working)
    operator = problem.jacobian(torch.zeros(4, 9, dtype=torch.float64), 0.0, None)
    right = torch.tensor(example.m * example.forget_gradient())
    for solved in (solve_conjugate(operator, right, tolerance, working), solve_dense(operator, right)):
        left = to_numpy(right).reshape(-1) - example.jacobian() @ to_numpy(double(solved.solution)).reshape(-1)
        true = np.linalg.norm(left) / np.linalg.norm(to_numpy(right))
        assert solved.positive_definite
        assert solved.relative_residual == pytest.approx(
            true, rel=1e-3, abs=1e-12 if working == torch.float64 else 1e-4
        )
        if solved.method == "conjugate gradients" and working == torch.float64:
            assert true <= tolerance * (1 + 1e-6)


def gaussian(size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def bound_of(matrix: Array, seed: int, failure: float = 1e-9) -> float:
    """The upper bound for a dense matrix, from a seeded Gaussian start."""
    dense = torch.tensor(matrix)
    return largest_eigenvalue_upper(lambda v: dense @ v, gaussian(len(matrix), seed), failure)


def rotated(values: Array, seed: int) -> Array:
    """A symmetric matrix with these eigenvalues in a random basis."""
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))[0]
    return (basis * values) @ basis.T


SPECTRA = {
    "flat": np.ones,
    "linear": lambda p: np.linspace(0, 1, p),
    "square": lambda p: np.linspace(0, 1, p) ** 2,
    "one ahead by a hair": lambda p: np.r_[np.linspace(0, 1, p - 1), 1.01],
    "one far ahead": lambda p: np.r_[np.full(p - 1, 1e-6), 1.0],
    "two equal on top": lambda p: np.r_[np.linspace(0, 0.9, p - 2), 1.0, 1.0],
    "fast decay": lambda p: 0.5 ** np.arange(p),
    "crowded below the top": lambda p: np.r_[1.0, 1.0 - np.geomspace(1e-3, 1.0, p - 1)],
    "large": lambda p: 1e12 * np.linspace(0, 1, p),
    "small": lambda p: 1e-12 * np.linspace(0, 1, p),
}


@pytest.mark.parametrize("parameters", [3, 40, 400])
@pytest.mark.parametrize("name", SPECTRA)
def test_the_bound_holds_for_spectra_of_every_kind(name: str, parameters: int) -> None:
    values = np.clip(SPECTRA[name](parameters), 0.0, None)
    matrix = rotated(values, parameters)
    for seed in range(5):
        bound = bound_of(matrix, seed)
        assert values.max() * (1 - 1e-12) <= bound <= values.max() * (1 / (1 - EIGENVALUE_SLACK) + 1e-6)


@pytest.mark.parametrize("parameters", [1, 2, 7, 300])
def test_rank_one(parameters: int) -> None:
    direction = np.random.default_rng(parameters).normal(size=parameters)
    matrix = np.outer(direction, direction)
    top = direction @ direction
    for seed in range(5):
        assert top * (1 - 1e-12) <= bound_of(matrix, seed) <= top * (1 + 1e-6)


def test_the_zero_map() -> None:
    assert bound_of(np.zeros((300, 300)), 0) == 0.0


def test_a_multiple_of_the_identity_is_exact_after_one_step() -> None:
    done: list[int] = []
    bound = largest_eigenvalue_upper(lambda v: 3.0 * v, gaussian(500, 0), 1e-9, lambda step, total: done.append(step))
    assert done == [1]
    assert 3.0 <= bound <= 3.0 * (1 + 1e-8)


def test_a_ritz_value_alone_would_be_too_small() -> None:
    """So the slack is no decoration: a spectrum crowded near its top, and the few steps a failure of 1/2 allows."""
    values = np.linspace(0, 1, 2000)
    ritz = []
    for seed in range(5):
        start, diagonal = gaussian(2000, seed), torch.tensor(values)
        bound = largest_eigenvalue_upper(lambda v, d=diagonal: d * v, start, 0.5)
        assert bound >= 1.0
        ritz.append(bound * (1 - EIGENVALUE_SLACK))
    assert max(ritz) < 1.0


def test_a_bound_that_may_fail_often_does_so_no_more_often_than_it_says() -> None:
    """400 starts for the hardest kind of spectrum (quadratic crowding at the top) at failure 0.2."""
    values = torch.tensor(np.sin(np.linspace(0, math.pi / 2, 3000)) ** 2)
    failures = sum(
        largest_eigenvalue_upper(lambda v: values * v, gaussian(3000, seed), 0.2) < 1.0 for seed in range(400)
    )
    assert failures <= 0.2 * 400


@pytest.mark.parametrize("parameters", [2, 100, 5120, 10**6])
@pytest.mark.parametrize("failure", [0.5, 1e-3, 1e-8, 4e-12, 1e-20])
@pytest.mark.parametrize("slack", [0.01, 0.02, 0.05, 0.3])
def test_the_number_of_steps_is_the_smallest_that_keeps_the_promise(
    parameters: int, failure: float, slack: float
) -> None:
    """1.648 sqrt(p) exp(-sqrt(t) (2k-1)) <= failure, and no smaller k does."""

    def fails(steps: int) -> float:
        return 1.648 * math.sqrt(parameters) * math.exp(-math.sqrt(slack) * (2 * steps - 1))

    steps = lanczos_steps(parameters, failure, slack)
    assert steps >= 1
    assert fails(steps) <= failure * (1 + 1e-12)
    assert steps == 1 or fails(steps - 1) > failure


@pytest.mark.parametrize("failure", [0.5, 1e-6])
def test_up_to_twice_the_steps_the_whole_space_is_taken_and_the_result_is_exact(failure: float) -> None:
    edge = max(p for p in range(1, 1000) if p <= 2 * lanczos_steps(p, failure))
    for parameters in (edge, edge + 1):
        told: list[tuple[int, int]] = []
        values = torch.linspace(0.0, 1.0, parameters, dtype=torch.float64)
        bound = largest_eigenvalue_upper(
            lambda v, d=values: d * v, gaussian(parameters, 1), failure, lambda *now, told=told: told.append(now)
        )
        if parameters == edge:
            assert bound == pytest.approx(1.0 + 1e-9, rel=1e-12)
            assert {total for _, total in told} == {parameters}
        else:
            assert [total for _, total in told] == [lanczos_steps(parameters, failure)] * len(told)
            assert told[-1] == (lanczos_steps(parameters, failure),) * 2


@pytest.mark.parametrize(("left", "products"), [(0.95e-13, 1), (1.05e-13, 2)])
def test_the_space_is_exhausted_where_what_is_left_is_rounding(left: float, products: int) -> None:
    """Of what the largest so far is, 10^-13."""
    matrix = torch.zeros((400, 400), dtype=torch.float64)
    matrix[0, 0], matrix[0, 1], matrix[1, 0] = 3.0, 3.0 * left, 3.0 * left
    start, calls = torch.zeros(400, dtype=torch.float64), []
    start[0] = 5.0

    def product(vector: torch.Tensor) -> torch.Tensor:
        calls.append(vector)
        return matrix @ vector

    assert largest_eigenvalue_upper(product, start, 1e-6) == pytest.approx(3.0, rel=1e-8)
    assert len(calls) == products


@pytest.mark.parametrize("slack", [EIGENVALUE_SLACK, SAMPLING_SLACK])
def test_the_slack_is_added_to_the_largest_value_that_is_found(slack: float) -> None:
    """With so many values that they are not exhausted; the largest, far above the others, is found to its digits."""
    assert (EIGENVALUE_SLACK, SAMPLING_SLACK) == (0.02, 0.1)
    values = torch.linspace(0.0, 1.0, 4000, dtype=torch.float64)
    values[-1] = 50.0
    bound = largest_eigenvalue_upper(lambda v: values * v, gaussian(4000, 0), 1e-6, slack=slack)
    assert bound == pytest.approx(50.0 / (1.0 - slack), rel=1e-9, abs=0.0)


@pytest.mark.parametrize("missing", [2, 1, 0])
def test_a_space_that_is_exhausted_before_the_last_step_gives_the_value_itself(missing: int) -> None:
    """As many different values as steps, or fewer: in the last step nobody can tell."""
    steps = lanczos_steps(400, 0.5, 0.3)
    assert steps == 5
    values = torch.arange(400, dtype=torch.float64) % (steps - missing) + 1.0
    told: list[int] = []
    bound = largest_eigenvalue_upper(
        lambda v: values * v, gaussian(400, 0), 0.5, lambda step, total: told.append(step), slack=0.3
    )
    assert told[-1] == steps - missing
    assert bound == pytest.approx((steps - missing) * (1.0 + 1e-9 if missing else 1 / 0.7), rel=1e-11, abs=0.0)
