"""Updates that are held back, and which of them is taken."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from expunge.solve.balanced import MAX_PULLS, balanced_step, no_step
from expunge.solve.newton import newton_step
from step_problems import Example

pytestmark = pytest.mark.usefixtures("one_thread")


def held_back(example: Example, pull: float) -> Any:
    return newton_step(example.problem(), single=False, pull=pull)


def test_the_step_taken_has_the_smallest_bound_of_those_tried() -> None:
    """Against the same pulls, each tried by hand; the bound grows with length, so that holding back pays."""
    example = Example("softmax", classes=3, width=5, n=150, m=30, l2=1e-2)
    for price in (0.0, 1.0, 30.0, 300.0):

        def bound(step: Any, price: float = price) -> float:
            return step.residual + price * float(step.update.norm())

        found = balanced_step(example.problem(), bound, 1e-3)
        tried = [held_back(example, 0.0), *(held_back(example, 1e-3 * 4.0**k) for k in range(MAX_PULLS))]
        none = no_step(tried[0])
        assert bound(found) == pytest.approx(min(bound(step) for step in (*tried, none)), rel=1e-9)
        assert found.residual == pytest.approx(np.linalg.norm(example.residual(found.update.numpy())), rel=1e-9)


def test_where_every_update_costs_more_than_none_none_is_taken() -> None:
    example = Example()
    found = balanced_step(example.problem(), lambda step: float(step.update.norm()), 1e-3)
    assert torch.equal(found.update, torch.zeros_like(found.update))
    assert found.pull == math.inf
    assert (
        found.residual
        == found.residual_at_start
        == pytest.approx(example.m * np.linalg.norm(example.forget_gradient()))
    )


def test_the_search_ends_when_the_bound_has_risen_twice() -> None:
    asked: list[float] = []

    def bound(step: Any) -> float:
        asked.append(step.pull)
        return 1.0 + float(len(asked))

    balanced_step(Example().problem(), bound, 1e-3)
    assert asked == [0.0, 1e-3, 4e-3, math.inf]
