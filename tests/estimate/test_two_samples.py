"""Two sets of rows: what counts, what is left out, what is refused."""

import math

import pytest
import torch
from torch import Tensor

from expunge.errors import DataError
from expunge.estimate import donsker_varadhan
from gaussian_rows import QUICK, normal


def test_rows_of_weight_zero_are_no_rows() -> None:
    nu, rho = normal(300, 2, 1), normal(300, 2, 2)
    weights = torch.ones(300, dtype=torch.float64)
    weights[200:] = 0.0
    options = QUICK | {"epochs": 5}
    assert donsker_varadhan(nu, rho, weights=weights, **options) == donsker_varadhan(nu[:200], rho, **options)
    with pytest.raises(DataError, match="rows that count"):
        donsker_varadhan(nu, rho, weights=(torch.arange(300) < 59).double())


def with_column(rows: Tensor, value: float) -> Tensor:
    return torch.cat([rows, torch.full((len(rows), 1), value, dtype=rows.dtype)], dim=1)


def test_a_column_constant_and_equal_in_both_is_left_out() -> None:
    nu, rho = normal(200, 2, 1), normal(200, 2, 2)
    options = QUICK | {"epochs": 5}
    assert donsker_varadhan(with_column(nu, 7.0), with_column(rho, 7.0), **options) == donsker_varadhan(nu, rho, **options)  # fmt: skip


def test_a_column_that_may_make_the_distance_infinite_is_counted_and_said() -> None:
    nu, rho = normal(100, 2, 1), normal(100, 2, 2)
    options = QUICK | {"epochs": 2}
    for pair in (
        (with_column(nu, 1.0), with_column(rho, 2.0)),
        (with_column(nu, 1.0), normal(100, 3, 3)),
        (normal(100, 3, 3), with_column(rho, 1.0)),
    ):
        estimate = donsker_varadhan(*pair, **options)
        assert estimate.left_out == 1
        assert estimate.saturated
    usual = with_column(rho, 1.0)
    usual[:90, 2] = normal(90, 1, 4)[:, 0]  # 10 of 100 rows have the other set's constant: a probability of its own
    estimate = donsker_varadhan(with_column(nu, 1.0), usual, **options)
    assert estimate.left_out == 0


def test_rows_that_tell_nothing_or_an_infinite_distance_are_refused() -> None:
    nu, rho = normal(100, 2, 1), normal(100, 2, 2)
    still = torch.ones(100, 2, dtype=torch.float64)
    with pytest.raises(DataError, match="the distance is infinite"):
        donsker_varadhan(still, 2 * still)
    with pytest.raises(DataError, match="nothing to tell the sets apart"):
        donsker_varadhan(still, still)
    with pytest.raises(DataError, match="are rounding"):
        donsker_varadhan(1.0 + 1e-15 * nu, 1.0 + 1e-15 * rho)


def test_bad_rows_are_refused() -> None:
    rows, broken = normal(100, 2, 1), normal(100, 2, 2)
    broken[3, 1] = math.nan
    for nu, rho, words in (
        (rows, normal(100, 3, 2), "same features"),
        (rows, rows[:, 0], "same features"),
        (rows[:59], rows, "at least 60"),
        (rows, rows[:59], "at least 60"),
        (rows, broken, "finite"),
        (broken, rows, "finite"),
    ):
        with pytest.raises(DataError, match=words):
            donsker_varadhan(nu, rho)
    for weights in (torch.ones(99), -torch.ones(100), torch.full((100,), math.inf), torch.full((100,), math.nan)):
        with pytest.raises(DataError, match="one finite weight"):
            donsker_varadhan(rows, rows, weights=weights)
