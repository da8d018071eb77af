"""Exact distances between distributions that are known: on finitely many points, and between Gaussians."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from expunge.errors import OptionError

Array = NDArray[np.float64]


def discrete_tv(p: ArrayLike, q: ArrayLike) -> float:
    """Total variation, half the sum of absolute differences.

    >>> discrete_tv([0.5, 0.5], [1.0, 0.0])
    0.5
    """
    a, b = _probabilities(p, q)
    return min(1.0, 0.5 * float(np.abs(a - b).sum()))


def discrete_kl(p: ArrayLike, q: ArrayLike) -> float:
    """KL of p relative to q; infinite where p has mass that q lacks.

    >>> discrete_kl([0.5, 0.5], [1.0, 0.0])
    inf
    """
    a, b = _probabilities(p, q)
    held = a > 0.0
    if np.any(b[held] == 0.0):
        return math.inf
    return max(0.0, float((a[held] * np.log(a[held] / b[held])).sum()))


def discrete_chi_square(p: ArrayLike, q: ArrayLike) -> float:
    """Chi-square of p relative to q; infinite where p has mass that q lacks.

    >>> discrete_chi_square([0.5, 0.5], [0.25, 0.75])
    0.3333333333333333
    """
    a, b = _probabilities(p, q)
    held = b > 0.0
    if np.any(a[~held] > 0.0):
        return math.inf
    return float(((a[held] - b[held]) ** 2 / b[held]).sum())


def gaussian_kl(mean: ArrayLike, covariance: ArrayLike, other_mean: ArrayLike, other_covariance: ArrayLike) -> float:
    """KL of N(mean, covariance) relative to N(other_mean, other_covariance).

    `(tr(T^-1 S) - d + (m - k)^T T^-1 (m - k) + ln det T - ln det S) / 2`.

    >>> gaussian_kl([0.0], [[1.0]], [1.0], [[1.0]])
    0.5
    """
    (m, s), (k, t) = _gaussians((mean, covariance), (other_mean, other_covariance))
    trace, square = float(np.trace(np.linalg.solve(t, s))), float((m - k) @ np.linalg.solve(t, m - k))
    return max(0.0, 0.5 * (trace - len(m) + square + _log_determinant(t) - _log_determinant(s)))


def gaussian_chi_square(
    mean: ArrayLike, covariance: ArrayLike, other_mean: ArrayLike, other_covariance: ArrayLike
) -> float:
    """Chi-square of N(mean, covariance) relative to N(other_mean, other_covariance); infinite unless 2 T - S > 0.

    `1 + chi2 = det T / sqrt(det S det(2 T - S)) exp((m - k)^T (2 T - S)^-1 (m - k))`.

    >>> round(gaussian_chi_square([0.0], [[1.0]], [1.0], [[1.0]]), 6)
    1.718282
    """
    (m, s), (k, t) = _gaussians((mean, covariance), (other_mean, other_covariance))
    excess = 2.0 * t - s
    if np.linalg.eigvalsh(excess)[0] <= 0.0:
        return math.inf
    exponent = float((m - k) @ np.linalg.solve(excess, m - k))
    logarithm = _log_determinant(t) - 0.5 * (_log_determinant(s) + _log_determinant(excess)) + exponent
    return max(0.0, math.expm1(logarithm)) if logarithm < 700.0 else math.inf


def _probabilities(p: ArrayLike, q: ArrayLike) -> tuple[Array, Array]:
    a, b = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    fits = a.ndim == 1 and a.shape == b.shape and len(a) > 0
    if not fits or not all(np.isfinite(v).all() and (v >= 0).all() and abs(v.sum() - 1.0) < 1e-9 for v in (a, b)):
        raise OptionError(
            f"probabilities of shapes {a.shape} and {b.shape}, sums {a.sum():.6g} and {b.sum():.6g}",
            "two lists of probabilities over the same points are needed",
            "Divide counts by their sum.",
        )
    return a, b


def _gaussians(*pairs: tuple[ArrayLike, ArrayLike]) -> list[tuple[Array, Array]]:
    made = [(np.asarray(m, dtype=np.float64), np.asarray(s, dtype=np.float64)) for m, s in pairs]
    shape = (len(made[0][0]),) * 2
    for m, s in made:
        fits = m.ndim == 1 and s.shape == (len(m), len(m)) == shape and bool(np.isfinite(m).all())
        positive = fits and np.isfinite(s).all() and np.allclose(s, s.T, rtol=1e-9, atol=0.0)
        if not positive or np.linalg.eigvalsh(s)[0] <= 0.0:
            raise OptionError(
                f"a mean of shape {m.shape} and a covariance of shape {s.shape}",
                "finite means of one length and covariances that are symmetric and positive definite are needed",
                "Drop features that are constant or copies of others.",
            )
    return made


def _log_determinant(matrix: Array) -> float:
    return float(np.linalg.slogdet(matrix)[1])
