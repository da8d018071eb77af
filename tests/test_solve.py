"""The step: Algorithm 1 first, then Newton's method on a(u); honest residuals, and an end to every loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch

import reference
from asking import asked
from expunge.distance import Distance
from expunge.errors import ExpungeError
from expunge.heads import LinearHead, Rows, head_for, linear
from expunge.mechanism import certify, measure
from expunge.request.door import Request
from expunge.solve import newton as solve
from expunge.solve.cholesky import solve_dense
from expunge.solve.conjugate import solve_conjugate
from expunge.solve.equation import RetainHessian, SurrogateEquation
from expunge.solve.newton import CONVERGED, Manner, newton_step, solve_linear
from expunge.solve.outcome import Step
from expunge.train import SetHessian

pytestmark = pytest.mark.usefixtures("one_thread")

Array = Any
Within = Callable[[float], AbstractContextManager[None]]
LOSSES = ("softmax", "ridge")
METHODS = ("cholesky", "conjugate gradients")
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]


@pytest.fixture
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Forces one of the two ways to solve, whatever the size."""
    monkeypatch.setattr(LinearHead, "dense_pays", lambda *_: request.param == "cholesky")
    return str(request.param)


def rows_of(X: Array, y: Array, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Rows:
    return Rows(torch.tensor(X, dtype=dtype, device=device), torch.tensor(y, dtype=torch.int64, device=device))


class Example:
    """A trained source, a forget set (its first rows) and a surrogate, in numpy and as the library's problem."""

    def __init__(
        self,
        loss: str = "softmax",
        *,
        classes: int = 3,
        width: int = 5,
        n: int = 150,
        m: int = 15,
        l2: float = 1e-2,
        bound: float = 1.0,
        bias: bool = False,
        seed: int = 0,
        surrogate: Callable[[np.random.Generator, Array], Array] | None = None,
        weights: float | None = None,
        rescale: float = 1.0,
    ) -> None:
        rng = np.random.default_rng([seed, classes, width, n, m])
        self.loss, self.classes, self.n, self.m, self.l2 = loss, classes, n, m, l2
        X, self.y = reference.random_rows(rng, n, width, classes, max_norm=bound, bias=bias)
        S = (
            reference.random_rows(rng, n, width, classes, max_norm=bound, bias=bias)[0]
            if surrogate is None
            else surrogate(rng, X)
        )
        self.X, self.S = X * rescale, S * rescale
        shape = (classes, X.shape[1])
        self.W = (
            reference.retrain(X, self.y, classes, l2, loss).weights
            if weights is None
            else rng.normal(size=shape) * weights
        )
        row_bound = (math.hypot(bound, 1.0) if bias else bound) * rescale
        self.head = head_for(loss, l2=l2, n_classes=classes, n_features=X.shape[1], row_bound=row_bound)

    def problem(
        self,
        *,
        device: str = "cpu",
        surrogate_dtype: torch.dtype = torch.float64,
        forget_dtype: torch.dtype = torch.float64,
    ) -> SurrogateEquation:
        forget = rows_of(self.X[: self.m], self.y[: self.m], forget_dtype, device)
        surrogate = rows_of(self.S, np.zeros(len(self.S), dtype=int), surrogate_dtype, device)
        return SurrogateEquation(self.head, torch.tensor(self.W, device=device), forget, surrogate, self.n)

    def request(self, **options: Any) -> Request:
        """The same, as a user would put it; without a bias."""
        facts = {"n_source": self.n, "l2": self.l2, "loss": self.loss, "max_norm": self.head.row_bound}
        chosen = {"epsilon": 1.0, "delta": 1e-5, "distance": "chi2:0.1", "training_residual": 1e-12, "force": True}
        return asked(self.W, (self.X[: self.m], self.y[: self.m]), self.S, **{**chosen, **facts, **options})

    def jacobian(self, U: Array | float = 0.0) -> Array:
        """n H_S - m H_U, densely."""
        at = self.W + U
        H_U = reference.hessian(at, self.X[: self.m], self.l2, self.loss)
        return self.n * reference.hessian(at, self.S, self.l2, self.loss) - self.m * H_U

    def forget_gradient(self, U: Array | float = 0.0) -> Array:
        return reference.gradient(self.W + U, self.X[: self.m], self.y[: self.m], self.l2, self.loss)

    def residual(self, U: Array) -> Array:
        """a(u) = n (g_S(v) - g_S(w)) - m g_U(v), by loops over examples."""
        change = reference.change_table(self.W, U, self.S, self.loss).mean(axis=0).reshape(U.shape) + self.l2 * U
        forget = reference.mean_gradient(self.W + U, self.X[: self.m], self.y[: self.m], self.l2, self.loss)
        return self.n * change - self.m * forget


def algorithm_one(example: Example) -> Array:
    """m (n H_S - m H_U)^{-1} g_U."""
    return np.linalg.solve(example.jacobian(), example.m * example.forget_gradient().reshape(-1)).reshape(
        example.W.shape
    )


# The first iteration, and the last ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, indirect=True)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("classes", "width", "n", "m"), [(2, 1, 60, 1), (2, 6, 120, 12), (5, 4, 200, 40), (10, 3, 150, 5)]
)
@pytest.mark.parametrize("loss", LOSSES)
def test_one_newton_step_is_algorithm_one(
    method: str, loss: str, classes: int, width: int, n: int, m: int, bias: bool
) -> None:
    example = Example(loss, classes=classes, width=width, n=n, m=m, l2=0.05, bias=bias)
    step = newton_step(example.problem(), single=True)
    assert step.iterations == 1
    assert step.method == method
    assert step.positive_definite
    assert step.damping == 0.0
    assert np.allclose(step.update, algorithm_one(example), rtol=1e-7, atol=1e-10)


def test_the_source_size_scales_the_surrogate_s_hessian_and_not_its_own_size() -> None:
    """The main text's Algorithm 1: a surrogate given twice over changes nothing."""
    once = Example()
    twice = Example(surrogate=lambda rng, X: np.vstack([reference.random_rows(rng, len(X), 5, 3)[0]] * 2))
    assert len(twice.S) == 2 * once.n
    assert np.array_equal(twice.S[: once.n], once.S)
    first, second = newton_step(once.problem(), single=True), newton_step(twice.problem(), single=True)
    assert np.allclose(first.update, second.update, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("method", METHODS, indirect=True)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss", LOSSES)
def test_the_converged_step_makes_the_residual_negligible(method: str, loss: str, seed: int) -> None:
    example = Example(loss, classes=4, width=6, n=200, m=60, l2=0.02, seed=seed)
    step = newton_step(example.problem(), single=False)
    start = np.linalg.norm(example.residual(np.zeros_like(example.W)))
    left = np.linalg.norm(example.residual(step.update.numpy()))
    assert step.converged
    assert step.iterations <= 6
    assert step.residual_at_start == pytest.approx(start, rel=1e-10)
    assert start == pytest.approx(example.m * np.linalg.norm(example.forget_gradient()), rel=1e-10)
    assert left <= CONVERGED * start * (1 + 1e-6)
    assert step.residual == pytest.approx(left, abs=1e-12 * example.n)
    root = step.update.numpy()
    for _ in range(5):  # a few plain Newton steps more, densely, hardly move it
        root = root - np.linalg.solve(example.jacobian(root), example.residual(root).reshape(-1)).reshape(root.shape)
    assert np.linalg.norm(root - step.update.numpy()) <= 1e-6 * np.linalg.norm(root)


@pytest.mark.parametrize("method", METHODS, indirect=True)
def test_the_converged_step_ends_nearer_than_one_newton_step(method: str) -> None:
    example = Example("softmax", classes=4, width=6, n=200, m=80, l2=1e-3)
    problem = example.problem()
    assert newton_step(problem, single=False).residual < 1e-5 * newton_step(problem, single=True).residual


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("method", METHODS, indirect=True)
def test_ridge_is_exact_in_one_step(method: str, single: bool) -> None:
    """With the source as surrogate that step is retraining itself."""
    example = Example("ridge", classes=3, width=6, n=120, m=50, surrogate=lambda rng, X: X)
    step = newton_step(example.problem(), single=single)
    retrained = reference.retrain(example.X[50:], example.y[50:], 3, example.l2, "ridge").weights
    assert step.residual <= (1e-9 if single else CONVERGED) * step.residual_at_start
    if method == "cholesky":
        assert step.iterations == 1
        assert step.residual <= 1e-12 * step.residual_at_start
    assert np.allclose(example.W + step.update.numpy(), retrained, rtol=1e-6, atol=1e-7)


def test_softmax_with_the_source_as_surrogate_reaches_the_retrained_weights() -> None:
    example = Example("softmax", classes=3, width=6, n=120, m=50, l2=0.05, surrogate=lambda rng, X: X)
    step = newton_step(example.problem(), single=False)
    retrained = reference.retrain(example.X[50:], example.y[50:], 3, example.l2, "softmax").weights
    assert np.linalg.norm(example.W + step.update.numpy() - retrained) <= 1e-8


# The identity ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("loss", LOSSES)
def test_the_identity_behind_the_bound_holds_for_any_update(loss: str, seed: int) -> None:
    """(n-m) g_R(v) = n g_D(w) + a(u) + n (E_D phi - E_S phi), weights anywhere, update anything."""
    example = Example(loss, classes=3, width=4, n=90, m=30, weights=2.0, seed=seed)
    rng = np.random.default_rng(seed)
    U = rng.normal(size=example.W.shape) * 10 ** rng.uniform(-3, 1)
    n, m, W, l2 = example.n, example.m, example.W, example.l2
    left = (n - m) * reference.exact_gradient(W + U, example.X[m:], example.y[m:], l2, loss)
    on_source = reference.change_table(W, U, example.X, loss).mean(axis=0).reshape(U.shape)
    on_surrogate = reference.change_table(W, U, example.S, loss).mean(axis=0).reshape(U.shape)
    a = example.problem().residual(torch.tensor(U)).numpy()
    right = n * reference.exact_gradient(W, example.X, example.y, l2, loss) + a + n * (on_source - on_surrogate)
    assert np.linalg.norm((left - right).astype(float)) <= 1e-12 * n * (1 + np.linalg.norm(U))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("loss", LOSSES)
def test_what_the_mechanism_charges_for_rounding_covers_the_measured_residual(loss: str, scale: float) -> None:
    """a(u) as computed against 64-bit mantissas, at the mechanism's own update from weights of any size."""
    for seed in range(6):
        example = Example(loss, classes=4, width=8, n=400, m=100, weights=scale, seed=seed)
        measured = measure(example.request())
        U, n, m, W, l2 = measured.step.update.numpy(), example.n, example.m, example.W, example.l2
        labels = np.zeros(len(example.S), dtype=int)
        after, before = (reference.exact_gradient(at, example.S, labels, l2, loss) for at in (W + U, W))
        exact = n * (after - before) - m * reference.exact_gradient(W + U, example.X[:m], example.y[:m], l2, loss)
        error = float(np.sqrt(((example.problem().residual(torch.tensor(U)).numpy() - exact) ** 2).sum()))
        charged, left = measured.facts["rounding"].value, measured.facts["solver_residual"].value
        assert 0 < error <= charged
        assert float(np.sqrt((exact**2).sum())) <= left + charged


@pytest.mark.parametrize("method", METHODS, indirect=True)
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_residual_handed_over_is_that_of_the_update_handed_over(method: str, loss: str, single: bool) -> None:
    example = Example(loss, classes=3, width=5, n=100, m=45, l2=1e-3)
    step = newton_step(example.problem(), single=single)
    true = np.linalg.norm(example.residual(step.update.numpy()))
    assert step.residual == pytest.approx(true, abs=1e-12 * example.n, rel=1e-9)


# Linear solves --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("loss", LOSSES)
def test_conjugate_gradients_and_cholesky_agree(loss: str, seed: int) -> None:
    example = Example(loss, classes=4, width=7, n=300, m=40, l2=10.0 ** -(1 + seed % 3), seed=seed)
    operator = RetainHessian(example.problem(), torch.zeros(4, 7, dtype=torch.float64), pull=0.0, last=None)
    right = torch.tensor(np.random.default_rng(seed).normal(size=(4, 7)))
    direct = solve_linear(operator, right, Manner(True, torch.float64, 1e-12), 1e-12)
    iterated = solve_linear(operator, right, Manner(False, torch.float64, 1e-12), 1e-12)
    exact = np.linalg.solve(example.jacobian(), right.numpy().reshape(-1)).reshape(4, 7)
    assert (direct.method, iterated.method) == METHODS
    assert np.allclose(direct.solution, exact, rtol=1e-8, atol=1e-11)
    assert np.allclose(iterated.solution, exact, rtol=1e-8, atol=1e-11)
    assert direct.positive_definite
    assert iterated.positive_definite


@pytest.mark.parametrize("tolerance", [0.3, 1e-2, 1e-6])
@pytest.mark.parametrize("working", [torch.float64, torch.float32])
def test_a_solver_s_residual_is_recomputed_and_true(tolerance: float, working: torch.dtype) -> None:
    example = Example(classes=4, width=9, n=200, m=20, l2=1e-2)
    problem = example.problem(surrogate_dtype=working, forget_dtype=working)
    operator = RetainHessian(problem, torch.zeros(4, 9, dtype=torch.float64), pull=0.0, last=None)
    right = torch.tensor(example.m * example.forget_gradient())
    for solved in (solve_conjugate(operator, right, tolerance, working), solve_dense(operator, right)):
        left = right.numpy().reshape(-1) - example.jacobian() @ solved.solution.double().numpy().reshape(-1)
        true = np.linalg.norm(left) / np.linalg.norm(right.numpy())
        assert solved.positive_definite
        assert solved.relative_residual == pytest.approx(
            true, rel=1e-3, abs=1e-12 if working == torch.float64 else 1e-4
        )
        if solved.method == "conjugate gradients" and working == torch.float64:
            assert true <= tolerance * (1 + 1e-6)


def test_a_zero_right_hand_side_has_the_zero_solution() -> None:
    example = Example()
    operator = RetainHessian(example.problem(), torch.zeros(3, 5, dtype=torch.float64), pull=0.0, last=None)
    zero = torch.zeros(3, 5, dtype=torch.float64)
    for dense in (True, False):
        solved = solve_linear(operator, zero, Manner(dense, torch.float64, 1e-10), 1e-10)
        assert torch.equal(solved.solution, zero)
        assert solved.relative_residual == 0.0


@pytest.mark.parametrize("loss", LOSSES)
def test_operators_are_what_they_are_called(loss: str) -> None:
    example = Example(loss)
    at = np.random.default_rng(1).normal(size=example.W.shape)
    direction = np.random.default_rng(2).normal(size=example.W.shape)
    update = torch.tensor(at - example.W)
    retain = RetainHessian(example.problem(), update, pull=0.0, last=None)
    whole = SetHessian(example.head, torch.tensor(at), rows_of(example.X, example.y), preconditioner=None)
    for operator, dense in (
        (retain, example.jacobian(at - example.W)),
        (whole, reference.hessian(at, example.X, example.l2, loss)),
    ):
        assert np.allclose(operator.dense(), dense, rtol=1e-10, atol=1e-10)
        assert np.allclose(
            operator.product(torch.tensor(direction)).reshape(-1), dense @ direction.reshape(-1), rtol=1e-10, atol=1e-10
        )


def test_a_hessian_that_does_not_fit_is_never_formed() -> None:
    wide = head_for("softmax", l2=1e-3, n_classes=10, n_features=512, row_bound=1.0)
    small = head_for("softmax", l2=1e-3, n_classes=2, n_features=20, row_bound=1.0)
    assert wide.n_parameters > linear.DENSE_PARAMETERS

    def some(count: int) -> Rows:
        return Rows(torch.zeros(1, 1).expand(count, 512), torch.zeros(1, dtype=torch.int64).expand(count))

    assert not wide.dense_pays(some(10**9))
    assert not wide.dense_pays(some(10))
    assert small.dense_pays(some(1000))


def test_a_hessian_that_memory_does_not_allow_is_not_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    small = head_for("softmax", l2=1e-3, n_classes=2, n_features=20, row_bound=1.0)
    rows = Rows(torch.zeros(1000, 20), torch.zeros(1000, dtype=torch.int64))
    allowed = linear.DENSE_COPIES * 8 * small.n_parameters**2
    monkeypatch.setattr(Rows, "affords", lambda self, n_bytes: n_bytes < allowed)
    assert not small.dense_pays(rows)
    monkeypatch.setattr(Rows, "affords", lambda self, n_bytes: n_bytes <= allowed)
    assert small.dense_pays(rows)


# A pull toward no update ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pull", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("method", METHODS, indirect=True)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_pulled_step_solves_the_pulled_equation_and_reports_the_residual_without(
    method: str, loss: str, pull: float
) -> None:
    example = Example(loss, classes=4, width=6, n=200, m=60, l2=0.02)
    step = newton_step(example.problem(), single=False, pull=pull)
    U = step.update.numpy()
    start = np.linalg.norm(example.residual(np.zeros_like(U)))
    assert step.converged
    assert step.pull == pull
    assert np.linalg.norm(example.residual(U) + example.n * pull * U) <= CONVERGED * start * (1 + 1e-6)
    assert step.residual == pytest.approx(np.linalg.norm(example.residual(U)), rel=1e-9)
    assert step.residual_at_start == pytest.approx(start, rel=1e-12)


def test_a_stronger_pull_gives_a_shorter_update() -> None:
    problem = Example(classes=4, width=6, n=200, m=60, l2=0.02).problem()
    lengths = [
        float(newton_step(problem, single=False, pull=pull).update.norm()) for pull in (0.0, 1e-3, 1e-1, 10.0, 1e6)
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < 1e-5 * lengths[0]


# Not positive definite ------------------------------------------------------------------------------------------


def indefinite(loss: str, l2: float, surrogate: int) -> Example:
    """Many features, a fifth forgotten, another sample as surrogate: some directions only the forget set has curvature in."""
    example = Example(
        loss,
        classes=2,
        width=200,
        n=1000,
        m=200,
        l2=l2,
        surrogate=lambda rng, X: reference.random_rows(rng, surrogate, 200, 2)[0],
    )
    assert np.linalg.eigvalsh(example.jacobian())[0] < 0
    return example


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("method", METHODS, indirect=True)
@pytest.mark.parametrize("loss", LOSSES)
def test_an_indefinite_retain_hessian_is_reported_and_the_step_still_helps(
    method: str, loss: str, single: bool, within: Within
) -> None:
    example = indefinite(loss, 1e-4, 1000)
    with within(60):
        step = newton_step(example.problem(), single=single)
    assert not step.positive_definite
    assert step.damping > 0
    assert step.residual < step.residual_at_start
    assert step.residual == pytest.approx(np.linalg.norm(example.residual(step.update.numpy())), rel=1e-8)


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("method", METHODS, indirect=True)
@pytest.mark.parametrize("loss", LOSSES)
def test_where_no_damped_step_helps_none_is_taken(method: str, loss: str, single: bool, within: Within) -> None:
    """More directions of negative curvature: less residual is not promised, an honest account is."""
    example = indefinite(loss, 1e-5, 300)
    with within(60):
        step = newton_step(example.problem(), single=single)
    assert not step.positive_definite
    assert step.residual <= step.residual_at_start
    assert step.residual == pytest.approx(np.linalg.norm(example.residual(step.update.numpy())), rel=1e-8)
    assert step.converged == (step.residual <= CONVERGED * step.residual_at_start)


@pytest.mark.parametrize("dense", [True, False])
def test_a_shifted_solution_reports_the_residual_of_the_matrix_as_it_is(dense: bool) -> None:
    """Not of the shifted one, which it solves well."""
    example = indefinite("ridge", 1e-4, 1000)
    operator = RetainHessian(example.problem(), torch.zeros(2, 200, dtype=torch.float64), pull=0.0, last=None)
    right = torch.tensor(example.m * example.forget_gradient())
    solved = solve_linear(operator, right, Manner(dense, torch.float64, 1e-10), 1e-10)
    left = right.numpy().reshape(-1) - example.jacobian() @ solved.solution.numpy().reshape(-1)
    assert not solved.positive_definite
    assert solved.damping > 0
    assert solved.relative_residual == pytest.approx(np.linalg.norm(left) / np.linalg.norm(right.numpy()), rel=1e-8)
    assert solved.relative_residual > 1e-6


def zero_curvature() -> SurrogateEquation:
    """Ridge, n = 4, m = 2: n H_S - m H_U = diag(1, -1) for each class, and a(0) halfway between, of curvature exactly 0."""
    head = head_for("ridge", l2=0.5, n_classes=2, n_features=2, row_bound=1.0)
    forget = rows_of(np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([0, 0]))
    return SurrogateEquation(
        head,
        torch.tensor([[2.0, 0.0], [-2.0, 0.0]], dtype=torch.float64),
        forget,
        rows_of(np.zeros((3, 2)), np.zeros(3, dtype=int)),
        4,
    )


def zero_matrix() -> SurrogateEquation:
    """Ridge, n = 4, m = 2: n H_S - m H_U is exactly 0."""
    head = head_for("ridge", l2=0.5, n_classes=2, n_features=2, row_bound=1.0)
    forget = rows_of(np.eye(2), np.array([0, 1]))
    return SurrogateEquation(
        head, torch.ones((2, 2), dtype=torch.float64), forget, rows_of(np.zeros((3, 2)), np.zeros(3, dtype=int)), 4
    )


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("method", METHODS, indirect=True)
@pytest.mark.parametrize("make", [zero_curvature, zero_matrix])
def test_no_curvature_at_all_ends(
    method: str, make: Callable[[], SurrogateEquation], single: bool, within: Within
) -> None:
    problem = make()
    dense = RetainHessian(problem, torch.zeros_like(problem.weights), pull=0.0, last=None).dense()
    start = problem.residual(torch.zeros_like(problem.weights)).reshape(-1)
    assert float(start @ dense @ start) == 0.0
    with within(10):
        step = newton_step(problem, single=single)
    assert not step.positive_definite
    assert step.residual <= step.residual_at_start


# Whatever comes -------------------------------------------------------------------------------------------------

NASTY: dict[str, dict[str, Any]] = {
    "one feature, two classes, half forgotten, l2 1e-12": {
        "classes": 2,
        "width": 1,
        "n": 200,
        "m": 100,
        "l2": 1e-12,
        "weights": 1.0,
    },
    "ten classes, l2 1e-12": {"classes": 10, "width": 20, "n": 200, "m": 100, "l2": 1e-12, "weights": 1.0},
    "l2 at the edge of float64": {"classes": 3, "width": 4, "n": 100, "m": 50, "l2": 1e-300, "weights": 1.0},
    "huge l2": {"classes": 3, "width": 4, "n": 100, "m": 50, "l2": 1e12, "weights": 1e-12},
    "huge features": {"n": 200, "m": 50, "l2": 1e-3, "weights": 1e-8, "rescale": 1e8},
    "features whose squares overflow": {"n": 200, "m": 50, "l2": 1e-3, "weights": 1e-160, "rescale": 1e160},
    "features whose squares overflow float32": {"n": 200, "m": 50, "l2": 1e-3, "weights": 1e-20, "rescale": 1e20},
    "features whose squares vanish": {"n": 200, "m": 50, "l2": 1e-3, "weights": 1.0, "rescale": 1e-170},
    "saturated weights": {"n": 200, "m": 50, "l2": 1e-3, "weights": 1e6},
    "weights near overflow": {"n": 200, "m": 50, "l2": 1e-3, "weights": 1e300},
    "one surrogate row": {"n": 200, "m": 100, "l2": 1e-6, "surrogate": lambda rng, X: X[-1:]},
    "surrogate of zeros": {"n": 200, "m": 100, "l2": 1e-6, "surrogate": lambda rng, X: np.zeros((4, X.shape[1]))},
    "surrogate equal to the forget set": {"n": 200, "m": 100, "l2": 1e-6, "surrogate": lambda rng, X: X[:100]},
    "all but one forgotten": {"n": 100, "m": 99, "l2": 1e-6, "surrogate": lambda rng, X: X},
    "half forgotten, few surrogate rows": {
        "width": 50,
        "n": 200,
        "m": 100,
        "l2": 1e-6,
        "surrogate": lambda rng, X: X[100:110],
    },
}


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", METHODS, indirect=True)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", NASTY)
def test_every_problem_ends_with_a_step_no_worse_than_none(
    name: str, loss: str, method: str, dtype: torch.dtype, within: Within
) -> None:
    """Or with a refusal in plain words; never with an endless loop, nor with a worse residual than doing nothing."""
    problem = Example(loss, **NASTY[name]).problem(surrogate_dtype=dtype, forget_dtype=dtype)
    with within(20):
        try:
            step = newton_step(problem, single=False)
        except ExpungeError:
            return
    assert not step.residual > step.residual_at_start
    if math.isfinite(step.residual_at_start):
        assert torch.isfinite(step.update).all()
        assert step.residual == float(problem.residual(step.update).norm())


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("method", METHODS, indirect=True)
def test_random_problems_end_soon_and_never_raise_the_residual(method: str, seed: int, within: Within) -> None:
    rng = np.random.default_rng([99, seed])
    for _ in range(10):
        n = int(rng.integers(4, 200))
        example = Example(
            LOSSES[rng.integers(2)],
            classes=int(rng.integers(2, 6)),
            width=int(rng.integers(1, 12)),
            n=n,
            m=int(rng.integers(1, n)),
            l2=float(10 ** rng.uniform(-12, 2)),
            bound=float(10 ** rng.uniform(-3, 3)),
            weights=float(10 ** rng.uniform(-2, 2)),
            surrogate=lambda rng, X: X[rng.integers(0, len(X), rng.integers(1, 30))],
            seed=int(rng.integers(10**6)),
        )
        with within(30):
            step = newton_step(example.problem(), single=False)
        assert step.residual <= step.residual_at_start
        assert step.iterations <= solve.MAX_NEWTON


@pytest.mark.parametrize("method", METHODS, indirect=True)
def test_a_forget_set_without_gradient_needs_no_step(method: str) -> None:
    """Two equal rows under both labels, weights 0: their targets cancel."""
    head = head_for("ridge", l2=0.1, n_classes=2, n_features=2, row_bound=1.0)
    forget = rows_of(np.array([[0.6, 0.8], [0.6, 0.8]]), np.array([0, 1]))
    surrogate = rows_of(np.eye(2), np.array([0, 1]))
    step = newton_step(
        SurrogateEquation(head, torch.zeros((2, 2), dtype=torch.float64), forget, surrogate, 10), single=False
    )
    assert step.residual_at_start == 0.0
    assert step.residual == 0.0
    assert step.converged
    assert torch.equal(step.update, torch.zeros((2, 2), dtype=torch.float64))


@pytest.mark.parametrize("method", METHODS, indirect=True)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_single_forgotten_row(method: str, loss: str) -> None:
    example = Example(loss, n=80, m=1, surrogate=lambda rng, X: X)
    step = newton_step(example.problem(), single=False)
    retrained = reference.retrain(example.X[1:], example.y[1:], 3, example.l2, loss).weights
    assert step.converged
    assert np.linalg.norm(example.W + step.update.numpy() - retrained) <= 1e-7 * np.linalg.norm(retrained)


# Dtypes, devices, manners ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("forget_dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", METHODS, indirect=True)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_surrogate_in_float32_gives_a_float64_step_as_good(method: str, loss: str, forget_dtype: torch.dtype) -> None:
    """The mechanism keeps the forget rows in float64 whatever the surrogate is kept in."""
    example = Example(loss, classes=4, width=6, n=300, m=30)
    problem = example.problem(surrogate_dtype=torch.float32, forget_dtype=forget_dtype)
    step = newton_step(problem, single=False)
    best = newton_step(example.problem(), single=False)
    assert step.update.dtype == torch.float64
    assert step.converged
    assert np.allclose(step.update, best.update, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("classes", "width"), [(3, 6), (5, 260)])
def test_dtype_and_device_options_reach_the_same_step(classes: int, width: int, dtype: str, device: str) -> None:
    """The wider problem goes by conjugate gradients."""
    example = Example(classes=classes, width=width, n=300, m=20, l2=0.05)
    request = example.request(dtype=dtype, device=device)
    step = measure(request, seed=1).step
    assert step.method == METHODS[width > 100]
    assert step.update.device.type == device
    assert step.update.dtype == torch.float64
    best = newton_step(example.problem(), single=False).update
    assert np.allclose(step.update.cpu(), best, rtol=1e-4, atol=1e-5 * float(best.abs().max()))


@pytest.mark.parametrize("method", METHODS, indirect=True)
def test_the_mechanism_takes_algorithm_one_when_asked(method: str) -> None:
    example = Example(m=20)
    measured = measure(example.request(step="newton"), seed=1)
    assert np.allclose(measured.step.update, algorithm_one(example), rtol=1e-7, atol=1e-10)
    assert measured.facts["solver_residual"].value == measured.step.residual


@pytest.mark.parametrize("step", ["newton", "converged", "balanced"])
@pytest.mark.parametrize("rows", [0, 2])
def test_a_step_that_failed_still_ends_in_a_certificate(rows: int, step: str, within: Within) -> None:
    """A surrogate of zeros, or of two rows: the bound charges what is left of a(u)."""
    example = Example("ridge", n=200, m=100, l2=1e-6, surrogate=lambda rng, X: X[-rows:] if rows else np.zeros((4, 5)))
    request = example.request(distance=Distance("tv", 0.5, "samples"), step=step)
    with within(30):
        measured = measure(request, seed=1)
        certificate = certify(request, measured, insecure_test_seed=1).certificate
    assert not certificate.content["step"]["positive_definite"]
    assert certificate.terms["solver"] >= measured.step.residual / 100 / 1e-6 * (1 - 1e-12)
    assert certificate.to_json()


def test_the_step_changes_nothing_it_was_given_and_repeats_itself() -> None:
    example = Example()
    problem = example.problem()
    first, second = newton_step(problem, single=False), newton_step(problem, single=False)
    assert torch.equal(first.update, second.update)
    assert np.array_equal(problem.weights, example.W)
    assert np.array_equal(problem.surrogate.features, example.S)
    assert np.array_equal(problem.forget.features, example.X[: example.m])


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int | None]] = []
    step: Step = newton_step(Example().problem(), single=False, progress=lambda *news: told.append(news))
    assert [news[0] for news in told] == ["Newton iterations"] * step.iterations
    assert [news[1] for news in told] == list(range(step.iterations))
