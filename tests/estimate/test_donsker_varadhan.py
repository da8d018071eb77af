"""Donsker and Varadhan's estimate against relative entropies that are known, and where none can be known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.shared.closed_forms import gaussian_kl
from expunge.errors import DataError, OptionError
from expunge.estimate import donsker_varadhan
from expunge.estimate.donsker_varadhan import (
    Coordinates,
    Critic,
    FittedCritic,
    TwoSamples,
    best_cap,
)
from expunge.runtime.arrays import copy, double, equal, to_numpy
from gaussian_rows import QUICK, family, normal


def test_correlated_gaussians() -> None:
    nu, rho, known = family(5, 0.3, 4000, 1)
    estimate = donsker_varadhan(nu, rho, **QUICK)
    assert abs(estimate.value - known) < max(0.3 * known, 4 * estimate.standard_error)
    assert estimate.value > 0.5 * known
    assert not estimate.saturated
    assert estimate.raw >= 0.0
    assert 0 < estimate.best_epoch <= estimate.epochs <= 500
    assert (estimate.n_nu, estimate.n_rho, estimate.ceiling) == (4000, 4000, math.log(800))


def test_the_direction_is_that_of_nu_relative_to_rho() -> None:
    """KL(N(0, 1/16) || N(0, 1)) = 0.918, the other way 6.1."""
    narrow, wide = 0.25 * normal(2000, 1, 1), normal(2000, 1, 2)
    known = gaussian_kl([0.0], [[1 / 16]], [0.0], [[1.0]])
    assert donsker_varadhan(narrow, wide, **QUICK).value == pytest.approx(known, abs=0.15)
    assert donsker_varadhan(wide, narrow, **QUICK).value > 1.5


@pytest.mark.slow
def test_weights_make_one_mixture_of_another() -> None:
    """Half N(-1.5, 1), half N(1.5, 1), weighted 1.8 to 0.2, is the mixture of 90 % and 10 %."""
    centre = double(torch.where(torch.arange(2000) % 2 == 0, 1.5, -1.5))
    nu, rho = normal(2000, 2, 1), normal(2000, 2, 2)
    nu[:, 0] += centre
    rho[:, 0] += centre
    weights = double(torch.where(centre > 0, 1.8, 0.2))
    weighted = donsker_varadhan(nu, rho, weights=weights, **QUICK)
    matched = normal(2000, 2, 3)
    matched[:, 0] += double(torch.where(torch.arange(2000) % 10 == 0, -1.5, 1.5))
    direct = donsker_varadhan(matched, rho, **QUICK)
    plain = donsker_varadhan(nu, rho, **QUICK)
    tolerance = 4 * math.hypot(weighted.standard_error, direct.standard_error)
    assert weighted.value == pytest.approx(direct.value, abs=tolerance)
    assert direct.value > 0.15
    assert plain.value < 0.07


def test_of_weights_only_their_proportions_count() -> None:
    nu, rho = normal(300, 2, 1), normal(300, 2, 2)
    weights = double(torch.where(nu[:, 0] > 0, 1.8, 0.2))
    options = QUICK | {"epochs": 2}
    scaled = donsker_varadhan(nu, rho, weights=4.0 * weights, **options)
    assert scaled == donsker_varadhan(nu, rho, weights=weights, **options)
    assert scaled != donsker_varadhan(nu, rho, **options)


@pytest.mark.parametrize(("n", "d"), [(60, 20), (300, 20), (3000, 3)])
def test_equal_distributions_are_at_no_distance_however_few_the_rows(n: int, d: int) -> None:
    estimate = donsker_varadhan(normal(n, d, 1), normal(n, d, 2), **QUICK)
    assert estimate.raw < 3 * estimate.standard_error + 0.01
    assert estimate.value == max(0.0, estimate.raw)


@pytest.mark.parametrize("n", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_disjoint_supports_saturate_at_the_default_options(n: int) -> None:
    estimate = donsker_varadhan(normal(n, 3, 1).abs() + 0.1, -normal(n, 3, 2).abs() - 0.1, epochs=20)
    assert estimate.saturated
    assert estimate.value > 0.5 * estimate.ceiling


def test_units_do_not_matter_and_huge_features_do_not_overflow() -> None:
    nu, rho = normal(300, 2, 1) + 1.0, normal(300, 2, 2)
    options = QUICK | {"epochs": 4}
    usual = donsker_varadhan(nu, rho, **options)
    for scale in (2.0**900, 2.0**-900):
        assert donsker_varadhan(nu * scale, rho * scale, **options) == usual
    outlier = copy(nu)
    outlier[0, 0] = 1e12
    assert math.isfinite(donsker_varadhan(outlier, rho, **options).raw)
    steep = donsker_varadhan(nu, rho, epochs=8, learning_rate=10.0, width=32, batch=50)
    assert math.isfinite(steep.raw)
    assert math.isfinite(steep.standard_error)


def test_the_seed_decides_and_nothing_of_the_callers_changes() -> None:
    nu, rho = normal(200, 2, 1), normal(200, 2, 2)
    before, copies = torch.get_rng_state(), (copy(nu), copy(rho))
    calls: list[tuple[int, int | None]] = []
    options = QUICK | {"epochs": 6}
    with torch.no_grad():
        first = donsker_varadhan(
            nu, rho, seed=4, progress=lambda _, done, total: calls.append((done, total)), **options
        )
    assert first == donsker_varadhan(nu, rho, seed=4, **options)
    assert first != donsker_varadhan(nu, rho, seed=5, **options)
    assert equal(before, torch.get_rng_state())
    assert equal(nu, copies[0])
    assert equal(rho, copies[1])
    assert calls == sorted(calls)
    assert calls[-1][0] <= calls[-1][1] == 30


def test_bad_settings_are_refused() -> None:
    rates = [{"learning_rate": rate} for rate in (0.0, math.nan, math.inf)]
    for bad in (*rates, {"epochs": 0}, {"width": 0}, {"batch": 0}, {"patience": 0}):
        with pytest.raises(OptionError):
            donsker_varadhan(normal(100, 2, 1), normal(100, 2, 2), **bad)


@pytest.mark.slow
@pytest.mark.parametrize("zeta", [0.02, 0.1])
def test_the_papers_family_in_fifty_dimensions(zeta: float) -> None:
    """At 0.1 exp T has no variance under rho, and the estimate comes out low."""
    nu, rho, known = family(50, zeta, 15_000, 1)
    estimate = donsker_varadhan(nu, rho)
    assert abs(estimate.value - known) < max(0.2 * known, 0.05)


def test_rows_of_weight_zero_are_no_rows() -> None:
    nu, rho = normal(300, 2, 1), normal(300, 2, 2)
    weights = torch.ones(300, dtype=torch.float64)
    weights[200:] = 0.0
    options = QUICK | {"epochs": 5}
    assert donsker_varadhan(nu, rho, weights=weights, **options) == donsker_varadhan(nu[:200], rho, **options)
    with pytest.raises(DataError, match="rows that count"):
        donsker_varadhan(nu, rho, weights=double(torch.arange(300) < 59))


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
    for other, count in ((2 * still, 2), (still, 0)):
        with pytest.raises(DataError, match=f"no feature varies in both sets, and {count} vary in one"):
            donsker_varadhan(still, other)
    with pytest.raises(DataError, match="and 0 vary"):  # by less than rounding
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
    with pytest.raises(DataError, match="finite"):
        donsker_varadhan(rows, rows, weights=torch.full((100,), math.inf))


def test_value_and_standard_error_are_the_formulas_of_the_docstring() -> None:
    rows = TwoSamples(normal(50, 2, 1).float(), normal(50, 1, 2).exp().squeeze(1), normal(70, 2, 3).float())
    coordinates = Coordinates.of(rows)
    network = Critic.start(coordinates.gaussian(coordinates.seen(rows)), 8, torch.Generator().manual_seed(0)).copy()
    network.parameters[4].normal_(generator=torch.Generator().manual_seed(1))
    value, square = FittedCritic(coordinates, network, math.inf, 1, 1).value(coordinates.seen(rows))
    seen = coordinates.seen(rows)
    on_nu, on_rho = to_numpy(double(network(seen.nu))), np.exp(to_numpy(double(network(seen.rho))))
    w = to_numpy(rows.weights)
    mean = (w * on_nu).sum() / w.sum()
    assert value == pytest.approx(mean - math.log(on_rho.mean()))
    nu_part = (w**2 * (on_nu - mean) ** 2).sum() / w.sum() ** 2
    assert square == pytest.approx(nu_part + on_rho.var(ddof=1) / on_rho.mean() ** 2 / 70)
    capped, _ = FittedCritic(coordinates, network, 0.0, 1, 1).value(coordinates.seen(rows))
    assert capped == pytest.approx((w * np.minimum(on_nu, 0)).sum() / w.sum() - math.log(np.minimum(on_rho, 1).mean()))


def test_the_cap_is_the_one_with_the_best_value() -> None:
    """One row of rho lies where T is 100: without a cap it outweighs all others."""
    network = Critic.start(torch.tensor([1.0]), 4, torch.Generator().manual_seed(0))
    rho = torch.zeros(400, 1)
    rho[7] = 100.0
    rows = TwoSamples(torch.ones(200, 1), torch.ones(200, dtype=torch.float64), rho)
    stop = TwoSamples(torch.ones(200, 1), torch.ones(200, dtype=torch.float64), torch.zeros(400, 1))
    top = 100.0 - math.log(800) + math.log(800)
    assert best_cap(network, rows, stop) == pytest.approx(top - 5.0, abs=1e-3)
