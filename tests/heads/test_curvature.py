"""The Hessian over a set: factors for preconditioning, and its dtype."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import reference
from expunge.heads import Curvature
from linear_heads import close, example, rows_of

pytestmark = pytest.mark.usefixtures("one_thread")
LOSSES = ("softmax", "ridge")


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


def test_the_dense_matrix_is_the_same_as_it_is_formed_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    head, W, _, X, y = example("softmax", (4, 6, 60))
    for rows in (rows_of(X, y), replace(rows_of(X, y), weights=torch.linspace(0.0, 2.0, 60, dtype=torch.float64))):
        small = Curvature(head, torch.tensor(W), rows).dense()
        with monkeypatch.context() as patch:
            patch.setattr("expunge.heads.curvature.few_at_a_time", lambda _: False)
            large = Curvature(head, torch.tensor(W), rows).dense()
        torch.testing.assert_close(large, small, rtol=1e-12, atol=1e-14)
        assert float(small.norm()) > 0.0


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
