"""Logistic regression, one vector or one against the rest: against dense references, at the ends of its outputs, constants attained."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deposit_problems as dense
from expunge.heads import Logistic, OneVsRest
from expunge.record import LOGISTIC, ONE_VS_REST
from linear_heads import close, made, rows_of, unit

pytestmark = pytest.mark.usefixtures("one_thread")
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


@pytest.mark.parametrize(("loss", "classes"), KINDS)
def test_what_stands_for_the_curvature_is_its_diagonal(loss: str, classes: int) -> None:
    head, W, X, _ = example(loss, classes)
    p = head.predictions(torch.tensor(X @ W.T)).T
    q = (p * (1 - p)).numpy()
    assert close(head.separated(p), q)
    assert close(head.coupling(p), np.zeros(30))
    shares = torch.linspace(0.5, 1.5, 30, dtype=torch.float64)
    assert close(head.curvature_sum(p, shares), np.diag((q * shares.numpy()).sum(axis=1)))


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
    assert float(change.norm()) * 2.0 <= head.change_sup(torch.tensor(U)) * (1 + 1e-12)
    residual = head.predictions(torch.tensor(x @ W.T)) - head.targets(torch.tensor([0]), torch.float64)
    assert float(residual.norm()) <= head.residual_sup(torch.tensor(W))


def test_suprema_are_attained() -> None:
    head = made("one-vs-rest", 2, 1, bound=3.0)
    assert head.residual_sup(torch.zeros(2, 1)) == math.sqrt(2.0)
    small, large = (
        torch.tensor([[1e-6], [0.0]], dtype=torch.float64),
        torch.tensor([[500.0], [500.0]], dtype=torch.float64),
    )
    change = head.change(-small / 2, small, torch.tensor([[3.0]], dtype=torch.float64))
    assert float(change.norm()) * 3.0 == pytest.approx(head.change_sup(small), rel=1e-9)
    change = head.change(-large / 2, large, torch.tensor([[3.0]], dtype=torch.float64))
    assert float(change.norm()) * 3.0 == pytest.approx(head.change_sup(large), rel=1e-9)
    assert head.change_sup(large) == pytest.approx(math.sqrt(2.0) * 3.0)


def test_outputs_do_not_mix() -> None:
    head, W, X, y = example("one-vs-rest", 4)
    H = head.curvature(torch.tensor(W), rows_of(X, y)).dense().reshape(4, 3, 4, 3)
    for k in range(4):
        for other in range(4):
            if k != other:
                assert float(H[k, :, other].abs().max()) == 0.0
    assert not head.shift_invariant
    assert not head.constant_curvature
