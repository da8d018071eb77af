"""The paper's synthetic family."""

from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.datasets.synthetic import angle_labels, source_rows, surrogate_covariance, surrogate_kl, surrogate_rows
from experiments.shared.closed_forms import gaussian_kl
from expunge.errors import OptionError


def test_classes_are_sectors_of_equal_angle() -> None:
    for index in range(10):
        middle = -math.pi + (index + 0.5) * 2 * math.pi / 10
        assert angle_labels(np.array([[math.cos(middle), math.sin(middle), 9.0]]), 10).tolist() == [index]
    assert angle_labels(np.array([[-1.0, 0.0]]), 10).tolist() == [0]  # the angle pi itself wraps around
    features, labels = source_rows(np.random.default_rng(0), 20_000)
    assert features.shape == (20_000, 50)
    np.testing.assert_allclose(np.bincount(labels) / 20_000, 0.1, atol=0.01)


@pytest.mark.parametrize("zeta", [0.0, 0.02, 0.1, 0.9])
def test_the_surrogate_has_its_covariance(zeta: float) -> None:
    rows, _ = surrogate_rows(np.random.default_rng(0), zeta, 100_000, 6)
    np.testing.assert_allclose(np.cov(rows.T), surrogate_covariance(zeta, 6), atol=0.03)


@pytest.mark.parametrize("zeta", [0.02, 0.04, 0.1])
def test_its_divergence_is_the_gaussian_one(zeta: float) -> None:
    zero = np.zeros(50)
    expected = gaussian_kl(zero, surrogate_covariance(zeta), zero, np.eye(50))
    assert surrogate_kl(zeta) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("zeta", [-0.1, 1.0])
def test_impossible_correlations_are_refused(zeta: float) -> None:
    with pytest.raises(OptionError):
        surrogate_rows(np.random.default_rng(0), zeta, 10)
