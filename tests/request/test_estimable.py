"""Estimates that cannot be had are refused before any work is done."""

from __future__ import annotations

from typing import Any

import pytest

from asking import asked
from digit_rows import digit_case
from expunge import train
from expunge.errors import DataError, OptionError

pytestmark = pytest.mark.usefixtures("one_thread")
BUDGET = {"epsilon": 5.0, "delta": 1e-3}


@pytest.fixture(scope="module")
def digits() -> dict[str, Any]:
    return digit_case()


def test_losses_without_probabilities(digits: dict[str, Any]) -> None:
    X, y = digits["source"]
    ridge = train(X, y, l2=0.1, max_norm=1.0, loss="ridge")
    with pytest.raises(OptionError, match="only softmax"):
        asked(ridge, digits["forget"], digits["surrogate"], distance="estimate", **BUDGET)


def test_the_conditional_part_needs_labels(digits: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="no labels"):
        asked(digits["model"], digits["forget"], digits["surrogate"][0], distance="estimate:kl", **BUDGET)
    asked(digits["model"], digits["forget"], digits["surrogate"][0], distance="estimate", **BUDGET)
