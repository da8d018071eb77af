"""Scikit-learn's digits as a case: a model trained on half of them, the other half to stand in for the source."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from expunge.deposit.make import NewDeposit, make_deposit
from expunge.distance import Estimation
from expunge.evaluate.demo import L2, digits
from expunge.train import train

QUICK = Estimation(support="ball", chains=200, steps=400, step_size=0.005, epochs=3)


def digit_case(*, bias: bool = False) -> dict[str, Any]:
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order] / np.linalg.norm(X[order], axis=1, keepdims=True), y[order]
    model = train(X[:900], y[:900], l2=0.02, max_norm=1.0, bias=bias)
    return {"model": model, "forget": (X[:2], y[:2]), "surrogate": (X[900:], y[900:]), "source": (X[:900], y[:900])}


@functools.cache
def demo_deposit() -> NewDeposit:
    """The deposit of the demo, made once: rehearsing is nearly all that the demo takes."""
    source = digits()["source"]
    return make_deposit(train(*source, l2=L2, max_norm=1.0), source)
