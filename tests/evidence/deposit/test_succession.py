"""One deposit after another: what shows that some rows left, and nothing else happened."""

from __future__ import annotations

from dataclasses import replace

import pytest

from expunge.evidence.deposit.contents import Deposit
from expunge.evidence.deposit.succession import succession_checks
from expunge.unlearn import unlearn
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


def test_another_source_s_deposit_is_another(after: Deposit) -> None:
    numbers = replace(after.numbers, key="00" * 32)
    assert failed(kept().deposit, replace(after, numbers=numbers)) == {"deposits: key is frozen"}
