"""Exact distances between distributions on finitely many points, such as the rows of two data sets."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from expunge.errors import OptionError


def discrete_tv(p: ArrayLike, q: ArrayLike) -> float:
    """Total variation, half the sum of absolute differences.

    >>> discrete_tv([0.5, 0.5], [1.0, 0.0])
    0.5
    """
    a, b = _checked(p, q)
    return min(1.0, 0.5 * float(np.abs(a - b).sum()))


def discrete_kl(p: ArrayLike, q: ArrayLike) -> float:
    """KL of p relative to q; infinite where p has mass that q lacks.

    >>> discrete_kl([0.5, 0.5], [1.0, 0.0])
    inf
    """
    a, b = _checked(p, q)
    held = a > 0.0
    if np.any(b[held] == 0.0):
        return math.inf
    return max(0.0, float((a[held] * np.log(a[held] / b[held])).sum()))


def discrete_chi_square(p: ArrayLike, q: ArrayLike) -> float:
    """Chi-square of p relative to q; infinite where p has mass that q lacks.

    >>> discrete_chi_square([0.5, 0.5], [0.25, 0.75])
    0.3333333333333333
    """
    a, b = _checked(p, q)
    held = b > 0.0
    if np.any(a[~held] > 0.0):
        return math.inf
    return float(((a[held] - b[held]) ** 2 / b[held]).sum())


def _checked(p: ArrayLike, q: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    fits = a.ndim == 1 and a.shape == b.shape and len(a) > 0
    if not fits or not all(np.isfinite(v).all() and (v >= 0).all() and abs(v.sum() - 1.0) < 1e-9 for v in (a, b)):
        raise OptionError(
            f"probabilities of shapes {a.shape} and {b.shape}, sums {a.sum():.6g} and {b.sum():.6g}",
            "two lists of probabilities over the same points are needed",
            "Divide counts by their sum.",
        )
    return a, b
