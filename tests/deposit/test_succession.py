"""One deposit after another: what shows that some rows left, and nothing else happened."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from expunge.deposit.file import Deposit
from expunge.deposit.verify import succession_checks
from expunge.train import train
from expunge.unlearn import deposit, unlearn
from small_deposit import kept, rows, trained

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def after() -> Deposit:
    left: Deposit = unlearn(trained(), rows(1, 2), epsilon=1.0, delta=1e-3, deposit=kept().deposit).deposit
    return left


def failed(before: Deposit, after: Deposit) -> set[str]:
    return {check.name for check in succession_checks(before, after) if not check.passed}


def test_the_next_follows(after: Deposit) -> None:
    assert failed(kept().deposit, after) == set()


def test_nothing_follows_itself_or_what_came_before(after: Deposit) -> None:
    assert "deposits: rows left" in failed(after, after)
    assert "deposits: the generation is the next" in failed(after, kept().deposit)
    assert "deposits: row hashes are those of before, some gone" in failed(after, kept().deposit)


def test_a_curvature_that_no_row_can_have_taken_along(after: Deposit) -> None:
    grown = replace(after, sums=replace(after.sums, curvature=after.sums.curvature.times(1.001)))
    shrunk = replace(after, sums=replace(after.sums, curvature=after.sums.curvature.times(0.5)))
    for wrong in (grown, shrunk):
        assert failed(kept().deposit, wrong) == {"deposits: what left of the curvature is of so many rows"}


def test_a_gradient_that_two_rows_cannot_have(after: Deposit) -> None:
    wrong = replace(after, sums=replace(after.sums, gradient=after.sums.gradient + 1.0))
    assert failed(kept().deposit, wrong) == {"deposits: what left of the gradient is of so many rows"}


def test_errors_do_not_shrink(after: Deposit) -> None:
    smaller = tuple(error / 2.0 for error in kept().deposit.sums.weighted_errors)
    wrong = replace(after, sums=replace(after.sums, weighted_errors=smaller))
    assert failed(kept().deposit, wrong) == {"deposits: errors do not shrink"}


def test_a_long_column_hides_no_change_of_another() -> None:
    """A thousand-millionth of the whole curvature is more than an ordinary column has."""
    rng = np.random.default_rng(0)
    X, y = np.c_[rng.normal(size=(50, 4)), 2e4 * np.exp(0.3 * rng.normal(size=50))], np.arange(50) % 3
    model = train(X, y, l2=0.01, max_norm=1.01 * float(np.linalg.norm(X, axis=1).max()), loss="ridge", bias=True)
    before, forget = deposit(model, X, y, seed=0), (X[5:8], y[5:8])
    after = unlearn(model, forget, epsilon=1.0, delta=1e-5, deposit=before, force=True).deposit
    assert not [check.name for check in succession_checks(before, after, forget) if not check.passed]
    values = after.sums.curvature.values.clone()
    values[:, 0, 0] -= 5e-10 * float(values.norm())
    wrong = replace(after, sums=replace(after.sums, curvature=replace(after.sums.curvature, values=values)))
    names = {check.name for check in succession_checks(before, wrong, forget) if not check.passed}
    assert names == {"deposits: without the forgotten rows: the curvature"}


@pytest.mark.parametrize("loss", ["ridge", "softmax"])
def test_a_series_cannot_drift(loss: str) -> None:
    """What a deposit inherits, and what copies were charged, is no room for the next: only what taking rows out loses."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = (X[:, 0] + rng.normal(size=300) > 0).astype(int)
    model = train(X, y, l2=0.05, max_norm=10.0, loss=loss)
    after = deposit(model, X, y, seed=0)
    for forget in ((np.round(X[:1], 6), y[:1]), (X[1:2], y[1:2])):
        before = after
        after = unlearn(model, forget, epsilon=1.0, delta=1e-4, deposit=before, force=True).deposit
        assert not [check.name for check in succession_checks(before, after, forget) if not check.passed]
        sums = after.sums
        away = torch.ones_like(sums.gradient) / sums.gradient.numel() ** 0.5
        for share, refused in ((1e-4, True), (1e-12, False)):
            shifted = replace(sums, gradient=sums.gradient + share * sums.gradient_error * away)
            names = {
                one.name for one in succession_checks(before, replace(after, sums=shifted), forget) if not one.passed
            }
            assert names == ({"deposits: without the forgotten rows: the gradient"} if refused else set())


def test_another_source_s_deposit_is_another(after: Deposit) -> None:
    numbers = replace(after.numbers, key="00" * 32)
    assert failed(kept().deposit, replace(after, numbers=numbers)) == {"deposits: key is frozen"}
