"""The paper's synthetic family: Gaussian rows, classes by the angle of their first two coordinates."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from expunge.errors import OptionError

Features = NDArray[np.float64]
Labels = NDArray[np.int64]

N_ROWS, N_FEATURES, N_CLASSES = 15_000, 50, 10
L2 = 0.02  # the paper's loss is cross-entropy + 0.01 ||W||^2, and ours has l2/2
MAX_NORM = 20.0  # of rows of 50 standard normal entries: not one in 10^40 is longer
ZETAS = (0.02, 0.04, 0.06, 0.08, 0.1)


def angle_labels(features: Features, n_classes: int) -> Labels:
    """Class of a row: which of `n_classes` equal sectors its first two coordinates' angle lies in, from -pi up.

    >>> angle_labels(np.array([[-1.0, -1e-9], [1.0, 1e-9], [0.0, -1.0]]), 10).tolist()
    [0, 5, 2]
    """
    angle = np.arctan2(features[:, 1], features[:, 0]) + math.pi
    sector: Labels = np.floor(angle * n_classes / (2.0 * math.pi)).astype(np.int64) % n_classes
    return sector


def source_rows(
    generator: np.random.Generator, n_rows: int = N_ROWS, n_features: int = N_FEATURES, n_classes: int = N_CLASSES
) -> tuple[Features, Labels]:
    """Rows of N(0, I) and their classes."""
    features = generator.standard_normal((n_rows, n_features))
    return features, angle_labels(features, n_classes)


def surrogate_rows(
    generator: np.random.Generator,
    zeta: float,
    n_rows: int = N_ROWS,
    n_features: int = N_FEATURES,
    n_classes: int = N_CLASSES,
) -> tuple[Features, Labels]:
    """Rows of N(0, (1 - zeta) I + zeta 1 1^T).

    `sqrt(1 - zeta)` of their own, `sqrt(zeta)` shared by all coordinates.
    """
    if not 0.0 <= zeta < 1.0:
        raise OptionError(f"zeta {zeta}", "it must lie from 0 to below 1", "The paper uses 0.01 to 0.1.")
    own = generator.standard_normal((n_rows, n_features))
    shared = generator.standard_normal((n_rows, 1))
    features = math.sqrt(1.0 - zeta) * own + math.sqrt(zeta) * shared
    return features, angle_labels(features, n_classes)


def surrogate_covariance(zeta: float, n_features: int = N_FEATURES) -> Features:
    """`(1 - zeta) I + zeta 1 1^T`; the paper prints `zeta 1 - (zeta + 1) I`, which is no covariance."""
    return (1.0 - zeta) * np.eye(n_features) + zeta * np.ones((n_features, n_features))


def surrogate_kl(zeta: float, n_features: int = N_FEATURES) -> float:
    """KL of the surrogate's features relative to the source's: `-(ln(1 + (d-1) zeta) + (d-1) ln(1 - zeta)) / 2`.

    The trace of the covariance is d, so only the determinant is left of the Gaussian formula.

    >>> surrogate_kl(0.0)
    0.0
    """
    others = n_features - 1
    return -0.5 * (math.log1p(others * zeta) + others * math.log1p(-zeta)) + 0.0
