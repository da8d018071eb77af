"""Coordinates in which two sets differ plainly."""

import numpy as np
import torch

from expunge.estimate.donsker_varadhan import Coordinates, TwoSamples
from gaussian_rows import family, normal


def test_coordinates_make_both_covariances_diagonal_and_find_what_tells() -> None:
    nu, rho, _ = family(6, 0.5, 3000, 1)
    rows = TwoSamples(nu.float() @ torch.diag(torch.arange(1.0, 7.0)), torch.ones(3000, dtype=torch.float64), rho.float() @ torch.diag(torch.arange(1.0, 7.0)))  # fmt: skip
    coordinates = Coordinates.of(rows)
    places = [((side - coordinates.centre) @ coordinates.turn).double().numpy() for side in (rows.nu, rows.rho)]
    moments = [side.T @ side / len(side) for side in places]
    np.testing.assert_allclose(moments[0] + moments[1], 2 * np.eye(6), atol=1e-4)
    assert np.abs(moments[0] - np.diag(np.diag(moments[0]))).max() < 1e-4
    assert int(coordinates.telling.sum()) == 6  # variance 3.5 along (1, ..., 1), half in the five others
    same = TwoSamples(normal(3000, 80, 8).float(), torch.ones(3000, dtype=torch.float64), normal(3000, 80, 9).float())
    assert int(Coordinates.of(same).telling.sum()) <= 2


def test_the_start_is_the_log_ratio_of_two_gaussians() -> None:
    """Up to a constant, and up to what 20,000 rows tell: means and variances differ in one coordinate, one scale in all others."""
    scale = torch.tensor([2.0, 0.9, 0.9, 0.9, 0.9], dtype=torch.float64)
    nu, rho = normal(20_000, 5, 1) * scale + torch.tensor([1.0, 0, 0, 0, 0]), normal(20_000, 5, 2)
    rows = TwoSamples(nu.float(), torch.ones(20_000, dtype=torch.float64), rho.float())
    coordinates = Coordinates.of(rows)
    fixed = coordinates.gaussian(coordinates.seen(rows))
    places = torch.cat([normal(500, 5, 3), normal(500, 5, 4) * scale])
    found = (coordinates(places.float()) @ fixed).double().numpy()
    x = places.numpy()
    exact = 0.5 * x[:, 0] ** 2 - (x[:, 0] - 1) ** 2 / 8 + 0.5 * (1 - 1 / 0.81) * (x[:, 1:] ** 2).sum(axis=1)
    assert np.std(found - exact) < 0.1 * np.std(exact)
