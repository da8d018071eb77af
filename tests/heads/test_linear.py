"""Loss, gradient, curvature and change of gradient against naive forms and autograd; constants that hold and are attained."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import reference
from expunge.errors import OptionError
from expunge.heads import Curvature, LinearHead, Rows, head_for, linear
from expunge.heads.linear import Spread
from expunge.heads.network import NetworkHead
from expunge.runtime.arrays import double, norm, to_numpy
from linear_heads import Array, close, example, made, rows_of, unit

pytestmark = pytest.mark.usefixtures("one_thread")
LOSSES = ("softmax", "ridge")
SHAPES = ((2, 1, 3), (2, 4, 20), (3, 7, 50), (10, 5, 33))  # classes, features, rows


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
    changes = reference.change_table(W, U, X, loss)
    assert close(head.change_mean(weights, torch.tensor(U), rows), changes.mean(axis=0).reshape(W.shape))


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


# Width of the numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_evidence_is_summed_in_float64_when_rows_are_kept_in_float32(loss: str) -> None:
    head, W, U, X, y = example(loss, (3, 7, 50))
    small = rows_of(X, y, torch.float32)
    cast = to_numpy(double(small.features))
    weights, update = torch.tensor(W), torch.tensor(U)
    assert head.gradient(weights, small).dtype == torch.float64
    assert head.change_mean(weights, update, small).dtype == torch.float64
    assert close(head.gradient(weights, small), reference.mean_gradient(W, cast, y, head.l2, loss))
    assert close(
        head.change_mean(weights, update, small), reference.change_table(W, U, cast, loss).mean(axis=0).reshape(W.shape)
    )
    assert head.loss(weights, small) == pytest.approx(reference.mean_loss(W, cast, y, head.l2, loss), rel=1e-12)


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


def test_the_change_supremum_uses_the_spectral_norm() -> None:
    """Two equal singular values: the Frobenius norm would be larger by sqrt 2."""
    update = torch.eye(2, dtype=torch.float64) * 0.01
    assert made("softmax", 2, 2).change_sup(update) == pytest.approx(0.005, rel=1e-12)
    assert made("ridge", 2, 2).change_sup(update) == pytest.approx(0.01, rel=1e-12)


# Rounding -------------------------------------------------------------------------------------------------------


def rounding_error(head: LinearHead, W: Array, X: Array, y: Array, dtype: torch.dtype = torch.float64) -> float:
    rows = rows_of(X, y, dtype)
    exact = reference.exact_gradient(W, to_numpy(double(rows.features)), y, head.l2, head.name)
    return float(np.sqrt(((to_numpy(head.gradient(torch.tensor(W), rows)) - exact) ** 2).sum()))


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


def test_rounding_by_hand() -> None:
    """Three classes, ten features, rows of length 2, seven of them, weights of length 3, l2 = 0.5."""
    weights = torch.zeros((3, 10), dtype=torch.float64)
    weights[0, 0] = 3.0
    of_link = math.sqrt(3.0) * 74 * 7.0
    for loss, residual in (("softmax", math.sqrt(2.0)), ("ridge", 6.0 + math.sqrt(3.0))):
        due = 2.0**-53 * (2.0 * (71 * residual + of_link) + 4 * 0.5 * 3.0)
        found = made(loss, 3, 10, l2=0.5, bound=2.0).rounding(weights, range(7))
        assert found == pytest.approx(due, rel=1e-13, abs=0.0)


# Weighted rows, and what pays -------------------------------------------------------------------------------------


class Room:
    """So many rows, and room for so much."""

    def __init__(self, count: int, room: float = math.inf) -> None:
        self.count, self.room = count, room

    def __len__(self) -> int:
        return self.count

    def affords(self, n_bytes: int) -> bool:
        return n_bytes <= self.room


@pytest.mark.parametrize(("classes", "width"), [(2, 60), (3, 40), (10, 25), (5, 300), (2, 500)])
def test_a_dense_hessian_pays_where_fewer_multiplications_are_left(classes: int, width: int) -> None:
    """Half of K (K + 1) d x d blocks over the rows and a third of p^3, at an eighth of the price, against forty products."""
    head, p = made("softmax", classes, width), classes * width

    def dense(rows: int) -> float:
        return rows * (classes * (classes + 1) / 2) * width**2 + p**3 / 3

    def iterations(rows: int) -> float:
        return 40 * 2 * rows * p

    paid = [head.dense_pays(Room(rows)) for rows in range(1, 2000)]
    assert paid == [dense(rows) / 8.0 < iterations(rows) for rows in range(1, 2000)]
    if (classes, width) == (2, 60):
        assert paid.index(True) + 1 == 9, "from 8.7 rows on"


def test_what_costs_as_much_does_not_pay() -> None:
    """K = 1, d = 480: (80 - 60) p n are saved, and 480^2/24 p = 9600 p spent: 480 rows are just as many."""
    head = made("ridge", 1, 480)
    assert [head.dense_pays(Room(rows)) for rows in (479, 480, 481)] == [False, False, True]


def test_a_dense_hessian_needs_room_for_five_and_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    head = made("softmax", 2, 60)
    assert head.dense_pays(Room(1000, 5 * 8 * 120**2))
    assert not head.dense_pays(Room(1000, 5 * 8 * 120**2 - 1))
    monkeypatch.setattr(linear, "DENSE_PARAMETERS", 120)
    assert head.dense_pays(Room(1000))
    monkeypatch.setattr(linear, "DENSE_PARAMETERS", 119)
    assert not head.dense_pays(Room(1000))


def test_systems_are_solved_as_far_as_their_numbers_allow_and_roughly_far_from_the_goal() -> None:
    """A network's products are dearer than its iterations, a linear head's are not."""
    head = made("softmax", 2, 3)
    assert (head.accurate(torch.float64), head.accurate(torch.float32)) == (1e-10, 1e-5)
    assert (LinearHead.inexact, NetworkHead.inexact) == (True, False)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_factors_for_preconditioning_are_plain_means(loss: str) -> None:
    head, W, _, X, y = example(loss, (4, 6, 60))
    curvature = Curvature(head, torch.tensor(W), rows_of(X, y))
    predictions = reference.predictions(W, X, loss)
    by_class = np.mean([np.eye(4) if loss == "ridge" else np.diag(p) - np.outer(p, p) for p in predictions], axis=0)
    assert close(curvature.class_factor(), by_class)
    assert close(curvature.feature_factor(), X.T @ X / len(X))


def test_the_dense_matrix_is_the_same_as_it_is_formed_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    head, W, _, X, y = example("softmax", (4, 6, 60))
    for rows in (rows_of(X, y), replace(rows_of(X, y), weights=torch.linspace(0.0, 2.0, 60, dtype=torch.float64))):
        small = Curvature(head, torch.tensor(W), rows).dense()
        with monkeypatch.context() as patch:
            patch.setattr("expunge.heads.linear.few_at_a_time", lambda _: False)
            large = Curvature(head, torch.tensor(W), rows).dense()
        torch.testing.assert_close(large, small, rtol=1e-12, atol=1e-14)
        assert float(norm(small)) > 0.0


def table(loss: str, weighted: bool, n: int = 37) -> tuple[Spread, np.ndarray, np.ndarray, np.ndarray]:
    """The spread, all changes as one table (rows by parameters), the rows' weights, and the rows."""
    rng = np.random.default_rng([n, weighted])
    X, y = reference.random_rows(rng, n, 4, 3)
    W, U = rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    weights = rng.uniform(0.2, 3.0, n)
    weights = weights / weights.mean() if weighted else np.ones(n)
    rows = Rows(torch.tensor(X), torch.tensor(y), torch.tensor(weights) if weighted else None)
    head = head_for(loss, l2=0.1, n_classes=3, n_features=4, row_bound=1.0)
    phi = reference.change_table(W, U, X, loss)
    return Spread(head, torch.tensor(W), torch.tensor(U), rows), phi, weights, X


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", ["softmax", "ridge"])
def test_mean_and_sums_are_those_of_the_table(loss: str, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge.heads.rows.BLOCK_BYTES", 5 * 4 * 8)
    spread, phi, weights, X = table(loss, weighted)
    mean = (weights[:, None] * phi).mean(axis=0)
    squares = ((phi - mean) ** 2).sum(axis=1)
    np.testing.assert_allclose(to_numpy(spread.mean[:3]).reshape(-1), mean, rtol=1e-12, atol=1e-15)
    sums = spread.sums()
    for found, expected in (
        (sums.trace, (weights * squares).mean()),
        (sums.fourth, (weights * squares**2).mean()),
        (sums.largest, np.sqrt(squares.max())),
        (sums.longest_row, np.linalg.norm(X, axis=1).max()),
        (sums.sampled_trace, (weights**2 * squares).mean()),
        (sums.sampled_largest, (weights * np.sqrt(squares)).max()),
    ):
        assert found == pytest.approx(expected, rel=1e-11)
        assert found >= expected * (1 - 1e-14), "never too small by rounding"
    lengths = np.sort(np.linalg.norm(phi, axis=1))[::-1]
    np.testing.assert_allclose(spread.longest(6), lengths[:6], rtol=1e-11)
    np.testing.assert_allclose(spread.longest(39), [*lengths, lengths[-1], lengths[-1]], rtol=1e-11)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("fourth", [False, True])
@pytest.mark.parametrize("loss", ["softmax", "ridge"])
def test_products_are_those_of_the_covariance_formed(loss: str, fourth: bool, power: int) -> None:
    spread, phi, weights, _ = table(loss, weighted=True)
    centred = phi - (weights[:, None] * phi).mean(axis=0)
    factors = weights**power * ((centred**2).sum(axis=1) if fourth else 1.0)
    covariance = (factors[:, None] * centred).T @ centred / len(phi)
    direction = np.random.default_rng(1).normal(size=(3, 4))
    found = to_numpy(spread.covariance_product(torch.tensor(direction), power, fourth))
    np.testing.assert_allclose(found.reshape(-1), covariance @ direction.reshape(-1), rtol=1e-10, atol=1e-14)


def test_rows_that_are_all_alike_have_next_to_no_spread() -> None:
    spread, _, _, _ = table("softmax", weighted=False, n=1)
    size = float(spread.mean.square().sum())
    assert 0.0 <= spread.sums().trace <= 4 * spread.cancellation * size
