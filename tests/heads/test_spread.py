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


def narrow_table(seed: int, classes: int = 30, width: int = 12, weighted: bool = True) -> tuple[Spread, np.ndarray]:
    """Rows that hardly reach half of their directions, and their covariance formed, weights counted."""
    rng = np.random.default_rng([seed, classes, width])
    X = rng.normal(size=(80, width)) * 10.0 ** -np.linspace(0.0, rng.uniform(3.5, 6.0), width)
    X = X @ np.linalg.qr(rng.normal(size=(width, width)))[0]
    W, U = rng.normal(size=(classes, width)), rng.normal(size=(classes, width)) * 10 ** rng.uniform(-2, 1)
    weights = rng.uniform(0.2, 3.0, len(X)) if weighted else np.ones(len(X))
    weights /= weights.mean()
    rows = Rows(torch.tensor(X), torch.zeros(len(X), dtype=torch.int64), torch.tensor(weights) if weighted else None)
    head = head_for("softmax", l2=0.1, n_classes=classes, n_features=width, row_bound=10.0)
    phi = reference.change_table(W, U, X, "softmax")
    centred = phi - (weights[:, None] * phi).mean(axis=0)
    return Spread(head, torch.tensor(W), torch.tensor(U), rows), (weights[:, None] * centred).T @ centred / len(X)


@pytest.mark.parametrize("weighted", [False, True])
def test_what_few_directions_leave_is_the_largest_eigenvalue_of_the_others(weighted: bool) -> None:
    spread, _ = narrow_table(1, weighted=weighted)
    found = spread.narrow(100)
    assert found is not None
    total = np.zeros((12, 12))
    for block, features, change in spread.changes():
        x = features.numpy()
        weights = np.ones(len(x)) if block.weights is None else block.weights.numpy()
        total += (x * (weights * change.square().sum(dim=0).numpy())[:, None]).T @ x
    values = np.linalg.eigvalsh(total / len(spread.rows))[::-1]
    size = found.basis.shape[1]
    assert size == int((values >= 0.02 * values[0]).sum())
    assert found.left == pytest.approx(values[size], rel=1e-9)
    assert found.left >= values[size]
    np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(size), atol=1e-13)


@pytest.mark.parametrize("seed", range(12))
def test_no_eigenvalue_is_above_that_in_few_directions_and_what_they_leave(seed: int) -> None:
    spread, covariance = narrow_table(seed, weighted=seed % 2 == 0)
    found = spread.narrow(100)
    assert found is not None
    lift = np.kron(np.eye(30), found.basis.numpy())
    inside = float(np.linalg.eigvalsh(lift.T @ covariance @ lift)[-1])
    largest = float(np.linalg.eigvalsh(covariance)[-1])
    assert inside <= largest * (1 + 1e-12)
    assert largest <= inside + found.left
    direction = np.random.default_rng(seed).normal(size=(30, found.basis.shape[1]))
    product = found.covariance_product(torch.tensor(direction)).numpy()
    naive = (lift.T @ covariance @ lift @ direction.reshape(-1)).reshape(direction.shape)
    np.testing.assert_allclose(product, naive, rtol=1e-9, atol=1e-14 * largest)
    np.testing.assert_array_equal(product, found.covariance_product(torch.tensor(direction)).numpy())


def test_few_directions_are_taken_only_where_they_are_cheaper() -> None:
    spread, _ = narrow_table(1)
    assert spread.narrow(1) is not None, "24 is no more than one product of thirty classes"
    assert narrow_table(1, classes=11)[0].narrow(2) is None, "24 is more than two products of eleven classes"
    assert narrow_table(1, classes=12)[0].narrow(2) is not None
    rng = np.random.default_rng(0)
    rows = Rows(torch.tensor(rng.normal(size=(80, 12))), torch.zeros(80, dtype=torch.int64))
    head = head_for("ridge", l2=0.1, n_classes=30, n_features=12, row_bound=10.0)
    flat = Spread(head, torch.zeros(30, 12).double(), torch.tensor(rng.normal(size=(30, 12))), rows)
    assert flat.narrow(100) is None, "rows that reach all directions alike leave none out"
