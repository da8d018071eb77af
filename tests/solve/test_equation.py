"""The equation of the step: the identity behind the bound, its Jacobian, and when that is formed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from expunge.heads import Rows, head_for, linear
from expunge.solve.equation import RetainHessian
from step_problems import Example, preconditioned, rows_of

pytestmark = pytest.mark.usefixtures("one_thread")
LOSSES = ("softmax", "ridge")


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


@pytest.mark.parametrize("loss", LOSSES)
def test_operators_are_what_they_are_called(loss: str) -> None:
    example = Example(loss)
    at = np.random.default_rng(1).normal(size=example.W.shape)
    direction = np.random.default_rng(2).normal(size=example.W.shape)
    update = torch.tensor(at - example.W)
    retain = RetainHessian(example.problem(), update, pull=0.0, last=None)
    whole = preconditioned(example.head, torch.tensor(at), rows_of(example.X, example.y))
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
