"""How the change of gradient spreads: against the table of all changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from expunge.heads import Rows, head_for
from expunge.heads.spread import Spread

pytestmark = pytest.mark.usefixtures("one_thread")


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
    np.testing.assert_allclose(spread.mean[:3].numpy().reshape(-1), mean, rtol=1e-12, atol=1e-15)
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


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("fourth", [False, True])
@pytest.mark.parametrize("loss", ["softmax", "ridge"])
def test_products_are_those_of_the_covariance_formed(loss: str, fourth: bool, power: int) -> None:
    spread, phi, weights, _ = table(loss, weighted=True)
    centred = phi - (weights[:, None] * phi).mean(axis=0)
    factors = weights**power * ((centred**2).sum(axis=1) if fourth else 1.0)
    covariance = (factors[:, None] * centred).T @ centred / len(phi)
    direction = np.random.default_rng(1).normal(size=(3, 4))
    found = spread.covariance_product(torch.tensor(direction), power, fourth).numpy()
    np.testing.assert_allclose(found.reshape(-1), covariance @ direction.reshape(-1), rtol=1e-10, atol=1e-14)


def test_rows_that_are_all_alike_have_next_to_no_spread() -> None:
    spread, _, _, _ = table("softmax", weighted=False, n=1)
    size = float(spread.mean.square().sum())
    assert 0.0 <= spread.sums().trace <= 4 * spread.cancellation * size
