"""Loss, gradient, curvature and change of gradient against naive forms and autograd; constants that hold and are attained."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from expunge.data import prepare
from expunge.errors import OptionError
from expunge.heads import Curvature, LinearHead, Rows, head_for
from expunge.record import HESSIAN_LIPSCHITZ_FACTOR

pytestmark = pytest.mark.usefixtures("one_thread")

Array = Any
LOSSES = ("softmax", "ridge")
SHAPES = ((2, 1, 3), (2, 4, 20), (3, 7, 50), (10, 5, 33))  # classes, features, rows


def made(loss: str, classes: int, width: int, *, l2: float = 0.03, bound: float = 1.0) -> LinearHead:
    return head_for(loss, l2=l2, n_classes=classes, n_features=width, row_bound=bound)


def example(
    loss: str, shape: tuple[int, int, int], *, bias: bool = False, bound: float = 1.5
) -> tuple[LinearHead, Array, Array, Array, Array]:
    """A head, weights, an update, features and labels."""
    classes, width, n = shape
    rng = np.random.default_rng([classes, width, n, bias])
    X, y = reference.random_rows(rng, n, width, classes, max_norm=bound, bias=bias)
    row_bound = math.hypot(bound, 1.0) if bias else bound
    head = made(loss, classes, X.shape[1], bound=row_bound)
    W = rng.normal(size=(classes, X.shape[1])) * 2
    return head, W, rng.normal(size=W.shape), X, y


def rows_of(X: Array, y: Array, dtype: torch.dtype = torch.float64) -> Rows:
    return Rows(torch.tensor(X, dtype=dtype), torch.tensor(y, dtype=torch.int64))


def unit(rng: np.random.Generator, *shape: int) -> Array:
    drawn = rng.normal(size=shape)
    return drawn / np.linalg.norm(drawn)


def close(actual: Any, expected: Any) -> bool:
    return bool(np.allclose(actual, expected, rtol=1e-11, atol=1e-12))


# Against naive forms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_gradient_and_curvature_equal_loops_over_examples(
    loss: str, shape: tuple[int, int, int], bias: bool
) -> None:
    head, W, U, X, y = example(loss, shape, bias=bias)
    rows, weights = rows_of(X, y), torch.tensor(W)
    curvature = Curvature(head, weights, rows)
    dense = reference.mean_hessian(W, X, head.l2, loss)
    assert head.loss(weights, rows) == pytest.approx(reference.mean_loss(W, X, y, head.l2, loss), rel=1e-12)
    assert close(head.gradient(weights, rows), reference.mean_gradient(W, X, y, head.l2, loss))
    assert close(curvature.dense(), dense)
    assert close(curvature.product(torch.tensor(U)), (dense @ U.reshape(-1)).reshape(W.shape))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loss", LOSSES)
def test_change_of_gradient_equals_loops_over_examples(loss: str, shape: tuple[int, int, int], bias: bool) -> None:
    head, W, U, X, y = example(loss, shape, bias=bias)
    changes = head.change(torch.tensor(W), torch.tensor(U), torch.tensor(X)).numpy()
    phi = (changes[:, :, None] * X[:, None, :]).reshape(len(X), -1)
    naive = reference.change_table(W, U, X, loss)
    assert close(phi, naive)
    assert close(head.change_mean(torch.tensor(W), torch.tensor(U), rows_of(X, y)), naive.mean(axis=0).reshape(W.shape))


@pytest.mark.parametrize("loss", LOSSES)
def test_the_label_cancels_in_the_change_of_gradient(loss: str) -> None:
    _, W, U, X, _ = example(loss, (4, 3, 5))
    for x in X:
        for label in range(4):
            direct = reference.example_gradient(W + U, x, label, loss) - reference.example_gradient(W, x, label, loss)
            assert close(direct, reference.example_change(W, U, x, loss))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_gradient_and_hessian_equal_autograd(loss: str, shape: tuple[int, int, int], bias: bool) -> None:
    head, W, _, X, y = example(loss, shape, bias=bias)
    rows = rows_of(X, y)
    weights = torch.tensor(W, requires_grad=True)

    def objective(at: torch.Tensor) -> torch.Tensor:
        return reference.autograd_objective(at, rows.features, rows.labels, head.l2, loss)

    value = objective(weights)
    (slope,) = torch.autograd.grad(value, weights)
    hessian = torch.autograd.functional.hessian(objective, weights.detach()).reshape(W.size, W.size)
    assert head.loss(weights.detach(), rows) == pytest.approx(float(value.detach()), rel=1e-12)
    assert close(head.gradient(weights.detach(), rows), slope)
    assert close(Curvature(head, weights.detach(), rows).dense(), hessian)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_fast_forms_used_for_retraining_equal_the_loops(loss: str) -> None:
    """The tests' own retraining stands on the same ground."""
    _, W, _, X, y = example(loss, (4, 6, 40))
    assert close(reference.gradient(W, X, y, 0.1, loss), reference.mean_gradient(W, X, y, 0.1, loss))
    assert close(reference.hessian(W, X, 0.1, loss), reference.mean_hessian(W, X, 0.1, loss))
    assert reference.objective(W, X, y, 0.1, loss) == pytest.approx(reference.mean_loss(W, X, y, 0.1, loss), rel=1e-12)
    assert close(
        reference.exact_gradient(W, X, y, 0.1, loss).astype(float), reference.mean_gradient(W, X, y, 0.1, loss)
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_sets_of_many_blocks_are_summed_whole(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge.heads.rows.BLOCK_BYTES", 1 << 18)
    """More rows than fit one block, and a last block that is not full."""
    rng = np.random.default_rng(5)
    X, y = reference.random_rows(rng, 20_011, 20, 3)
    head, rows = made(loss, 3, 20), rows_of(X, y)
    blocks = list(rows.blocks())
    assert len(blocks) > 2
    assert [block.start + index for block in blocks for index in range(len(block))] == list(range(len(X)))
    W, U = rng.normal(size=(3, 20)), rng.normal(size=(3, 20))
    curvature = Curvature(head, torch.tensor(W), rows)
    hessian = reference.hessian(W, X, head.l2, loss)
    assert close(head.gradient(torch.tensor(W), rows), reference.gradient(W, X, y, head.l2, loss))
    assert head.loss(torch.tensor(W), rows) == pytest.approx(reference.objective(W, X, y, head.l2, loss), rel=1e-12)
    assert close(curvature.dense(), hessian)
    assert close(curvature.product(torch.tensor(U)).reshape(-1), hessian @ U.reshape(-1))
    change = reference.predictions(W + U, X, loss) - reference.predictions(W, X, loss)
    assert close(head.change_mean(torch.tensor(W), torch.tensor(U), rows), change.T @ X / len(X))


@pytest.mark.parametrize("loss", LOSSES)
def test_the_factors_for_preconditioning_are_plain_means(loss: str) -> None:
    head, W, _, X, y = example(loss, (4, 6, 60))
    curvature = Curvature(head, torch.tensor(W), rows_of(X, y))
    predictions = reference.predictions(W, X, loss)
    by_class = np.mean([np.eye(4) if loss == "ridge" else np.diag(p) - np.outer(p, p) for p in predictions], axis=0)
    assert close(curvature.class_factor(), by_class)
    assert close(curvature.feature_factor(), X.T @ X / len(X))
    separated = np.ones((60, 4))
    if loss == "softmax":
        own = predictions * (1 - predictions)
        separated = own * (1 + 2 * (own**2).sum(axis=1) / own.sum(axis=1) ** 2)[:, None]
    blocks = [np.mean([c * np.outer(x, x) for c, x in zip(separated[:, k], X, strict=True)], axis=0) for k in range(4)]
    assert close(curvature.class_blocks(), np.stack(blocks))


@pytest.mark.parametrize("loss", LOSSES)
def test_nothing_that_is_passed_in_is_changed(loss: str) -> None:
    head, W, U, X, y = example(loss, (3, 4, 9))
    weights, update, rows = torch.tensor(W), torch.tensor(U), rows_of(X, y)
    curvature = Curvature(head, weights, rows)
    for work in (
        lambda: head.loss(weights, rows),
        lambda: head.gradient(weights, rows),
        lambda: head.change_mean(weights, update, rows),
        lambda: curvature.product(update),
        lambda: curvature.product(update),
        curvature.dense,
    ):
        work()
        assert np.array_equal(weights, W)
        assert np.array_equal(update, U)
        assert np.array_equal(rows.features, X)
    assert torch.equal(curvature.product(update), curvature.product(update))


def test_softmax_survives_outputs_that_overflow_a_naive_exponential() -> None:
    head = made("softmax", 3, 1)
    rows = rows_of(np.array([[1.0], [-1.0]]), np.array([0, 1]))
    W = np.array([[2000.0], [-2000.0], [0.0]])
    assert head.loss(torch.tensor(W), rows) == pytest.approx(0.5 * head.l2 * (W**2).sum(), rel=1e-12)
    assert close(head.gradient(torch.tensor(W), rows), head.l2 * W)


# Width of the numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_evidence_is_summed_in_float64_when_rows_are_kept_in_float32(loss: str) -> None:
    head, W, U, X, y = example(loss, (3, 7, 50))
    small = rows_of(X, y, torch.float32)
    cast = small.features.double().numpy()
    weights, update = torch.tensor(W), torch.tensor(U)
    assert head.gradient(weights, small).dtype == torch.float64
    assert head.change_mean(weights, update, small).dtype == torch.float64
    assert close(head.gradient(weights, small), reference.mean_gradient(W, cast, y, head.l2, loss))
    assert close(
        head.change_mean(weights, update, small), reference.change_table(W, U, cast, loss).mean(axis=0).reshape(W.shape)
    )
    assert head.loss(weights, small) == pytest.approx(reference.mean_loss(W, cast, y, head.l2, loss), rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_curvature_works_in_the_dtype_of_the_rows(loss: str) -> None:
    head, W, U, X, y = example(loss, (3, 7, 50))
    curvature = Curvature(head, torch.tensor(W), rows_of(X, y, torch.float32))
    image = curvature.product(torch.tensor(U, dtype=torch.float32))
    assert image.dtype == torch.float32
    assert curvature.dense().dtype == torch.float32
    dense = reference.mean_hessian(W, X, head.l2, loss)
    assert np.allclose(image.numpy().reshape(-1), dense @ U.reshape(-1), rtol=1e-4, atol=1e-4)
    assert np.allclose(curvature.dense(), dense, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_bias_is_one_more_constant_feature_regularised_like_the_rest(loss: str) -> None:
    """Weights and offset given to autograd as two tensors agree with one matrix whose last column is the bias."""
    rng = np.random.default_rng(8)
    raw, y = reference.random_rows(rng, 30, 5, 3, max_norm=2.0)
    rows = prepare(
        torch.tensor(raw),
        torch.tensor(y),
        max_norm=2.0,
        bias=True,
        dtype=torch.float64,
        device=torch.device("cpu"),
        name="rows",
    ).rows
    assert rows.features.shape == (30, 6)
    assert torch.equal(rows.features[:, -1], torch.ones(30, dtype=torch.float64))
    head = made(loss, 3, 6, bound=math.sqrt(5.0))
    weight = torch.tensor(rng.normal(size=(3, 5)), requires_grad=True)
    offset = torch.tensor(rng.normal(size=3), requires_grad=True)
    outputs = torch.tensor(raw) @ weight.T + offset
    if loss == "softmax":
        data = torch.nn.functional.cross_entropy(outputs, torch.tensor(y))
    else:
        data = 0.5 * (outputs - (2 * torch.nn.functional.one_hot(torch.tensor(y), 3) - 1)).square().sum() / 30
    value = data + 0.5 * head.l2 * (weight.square().sum() + offset.square().sum())
    slopes = torch.autograd.grad(value, (weight, offset))
    matrix = torch.cat([weight.detach(), offset.detach()[:, None]], dim=1)
    assert head.loss(matrix, rows) == pytest.approx(float(value.detach()), rel=1e-12)
    assert close(head.gradient(matrix, rows), torch.cat([slopes[0], slopes[1][:, None]], dim=1))


def test_an_unknown_loss_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match="hinge"):
        made("hinge", 2, 2)


# Constants are never exceeded -----------------------------------------------------------------------------------


def random_point(rng: np.random.Generator, bound: float) -> tuple[Array, Array, Array, int]:
    """Weights from tiny to saturating, an update, a row on the boundary, a label."""
    classes, width = int(rng.integers(2, 7)), int(rng.integers(1, 5))
    W = rng.normal(size=(classes, width)) * 10 ** rng.uniform(-2, 1.5)
    U = rng.normal(size=(classes, width)) * 10 ** rng.uniform(-3, 1.5)
    return W, U, unit(rng, width) * bound, int(rng.integers(classes))


@pytest.mark.parametrize("bound", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_no_random_point_exceeds_the_constants(loss: str, bound: float) -> None:
    rng = np.random.default_rng([int(10 * bound), len(loss)])
    slack = 1 + 1e-12
    for _ in range(400):
        W, U, x, label = random_point(rng, bound)
        head = made(loss, *W.shape, l2=0.01, bound=bound)
        size = float(np.linalg.norm(W))
        constants = head.constants(size)
        gradient = reference.example_gradient(W, x, label, loss) + head.l2 * W
        residual = np.linalg.norm(reference.link(W @ x, loss) - reference.one_hot(label, len(W), loss))
        assert residual <= head.residual_sup(torch.tensor(W)) * slack
        assert np.linalg.norm(gradient) <= constants.lipschitz * slack
        assert np.linalg.norm(reference.example_change(W, U, x, loss)) <= head.change_sup(torch.tensor(U)) * slack
        eigenvalues = np.linalg.eigvalsh(reference.example_hessian(W, x, loss) + head.l2 * np.eye(W.size))
        assert eigenvalues[-1] <= constants.smoothness * slack
        assert eigenvalues[0] >= constants.strong_convexity * (1 - 1e-9)
        difference = reference.example_hessian(W + U, x, loss) - reference.example_hessian(W, x, loss)
        assert np.linalg.norm(difference, 2) <= constants.hessian_lipschitz * np.linalg.norm(U) * slack + 1e-12


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


# ... and are attained -------------------------------------------------------------------------------------------

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


def test_the_change_supremum_uses_the_spectral_norm() -> None:
    """Two equal singular values: the Frobenius norm would be larger by sqrt 2."""
    update = torch.eye(2, dtype=torch.float64) * 0.01
    assert made("softmax", 2, 2).change_sup(update) == pytest.approx(0.005, rel=1e-12)
    assert made("ridge", 2, 2).change_sup(update) == pytest.approx(0.01, rel=1e-12)


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


@pytest.mark.parametrize("loss", LOSSES)
def test_strong_convexity_is_l2_and_no_more(loss: str) -> None:
    """A direction no row reaches."""
    head = made(loss, 2, 2, l2=0.07)
    hessian = reference.example_hessian(np.zeros((2, 2)), np.array([1.0, 0.0]), loss) + 0.07 * np.eye(4)
    assert head.constants(0.0).strong_convexity == pytest.approx(np.linalg.eigvalsh(hessian)[0], rel=1e-12)


# Rounding -------------------------------------------------------------------------------------------------------


def rounding_error(head: LinearHead, W: Array, X: Array, y: Array, dtype: torch.dtype = torch.float64) -> float:
    rows = rows_of(X, y, dtype)
    exact = reference.exact_gradient(W, rows.features.double().numpy(), y, head.l2, head.name)
    return float(np.sqrt(((head.gradient(torch.tensor(W), rows).numpy() - exact) ** 2).sum()))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_rounding_bounds_the_float64_error_of_a_gradient(loss: str, bias: bool) -> None:
    rng = np.random.default_rng(9)
    nearest = 0.0
    for _ in range(60):
        classes, width, n = int(rng.integers(2, 11)), int(rng.integers(1, 60)), int(np.exp(rng.uniform(0, 8)))
        bound = float(10 ** rng.uniform(-3, 3))
        X, y = reference.random_rows(rng, n, width, classes, max_norm=bound, bias=bias)
        row_bound = math.hypot(bound, 1.0) if bias else bound
        head = made(loss, classes, X.shape[1], l2=float(10 ** rng.uniform(-8, 2)), bound=row_bound)
        W = rng.normal(size=(classes, X.shape[1])) * 10 ** rng.uniform(-3, 4) / row_bound
        for dtype in (torch.float64, torch.float32):
            error, bounded = rounding_error(head, W, X, y, dtype), head.rounding(torch.tensor(W), range(n))
            assert error <= bounded
            nearest = max(nearest, error / bounded)
    assert nearest > 1e-4  # a bound a million times too large would be no use either


@pytest.mark.parametrize("loss", LOSSES)
def test_rounding_bounds_the_error_where_the_sum_cancels(loss: str) -> None:
    """Large terms, tiny sum: every row occurs with its mirror image."""
    rng = np.random.default_rng(10)
    half, y = reference.random_rows(rng, 2000, 5, 2)
    X = np.vstack([half, -half])
    labels = np.concatenate([y, y])
    head = made(loss, 2, 5, l2=1e-9)
    for scale in (0.0, 1.0, 1e3, 1e6):
        W = rng.normal(size=(2, 5)) * scale
        assert rounding_error(head, W, X, labels) <= head.rounding(torch.tensor(W), X)


def test_rounding_grows_with_rows_weights_bound_and_l2() -> None:
    W = torch.ones((2, 3), dtype=torch.float64)
    base = made("softmax", 2, 3).rounding(W, range(100))
    assert base > 0
    assert made("softmax", 2, 3).rounding(W, range(10_000)) > 10 * base
    assert made("softmax", 2, 3).rounding(1e4 * W, range(100)) > 10 * base
    assert made("softmax", 2, 3, bound=10.0).rounding(W, range(100)) > 10 * base
    assert made("softmax", 2, 3, l2=1e4).rounding(W, range(100)) > 10 * base
