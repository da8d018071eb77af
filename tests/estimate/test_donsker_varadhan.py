"""Donsker and Varadhan's estimate against relative entropies that are known, and where none can be known."""

import math

import pytest
import torch

from experiments.shared.closed_forms import gaussian_kl
from expunge.errors import OptionError
from expunge.estimate import DonskerVaradhanLower, donsker_varadhan
from gaussian_rows import QUICK, family, normal


@pytest.mark.parametrize(("d", "zeta"), [(2, 0.6), (5, 0.3)])
def test_correlated_gaussians(d: int, zeta: float) -> None:
    nu, rho, known = family(d, zeta, 4000, 1)
    estimate = donsker_varadhan(nu, rho, **QUICK)
    assert abs(estimate.value - known) < max(0.3 * known, 4 * estimate.standard_error)
    assert estimate.value > 0.5 * known
    assert not estimate.saturated
    assert estimate.raw >= 0.0
    assert 0 < estimate.best_epoch <= estimate.epochs <= 500
    assert (estimate.n_nu, estimate.n_rho, estimate.ceiling) == (4000, 4000, math.log(800))


def test_a_shift_of_the_mean_and_sets_of_different_sizes() -> None:
    nu, rho = normal(2000, 2, 1) + torch.tensor([1.0, 0.0]), normal(5000, 2, 2)
    estimate = donsker_varadhan(nu, rho, **QUICK)
    assert estimate.value == pytest.approx(0.5, abs=0.1)
    assert (estimate.n_nu, estimate.n_rho) == (2000, 5000)


def test_the_direction_is_that_of_nu_relative_to_rho() -> None:
    """KL(N(0, 1/16) || N(0, 1)) = 0.918, the other way 6.1."""
    narrow, wide = 0.25 * normal(3000, 1, 1), normal(3000, 1, 2)
    known = gaussian_kl([0.0], [[1 / 16]], [0.0], [[1.0]])
    assert donsker_varadhan(narrow, wide, **QUICK).value == pytest.approx(known, abs=0.15)
    assert donsker_varadhan(wide, narrow, **QUICK).value > 1.5


def test_weights_make_one_mixture_of_another() -> None:
    """Half N(-1.5, 1), half N(1.5, 1), weighted 1.8 to 0.2, is the mixture of 90 % and 10 %."""
    centre = torch.where(torch.arange(2000) % 2 == 0, 1.5, -1.5).double()
    nu, rho = normal(2000, 2, 1), normal(2000, 2, 2)
    nu[:, 0] += centre
    rho[:, 0] += centre
    weights = torch.where(centre > 0, 1.8, 0.2).double()
    weighted = donsker_varadhan(nu, rho, weights=weights, **QUICK)
    matched = normal(2000, 2, 3)
    matched[:, 0] += torch.where(torch.arange(2000) % 10 == 0, -1.5, 1.5).double()
    direct = donsker_varadhan(matched, rho, **QUICK)
    plain = donsker_varadhan(nu, rho, **QUICK)
    tolerance = 4 * math.hypot(weighted.standard_error, direct.standard_error)
    assert weighted.value == pytest.approx(direct.value, abs=tolerance)
    assert direct.value > 0.15
    assert plain.value < 0.07
    scaled = donsker_varadhan(nu, rho, weights=4.0 * weights, **(QUICK | {"epochs": 2}))
    assert scaled == donsker_varadhan(nu, rho, weights=weights, **(QUICK | {"epochs": 2}))


@pytest.mark.parametrize(("n", "d"), [(60, 20), (300, 20), (3000, 3)])
def test_equal_distributions_are_at_no_distance_however_few_the_rows(n: int, d: int) -> None:
    estimate = donsker_varadhan(normal(n, d, 1), normal(n, d, 2), **QUICK)
    assert estimate.raw < 3 * estimate.standard_error + 0.01
    assert estimate.value == max(0.0, estimate.raw)
    assert estimate.value == max(0.0, estimate.raw)


@pytest.mark.parametrize("n", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_disjoint_supports_saturate_at_the_default_options(n: int) -> None:
    estimate = donsker_varadhan(normal(n, 3, 1).abs() + 0.1, -normal(n, 3, 2).abs() - 0.1, epochs=40)
    assert estimate.saturated
    assert estimate.value > 0.5 * estimate.ceiling


def test_units_do_not_matter_and_huge_features_do_not_overflow() -> None:
    nu, rho = normal(300, 2, 1) + 1.0, normal(300, 2, 2)
    options = QUICK | {"epochs": 4}
    usual = donsker_varadhan(nu, rho, **options)
    for scale in (2.0**900, 2.0**-900):
        assert donsker_varadhan(nu * scale, rho * scale, **options) == usual
    outlier = nu.clone()
    outlier[0, 0] = 1e12
    assert math.isfinite(donsker_varadhan(outlier, rho, **options).raw)
    steep = donsker_varadhan(nu, rho, epochs=8, learning_rate=10.0, width=32, batch=50)
    assert math.isfinite(steep.raw)
    assert math.isfinite(steep.standard_error)


def test_the_seed_decides_and_nothing_of_the_callers_changes() -> None:
    nu, rho = normal(200, 2, 1), normal(200, 2, 2)
    before, copies = torch.get_rng_state(), (nu.clone(), rho.clone())
    calls: list[tuple[int, int | None]] = []
    options = QUICK | {"epochs": 6}
    with torch.no_grad():
        first = donsker_varadhan(
            nu, rho, seed=4, progress=lambda _, done, total: calls.append((done, total)), **options
        )
    assert first == donsker_varadhan(nu, rho, seed=4, **options)
    assert first != donsker_varadhan(nu, rho, seed=5, **options)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(nu, copies[0])
    assert torch.equal(rho, copies[1])
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1] <= 30, "a fold that stops early is not waited for"


def test_saturated() -> None:
    def result(raw: float, error: float) -> DonskerVaradhanLower:
        return DonskerVaradhanLower(max(0.0, raw), raw, error, 8.0, 1, 1, 100, 100)

    assert [result(*pair).saturated for pair in ((3.9, 0.0), (4.0, 0.0), (3.0, 0.5), (-1.0, 0.1))] == [False, True, True, False]  # fmt: skip


@pytest.mark.parametrize(
    "bad",
    [{"epochs": 0}, {"learning_rate": 0.0}, {"learning_rate": math.nan}, {"learning_rate": math.inf}, {"width": 0}, {"batch": 0}, {"patience": 0}],
)  # fmt: skip
def test_bad_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(OptionError):
        donsker_varadhan(normal(100, 2, 1), normal(100, 2, 2), **bad)


@pytest.mark.slow
@pytest.mark.parametrize("zeta", [0.02, 0.1])
def test_the_papers_family_in_fifty_dimensions(zeta: float) -> None:
    """At 0.1 exp T has no variance under rho, and the estimate comes out low."""
    nu, rho, known = family(50, zeta, 15_000, 1)
    estimate = donsker_varadhan(nu, rho)
    assert abs(estimate.value - known) < max(0.2 * known, 0.05)
