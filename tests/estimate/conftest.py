"""An estimate, made once."""

from __future__ import annotations

from typing import Any

import pytest

from digit_rows import digit_case
from expunge import LinearModel
from expunge.distance import Estimation
from expunge.estimate.comparison import compare
from expunge.estimate.source import SourceEstimate

QUICK = Estimation(support="ball", chains=200, steps=400, step_size=0.005, epochs=3)


@pytest.fixture(scope="session")
def digits() -> dict[str, Any]:
    return digit_case(bias=True)


@pytest.fixture(scope="session")
def estimate(digits: dict[str, Any]) -> SourceEstimate:
    model: LinearModel = digits["model"]
    assert model.record is not None
    return compare(model, digits["surrogate"], record=model.record, wanted=QUICK).estimate
