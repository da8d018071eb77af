"""A small case with rows of length 1, which is what the peers' constants are for."""

from __future__ import annotations

import numpy as np
import pytest

from expunge.evaluate.case import Case, Splits, make_case

FORGET, RETAIN, TEST = 6, 294, 100


@pytest.fixture(scope="package")
def unit() -> Case:
    """Two classes that overlap a little, four features."""
    generator = np.random.default_rng(5)
    y = np.arange(FORGET + RETAIN + TEST) % 2
    X = generator.standard_normal((len(y), 4)) + 1.5 * np.eye(2, 4)[y]
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    first, second = FORGET, FORGET + RETAIN
    splits = Splits((X[first:second], y[first:second]), (X[:first], y[:first]), (X[second:], y[second:]))
    return make_case(splits, l2=0.05, max_norm=1.0 + 1e-9)
