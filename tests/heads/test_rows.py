"""Sets of rows: weights are repeats, and blocks are summed whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from class_shift import example
from expunge.heads import Curvature
from expunge.heads.rows import device_room, scaling_of
from linear_heads import close, made, rows_of

pytestmark = pytest.mark.usefixtures("one_thread")
LOSSES = ("softmax", "ridge")


@pytest.mark.parametrize("loss", LOSSES)
def test_a_weight_is_a_number_of_repeats(loss: str) -> None:
    made = example(loss)
    head, W, U, once, repeated = (made[name] for name in ("head", "W", "U", "once", "repeated"))
    assert head.loss(W, once) == pytest.approx(head.loss(W, repeated), rel=1e-13)
    for left, right in (
        (head.gradient(W, once), head.gradient(W, repeated)),
        (head.change_mean(W, U, once), head.change_mean(W, U, repeated)),
        (Curvature(head, W, once).product(U), Curvature(head, W, repeated).product(U)),
        (Curvature(head, W, once).dense(), Curvature(head, W, repeated).dense()),
        (Curvature(head, W, once).class_factor(), Curvature(head, W, repeated).class_factor()),
        (Curvature(head, W, once).feature_factor(), Curvature(head, W, repeated).feature_factor()),
    ):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-14)


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


@pytest.mark.parametrize(("limit", "room"), [(None, 900), (10_000, 900), (500, 400), (100, 0), (50, 0)])
def test_of_a_gpu_s_memory_no_more_than_is_free_or_allowed(
    limit: int | None, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (900, 1000))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
    assert device_room(torch.device("cuda"), limit) == room


def lengths(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_share_the_factor_and_the_bound_that_would_do() -> None:
    norms = np.concatenate([np.full(50, 0.5), np.linspace(2.0, 8.0, 150)])
    found = scaling_of(torch.from_numpy(norms), 1.0)
    assert (found.n_rows, found.n_scaled, found.share) == (200, 150, 0.75)
    assert found.factor == pytest.approx(1.0 / np.median(norms[50:]), rel=0.05)
    would_scale = int((norms > found.bound_for_few).sum())
    assert would_scale <= 2
    assert (norms > 0.96 * found.bound_for_few).sum() >= 2
    none = scaling_of(lengths(0.0, 1.0, 1.0 + 1e-9), 1.0)
    assert (none.n_scaled, none.factor, none.bound_for_few) == (0, 1.0, 1.0)
    extreme = scaling_of(lengths(1e300, 1e-300), 1e-30)
    assert extreme.n_scaled == 1


def test_the_longest_rows_that_there_are_can_be_counted() -> None:
    found = scaling_of(torch.tensor([1.75917228e308], dtype=torch.float64), 1.0)
    assert found.n_scaled == 1
    assert found.bound_for_few == 2.0**1023
