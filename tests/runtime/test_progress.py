"""How long a piece of work will take, foreseen from how far it has come."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from expunge.runtime.progress import expected


@given(st.integers(1, 1000), st.floats(0.01, 0.85), st.integers(1, 30))
def test_a_size_that_falls_by_a_constant_factor_is_foreseen_exactly(done: int, factor: float, powers: int) -> None:
    """`factor` for each iteration: from 1 down to `factor^total`, whatever was done of it."""
    total = done * powers
    goal = factor**powers
    found = expected(done, factor, 1.0, goal)
    assert found is not None
    assert total <= found <= total + 1


def test_nothing_is_said_where_nothing_can_be_foreseen_and_never_less_than_was_done() -> None:
    for size, start, goal in (
        (0.95, 1, 1e-3),
        (2, 1, 1e-3),
        (0, 1, 1e-3),
        (0.5, 1, 0),
        (0.5, 1, 1),
        (0.5, math.nan, 1),
    ):
        assert expected(7, size, start, goal) is None
    assert expected(10, 1e-9, 1.0, 1e-3) == 10
