"""The delta of a Gaussian mechanism by its definition."""

from __future__ import annotations

from typing import Any

import mpmath


def true_delta(epsilon: Any, mu: Any) -> mpmath.mpf:
    """With 50 digits to lose."""
    with mpmath.workdps(50):
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def relative(value: Any, reference: Any) -> mpmath.mpf:
    """How far a value is off."""
    with mpmath.workdps(50):
        return abs(mpmath.mpf(value) / reference - 1)
