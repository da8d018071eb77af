"""An estimate, made once."""

from __future__ import annotations

from typing import Any

import pytest

from digit_rows import QUICK, digit_case
from expunge.estimate.comparison import Comparison, compare
from expunge.estimate.source import SourceEstimate


@pytest.fixture(scope="session")
def digits() -> dict[str, Any]:
    return digit_case(bias=True)


@pytest.fixture(scope="session")
def comparison(digits: dict[str, Any]) -> Comparison:
    sets = {"forget": digits["forget"], "reference": digits["source"]}
    return compare(digits["model"], digits["surrogate"], record=digits["model"].record, wanted=QUICK, **sets)


@pytest.fixture(scope="session")
def estimate(comparison: Comparison) -> SourceEstimate:
    return comparison.estimate
