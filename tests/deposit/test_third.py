"""Third derivatives of sigmoid losses: against longer numbers, as rows leave, and what a region gains by them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deposit_problems import LONG, Problem, drawn, gradient, hessian
from expunge.bounds.deposit import THIRD, bend_third, exp_tail
from expunge.deposit.region import RetainedProblem, smallest_region
from expunge.deposit.sums import (
    MOST_NUMBERS,
    SIGMOID_SIZES,
    SOFTMAX_SIZES,
    along,
    copy_error,
    folded_size,
    has_third,
    means_of,
    n_lines,
    pull,
    pull_error,
    third_error,
)
from expunge.heads import Rows, head_for
from expunge.runtime.arrays import norm, to_numpy

pytestmark = pytest.mark.usefixtures("one_thread")
Array = Any
LOSSES = ("logistic", "one-vs-rest", "softmax")
REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=60)


def cumulants(outputs: Array, loss: str) -> Array:
    """Of each row K x K x K, from their definition, in longer numbers: classes are drawn one by one."""
    n, classes = outputs.shape
    if loss != "softmax":
        s = 1 / (1 + np.exp(-outputs))
        whole = np.zeros((n, classes, classes, classes), dtype=LONG)
        for k in range(classes):
            whole[:, k, k, k] = s[:, k] * (1 - s[:, k]) * (1 - 2 * s[:, k])
        return whole
    powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    p = powers / powers.sum(axis=1, keepdims=True)
    off = np.eye(classes, dtype=LONG)[None] - p[:, None, :]  # of the class that was drawn
    return np.einsum("nc,nca,ncb,ncd->nabd", p, off, off, off)


def dense(W: Array, X: Array, loss: str) -> Array:
    """K x d, three times, in longer numbers."""
    wide = X.astype(LONG)
    found = np.einsum(
        "nabc,ni,nj,nk->aibjck", cumulants(wide @ W.astype(LONG).T, loss), wide, wide, wide, optimize=True
    )
    return found / len(X)


def pulled(W: Array, X: Array, u: Array, loss: str) -> Array:
    return np.einsum("aibjck,bj,ck->ai", dense(W, X, loss), u.astype(LONG), u.astype(LONG)) / 2


def kept_of(whole: Array, loss: str) -> Array:
    """The entries that are kept, in their order."""
    classes, width = whole.shape[:2]
    features = [(i, j, k) for i in range(width) for j in range(i + 1) for k in range(j + 1)]
    lines = [(a, a, a) for a in range(classes)]
    if loss == "softmax":
        lines = [(a, b, c) for a in range(classes) for b in range(a + 1) for c in range(b + 1)]
    return np.array([[whole[a, i, b, j, c, k] for i, j, k in features] for a, b, c in lines])


def joint(problem: Problem) -> bool:
    return problem.loss == "softmax"


# Sums ----------------------------------------------------------------------------------------------------------------------------


def test_one_row_of_three_classes_by_hand() -> None:
    """x = 1, p = (1/2, 1/4, 1/4): c_000 = 0, c_100 = 0, c_110 = p_1 p_0 (2 p_1 - 1) = -1/16, c_111 = 3/32, c_210 = 1/16, ..."""
    rows = Rows(np.ones((1, 1), dtype=np.float64), np.array([1]))
    weights = np.array([[math.log(2.0)], [0.0], [0.0]], dtype=np.float64)
    head = head_for("softmax", l2=0.0, n_classes=3, n_features=1, row_bound=5.0)
    third = means_of(head, weights, rows, third=True).third
    assert third is not None
    made = third[:, 0].tolist()
    expected = [0, 0, -1 / 16, 3 / 32, 0, 1 / 16, -1 / 32, -1 / 16, -1 / 32, 3 / 32]
    assert made == pytest.approx(expected, abs=1e-16)
    update = np.array([[0.0], [2.0], [0.0]], dtype=np.float64)
    assert pull(third, update, joint=True)[:, 0].tolist() == pytest.approx(
        [2 * -1 / 16, 2 * 3 / 32, 2 * -1 / 32], abs=1e-15
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", range(4))
def test_sums_agree_with_longer_numbers_and_their_error_is_covered(loss: str, seed: int) -> None:
    problem = drawn(seed, loss, n=30, width=3, tails=2.0, classes=3 + 2 * (seed % 2))
    rows, anchor = problem.rows(slice(None)), problem.anchor
    means, true = means_of(problem.head, anchor, rows, third=True), dense(problem.anchor, problem.X, loss)
    made = means.third
    assert made is not None
    assert made.shape == (n_lines(problem.head, len(anchor)), folded_size(anchor.shape[1]))
    off = np.abs(to_numpy(made).astype(LONG) - kept_of(true, loss))
    stated = third_error(problem.head, anchor, len(rows), means.cube)
    assert 6.0 * float(np.sqrt((off**2).sum())) <= stated
    assert stated <= 1e-8 * max(1.0, float(np.abs(problem.X).max()) ** 3) * (1.0 + float(norm(anchor)))


def test_a_sigmoid_s_slopes_are_the_largest_there_are() -> None:
    outputs = np.linspace(-30.0, 30.0, 600_001)
    s = 1 / (1 + np.exp(-outputs))
    h = s * (1 - s)
    assert np.abs(h * (1 - 2 * s)).max() == pytest.approx(SIGMOID_SIZES[0], rel=1e-7)
    assert np.abs(h * (1 - 6 * h)).max() == pytest.approx(SIGMOID_SIZES[1], rel=1e-7)


def test_softmax_s_cumulants_are_within_their_sizes() -> None:
    """Third ones, and by how much they change: never above, and not far below."""
    rng, sizes, changes = np.random.default_rng(0), [], []
    for classes in (2, 3, 6):
        for _ in range(300):
            outputs = rng.normal(size=(1, classes)) * 10 ** rng.uniform(-1, 1)
            here = cumulants(outputs.astype(LONG), "softmax")
            sizes.append(float(np.sqrt((here**2).sum())))
            step = rng.normal(size=(1, classes))
            step *= 1e-6 / np.linalg.norm(step)
            moved = cumulants((outputs + step).astype(LONG), "softmax") - here
            changes.append(float(np.sqrt((moved**2).sum())) / 1e-6)
    assert 0.05 * SOFTMAX_SIZES[0] < max(sizes) <= SOFTMAX_SIZES[0]
    assert 0.02 * SOFTMAX_SIZES[1] < max(changes) <= SOFTMAX_SIZES[1]


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_leave_exactly(loss: str) -> None:
    problem = drawn(5, loss, n=80)
    left = problem.sums.without(problem.of(np.arange(30)))
    anew = problem.of(np.arange(30, 80))
    assert left.third is not None
    assert anew.third is not None
    assert float(norm(left.third - anew.third)) <= left.third_error + anew.third_error


def test_which_heads_have_them() -> None:
    def head(loss: str, classes: int, width: int) -> Any:
        return head_for(loss, l2=0.0, n_classes=classes, n_features=width, row_bound=1.0)

    widest = max(width for width in range(500) if folded_size(width) <= MOST_NUMBERS)
    assert has_third(head("logistic", 1, widest))
    assert not has_third(head("logistic", 1, widest + 1))
    assert has_third(head("one-vs-rest", 3, 100))
    assert not has_third(head("one-vs-rest", 3, widest))
    for loss, classes, most in (("logistic", 1, 368), ("softmax", 2, 231), ("softmax", 10, 60)):  # as the pages say
        assert has_third(head(loss, classes, most))
        assert not has_third(head(loss, classes, most + 1))
    assert not has_third(head("ridge", 2, 2))


@given(st.integers(0, 10_000))
@REPRODUCIBLE
def test_a_copy_changes_them_by_no_more_than_is_charged(seed: int) -> None:
    """As a form: `|T[a, u, u]|` for a and u of length 1, of one row moved a little."""
    rng = np.random.default_rng(seed)
    loss = LOSSES[seed % 3]
    classes = 1 if loss == "logistic" else 3
    x, away, W = rng.normal(size=(1, 3)), rng.normal(size=(1, 3)) * 1e-4, rng.normal(size=(classes, 3)) * 2
    bound = float(max(np.linalg.norm(x), np.linalg.norm(x + away)))
    moved = dense(W, x + away, loss) - dense(W, x, loss)
    head = head_for(loss, l2=0.0, n_classes=classes, n_features=3, row_bound=bound)
    charged = copy_error(head, W) * np.linalg.norm(away)
    for direction in (np.outer(rng.normal(size=classes), x[0]), rng.normal(size=(classes, 3))):
        a = direction / np.linalg.norm(direction)
        assert abs(float(np.einsum("aibjck,ai,bj,ck", moved, a, a, a))) <= charged * (1 + 1e-9)


# The pull and its error -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@given(seed=st.integers(0, 10_000))
@REPRODUCIBLE
def test_the_pull_agrees_with_longer_numbers_within_its_error(loss: str, seed: int) -> None:
    problem = drawn(seed, loss, n=15, width=3)
    u = np.random.default_rng(seed).normal(size=problem.anchor.shape) / problem.row_bound
    third = problem.sums.third
    assert third is not None
    made = pull(third, u, joint=joint(problem))
    stated = pull_error(third, u, problem.sums.third_error)
    assert float(np.linalg.norm(to_numpy(made) - pulled(problem.anchor, problem.X, u, loss).astype(float))) <= stated


@pytest.mark.parametrize("loss", LOSSES)
@given(seed=st.integers(0, 10_000))
@REPRODUCIBLE
def test_the_hessian_s_change_along_an_update_agrees_with_longer_numbers(loss: str, seed: int) -> None:
    problem = drawn(seed, loss, n=15, width=3)
    u = np.random.default_rng(seed).normal(size=problem.anchor.shape) / problem.row_bound
    third, true = problem.sums.third, np.einsum("aibjck,ck->aibj", dense(problem.anchor, problem.X, loss), u)
    assert third is not None
    made = along(third, u, joint=joint(problem))
    assert made.joint == joint(problem)
    expected = true.reshape(u.size, u.size)[None] if joint(problem) else np.einsum("aiaj->aij", true)
    stated = 2.0 * pull_error(third, u, problem.sums.third_error) / float(np.linalg.norm(u))
    assert np.linalg.norm(to_numpy(made.values) - expected.astype(float), ord=2, axis=(1, 2)).max() <= stated
    twice = 2.0 * pull(third, u, joint=joint(problem))
    assert np.allclose(made.product(u), twice, rtol=1e-11, atol=1e-15)


# The remainder ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@given(seed=st.integers(0, 10_000))
@REPRODUCIBLE
def test_what_is_left_beyond_the_pull_is_of_third_order(loss: str, seed: int) -> None:
    """By the range, `|q . E psi| <= bend_third(R) ||q||_H ||u||_H`, and by a gauge with `||.||_{H_2}` and `chi(R) r^2`."""
    rng, problem = np.random.default_rng(seed), drawn(seed, loss, n=20, width=3, tails=3.0)
    u = rng.normal(size=problem.anchor.shape) * 10 ** rng.uniform(-2, 0.3) / problem.row_bound
    X, y = problem.X, problem.y
    left = gradient(problem.anchor + u, X, y, loss) - gradient(problem.anchor, X, y, loss)
    H = hessian(problem.anchor, X, loss)
    left = left.reshape(-1) - H @ u.astype(LONG).reshape(-1) - pulled(problem.anchor, X, u, loss).reshape(-1)
    outputs = X @ u.T
    gauge = problem.gauges[seed % len(problem.gauges)]
    squares = to_numpy(gauge.squares(X))
    H2 = hessian(problem.anchor, X, loss, squares)
    pairs = u if loss != "softmax" else (u[:, None] - u[None]).reshape(-1, u.shape[1])
    length = float(gauge.length(pairs).max())
    R = float(np.abs(outputs).max() if loss != "softmax" else np.ptp(outputs, axis=1).max())
    for _ in range(4):
        q = rng.normal(size=u.size)
        by_range = bend_third(R) * form(H, q) * form(H, u.reshape(-1))
        by_gauge = exp_tail(R, 3) * length**2 * form(H2, q) * form(H2, u.reshape(-1))
        slack = 1e-16 * problem.row_bound
        assert abs(float(q @ left)) <= by_range * (1 + 1e-9) + slack
        assert abs(float(q @ left)) <= by_gauge * (1 + 1e-9) + slack


def form(matrix: Array, vector: Array) -> float:
    return math.sqrt(max(0.0, float(vector @ (matrix @ vector))))


# The step and its region ---------------------------------------------------------------------------------------------------------


def leaving(problem: Problem, m: int) -> RetainedProblem:
    sums = problem.sums.without(problem.of(np.arange(m)))
    return RetainedProblem(problem.setting, sums, problem.penalty(problem.n - m), problem.shape)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("m", [1, 10])
def test_the_step_is_the_root_of_the_quadratic_and_its_region_is_smaller(loss: str, m: int) -> None:
    problem = drawn(0, loss, n=200, l2=0.05, width=3, tails=5.0)
    given = leaving(problem, m)
    second, third = smallest_region(replace(given, sums=replace(given.sums, third=None))), smallest_region(given)
    assert second is not None
    assert third is not None
    assert third.facts.route.endswith(THIRD)
    assert third.facts.size < 0.5 * second.facts.size
    assert third.residual < 1e-13
    bent = pull(given.sums.third, third.update, joint=joint(problem))  # type: ignore[arg-type]
    assert float(norm(given.setting.centred(given.left(third.update) + bent))) < 1e-12
    uncertain = smallest_region(replace(given, sums=replace(given.sums, third_error=1e-3)))
    assert uncertain is not None
    charged = 0.5 * 1e-3 * float(norm(third.update)) ** 2
    largest = math.sqrt(problem.l2 + float(np.linalg.norm(problem.X, axis=1).max()) ** 2)
    assert uncertain.facts.rounding - third.facts.rounding >= charged / largest


def test_where_the_third_order_is_of_no_use_the_second_is_taken() -> None:
    """An update so long that the quadratic has no root near it: the step stays where it falls least, and nothing is worse."""
    for seed in range(10):
        problem = drawn(seed, "logistic", n=30, l2=1e-3, width=2)
        given = leaving(problem, 12)
        plain = smallest_region(replace(given, sums=replace(given.sums, third=None)))
        both = smallest_region(given)
        if plain is None:
            continue
        assert both is not None
        assert both.facts.size <= plain.facts.size
