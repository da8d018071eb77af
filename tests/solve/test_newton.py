"""The step: Algorithm 1 first, then Newton's method on a(u); honest residuals, and an end to every loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from expunge.distance import Distance
from expunge.errors import ExpungeError
from expunge.heads import LinearHead, head_for
from expunge.heads.network import Examples, ModuleObjective
from expunge.mechanism import certify, gather, measure
from expunge.runtime.arrays import copy, dtype_name, equal, norm, to_numpy, zeros
from expunge.solve import newton as solve
from expunge.solve.linear import Ending
from expunge.solve.newton import (
    CONVERGED,
    MAX_PULLS,
    PATIENCE,
    Manner,
    RetainedEquation,
    SurrogateEquation,
    adapted,
    balanced_step,
    iterated_step,
    newton_step,
    no_step,
)
from small_networks import examples, trained
from step_problems import Array, Example, indefinite, rows_of

pytestmark = pytest.mark.usefixtures("one_thread")
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


@pytest.mark.parametrize("method", METHODS, indirect=True)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss", LOSSES)
def test_the_converged_step_makes_the_residual_negligible(method: str, loss: str, seed: int) -> None:
    example = Example(loss, classes=4, width=6, n=200, m=60, l2=0.02, seed=seed)
    step = newton_step(example.problem(), single=False)
    start = np.linalg.norm(example.residual(np.zeros_like(example.W)))
    left = np.linalg.norm(example.residual(to_numpy(step.update)))
    assert step.converged
    assert step.iterations <= 6
    assert step.residual_at_start == pytest.approx(start, rel=1e-10)
    assert start == pytest.approx(example.m * np.linalg.norm(example.forget_gradient()), rel=1e-10)
    assert left <= CONVERGED * start * (1 + 1e-6)
    assert step.residual == pytest.approx(left, abs=1e-12 * example.n)
    root = to_numpy(step.update)
    for _ in range(5):  # a few plain Newton steps more, densely, hardly move it
        root = root - np.linalg.solve(example.jacobian(root), example.residual(root).reshape(-1)).reshape(root.shape)
    assert np.linalg.norm(root - to_numpy(step.update)) <= 1e-6 * np.linalg.norm(root)


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
    assert np.allclose(example.W + to_numpy(step.update), retrained, rtol=1e-6, atol=1e-7)


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
    assert step.residual == pytest.approx(np.linalg.norm(example.residual(to_numpy(step.update))), rel=1e-8)


# Whatever comes -------------------------------------------------------------------------------------------------

NASTY: dict[str, dict[str, Any]] = {
    "one feature, half forgotten, l2 1e-12": {"width": 1, "n": 200, "m": 100, "l2": 1e-12, "weights": 1.0},
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
    "few surrogate rows": {"width": 50, "n": 200, "m": 100, "l2": 1e-6, "surrogate": lambda rng, X: X[100:110]},
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
        assert step.residual == float(norm(problem.residual(step.update)))


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
    assert equal(step.update, torch.zeros((2, 2), dtype=torch.float64))


# Dtypes, devices, manners ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("classes", "width"), [(3, 6), (5, 260)])
def test_dtype_and_device_options_reach_the_same_step(classes: int, width: int, dtype: str, device: str) -> None:
    """The wider problem goes by conjugate gradients."""
    example = Example(classes=classes, width=width, n=300, m=20, l2=0.05)
    request = example.request(dtype=dtype, device=device)
    step = measure(request, seed=1).step
    assert step.method == METHODS[width > 100]
    assert getattr(step.update.device, "type", step.update.device) == device
    assert dtype_name(step.update.dtype) == "float64"
    best = newton_step(gather(example.request()).equation, single=False).update
    assert np.allclose(to_numpy(step.update), best, rtol=1e-4, atol=1e-5 * float(abs(best).max()))


@pytest.mark.parametrize("step", ["newton", "converged", "balanced"])
@pytest.mark.parametrize("rows", [0, 2])
def test_a_step_that_failed_still_ends_in_a_certificate(rows: int, step: str, within: Within) -> None:
    """A surrogate of zeros, or of two rows: the bound charges what is left, whatever the step did."""
    example = Example("ridge", n=200, m=100, l2=1e-6, surrogate=lambda rng, X: X[-rows:] if rows else np.zeros((4, 5)))
    request = example.request(distance=Distance("tv", 0.5, "samples"), step=step)
    with within(30):
        measured = measure(request, seed=1)
        certificate = certify(request, measured, insecure_test_seed=1).certificate
    assert certificate.content["step"]["positive_definite"] == (step != "newton")
    left = float(norm(gather(request).retained_equation.residual(measured.step.update)))
    assert certificate.terms["solver"] >= left / 100 / 1e-6 * (1 - 1e-12)
    assert certificate.to_json()


def held_back(example: Example, pull: float) -> Any:
    return newton_step(example.problem(), single=False, pull=pull)


def test_the_step_taken_has_the_smallest_bound_of_those_tried() -> None:
    """Against the same pulls, each tried by hand; the bound grows with length, so that holding back pays."""
    example = Example("softmax", classes=3, width=5, n=150, m=30, l2=1e-2)
    for price in (0.0, 1.0, 30.0, 300.0):

        def bound(step: Any, price: float = price) -> float:
            return step.residual + price * float(norm(step.update))

        found = balanced_step(example.problem(), bound, 1e-3)
        tried = [held_back(example, 0.0), *(held_back(example, 1e-3 * 4.0**k) for k in range(MAX_PULLS))]
        none = no_step(tried[0])
        assert bound(found) == pytest.approx(min(bound(step) for step in (*tried, none)), rel=1e-9)
        assert found.residual == pytest.approx(np.linalg.norm(example.residual(to_numpy(found.update))), rel=1e-9)


def test_the_search_ends_when_the_bound_has_risen_twice() -> None:
    asked: list[float] = []

    def bound(step: Any) -> float:
        asked.append(step.pull)
        return 1.0 + float(len(asked))

    balanced_step(Example().problem(), bound, 1e-3)
    assert asked == [0.0, 1e-3, 4e-3, math.inf]


@dataclass(frozen=True)
class Matrix:
    values: Tensor
    preconditioner = None

    def product(self, direction: Tensor) -> Tensor:
        return self.values @ direction

    def dense(self) -> Tensor:
        return copy(self.values)

    def precondition(self, residual: Tensor) -> Tensor:
        return copy(residual)


@dataclass(frozen=True)
class Made:
    """An equation of one's own, with a Jacobian that need not be its own."""

    left: Any
    bent: Any
    start: Tensor
    dense: bool = True
    scale: int = 2
    n_rows: int = 1

    @property
    def weights(self) -> Tensor:
        return zeros(self.start)

    def residual(self, update: Tensor) -> Tensor:
        return self.left(self.start + update)

    def jacobian(self, update: Tensor, pull: float, last: Any) -> Matrix:
        return Matrix(self.bent(self.start + update) + self.scale * pull * torch.eye(len(update), dtype=torch.float64))

    def manner(self) -> Manner:
        return Manner(self.dense, torch.float64, 1e-12)

    def agreed(self, step: Tensor) -> Tensor:
        return step


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("dense", [True, False])
def test_a_linear_equation_is_solved_to_its_goal(dense: bool) -> None:
    """`A u = b`: each step leaves `p (A + p I)^-1` of the residual, with a pull that halves."""
    A, b = torch.diag(vector(1.0, 4.0)), vector(3.0, -2.0)
    equation = Made(lambda at: A @ at - b, lambda at: A, vector(0.0, 0.0), dense)
    step = iterated_step(equation, goal=1e-9)
    assert step.ending is Ending.REACHED
    torch.testing.assert_close(step.update, vector(3.0, -0.5), rtol=1e-8, atol=1e-8)
    first = iterated_step(equation, first_pull=0.5, goal=0.9)
    if dense:
        assert (first.iterations, first.pull) == (1, 0.5)
        torch.testing.assert_close(first.update, vector(3.0 / 2.0, -2.0 / 5.0))
        assert first.residual == pytest.approx(np.hypot(3.0 / 2.0, 2.0 / 5.0))
        assert first.residual_at_start == pytest.approx(np.hypot(3.0, 2.0))


def test_where_the_curvature_is_negative_the_residual_may_rise_on_the_way() -> None:
    """The gradient of `(x^2 - 1)^2 / 4` at 0.1: it rises to 0.385 before the minimum at 1; the maximum at 0 is nearer."""
    equation = Made(lambda at: at**3 - at, lambda at: torch.diag(3 * at**2), vector(0.1))
    step = iterated_step(equation, goal=1e-6)
    assert step.ending is Ending.REACHED
    assert float(0.1 + step.update) == pytest.approx(1.0, abs=1e-6)


def test_where_the_goal_cannot_be_had_the_smallest_residual_is() -> None:
    floor = 0.5  # a residual that cannot be had: its part out of reach is always there

    def left(at: Tensor) -> Tensor:
        return torch.cat([at[:1] - 1.0, torch.full((1,), floor, dtype=torch.float64)])

    unreachable = Made(left, lambda at: torch.diag(vector(1.0, 1e9)), vector(0.0, 0.0))
    step = iterated_step(unreachable)
    assert step.ending is Ending.STALLED
    assert step.residual == pytest.approx(floor, rel=1e-2)
    assert step.residual == pytest.approx(float(norm(left(step.update))), rel=1e-12)
    assert step.iterations > PATIENCE


def test_where_every_step_leads_up_none_is_made() -> None:
    """The residual turns round wherever one goes: the objective rises along every step."""
    equation = Made(
        lambda at: vector(1.0) if float(at) == 0.0 else vector(-9.0), lambda at: vector(1.0)[None], vector(0.0)
    )
    step = iterated_step(equation)
    assert step.ending is Ending.STALLED
    assert equal(step.update, vector(0.0))
    assert step.residual == step.residual_at_start == 1.0
    assert step.pull == math.inf
    assert step.iterations == PATIENCE


def test_pulls_are_adapted_within_limits() -> None:
    assert adapted(1e-8, 1.0) == 1e-8
    assert [adapted(1.0, share) for share in (0.76, 0.75, 0.26, 0.25, math.nan)] == [0.5, 1.0, 1.0, 4.0, 4.0]


@pytest.mark.parametrize("forgotten", [2, 6, 12])
def test_a_network_is_brought_to_rest_on_the_rows_that_stay(forgotten: int) -> None:
    """Of a network trained to rest 1 % of the equation is left; one step of Gauss-Newton leaves up to 94 %."""
    objective = ModuleObjective(trained(), l2=0.1, curvature="hessian")
    inputs, labels = examples(60)
    parts = (slice(60), slice(forgotten), slice(forgotten, 60))
    source, forget, retain = (Examples(inputs[part], labels[part]) for part in parts)
    gradient = forgotten * objective.gradient(objective.weights, forget)
    equations = (
        SurrogateEquation(objective, objective.weights, forget, source, 60),
        RetainedEquation(objective, objective.weights, gradient, retain, 60 - forgotten),
    )
    before = float(norm(objective.gradient(objective.weights, retain)))
    for equation in equations:
        step = iterated_step(equation)
        assert step.ending is Ending.REACHED
        assert step.residual < 0.01 * step.residual_at_start
        assert float(norm(objective.gradient(objective.weights + step.update, retain))) < 0.011 * before


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
    a = to_numpy(example.problem().residual(torch.tensor(U)))
    right = n * reference.exact_gradient(W, example.X, example.y, l2, loss) + a + n * (on_source - on_surrogate)
    assert np.linalg.norm((left - right).astype(float)) <= 1e-12 * n * (1 + np.linalg.norm(U))
