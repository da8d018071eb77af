"""Softmax: it survives overflow, and its constants are attained."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deposit_problems as dense
import reference
from expunge.heads import Logistic, OneVsRest
from expunge.record import HESSIAN_LIPSCHITZ_FACTOR, LOGISTIC, ONE_VS_REST
from expunge.runtime.arrays import norm
from linear_heads import close, made, rows_of, unit

pytestmark = pytest.mark.usefixtures("one_thread")


def test_softmax_survives_outputs_that_overflow_a_naive_exponential() -> None:
    head = made("softmax", 3, 1)
    rows = rows_of(np.array([[1.0], [-1.0]]), np.array([0, 1]))
    W = np.array([[2000.0], [-2000.0], [0.0]])
    assert head.loss(torch.tensor(W), rows) == pytest.approx(0.5 * head.l2 * (W**2).sum(), rel=1e-12)
    assert close(head.gradient(torch.tensor(W), rows), head.l2 * W)


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


Array = Any
REPRODUCIBLE = settings(max_examples=50, deadline=None, derandomize=True)
KINDS = [("logistic", 1), ("one-vs-rest", 2), ("one-vs-rest", 4)]


def example(loss: str, classes: int, seed: int = 0) -> tuple[Any, Array, Array, Array]:
    rng = np.random.default_rng([seed, classes])
    X, W = rng.normal(size=(30, 3)), rng.normal(size=(classes, 3)) * 2
    return made(loss, classes, 3, bound=6.0), W, X, rng.integers(0, max(classes, 2), 30)


@pytest.mark.parametrize(("loss", "classes"), KINDS)
def test_loss_gradient_and_hessian_agree_with_the_formulas(loss: str, classes: int) -> None:
    head, W, X, y = example(loss, classes)
    rows, weights = rows_of(X, y), torch.tensor(W, requires_grad=True)
    outputs = X @ W.T
    hot = y[:, None] if loss == "logistic" else (np.arange(classes) == y[:, None]).astype(float)
    by_hand = (
        -(hot * np.log(1 / (1 + np.exp(-outputs))) + (1 - hot) * np.log(1 / (1 + np.exp(outputs)))).sum(axis=1).mean()
    )
    assert head.loss(torch.tensor(W), rows) == pytest.approx(by_hand + 0.5 * head.l2 * (W**2).sum(), rel=1e-13)
    expected = dense.gradient(W, X, y, loss).astype(float) + head.l2 * W
    assert close(head.gradient(torch.tensor(W), rows), expected)
    total = head.losses(rows.features @ weights.T, rows.labels).mean() + 0.5 * head.l2 * weights.square().sum()
    assert close(torch.autograd.grad(total, weights)[0], expected)
    H = dense.hessian(W, X, loss).astype(float) + head.l2 * np.eye(W.size)
    assert close(head.curvature(torch.tensor(W), rows).dense(), H)
    V = np.random.default_rng(1).normal(size=W.shape)
    assert close(head.curvature(torch.tensor(W), rows).product(torch.tensor(V)), (H @ V.reshape(-1)).reshape(V.shape))


def test_one_vector_is_the_second_class_against_the_first() -> None:
    head, W, X, y = example("logistic", 1)
    assert (head.targets(torch.tensor([0, 1]), torch.float64)).tolist() == [[0.0], [1.0]]
    two = made("softmax", 2, 3, bound=6.0)
    pair = torch.tensor(np.concatenate([0 * W, W]))
    rows = rows_of(X, y)
    plain, whole = (
        h.loss(w, rows) - 0.5 * h.l2 * float((w**2).sum()) for h, w in ((head, torch.tensor(W)), (two, pair))
    )
    assert plain == pytest.approx(whole, rel=1e-13)
    assert (Logistic.about, OneVsRest.about) == (LOGISTIC, ONE_VS_REST)
    assert LOGISTIC.weight_rows(2) == 1
    assert ONE_VS_REST.weight_rows(3) == 3


@pytest.mark.parametrize("size", [19.0, 21.0, 40.0, 800.0])
def test_losses_keep_their_digits_at_the_ends(size: float) -> None:
    head = made("logistic", 1, 1)
    losses = head.losses(torch.tensor([[size], [-size]], dtype=torch.float64), torch.tensor([1, 1]))
    assert losses[0].item() == pytest.approx(math.log1p(math.exp(-size)), rel=1e-12)
    assert losses[1].item() == pytest.approx(size + math.log1p(math.exp(-size)), rel=1e-15)


@pytest.mark.parametrize(("loss", "classes"), KINDS)
@pytest.mark.parametrize("bound", [0.5, 3.0])
def test_constants_are_attained(loss: str, classes: int, bound: float) -> None:
    head = made(loss, classes, 1, l2=0.2, bound=bound)
    constants = head.constants(0.0)
    assert constants.strong_convexity == 0.2
    assert constants.smoothness == pytest.approx(0.25 * bound**2 + 0.2, rel=1e-15)  # at p = 1/2
    assert constants.lipschitz == pytest.approx(math.sqrt(classes) * bound, rel=1e-15)
    at = math.log(2 + math.sqrt(3.0)) / bound  # where the slope of a sigmoid changes fastest
    step = 1e-5 / bound
    curvatures = [
        float(dense.slopes(np.full((classes, 1), w), np.array([[bound]]), loss)[0, 0, 0])
        for w in (at - step, at + step)
    ]
    steepest = abs(curvatures[1] - curvatures[0]) / (2 * step) * bound**2
    assert constants.hessian_lipschitz == pytest.approx(steepest, rel=1e-6)
    assert constants.hessian_lipschitz == pytest.approx(bound**3 / (6 * math.sqrt(3.0)), rel=1e-12)


@given(st.integers(0, 10_000), st.sampled_from(KINDS), st.floats(-2.0, 2.0))
@REPRODUCIBLE
def test_changes_and_residuals_stay_below_their_suprema(seed: int, kind: tuple[str, int], exponent: float) -> None:
    loss, classes = kind
    rng = np.random.default_rng(seed)
    head = made(loss, classes, 3, bound=2.0)
    W, U = rng.normal(size=(classes, 3)), rng.normal(size=(classes, 3)) * 10.0**exponent
    x = 2.0 * unit(rng, 1, 3)
    change = head.change(torch.tensor(W), torch.tensor(U), torch.tensor(x))
    assert float(norm(change)) * 2.0 <= head.change_sup(torch.tensor(U)) * (1 + 1e-12)
    residual = head.predictions(torch.tensor(x @ W.T)) - head.targets(torch.tensor([0]), torch.float64)
    assert float(norm(residual)) <= head.residual_sup(torch.tensor(W))


def test_suprema_are_attained() -> None:
    head = made("one-vs-rest", 2, 1, bound=3.0)
    assert head.residual_sup(torch.zeros(2, 1)) == math.sqrt(2.0)
    small, large = (
        torch.tensor([[1e-6], [0.0]], dtype=torch.float64),
        torch.tensor([[500.0], [500.0]], dtype=torch.float64),
    )
    change = head.change(-small / 2, small, torch.tensor([[3.0]], dtype=torch.float64))
    assert float(norm(change)) * 3.0 == pytest.approx(head.change_sup(small), rel=1e-9)
    change = head.change(-large / 2, large, torch.tensor([[3.0]], dtype=torch.float64))
    assert float(norm(change)) * 3.0 == pytest.approx(head.change_sup(large), rel=1e-9)
    assert head.change_sup(large) == pytest.approx(math.sqrt(2.0) * 3.0)


@pytest.mark.parametrize("bound", [0.5, 1.0, 3.0])
def test_ridge_constants_are_attained(bound: float) -> None:
    """A row along the top singular vector, its output opposite to its target."""
    rng = np.random.default_rng(6)
    classes, width, l2 = 4, 3, 0.2
    head = made("ridge", classes, width, l2=l2, bound=bound)
    direction = unit(rng, width)
    W = 2.5 * np.outer(-reference.one_hot(2, classes, "ridge") / math.sqrt(classes), direction)
    x = bound * direction
    residual = np.linalg.norm(W @ x - reference.one_hot(2, classes, "ridge"))
    gradient = reference.example_gradient(W, x, 2, "ridge") + l2 * W
    constants = head.constants(2.5)
    assert head.residual_sup(torch.tensor(W)) == pytest.approx(residual, rel=1e-12)
    assert constants.lipschitz == pytest.approx(np.linalg.norm(gradient), rel=1e-12)
    assert head.change_sup(torch.tensor(W)) == pytest.approx(
        np.linalg.norm(reference.example_change(0 * W, W, x, "ridge")), rel=1e-12
    )
    assert constants.smoothness == pytest.approx(
        np.linalg.eigvalsh(reference.example_hessian(W, x, "ridge"))[-1] + l2, rel=1e-12
    )
    assert constants.hessian_lipschitz == 0.0


def test_losses_are_half_the_squared_distances_from_plus_and_minus_one() -> None:
    head = made("ridge", 2, 1)
    outputs = torch.tensor([[1.0, -1.0], [0.0, 3.0], [2.0, -1.0]], dtype=torch.float64)
    assert head.losses(outputs, torch.tensor([0, 1, 0])).tolist() == [0.0, 2.5, 0.5]
    assert head.moment_roundoffs(7) == 71
