"""Softmax: it survives overflow, and its constants are attained."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from expunge.record import HESSIAN_LIPSCHITZ_FACTOR
from linear_heads import close, made, rows_of, unit

pytestmark = pytest.mark.usefixtures("one_thread")


def test_softmax_survives_outputs_that_overflow_a_naive_exponential() -> None:
    head = made("softmax", 3, 1)
    rows = rows_of(np.array([[1.0], [-1.0]]), np.array([0, 1]))
    W = np.array([[2000.0], [-2000.0], [0.0]])
    assert head.loss(torch.tensor(W), rows) == pytest.approx(0.5 * head.l2 * (W**2).sum(), rel=1e-12)
    assert close(head.gradient(torch.tensor(W), rows), head.l2 * W)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    outputs=st.lists(st.floats(-30, 30), min_size=2, max_size=6),
    moves=st.lists(st.floats(-30, 30), min_size=6, max_size=6),
    bound=st.floats(0.1, 10),
)
def test_a_searched_softmax_change_stays_below_its_supremum(
    outputs: list[float], moves: list[float], bound: float
) -> None:
    W, U = np.array(outputs)[:, None] / bound, np.array(moves[: len(outputs)])[:, None] / bound
    head = made("softmax", len(outputs), 1, bound=bound)
    change = reference.example_change(W, U, np.array([bound]), "softmax")
    assert np.linalg.norm(change) <= head.change_sup(torch.tensor(U)) * (1 + 1e-12) + 1e-15


BALANCED = np.array([[1.0], [-1.0]]) / math.sqrt(2.0)  # two classes, one feature: the direction that moves them apart


@pytest.mark.parametrize("bound", [0.5, 1.0, 3.0])
def test_softmax_smoothness_is_attained_by_two_equal_classes(bound: float) -> None:
    head = made("softmax", 2, 1, l2=0.2, bound=bound)
    largest = np.linalg.eigvalsh(reference.example_hessian(np.zeros((2, 1)), np.array([bound]), "softmax"))[-1] + 0.2
    assert head.constants(0.0).smoothness == pytest.approx(largest, rel=1e-12)


@pytest.mark.parametrize("bound", [0.5, 1.0, 3.0])
def test_softmax_gradient_bound_is_attained_by_a_confident_mistake(bound: float) -> None:
    """p - t tends to the difference of two corners, and l2 W points the same way."""
    W = BALANCED * 60 / bound
    head = made("softmax", 2, 1, l2=0.2, bound=bound)
    gradient = reference.example_gradient(W, np.array([bound]), 1, "softmax") + 0.2 * W
    assert head.residual_sup(torch.tensor(W)) == pytest.approx(math.sqrt(2.0), rel=1e-12)
    assert np.linalg.norm(gradient) == pytest.approx(head.constants(60 / bound).lipschitz, rel=1e-9)


@pytest.mark.parametrize("bound", [0.5, 1.0, 3.0])
def test_softmax_hessian_lipschitz_constant_is_attained(bound: float) -> None:
    """Third central moment of two outcomes, largest at p = (1 + 1/sqrt 3)/2: sqrt 2/(3 sqrt 3)."""
    odds = 0.5 * (1 + 1 / math.sqrt(3.0))
    W = BALANCED * math.log(odds / (1 - odds)) / math.sqrt(2.0) / bound
    small = 1e-6 * BALANCED
    x = np.array([bound])
    rise = reference.example_hessian(W + small, x, "softmax") - reference.example_hessian(W - small, x, "softmax")
    slope = np.linalg.norm(rise, 2) / np.linalg.norm(2 * small)
    head = made("softmax", 2, 1, bound=bound)
    assert pytest.approx(math.sqrt(2.0) / (3.0 * math.sqrt(3.0)), rel=1e-15) == HESSIAN_LIPSCHITZ_FACTOR
    assert head.constants(0.0).hessian_lipschitz == pytest.approx(slope, rel=1e-6)


def test_no_distribution_on_several_classes_has_a_larger_third_derivative() -> None:
    """max of the third central moment of h under p over unit h: random search for K = 3 to 8 stays below the constant."""
    rng = np.random.default_rng(4)
    best = 0.0
    for _ in range(20_000):
        classes = int(rng.integers(2, 9))
        p, h = rng.dirichlet(np.full(classes, 10 ** rng.uniform(-1, 1))), unit(rng, classes)
        best = max(best, abs(float(p @ (h - p @ h) ** 3)))
    assert 0.9 * HESSIAN_LIPSCHITZ_FACTOR < best <= HESSIAN_LIPSCHITZ_FACTOR


@pytest.mark.parametrize("bound", [0.5, 1.0, 3.0])
def test_softmax_change_supremum_is_attained_by_small_and_by_huge_updates(bound: float) -> None:
    head, x = made("softmax", 2, 1, bound=bound), np.array([bound])
    small = 1e-5 * BALANCED
    change = reference.example_change(np.zeros((2, 1)) - 0.5 * small, small, x, "softmax")
    assert np.linalg.norm(change) == pytest.approx(head.change_sup(torch.tensor(small)), rel=1e-8)
    huge = BALANCED * 200 / bound
    change = reference.example_change(-0.5 * huge, huge, x, "softmax")
    assert np.linalg.norm(change) == pytest.approx(head.change_sup(torch.tensor(huge)), rel=1e-12)
    assert head.change_sup(torch.tensor(huge)) == pytest.approx(math.sqrt(2.0) * bound, rel=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_what_stands_for_the_curvature_where_classes_are_treated_one_by_one(classes: int) -> None:
    """By loops: q = p (1 - p), times 1 + 2 sum q^2 / (sum q)^2; and what it misses, sum q^2 / sum q."""
    p = np.random.default_rng(classes).dirichlet(np.ones(classes), size=5)
    head = made("softmax", classes, 2)
    separated, coupling = head.separated(torch.tensor(p.T)), head.coupling(torch.tensor(p.T))
    for row in range(5):
        q = [float(x * (1.0 - x)) for x in p[row]]
        squares = sum(x * x for x in q)
        assert separated[:, row].tolist() == pytest.approx([x * (1.0 + 2.0 * squares / sum(q) ** 2) for x in q])
        assert float(coupling[row]) == pytest.approx(squares / sum(q))


def test_a_row_undecided_between_two_classes_counts_twice_and_a_sure_one_not_at_all() -> None:
    head = made("softmax", 3, 2)
    p = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64).T
    assert head.separated(p).T.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    assert head.coupling(p).tolist() == [0.25, 0.0]


def test_entries_of_the_curvature_are_its_upper_half_row_by_row() -> None:
    """And its sum over rows that count by their weights."""
    p = np.random.default_rng(3).dirichlet(np.ones(4), size=5)
    each = [np.diag(row) - np.outer(row, row) for row in p]
    head = made("softmax", 4, 2)
    entries = head.curvature_entries(torch.tensor(p.T))
    assert close(entries.T, np.stack([matrix[np.triu_indices(4)] for matrix in each]))
    weights = np.array([0.5, 2.0, 0.0, 1.0, 1.5])
    total = head.curvature_sum(torch.tensor(p.T), torch.tensor(weights))
    assert close(total, sum(weight * matrix for weight, matrix in zip(weights, each, strict=True)))


def test_a_product_with_the_curvature_is_that_of_each_row_s_matrix() -> None:
    rng = np.random.default_rng(5)
    p, directions = rng.dirichlet(np.ones(4), size=5), rng.normal(size=(5, 4))
    head = made("softmax", 4, 2)
    due = [(np.diag(row) - np.outer(row, row)) @ v for row, v in zip(p, directions, strict=True)]
    assert close(head.curve(torch.tensor(p.T), torch.tensor(directions.T)).T, np.stack(due))
    alike = head.curve(torch.tensor(p.T), torch.ones((4, 5), dtype=torch.float64))
    assert float(alike.abs().max()) < 1e-15
    assert head.shift_invariant, "the same added to all outputs changes nothing"
    assert not head.constant_curvature


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_each_row_has_a_loss_of_its_own(rows: int) -> None:
    rng = np.random.default_rng(rows)
    outputs, labels = rng.normal(size=(rows, 3)), rng.integers(0, 3, rows)
    losses = made("softmax", 3, 2).losses(torch.tensor(outputs), torch.tensor(labels))
    due = [math.log(sum(math.exp(z) for z in row)) - row[y] for row, y in zip(outputs, labels, strict=True)]
    assert losses.tolist() == pytest.approx(due, rel=1e-12)
