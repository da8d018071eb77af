"""Distances between Gaussian distributions, in closed form: for users who know both, and to test estimators on."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from expunge.errors import OptionError

Matrix = NDArray[np.float64]


def gaussian_kl(mean: ArrayLike, covariance: ArrayLike, other_mean: ArrayLike, other_covariance: ArrayLike) -> float:
    """KL of N(mean, covariance) relative to N(other_mean, other_covariance).

    `(tr(T^-1 S) - d + (m - k)^T T^-1 (m - k) + ln det T - ln det S) / 2`.

    >>> gaussian_kl([0.0], [[1.0]], [1.0], [[1.0]])
    0.5
    """
    (m, s), (k, t) = _checked(mean, covariance), _checked(other_mean, other_covariance)
    _require_same_size(m, k)
    difference = m - k
    trace = float(np.trace(np.linalg.solve(t, s)))
    square = float(difference @ np.linalg.solve(t, difference))
    return max(0.0, 0.5 * (trace - len(m) + square + _log_determinant(t) - _log_determinant(s)))


def gaussian_chi_square(
    mean: ArrayLike, covariance: ArrayLike, other_mean: ArrayLike, other_covariance: ArrayLike
) -> float:
    """Chi-square of N(mean, covariance) relative to N(other_mean, other_covariance).

    Infinite unless 2 T - S is positive.

    `1 + chi2 = det T / sqrt(det S det(2 T - S)) exp((m - k)^T (2 T - S)^-1 (m - k))`.

    >>> round(gaussian_chi_square([0.0], [[1.0]], [1.0], [[1.0]]), 6)
    1.718282
    """
    (m, s), (k, t) = _checked(mean, covariance), _checked(other_mean, other_covariance)
    _require_same_size(m, k)
    excess = 2.0 * t - s
    if np.linalg.eigvalsh(excess)[0] <= 0.0:
        return math.inf
    difference = m - k
    exponent = float(difference @ np.linalg.solve(excess, difference))
    logarithm = _log_determinant(t) - 0.5 * (_log_determinant(s) + _log_determinant(excess)) + exponent
    return max(0.0, math.expm1(logarithm)) if logarithm < 700.0 else math.inf


def _checked(mean: ArrayLike, covariance: ArrayLike) -> tuple[Matrix, Matrix]:
    m, s = np.asarray(mean, dtype=np.float64), np.asarray(covariance, dtype=np.float64)
    if m.ndim != 1 or s.shape != (len(m), len(m)) or not (np.isfinite(m).all() and np.isfinite(s).all()):
        raise OptionError(
            f"a mean of shape {m.shape} and a covariance of shape {s.shape}",
            "finite vectors of length d and matrices of d x d are needed",
            "Check that both belong to the same features.",
        )
    if not np.allclose(s, s.T, rtol=1e-9, atol=0.0) or np.linalg.eigvalsh(s)[0] <= 0.0:
        raise OptionError(
            "a covariance that is not symmetric and positive definite",
            "a Gaussian density needs one",
            "Drop features that are constant or copies of others.",
        )
    return m, s


def _require_same_size(m: Matrix, k: Matrix) -> None:
    if len(m) != len(k):
        raise OptionError(
            f"Gaussians of {len(m)} and {len(k)} features", "they must agree", "Use the same features for both."
        )


def _log_determinant(matrix: Matrix) -> float:
    return float(np.linalg.slogdet(matrix)[1])
