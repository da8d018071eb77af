"""The sum of named terms, rounded up."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.bounds import Ball, Region
from expunge.bounds.sampling import Tail

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=200)
terms = st.lists(st.floats(min_value=0.0, max_value=1e100), max_size=8)


def named(values):
    return Region("residual", {str(index): value for index, value in enumerate(values)})


def test_total_is_the_sum_and_a_billionth():
    total = named([0.25, 0.5]).radius
    assert total - 0.75 == pytest.approx(0.75e-9, rel=1e-6)


def test_total_of_nothing_is_zero_and_of_anything_infinite_is_infinite():
    assert named([]).radius == 0.0
    assert named([0.0, 0.0]).radius == 0.0
    assert named([1.0, math.inf, 2.0]).radius == math.inf


@REPRODUCIBLE
@given(values=terms)
def test_total_is_never_below_the_exact_sum(values):
    exact = sum((Fraction(value) for value in values), Fraction(0))
    total = Fraction(named(values).radius)
    assert exact <= total <= exact * Fraction(1 + 1.001e-9) + Fraction(1, 10**320)
    if exact > Fraction(1, 10**290):
        assert total >= exact * Fraction(1 + 0.999e-9)


def test_total_does_not_depend_on_the_order_of_the_terms():
    values = [1.0, 1e-16, 1e-16, 3e-17, 0.1, 1e-9]
    assert len({named(order).radius for order in itertools.permutations(values)}) == 1


@REPRODUCIBLE
@given(values=terms, more=st.floats(min_value=0.0, max_value=1e100))
def test_one_more_term_is_added_and_the_bound_it_came_from_kept(values, more):
    bound = named(values)
    longer = bound.with_term("grid", more)
    assert longer.kind == bound.kind
    assert dict(longer.terms) == {**bound.terms, "grid": more}
    assert "grid" not in bound.terms
    assert longer.radius >= bound.radius
    assert longer.radius == named([*values, more]).radius


def test_a_term_of_the_same_name_is_replaced():
    bound = Region("paper", {"newton": 1.0, "grid": 2.0}).with_term("grid", 4.0)
    assert bound == Region("paper", {"newton": 1.0, "grid": 4.0})
    assert bound.radius == pytest.approx(5.0)


def test_a_ball_measures_plain_lengths():
    """Noise of scale s has mean square p s^2."""
    generator = np.random.default_rng(0)
    for parameters in (1, 7, 400):
        ball = Ball(parameters)
        drawn = np.stack([ball.sample(0.3, generator) for _ in range(4000)])
        assert drawn.shape == (4000, parameters)
        assert ball.length(0.3) == pytest.approx(0.3 * math.sqrt(parameters), rel=1e-15)
        mean_square = (drawn**2).sum(axis=1).mean()
        assert mean_square == pytest.approx(ball.length(0.3) ** 2, rel=6 * math.sqrt(2.0 / drawn.size))


def test_a_ball_s_noise_is_all_of_one_size_and_drawn_exactly():
    assert Ball(3).smallest(0.5) == 0.5
    assert Ball(3).rest(0.5, bytes) is None
    assert Ball(3).name == "ball"
    assert [Ball(3).drawing(scale) for scale in (0.0, 0.5, 1e9)] == [0.0] * 3, "and drawing it adds nothing"


def test_a_tail_that_is_held_is_added_to_what_was_sampled():
    tail = Tail(1.0, 0.5, 0.01)
    held = Region("residual", {"solver": 0.3, "sampling": 0.2}, tail=tail).held(1e-3)
    assert held.tail is None
    assert held.terms == {"solver": 0.3, "sampling": 0.2 + tail.quantile(1e-3)}
    assert held.held(1e-9) is held


@pytest.mark.parametrize(("parameters", "grid"), [(9, 2.0**-20), (1, 1.0), (10**7, 0.3)])
def test_the_grid_term_is_the_root_of_the_number_of_weights_times_the_grid(parameters: int, grid: float) -> None:
    assert Ball(parameters).grid_term(grid) == pytest.approx(parameters**0.5 * grid, rel=1e-15)


def test_rounding_two_vectors_moves_them_apart_by_at_most_the_grid_term():
    rng = np.random.default_rng(51)
    for parameters in (1, 3, 50):
        for _ in range(200):
            one, other = rng.normal(size=(2, parameters))
            grid = float(2.0 ** rng.integers(-6, 2))
            moved = np.linalg.norm(np.rint(one / grid) * grid - np.rint(other / grid) * grid) - np.linalg.norm(
                one - other
            )
            assert moved <= Ball(parameters).grid_term(grid)
    # just to either side of half a step in every coordinate: nothing smaller would do
    one, other = np.full(50, 0.5 + 1e-9), np.full(50, 0.5 - 1e-9)
    assert np.linalg.norm(np.rint(one) - np.rint(other)) - np.linalg.norm(one - other) > 0.999 * Ball(50).grid_term(1.0)
