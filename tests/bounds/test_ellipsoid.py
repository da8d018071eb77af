"""Noise with a shape: its numbers by hand, its draws against fifty digits and by their covariance, and an attack on low-order bits."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from expunge.bounds import ellipsoid
from expunge.bounds.ellipsoid import (
    EXACT_SHARE,
    LONGEST_NORMAL,
    NORMAL_ERROR,
    NORMAL_FAILURE,
    SOLVE_GOAL,
    Ellipsoid,
    EllipsoidNumbers,
    drawing_delta,
    normal_numbers,
)
from expunge.bounds.region import Ball
from expunge.errors import ModelError
from expunge.noise import Noise, grid_exponent, rounded_sum, seeded_bytes

Array = Any
REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=100)
FALSE_ALARM = 1e-7  # of each statistical test, two-sided; fixed before any draw was looked at
sizes = st.floats(min_value=-6.0, max_value=6.0).map(lambda exponent: 10.0**exponent)


def of(matrix: Array, parts: int = 1) -> Ellipsoid:
    """The shape of a matrix, or of one that serves several parts."""
    factor = np.linalg.cholesky(matrix)
    values = np.linalg.eigvalsh(matrix)
    trace = parts * float((np.linalg.inv(factor) ** 2).sum())
    return Ellipsoid(parts * len(matrix), values[-1] * 1.0001, values[0] / 1.0001, trace, factors=factor[None])


def matrix_of(seed: int, size: int, condition: float) -> Array:
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(size, size)))[0]
    return (axes * np.geomspace(1.0, condition, size)) @ axes.T


# Numbers --------------------------------------------------------------------------------------------------------------------

NUMBERS = EllipsoidNumbers(4, largest=16.0, least=0.25, inverse_trace=9.0)


def test_numbers_in_closed_form() -> None:
    assert NUMBERS.smallest(2.0) == 2.0 / 4.0 / 8.0  # the root of 2^-6 over 16
    assert NUMBERS.length(2.0) == pytest.approx(math.sqrt(4.0 * 9.0 + 4.0 / 256.0), rel=1e-15, abs=0.0)
    assert NUMBERS.grid_term(0.5) == 0.0
    assert NUMBERS.name == "ellipsoid"


def test_drawing_in_closed_form() -> None:
    """Four weights of length 3 at scale 2: normal numbers, their roundings, the solve, the sum; over a 64th of 16."""
    of_normals = 2.0 * math.sqrt(4.0 / 0.25) * (2.0**-44 + 14.0 * 2.0**-49)
    off = of_normals + 2.0 * 3.0 * 2.0**-50 + 3.0 * 2.0**-49
    assert replace(NUMBERS, weights=3.0).drawing(2.0) == pytest.approx(2.0 * off * 32.0, rel=1e-14, abs=0.0)
    assert NUMBERS.drawing(2.0) == math.inf, "weights of unknown length"
    assert Ball(4).drawing(2.0) == 0.0


def test_drawing_delta_in_closed_form() -> None:
    assert drawing_delta(4, math.log(3.0)) == pytest.approx(4.0 * 4.0 * 2.0**-80, rel=1e-14, abs=0.0)
    assert drawing_delta(4, math.log(3.0), 5) == pytest.approx(5.0 * 4.0 * 4.0 * 2.0**-80, rel=1e-14, abs=0.0)
    assert drawing_delta(4, 1e6) > 1e200  # e^epsilon does not overflow


@given(sizes, sizes, sizes)
@REPRODUCIBLE
def test_drawing_is_a_length(scale: float, weights: float, factor: float) -> None:
    known = replace(NUMBERS, weights=weights)
    larger = replace(NUMBERS, weights=weights * factor).drawing(scale * factor)
    assert larger == pytest.approx(factor * known.drawing(scale), rel=1e-9, abs=0.0)
    assert replace(NUMBERS, weights=2.0 * weights).drawing(scale) > known.drawing(scale)
    assert known.drawing(2.0 * scale) > known.drawing(scale)


@given(sizes)
@REPRODUCIBLE
def test_a_worse_condition_costs_more(factor: float) -> None:
    known = replace(NUMBERS, weights=1.0)
    assert replace(known, least=0.25 / (1.0 + factor)).drawing(1.0) > known.drawing(1.0)
    assert replace(known, largest=16.0 * (1.0 + factor)).drawing(1.0) > known.drawing(1.0)


def test_steps_in_mu_add_up() -> None:
    """Of three normals in a row the first and the last are told apart no better than by the steps' sum: the argument
    for adding what drawing is off by, on either side, to the radius. Attained by steps in one direction."""
    for first, second in ((0.3, 0.01), (1.0, 1e-3), (2.0, 0.5)):
        for size in np.linspace(0.01, 0.99, 25):
            between = stats.norm.cdf(stats.norm.ppf(size) + first)  # the most that the first step allows
            after = stats.norm.cdf(stats.norm.ppf(between) + second)
            assert after == pytest.approx(stats.norm.cdf(stats.norm.ppf(size) + first + second), rel=1e-12, abs=0.0)


def test_a_draw_that_is_off_by_what_is_counted_is_told_apart_no_better_than_the_radius_says() -> None:
    """In one dimension, exactly: noise `s z / sqrt(m) + r(z)` with a part drawn exactly on top, r as bad as it can be on
    either side. Of all tests of the two models none beats mu plus both steps."""
    off, exact = 0.05, 0.5
    grid = np.linspace(-9.0, 9.0, 4001)
    z = np.linspace(-7.0, 7.0, 1201)
    mass = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    for away, signs in ((0.0, np.sign(z)), (0.4, np.ones_like(z)), (0.4, np.where(np.abs(z) > 1.0, 1.0, -1.0))):
        one = (mass * stats.norm.pdf(grid[:, None] - z - off * signs, scale=exact)).sum(axis=1)
        other = (mass * stats.norm.pdf(grid[:, None] - away - z + off * signs, scale=exact)).sum(axis=1)
        one, other = one / one.sum(), other / other.sum()
        mu = away / math.sqrt(1.0 + exact**2) + 2.0 * off / exact
        for epsilon in (0.0, 0.1, 0.5):
            told = np.maximum(other - math.exp(epsilon) * one, 0.0).sum()
            allowed = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
            assert told <= allowed * (1.0 + 1e-6)


def test_numbers_alone_draw_nothing() -> None:
    with pytest.raises(ModelError, match="its matrix is in the deposit"):
        NUMBERS.rest(1.0, seeded_bytes(0))
    with pytest.raises(ModelError, match="its matrix is in the deposit"):
        NUMBERS.sample(1.0, np.random.default_rng(0))


@pytest.mark.parametrize("parts", [1, 3])
def test_the_exact_part_is_a_share_of_the_smallest_variance_and_the_length_is_that_of_the_covariance(
    parts: int,
) -> None:
    matrix, scale = matrix_of(0, 4, 50.0), 0.3
    shape = of(matrix, parts)
    covariance = scale**2 * np.linalg.inv(matrix)
    smallest = np.linalg.eigvalsh(covariance)[0]
    assert shape.smallest(scale) ** 2 == pytest.approx(EXACT_SHARE * smallest, rel=1e-3, abs=0.0)
    total = parts * np.trace(covariance) + shape.n_parameters * shape.smallest(scale) ** 2
    assert shape.length(scale) == pytest.approx(math.sqrt(total), rel=1e-12, abs=0.0)


# Normal numbers -------------------------------------------------------------------------------------------------------------


def literal(first: int, second: int, bits: int = 256) -> mpmath.mpf:
    """Box and Muller's transform of two uniforms given by so many bits each."""
    with mpmath.workdps(120):
        u, v = (mpmath.ldexp(mpmath.mpf(word) + mpmath.mpf(1) / 2, -bits) for word in (first, second))
        return mpmath.sqrt(-2 * mpmath.log(u)) * mpmath.cos(2 * mpmath.pi * v)


def made_of(first: int, angle: int) -> float:
    """The normal number of 128 bits for the radius and 64 for the angle."""
    words = first >> 64, first & (2**64 - 1), angle
    content = b"".join(word.to_bytes(8, "little") for word in words)
    return float(normal_numbers(1, lambda count: content[:count])[0])


def test_normal_numbers_in_closed_form() -> None:
    """A first uniform of e^-2 has radius 2; a second of 1/3 the cosine -1/2. One of e^-1/8, near 1, has radius 1/2."""
    assert made_of(int(mpmath.ldexp(mpmath.exp(-2), 128)), 2**64 // 3) == pytest.approx(-1.0, abs=1e-15)
    with mpmath.workdps(60):
        assert made_of(int(mpmath.ldexp(mpmath.exp(mpmath.mpf(-1) / 8), 128)), 0) == pytest.approx(0.5, abs=1e-15)


def test_uniforms_are_thirds_of_the_bytes() -> None:
    with mpmath.workdps(60):
        firsts = [int(mpmath.ldexp(mpmath.exp(-mpmath.mpf(power)), 128)) for power in (2, "0.5")]
    words = [first >> 64 for first in firsts] + [first & (2**64 - 1) for first in firsts] + [0, 2**63]
    content = b"".join(word.to_bytes(8, "little") for word in words)
    assert normal_numbers(2, lambda count: content[:count]) == pytest.approx([2.0, -1.0], abs=1e-15)


def test_the_ends_of_the_uniforms_are_finite_and_none_is_longer() -> None:
    assert made_of(0, 0) == pytest.approx(math.sqrt(2.0 * 129.0 * math.log(2.0)), rel=1e-14, abs=0.0)
    assert made_of(0, 0) < LONGEST_NORMAL
    assert made_of(2**128 - 1, 0) == pytest.approx(math.sqrt(2.0 * 2.0**-129), rel=1e-14, abs=0.0)
    assert made_of(2**127 - 1, 0) == pytest.approx(made_of(2**127, 0), rel=1e-14, abs=0.0), "where the halves meet"


@pytest.mark.parametrize("exponent", [*range(1, 82, 8), *range(-1, -128, -16), 0])
def test_a_normal_number_is_off_an_ideal_one_by_no_more_than_counted(exponent: int) -> None:
    """An ideal number goes on where the bits end. Tried at every size: as short as 2^-exponent of the uniforms are above
    it, or as near to 1."""
    rng = np.random.default_rng(abs(exponent))
    for _ in range(40):
        word = int.from_bytes(rng.bytes(16), "little")
        first = word >> exponent if exponent >= 0 else 2**128 - 1 - (word >> -exponent)
        if first < 2**48:  # less likely than NORMAL_FAILURE, and not counted
            continue
        angle, further = int.from_bytes(rng.bytes(8), "little"), [int.from_bytes(rng.bytes(24), "little") for _ in "ab"]
        ideal = literal((first << 128) | (further[0] >> 64), (angle << 192) | further[1])
        assert abs(float(made_of(first, angle) - ideal)) < NORMAL_ERROR / 4.0


def test_the_rest_is_less_likely_than_counted() -> None:
    """A uniform of K steps of 2^-128 has a radius that is off by `1 / (2 K radius)` at most, where its bits end."""
    assert NORMAL_FAILURE >= 2.0**48 * 2.0**-128
    radius = math.sqrt(2.0 * 80.0 * math.log(2.0))
    assert 1.0 / (2.0 * 2.0**48 * radius) < NORMAL_ERROR / 16.0


# Draws ----------------------------------------------------------------------------------------------------------------------


def exact_solution(factor: Array, normals: Array) -> Array:
    """`L'^-1 z` with fifty digits."""
    with mpmath.workdps(50):
        transposed = mpmath.matrix(factor.T.tolist())
        return mpmath.lu_solve(transposed, mpmath.matrix(normals.tolist()))


def test_a_draw_in_closed_form() -> None:
    """L = (2 0; 1 4): L' y = z has y_2 = z_2/4 and y_1 = (z_1 - y_2)/2."""
    factor = np.array([[2.0, 0.0], [1.0, 4.0]])
    shape = Ellipsoid(2, 20.0, 3.0, 0.4, factors=factor[None])
    z = normal_numbers(2, seeded_bytes(3))
    expected = [(z[0] - z[1] / 4.0) / 2.0, z[1] / 4.0]
    assert shape.rest(0.5, seeded_bytes(3)) == pytest.approx([0.5 * value for value in expected], rel=1e-15, abs=0.0)


@pytest.mark.parametrize(("size", "condition"), [(1, 1.0), (5, 1e3), (12, 1e9), (30, 1e6), (4, 1e13)])
def test_a_draw_is_the_solution_to_the_goal(size: int, condition: float) -> None:
    shape = of(matrix_of(size, size, condition))
    assert shape.factors is not None
    for seed in range(3):
        z = normal_numbers(size, seeded_bytes(seed))
        exact = exact_solution(shape.factors[0], z)
        with mpmath.workdps(50):
            drawn = shape.rest(1.0, seeded_bytes(seed)).tolist()
            off = mpmath.norm(mpmath.matrix(drawn) - exact)
        assert off <= 2.0 * SOLVE_GOAL * math.sqrt(shape.inverse_trace)


@pytest.mark.parametrize("parts", [1, 4])
def test_every_part_must_reach_its_share_of_the_goal(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is divided by the root of the least eigenvalue, and the parts' squares add up."""
    shape = of(matrix_of(3, 3, 10.0), parts)
    goal = SOLVE_GOAL * math.sqrt(shape.inverse_trace * shape.least / parts)
    for size, fine in ((0.9, True), (1.1, False)):
        unseen = np.zeros(parts)
        unseen[-1] = size * goal
        monkeypatch.setattr(ellipsoid, "_unseen", lambda factor, solutions, unseen=unseen: unseen)
        if fine:
            shape.rest(1.0, seeded_bytes(0))
        else:
            with pytest.raises(ModelError, match="too ill-conditioned"):
                shape.rest(1.0, seeded_bytes(0))


@pytest.mark.parametrize("parts", [1, 3])
def test_in_white_coordinates_lengths_are_those_by_the_matrix(parts: int) -> None:
    matrix = matrix_of(5, 3, 30.0)
    shape = of(matrix, parts)
    vectors = np.random.default_rng(0).normal(size=(4, 3 * parts))
    white = shape.whitened(vectors)
    assert white.shape == vectors.shape
    due = np.einsum("spi,ij,spj->s", vectors.reshape(4, parts, 3), matrix, vectors.reshape(4, parts, 3))
    assert (white**2).sum(axis=1) == pytest.approx(due, rel=1e-12, abs=0.0)
    draws = np.stack([shape.rest(0.5, seeded_bytes(seed)) for seed in range(3)])
    normals = [normal_numbers(3 * parts, seeded_bytes(seed)) for seed in range(3)]
    assert shape.whitened(draws) == pytest.approx(0.5 * np.stack(normals), rel=1e-9, abs=1e-12)
    apart = replace(shape, factors=np.repeat(shape.factors, parts, axis=0))
    assert apart.whitened(vectors) == pytest.approx(white, rel=1e-14, abs=0.0)


def test_several_threads_draw_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(4)
    factor = np.tril(generator.normal(size=(600, 600))) / 40 + np.eye(600)
    shape = of(factor @ factor.T)
    alone = shape.rest(0.7, seeded_bytes(2))
    monkeypatch.setattr(ellipsoid, "MANY", 1)
    assert np.array_equal(shape.rest(0.7, seeded_bytes(2)), alone)


def test_one_solve_in_float64_does_not_reach_the_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = of(matrix_of(1, 30, 1e12))
    monkeypatch.setattr(ellipsoid, "REFINEMENTS", 1)
    with pytest.raises(ModelError, match="too ill-conditioned"):
        shape.rest(1.0, seeded_bytes(0))
    of(np.eye(3)).rest(1.0, seeded_bytes(0))


def test_a_shape_that_cannot_be_drawn_from_to_the_goal_is_refused() -> None:
    """Rows of a triangle whose inverse grows by two at each: float64 solves it to no digit at all."""
    size = 200
    factor = np.tril(np.full((size, size), -1.0)) + 2.0 * np.eye(size)
    shape = Ellipsoid(size, 2.0 * size, 1e-3, 1e3, factors=factor[None])
    with pytest.raises(ModelError, match="too ill-conditioned to draw from"):
        shape.rest(1.0, seeded_bytes(0))


def test_what_is_left_is_seen_with_twice_the_digits() -> None:
    rng = np.random.default_rng(5)
    factor, y, more = np.tril(rng.normal(size=(51, 51))), rng.normal(size=(2, 51)), 1e-17 * rng.normal(size=(2, 51))
    z = np.asarray(y @ factor)  # so that nearly all of it cancels
    found, unseen = ellipsoid._left(factor, y, more, z), ellipsoid._unseen(factor, y)
    for row in range(2):
        with mpmath.workdps(60):
            whole = mpmath.matrix(y[row].tolist()) + mpmath.matrix(more[row].tolist())
            exact = mpmath.matrix(z[row].tolist()) - mpmath.matrix(factor.T.tolist()) * whole
            off = float(mpmath.norm(mpmath.matrix(found[row].tolist()) - exact))
            length = float(mpmath.norm(exact))
        assert off <= unseen[row] + 2.0**-52 * length
        sizes_of = float(np.linalg.norm(np.abs(factor).T @ np.abs(y[row])))
        assert unseen[row] == pytest.approx((51 + 64) * 2.0**-102 * sizes_of, rel=1e-12, abs=0.0)


@pytest.mark.parametrize("size", [1, 2, 129, 12_000])
def test_what_is_lost_is_counted_for_a_sum_in_any_order(size: int) -> None:
    """`12 q` of the products and what is beyond, `q + log(q)^2/2 + 2 log q` of the sums in pairs, in squares of 2^-53."""
    levels = math.ceil(math.log2(size)) if size > 1 else 0
    most = 11 * (size - 1) + 21 + size + levels**2 / 2 + 2 * (levels + 11)
    counted = ellipsoid._unseen(np.eye(size, 1), np.eye(1, size))[0]  # sizes that add up to 1
    assert most * 2.0**-106 <= counted <= 64 * most * 2.0**-106


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
@REPRODUCIBLE
def test_sums_and_products_with_twice_the_digits_are_exact(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=count) * 10.0 ** rng.uniform(-8, 8, count), rng.normal(size=count)
    for made, of_two in ((ellipsoid.two_sum, Fraction.__add__), (ellipsoid.two_product, Fraction.__mul__)):
        total, lost = made(first, second)
        for a, b, c, d in zip(first, second, total, lost, strict=True):
            assert of_two(Fraction(a), Fraction(b)) == Fraction(c) + Fraction(d)
    total, lost = ellipsoid.exact_sum(first[None])
    exact = sum(map(Fraction, first.tolist()), Fraction(0))
    off = abs(exact - Fraction(float(total[0])) - Fraction(float(np.ravel(lost)[0])))
    assert off <= Fraction(2) ** -98 * sum(abs(Fraction(value)) for value in first.tolist())


def test_parts_that_share_a_factor_are_drawn_as_one_by_one() -> None:
    matrix = matrix_of(7, 3, 20.0)
    shared = of(matrix, 4)
    apart = replace(shared, factors=np.repeat(shared.factors, 4, axis=0))
    assert shared.rest(0.7, seeded_bytes(2)) == pytest.approx(apart.rest(0.7, seeded_bytes(2)), rel=1e-14, abs=0.0)
    generators = [np.random.default_rng(1) for _ in range(2)]
    first, second = (shape.sample(0.7, rng) for shape, rng in zip((shared, apart), generators, strict=True))
    assert first == pytest.approx(second, rel=1e-14, abs=0.0)


# Covariance -----------------------------------------------------------------------------------------------------------------

DRAWS = 1_000_000
MATRIX = np.array([[4.0, 1.2, 0.0], [1.2, 1.0, 0.3], [0.0, 0.3, 0.5]])
SCALE = 0.37


def published(shape: Ellipsoid, values: Array, seed: int) -> Array:
    """What is handed out, a row a draw."""
    noise = Noise(SCALE, grid_exponent(shape.smallest(SCALE)), shape)
    return noise.added_to(values, seeded_bytes(seed)).reshape(-1, len(MATRIX))


def whitened_spread(draws: Array) -> Array:
    """Eigenvalues of the draws' covariance in the coordinates in which it is to be the identity."""
    smallest = SCALE * math.sqrt(EXACT_SHARE / (np.linalg.eigvalsh(MATRIX)[-1] * 1.0001))
    due = SCALE**2 * np.linalg.inv(MATRIX) + smallest**2 * np.eye(len(MATRIX))
    white = np.linalg.inv(np.linalg.cholesky(due))
    return np.linalg.eigvalsh(white @ np.cov(draws.T) @ white.T)


@pytest.fixture(scope="module")
def million() -> Array:
    return published(of(MATRIX, DRAWS), np.zeros(3 * DRAWS), 11)


def test_a_million_draws_have_the_covariance(million: Array) -> None:
    spread = whitened_spread(million)
    assert np.all(np.abs(spread - 1.0) < 0.01)
    assert np.all(np.abs(million.mean(axis=0)) < 6.0 * million.std(axis=0) / math.sqrt(DRAWS))


def test_samples_for_evaluations_have_the_same_covariance() -> None:
    draws = of(MATRIX, 200_000).sample(SCALE, np.random.default_rng(1)).reshape(-1, 3)
    assert np.all(np.abs(whitened_spread(draws) - 1.0) < 0.03)


def test_the_draws_are_normal(million: Array) -> None:
    direction = np.array([0.4, -1.0, 0.7])
    along = million[:20_000] @ direction
    smallest = SCALE * math.sqrt(EXACT_SHARE / (np.linalg.eigvalsh(MATRIX)[-1] * 1.0001))
    variance = SCALE**2 * direction @ np.linalg.inv(MATRIX) @ direction + smallest**2 * direction @ direction
    assert stats.kstest(along / math.sqrt(variance), "norm").pvalue > FALSE_ALARM


@pytest.mark.parametrize("fault", ["inverted", "transposed", "plain"])
def test_a_planted_fault_is_seen_in_the_covariance(fault: str) -> None:
    """The shape inverted (`s L z`), its factor transposed (`s L^-1 z`), or left out."""
    z = np.random.default_rng(2).normal(size=(100_000, 3))
    factor = np.linalg.cholesky(MATRIX)
    made = {"inverted": z @ factor.T, "transposed": z @ np.linalg.inv(factor).T, "plain": z}[fault]
    assert np.abs(whitened_spread(SCALE * made) - 1.0).max() > 0.2


# Low-order bits -------------------------------------------------------------------------------------------------------------


def residues(outputs: Array, exponent: int) -> Array:
    steps = np.ldexp(outputs, -exponent)
    assert np.array_equal(steps, np.rint(steps))
    return np.bincount(steps.astype(np.int64) & 0xFF, minlength=256)


def finer_than(outputs: Array, weight: float) -> float:
    """Share of outputs off the grid that every float64 sum with this weight lies on."""
    return float(np.mean(np.remainder(outputs, math.ulp(weight) / 2) != 0.0))


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_low_order_bits_tell_neighbouring_weights_apart_after_plain_addition(scale: float) -> None:
    """What float64 makes of `v + s L'^-1 z` lies on the grid of v's own last digit."""
    shape = of(MATRIX, 30_000)
    noise = [shape.rest(scale, seeded_bytes(seed)) for seed in (21, 22)]
    assert finer_than(0.0 + noise[0], 1.0) > 0.2
    assert finer_than(1.0 + noise[1], 1.0) == 0.0


@pytest.mark.parametrize("weight", [1.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_low_order_bits_tell_nothing_of_what_is_published(scale: float, weight: float) -> None:
    shape = of(MATRIX, 30_000)
    exponent = grid_exponent(shape.smallest(scale))
    noise = Noise(scale, exponent, shape)
    found = []
    for value, seed in ((0.0, 23), (weight, 24)):
        outputs = noise.added_to(np.full(shape.n_parameters, value), seeded_bytes(seed))
        assert finer_than(outputs, weight) == 0.0
        found.append(residues(outputs, exponent))
    assert np.all(np.stack(found) > 0)
    difference = np.sum((found[0] - found[1]) ** 2 / (found[0] + found[1]))
    assert float(difference) < stats.chi2.isf(FALSE_ALARM, 255)


def test_the_centre_is_not_rounded_to_the_grid_before_the_exact_draw() -> None:
    """The trap: a centre between two points of the grid is then as good as the nearer one, and the draw's mean shows it."""
    sigma, exponent, count = 0.3, 0, 200_000  # noise finer than the grid, where the difference is plain
    centre = 0.37
    exact = rounded_sum(np.full(count, centre), sigma, exponent, seeded_bytes(31))
    rounded_first = rounded_sum(np.full(count, round(centre)), sigma, exponent, seeded_bytes(32))
    cells = np.arange(-3, 4)
    due = stats.norm.cdf((cells + 0.5 - centre) / sigma) - stats.norm.cdf((cells - 0.5 - centre) / sigma)

    def misfit(outputs: Array) -> float:
        counts = np.array([np.count_nonzero(outputs == cell) for cell in cells])
        likely = due * count > 5
        return float((((counts - due * count) ** 2) / (due * count))[likely].sum())

    assert misfit(exact) < stats.chi2.isf(FALSE_ALARM, len(cells))
    assert misfit(rounded_first) > 1000.0


def test_what_is_published_is_the_sum_drawn_in_one_go() -> None:
    """Weights, then the float64 part, then one exact draw around their sum: byte for byte."""
    shape = of(MATRIX, 5)
    values = np.random.default_rng(3).normal(size=(5, 3))
    exponent = grid_exponent(shape.smallest(SCALE))
    random = seeded_bytes(41)
    centres = values.reshape(-1) + shape.rest(SCALE, random)
    expected = rounded_sum(centres, shape.smallest(SCALE), exponent, random)
    made = Noise(SCALE, exponent, shape).added_to(values, seeded_bytes(41))
    assert np.array_equal(made, expected.reshape(5, 3))
    assert made.shape == values.shape


@pytest.mark.parametrize(("size", "rows", "pieces"), [(51, 2, 1), (600, 1, 2), (600, 2, 3), (4, 70_000, 4)])
def test_as_many_columns_at_once_as_make_a_quarter_of_a_million_products(
    size: int, rows: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2^18 over the numbers to be solved for: 436 columns of 600, half as many for two; one at least."""
    made, exact_sum = [], ellipsoid.exact_sum
    monkeypatch.setattr(ellipsoid, "exact_sum", lambda terms: made.append(terms.shape) or exact_sum(terms))
    factor, y = np.eye(size), np.ones((rows, size))
    assert not ellipsoid._left(factor, y, 0.0 * y, y).any()
    assert len(made) == pieces


def test_what_reaches_the_goal_exactly_is_good_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = of(matrix_of(3, 3, 10.0))
    goal = SOLVE_GOAL * math.sqrt(shape.inverse_trace * shape.least)
    monkeypatch.setattr(ellipsoid, "_left", lambda factor, solutions, beyond, normals: np.zeros_like(normals))
    for size, fine in ((goal, True), (math.nextafter(goal, 1.0), False)):
        monkeypatch.setattr(ellipsoid, "_unseen", lambda factor, solutions, size=size: np.array([size]))
        if fine:
            shape.rest(1.0, seeded_bytes(0))
        else:
            with pytest.raises(ModelError, match="too ill-conditioned"):
                shape.rest(1.0, seeded_bytes(0))


def test_noise_for_predictions_in_closed_form() -> None:
    """L = (2 0; 1 4), as above, with numbers of a plain generator: the shape's first, the exact part's after them."""
    factor = np.array([[2.0, 0.0], [1.0, 4.0]])
    shape = Ellipsoid(2, 25.0, 3.0, 0.4, factors=factor[None])
    z, exact = np.random.default_rng(6).normal(size=(2, 2))
    due = [(z[0] - z[1] / 4.0) / 2.0 + exact[0] / 40.0, z[1] / 4.0 + exact[1] / 40.0]  # the root of 2^-6 over 25
    sampled = shape.sample(0.5, np.random.default_rng(6))
    assert sampled == pytest.approx([0.5 * value for value in due], rel=1e-14, abs=0.0)
