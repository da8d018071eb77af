"""What a desk cannot promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from expunge.desk import (
    Policy,
)
from expunge.errors import OptionError


@pytest.mark.parametrize(
    "options",
    [
        {"epsilon": 0.0},
        {"delta": 1.0},
        {"distance": "source"},
        {"distance": "near"},
        {"planned": 0},
        {"total_epsilon": 0.1},
        {"total_epsilon": float("nan")},
        {"days": -1},
        {"step": "leap"},
    ],
)
def test_impossible_policies(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Policy(**({"epsilon": 1.0, "delta": 1e-4, "distance": "same"} | options)).check()


def test_a_desk_needs_a_declared_distance(policy: Policy) -> None:
    for text in ("estimate", "estimate:kl"):
        with pytest.raises(OptionError, match="a distance that somebody declares"):
            replace(policy, distance=text).check()
