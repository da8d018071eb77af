"""How long a piece of work will take, foreseen from how far it has come."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.runtime.progress import expected, silent, unwatched


@given(st.integers(1, 1000), st.floats(0.01, 0.85), st.integers(1, 30))
def test_a_size_that_falls_by_a_constant_factor_is_foreseen_exactly(done: int, factor: float, powers: int) -> None:
    """`factor` for each iteration: from 1 down to `factor^total`, whatever was done of it."""
    total = done * powers
    goal = factor**powers
    found = expected(done, factor, 1.0, goal)
    assert found is not None
    assert total <= found <= total + 1


@pytest.mark.parametrize(
    ("size", "start", "goal"), [(0.95, 1.0, 1e-3), (2.0, 1.0, 1e-3), (0.0, 1.0, 1e-3), (0.5, 1.0, 0.0), (0.5, 1.0, 1.0)]
)
def test_nothing_is_said_where_nothing_can_be_foreseen(size: float, start: float, goal: float) -> None:
    assert expected(7, size, start, goal) is None
    assert expected(7, math.nan, start, goal) is None


def test_it_is_never_less_than_what_was_done() -> None:
    assert expected(10, 1e-9, 1.0, 1e-3) == 10


def test_nobody_is_told() -> None:
    assert silent("stage", 1, None) is None
    assert unwatched(1, None) is None
