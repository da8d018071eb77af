"""Noise for a region; the sampler against its own literal construction, exact statistics and an attack."""

import inspect
import math
import os
import struct
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from exact_delta import true_delta
from expunge import noise
from expunge.bounds import Ball, Region
from expunge.bounds.calibration import Scale, delta_of, mu_for, sigma_classical, sigma_for, smallest_epsilon
from expunge.bounds.ellipsoid import EllipsoidNumbers
from expunge.bounds.sampling import Tail
from expunge.errors import ModelError
from expunge.noise import (
    Noise,
    add_noise,
    bits_for,
    calibrate_noise,
    choose_noise,
    delta_at,
    effective_region,
    grid_exponent,
    public_grid,
    rounded_gaussian,
    rounded_sum,
    seeded_bytes,
    to_grid,
)

REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=100)
FALSE_ALARM = 1e-7  # of each statistical test, two-sided; fixed before any draw was looked at


# The grid ------------------------------------------------------------------------------------------------------


def test_grid_exponent_in_closed_form():
    sigmas = (1.0, math.nextafter(1.0, 0.0), 1.9, 2.0, 0.25, 3e6)
    assert [grid_exponent(sigma) for sigma in sigmas] == [-20, -21, -20, -19, -22, 1]


def test_grid_is_never_finer_than_two_to_the_minus_forty():
    below = math.nextafter(2.0**-19, 0.0)
    assert [grid_exponent(sigma) for sigma in (2.0**-19, below, 2.0**-20, 1e-9, 1e-300)] == [-39, -40, -40, -40, -40]


def test_grid_exponent_against_a_search():
    for sigma in np.random.default_rng(1).lognormal(0.0, 15.0, size=200):
        exponent = -40
        while Fraction(2) ** (exponent + 1) <= Fraction(float(sigma)) / 2**20:
            exponent += 1
        assert grid_exponent(float(sigma)) == exponent


@REPRODUCIBLE
@given(sigma=st.floats(min_value=2.0**-20, max_value=1e290))
def test_grid_is_between_half_a_millionth_and_a_millionth_of_sigma(sigma):
    grid = Fraction(2) ** grid_exponent(sigma)
    assert grid * 2**20 <= Fraction(sigma) < grid * 2**21


def test_to_grid_in_closed_form():
    values = np.array([[0.75, -0.3, 0.25], [1.25, -1.0, 0.0]])
    grid = to_grid(values, -1)
    assert grid.dtype == np.int64
    assert grid.tolist() == [[2, -1, 0], [2, -2, 0]]  # ties go to even
    assert to_grid(np.array([10.0, -7.0]), 2).tolist() == [2, -2]


def test_to_grid_against_fractions():
    values = np.random.default_rng(2).normal(scale=3.0, size=500)
    for exponent in (-30, -3, 0, 1):
        assert to_grid(values, exponent).tolist() == [
            round(Fraction(float(value)) / Fraction(2) ** exponent) for value in values
        ]


@REPRODUCIBLE
@given(value=st.floats(min_value=-1e6, max_value=1e6), exponent=st.integers(min_value=-40, max_value=20))
def test_to_grid_moves_a_value_by_at_most_half_a_step(value, exponent):
    step = Fraction(2) ** exponent
    assert abs(Fraction(int(to_grid(np.array([value]), exponent)[0])) * step - Fraction(value)) <= step / 2


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_to_grid_refuses_what_does_not_fit_and_takes_what_does(sign):
    largest = math.nextafter(2.0**62, 0.0)
    assert to_grid(np.array([0.0, sign * largest]), 0).tolist() == [0, int(sign * largest)]
    with pytest.raises(ModelError, match=r"2\^62"):
        to_grid(np.array([0.0, sign * 2.0**62]), 0)
    with pytest.raises(ModelError, match=r"2\^62"):
        to_grid(np.array([sign]), -62)


# The sampler: exactness ----------------------------------------------------------------------------------------


class Script:
    """Random bytes from a script: the 64-bit uniforms first, then what is asked beyond them, recorded."""

    def __init__(self, first, second, more=()):
        words = [*first, *second]
        self.chunks = [b"".join(int(word).to_bytes(8, "little") for word in words), *more]
        self.asked = []

    def __call__(self, size):
        self.asked.append(size)
        chunk = self.chunks.pop(0)
        assert len(chunk) == size
        return chunk


def refill(first, second):
    """32 bytes that extend the two uniforms by 128 bits each."""
    return ((first << 128) | second).to_bytes(32, "little")


def literal(first, second, bits, sigma, exponent):
    """Box and Muller on all real numbers that begin with these bits: (smallest, largest) possible rounded value."""
    with mpmath.workprec(3 * bits + 200):
        values = []
        for u in (first, first + 1):
            for v in (second, second + 1):
                radius = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(u) / 2**bits)) if u else mpmath.inf
                values.append(
                    mpmath.mpf(sigma)
                    / mpmath.mpf(2) ** exponent
                    * radius
                    * mpmath.cos(2 * mpmath.pi * mpmath.mpf(v) / 2**bits)
                )
        return tuple(
            int(mpmath.floor(value + 0.5)) if mpmath.isfinite(value) else value for value in (min(values), max(values))
        )


def boundary(half, second, ratio, bits):
    """The first `bits` bits of the uniform whose draw is exactly `half`, the second uniform being `second` / 2^64."""
    with mpmath.workprec(3 * bits):
        radius = mpmath.mpf(half) / (mpmath.mpf(ratio) * mpmath.cos(2 * mpmath.pi * mpmath.mpf(second) / 2**64))
        assert radius > 0
        return int(mpmath.floor(mpmath.exp(-(radius**2) / 2) * mpmath.mpf(2) ** bits))


def test_draws_in_closed_form():
    half, quarter = 2**63, 2**62
    seconds = [0, 2**61, quarter, half, 3 * quarter, 2**63 + 2**61]
    drawn = rounded_gaussian(6, 1.0, -20, Script([half] * 6, seconds))
    # radius sqrt(2 ln 2) = 1.17741002251547 and, at an eighth of a turn, sqrt(ln 2) = 0.83255461115770; times 2^20 = 1048576
    assert drawn.tolist() == [1234604, 872997, 0, -1234604, 0, -872997]
    assert drawn.dtype == np.int64


@pytest.mark.parametrize(
    ("sigma", "exponent"), [(1.0, -20), (1.9999, -20), (0.3, -22), (5e-7, -41), (7.0, -18), (1.0, 0), (1.0, -3)]
)
def test_draws_equal_the_literal_construction_on_the_same_bytes(sigma, exponent):
    count = 60
    drawn = rounded_gaussian(count, sigma, exponent, seeded_bytes(11))
    words = np.frombuffer(seeded_bytes(11)(16 * count), dtype="<u8")
    for index in range(count):
        low, high = literal(int(words[index]), int(words[count + index]), 64, sigma, exponent)
        assert low == high == drawn[index]


SMALL_WORDS = (1, 2, 3, 2**8, 2**11 + 1, 2**32, 2**52, 2**53 + 1, 2**63)
EXTREME_FIRST = [*SMALL_WORDS, *(2**64 - below for below in (2**43, 2**40, 2**11, 2, 1))]
TURNS = (0, 1, 2**61 + 12345, 2**62 - 1, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 3 * 2**62)  # eighths and quarters of one
EXTREME_SECOND = [*TURNS, 2**64 - 2**10, 2**64 - 1]


@pytest.mark.parametrize(("sigma", "exponent"), [(1.0, -20), (1.999, -20)])
def test_draws_at_the_ends_of_the_uniforms_lie_in_the_literal_interval(sigma, exponent):
    for first in EXTREME_FIRST:
        for second in EXTREME_SECOND:
            extra = seeded_bytes(first % 1000 + second % 777)(32)
            drawn = int(rounded_gaussian(1, sigma, exponent, Script([first], [second], [extra, bytes(32)]))[0])
            low, high = literal(first, second, 64, sigma, exponent)
            assert low <= drawn <= high
            if low != high:
                more = int.from_bytes(extra, "little")
                exact = literal(
                    (first << 128) | (more >> 128), (second << 128) | (more & (2**128 - 1)), 192, sigma, exponent
                )
                assert exact == (drawn, drawn)


@pytest.mark.parametrize(("zeros", "second", "sign"), [(0, 0, 1), (1, 2**63, -1)])
def test_a_first_uniform_of_all_zeros_takes_its_radius_from_further_bits(zeros, second, sign):
    """u = 2^-65, radius sqrt(130 ln 2) = 9.49261...; and extended until it is not zero."""
    script = Script([0], [second], [refill(0, 0)] * zeros + [refill(2**127, 0)])
    radius = mpmath.sqrt(2 * (65 + 128 * zeros) * mpmath.log(2))
    assert rounded_gaussian(1, 1.0, -20, script).tolist() == [sign * int(mpmath.nint(radius * 2**20))]
    assert script.asked == [16, 32] + [32] * zeros


def test_a_first_uniform_of_all_ones_is_zero_without_further_bits():
    script = Script([2**64 - 1] * 3, [0, 2**63, 2**61])
    assert rounded_gaussian(3, 1.0, -20, script).tolist() == [0, 0, 0]
    assert script.asked == [48]


@pytest.mark.parametrize("half", [0.5, 1.5, 40.5, 1000.5, 300000.5, 1234567.5, 4000000.5])
@pytest.mark.parametrize("sigma", [1.0, 1.7])
def test_a_cell_across_a_rounding_boundary_is_decided_by_the_further_bits(half, sigma):
    exact = boundary(half, 0, sigma * 2**20, 64)
    ones = 2**128 - 1
    for bits, expected in [(0, math.ceil(half)), (ones, math.floor(half))]:  # a smaller uniform is a larger radius
        script = Script([exact], [0], [refill(bits, 0)])
        assert rounded_gaussian(1, sigma, -20, script).tolist() == [expected]
        assert script.asked == [16, 32]
        # the other half of the circle mirrors it
        assert rounded_gaussian(1, sigma, -20, Script([exact], [2**63], [refill(bits, 0)])).tolist() == [-expected]


def test_a_draw_on_the_boundary_to_192_bits_waits_for_more():
    long = boundary(1234567.5, 0, 2**20, 320)
    first, second, third = long >> 256, (long >> 128) & (2**128 - 1), long & (2**128 - 1)
    assert third not in (0, 2**128 - 1)
    for last, expected in [(0, 1234568), (2**128 - 1, 1234567)]:
        script = Script([first], [0], [refill(second, 0), refill(last, 0)])
        assert rounded_gaussian(1, 1.0, -20, script).tolist() == [expected]
        assert script.asked == [16, 32, 32]


def test_near_a_boundary_the_result_is_the_one_the_bits_force():
    # Around u = 1 float64 holds the uniform to 2^-53 only, which moves these draws by up to thousands of cells.
    rng = np.random.default_rng(5)
    for half, second in [
        (0.5, 0),
        (0.5, 2**60 + 987654321),
        (3.5, 2**59),
        (100.5, 2**61 + 1),
        (99999.5, 2**58 + 77),
        (2500000.5, 3 * 2**58),
    ]:
        exact = boundary(half, second, 2**20, 64)
        for reach in (2, 50, 2000, 10**5):
            firsts = [exact + int(offset) for offset in rng.integers(-reach, reach + 1, size=10)]
            script = Script(firsts, [second] * 10, [seeded_bytes(reach + index)(32) for index in range(20)])
            drawn = rounded_gaussian(10, 1.0, -20, script)
            for first, result in zip(firsts, drawn, strict=True):
                low, high = literal(first, second, 64, 1.0, -20)
                assert low <= result <= high


def test_settling_agrees_with_the_fast_path_where_there_is_no_doubt():
    words = np.frombuffer(seeded_bytes(3)(16 * 200), dtype="<u8").reshape(2, 200)
    for sigma, exponent in [(1.0, -20), (0.37, -22)]:
        fast = rounded_gaussian(200, sigma, exponent, Script(words[0], words[1]))
        slow = [noise._settle(int(first), int(second), sigma, exponent, seeded_bytes(4)) for first, second in words.T]
        assert fast.tolist() == slow


def test_settling_appends_all_further_bits_the_upper_half_to_the_first_uniform(monkeypatch):
    """Two rounds, since the draw is on the boundary for one: 64, 192 and 320 bits of each, none lost, none twice."""
    seen, ends = [], noise._ends

    def spied(value, bits):
        seen.append((value, bits))
        low, high = ends(value, bits)
        return (low, high) if bits > 192 else (low, low + 0.25)  # too wide for any rounding

    monkeypatch.setattr(noise, "_ends", spied)
    rounds = [(2**128 - 1, 2), (1, 2**128 - 1)]
    content = [(above << 128 | below).to_bytes(32, "little") for above, below in rounds]
    noise._settle(2**63 + 1, 2**62, 1.0, -20, lambda count: content.pop(0))
    first, second = 2**63 + 1, 2**62
    due = []
    for bits, (above, below) in zip((192, 320), rounds, strict=True):
        first, second = first * 2**128 + above, second * 2**128 + below
        due += [(first, bits), (second, bits), (second, bits)]
    assert seen == due
    assert not content


def test_uniforms_are_the_first_and_the_second_half_of_the_bytes():
    script = Script([2**63, 2**62], [0, 2**63])
    # sqrt(2 ln 2) and sqrt(2 ln 4) = 1.66510922231540
    assert rounded_gaussian(2, 1.0, -20, script).tolist() == [1234604, -1745994]
    assert rounded_gaussian(0, 1.0, -20, seeded_bytes(0)).tolist() == []


@REPRODUCIBLE
@given(
    seed=st.integers(min_value=0, max_value=2**32),
    sigma=st.floats(min_value=0.5, max_value=2.0),
    scale=st.integers(min_value=-60, max_value=60),
)
def test_only_the_ratio_of_sigma_to_the_grid_matters_and_half_a_turn_mirrors_a_draw(seed, sigma, scale):
    words = np.frombuffer(seeded_bytes(seed)(16 * 20), dtype="<u8").reshape(2, 20)
    drawn = rounded_gaussian(20, sigma, -20, Script(words[0], words[1], [bytes(32)] * 9))
    assert (
        rounded_gaussian(20, math.ldexp(sigma, scale), scale - 20, Script(words[0], words[1], [bytes(32)] * 9)).tolist()
        == drawn.tolist()
    )
    turned = words[1] + np.uint64(2**63)
    assert rounded_gaussian(20, sigma, -20, Script(words[0], turned, [bytes(32)] * 9)).tolist() == (-drawn).tolist()


# The sampler: statistics ---------------------------------------------------------------------------------------

N = 10**6


def deviation_accepted(values, sigma):
    """Whether the standard deviation about the known mean 0 lies between its chi-square quantiles."""
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(values))
    return low < float(np.sum((values / sigma) ** 2)) < high


def mean_accepted(values, sigma):
    return abs(float(values.mean())) < stats.norm.isf(FALSE_ALARM / 2) * sigma / math.sqrt(len(values))


def shape_accepted(values, sigma):
    """Chi-square goodness of fit over 1,000 equally likely cells and four far tails."""
    tails = stats.norm.cdf([-4.2, -3.7])
    inner = np.linspace(0.0, 1.0, 1001)[1:-1]
    probabilities = np.concatenate([[0.0], tails, inner, 1.0 - tails[::-1], [1.0]])
    counts = np.histogram(stats.norm.cdf(values / sigma), bins=probabilities)[0]
    expected = np.diff(probabilities) * len(values)
    return float(np.sum((counts - expected) ** 2 / expected)) < stats.chi2.isf(FALSE_ALARM, len(counts) - 1)


def kolmogorov_accepted(values, sigma):
    return stats.kstest(values / sigma, "norm").pvalue > FALSE_ALARM


def draws_of(sigma, exponent, seed):
    return np.ldexp(rounded_gaussian(N, sigma, exponent, seeded_bytes(seed)).astype(np.float64), exponent)


@pytest.mark.parametrize(("sigma", "seed"), [(1.0, 101), (3.73e-5, 102), (1999.0, 103)])
def test_a_million_draws_have_the_deviation_mean_and_shape_of_the_gaussian(sigma, seed):
    values = draws_of(sigma, grid_exponent(sigma), seed)
    assert deviation_accepted(values, sigma)
    assert mean_accepted(values, sigma)
    assert shape_accepted(values, sigma)
    assert kolmogorov_accepted(values, sigma)


@pytest.mark.parametrize("wrong", [0.98, 1.02])
def test_the_same_tests_reject_noise_whose_sigma_is_two_percent_off(wrong):
    values = draws_of(wrong, -20, 104)
    assert not deviation_accepted(values, 1.0)
    assert not shape_accepted(values, 1.0)
    assert not kolmogorov_accepted(values, 1.0)


def test_the_same_tests_reject_a_small_bias_and_another_shape_of_equal_deviation():
    values = draws_of(1.0, -20, 105)
    assert not mean_accepted(values + 0.01, 1.0)
    generator = np.random.default_rng(106)
    logistic = generator.logistic(scale=math.sqrt(3.0) / math.pi, size=N)
    assert not shape_accepted(logistic, 1.0)
    assert not kolmogorov_accepted(logistic, 1.0)


def test_draws_of_one_call_are_uncorrelated():
    values = draws_of(1.0, -20, 107)
    limit = stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(N)
    for lag in (1, 2, 3, N // 2):
        assert abs(float(np.mean(values[lag:] * values[:-lag]))) < limit * math.sqrt(N / (N - lag))
    assert abs(float(np.mean(values[1:] ** 2 * values[:-1] ** 2)) - 1.0) < 3 * math.sqrt(8) * limit


def test_low_order_bits_of_the_draws_are_uniform():
    drawn = rounded_gaussian(N, 1.0, -20, seeded_bytes(108))
    counts = np.bincount(drawn & 0xFF, minlength=256)
    assert float(np.sum((counts - N / 256) ** 2 / (N / 256))) < stats.chi2.isf(FALSE_ALARM, 255)


# Adding the noise ----------------------------------------------------------------------------------------------


def test_noise_of_zero_leaves_the_rounded_values():
    values = np.array([[0.3, -1.26], [2.0, 0.125]])
    still = Script([2**64 - 1] * 4, [0] * 4)  # radius 0
    assert add_noise(values, 1.0, -2, still).tolist() == [[0.25, -1.25], [2.0, 0.0]]
    assert values.tolist() == [[0.3, -1.26], [2.0, 0.125]]


def test_noise_in_closed_form():
    script = Script([2**63] * 2, [0, 2**63])
    assert add_noise(np.array([1.0, 1.0]), 1.0, -20, script).tolist() == [1 + 1234604 / 2**20, 1 - 1234604 / 2**20]


@pytest.mark.parametrize("sigma", [1.0, 0.02, 37.0])
def test_output_is_rounded_value_plus_draw_exactly(sigma):
    exponent = grid_exponent(sigma)
    values = np.random.default_rng(6).normal(size=(10, 7))
    noised = add_noise(values, sigma, exponent, seeded_bytes(9))
    drawn = rounded_gaussian(70, sigma, exponent, seeded_bytes(9))
    assert noised.shape == values.shape
    assert noised.dtype == np.float64
    for value, result, draw in zip(values.ravel(), noised.ravel(), drawn, strict=True):
        step = Fraction(2) ** exponent
        assert Fraction(float(result)) == (round(Fraction(float(value)) / step) + int(draw)) * step


@REPRODUCIBLE
@given(
    values=st.lists(st.floats(min_value=-1e3, max_value=1e3), min_size=1, max_size=8),
    sigma=st.floats(min_value=1e-3, max_value=1e3),
    steps=st.integers(min_value=-(2**30), max_value=2**30),
    seed=st.integers(min_value=0, max_value=2**32),
)
def test_moving_the_values_by_grid_steps_moves_the_output_by_the_same_and_nothing_else(values, sigma, steps, seed):
    exponent = grid_exponent(sigma)
    on_grid = np.ldexp(to_grid(np.array(values), exponent).astype(np.float64), exponent)
    here = add_noise(on_grid, sigma, exponent, seeded_bytes(seed))
    there = add_noise(on_grid + math.ldexp(steps, exponent), sigma, exponent, seeded_bytes(seed))
    assert (there - here).tolist() == [math.ldexp(steps, exponent)] * len(values)


def test_noise_too_small_beside_the_weights_is_refused():
    with pytest.raises(ModelError):
        add_noise(np.array([1.0]), 2.0**-42, -62, seeded_bytes(0))


# The attack on low-order bits ----------------------------------------------------------------------------------


def finer_than(outputs, weight):
    """Share of outputs off the grid that every float64 sum with this weight lies on (Haney et al. 2022)."""
    grid = math.ulp(weight) / 2
    return float(np.mean(np.remainder(outputs, grid) != 0.0))


@pytest.mark.parametrize("ratio", [1.0, 1000.0])
def test_low_order_bits_tell_neighbouring_weights_apart_after_plain_addition(ratio):
    c = 1.0
    sigma = c / ratio
    gaussian = np.random.default_rng(201).standard_normal(2 * N).reshape(2, N)
    around_zero, around_c = 0.0 + sigma * gaussian[0], c + sigma * gaussian[1]
    assert finer_than(around_zero, c) > (0.2 if ratio == 1.0 else 0.99)
    assert finer_than(around_c, c) == 0.0


@pytest.mark.parametrize("c", [1.0, 0.1])
@pytest.mark.parametrize("ratio", [1.0, 1000.0])
def test_low_order_bits_tell_nothing_after_addition_on_the_grid(ratio, c):
    sigma = c / ratio
    exponent = grid_exponent(sigma)
    around_zero = add_noise(np.zeros(N), sigma, exponent, seeded_bytes(202))
    around_c = add_noise(np.full(N, c), sigma, exponent, seeded_bytes(203))
    assert finer_than(around_zero, c) == finer_than(around_c, c) == 0.0
    residues = []
    for outputs in (around_zero, around_c):
        steps = np.ldexp(outputs, -exponent)
        assert np.array_equal(steps, np.rint(steps))
        residues.append(np.bincount(steps.astype(np.int64) & 0xFF, minlength=256))
    assert np.all(residues[0] > 0)
    assert np.all(residues[1] > 0)
    difference = np.sum((residues[0] - residues[1]) ** 2 / (residues[0] + residues[1]))
    assert float(difference) < stats.chi2.isf(FALSE_ALARM, 255)


# Where the bytes come from -------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [add_noise, rounded_gaussian])
def test_the_operating_systems_generator_is_the_default(function):
    assert inspect.signature(function).parameters["random_bytes"].default is os.urandom


def test_two_calls_with_the_default_generator_differ():
    assert rounded_gaussian(32, 1.0, -20).tolist() != rounded_gaussian(32, 1.0, -20).tolist()
    zeros = np.zeros(32)
    assert add_noise(zeros, 1.0, -20).tolist() != add_noise(zeros, 1.0, -20).tolist()


def test_seeded_bytes_are_the_words_of_the_seeded_generator():
    words = np.random.PCG64(5).random_raw(8)
    assert seeded_bytes(5)(64) == words.astype("<u8").tobytes()
    assert seeded_bytes(0)(8).hex() == "5f82c2d9cfeb0fa3"


# Noise for a region ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", [1, 30, 5000])
@pytest.mark.parametrize("radius", [1e-6, 0.3, 40.0])
def test_calibrated_noise_hides_the_region_and_its_own_grid(radius, parameters):
    region = Region("residual", {"training": 0.25 * radius, "solver": 0.75 * radius}, Ball(parameters))
    rounded, found = calibrate_noise(region, 1.0, 1e-5)
    assert found.grid_exponent == grid_exponent(sigma_for(region.radius, 1.0, 1e-5))
    assert rounded.terms == {**region.terms, "grid": math.sqrt(parameters) * 2.0**found.grid_exponent}
    assert found.scale == sigma_for(rounded.radius, 1.0, 1e-5)
    assert true_delta(1.0, rounded.radius / found.scale) <= 1e-5
    assert found.length == Ball(parameters).length(found.scale)


def test_another_calibration_is_asked_twice_and_its_scale_taken():
    asked = []

    def classical(radius, epsilon, delta):
        asked.append(radius)
        return sigma_classical(radius, epsilon, delta)

    region = Region("paper", {"newton": 0.5}, Ball(4))
    rounded, found = calibrate_noise(region, 0.5, 1e-3, classical)
    assert asked == [region.radius, rounded.radius]
    assert found.scale == sigma_classical(rounded.radius, 0.5, 1e-3)


def test_a_ball_s_noise_is_that_of_the_sampler():
    _, found = calibrate_noise(Region("residual", {"training": 0.1}, Ball(6)), 1.0, 1e-5)
    values = np.arange(6.0).reshape(2, 3)
    drawn = found.added_to(values, seeded_bytes(5))
    assert np.array_equal(drawn, add_noise(values, found.scale, found.grid_exponent, seeded_bytes(5)))
    assert drawn.shape == values.shape
    assert not np.array_equal(found.added_to(values), found.added_to(values))


def test_what_a_shape_adds_beyond_a_ball_is_added_before_rounding():
    class Longer(Ball):
        """A ball, and a fixed further part."""

        def rest(self, scale, random_bytes):
            return np.full(self.n_parameters, 10.0 * scale)

    found = Noise(0.25, -20, Longer(4))
    values = np.zeros((2, 2))
    expected = add_noise(np.full((2, 2), 2.5), 0.25, -20, seeded_bytes(1))
    assert np.array_equal(found.added_to(values, seeded_bytes(1)), expected)


def test_what_is_rounded_together_with_noise_is_split_without_loss(monkeypatch):
    """A value a little below a point of the grid is not one less than the point above it: that would be rounded."""
    seen = []

    def drawn(count, sigma, exponent, random_bytes, offsets):
        seen.append(offsets)
        return np.zeros(count, np.int64)

    monkeypatch.setattr(noise, "rounded_gaussian", drawn)
    values = np.array([-1e-30, 1e-30, -0.3, 0.7, 5.0 - 2.0**-50, -5.0 + 2.0**-50, 2.0**40 + 0.375, 0.0])
    whole = noise.rounded_sum(values, 1.0, 0, seeded_bytes(0))
    for value, point, offset in zip(values.tolist(), whole.tolist(), seen[0].tolist(), strict=True):
        assert Fraction(value) == Fraction(point) + Fraction(offset)
        assert abs(offset) <= 0.5


def test_bits_come_from_the_system_from_a_desk_s_key_or_from_the_seed_of_a_test():
    asked = []

    def keyed(centre):
        asked.append(centre)
        return b"key".__mul__

    assert bits_for(b"centre", None, None) is os.urandom
    assert bits_for(b"centre", keyed, None)(2) == b"keykey"
    assert asked == [b"centre"]
    for seed in (0, 7):
        for source in (None, keyed):
            assert bits_for(b"centre", source, seed)(16) == seeded_bytes(seed)(16)
    assert asked == [b"centre"], "a seed needs no key"


# Regions with a tail ---------------------------------------------------------------------------------------------


def test_a_region_with_a_tail() -> None:
    terms = {"training": 0.1, "sampling": 0.2}
    region = Region("residual", terms, shape=Ball(9), tail=Tail(1.0, 0.5, 0.01))
    rounded, noise = calibrate_noise(region, 1.0, 1e-5)
    assert delta_at(rounded, 1.0, 1e-5, noise.scale) <= 1e-5
    stood_for = effective_region(rounded, 1.0, 1e-5, noise.scale)
    assert stood_for.tail is None
    assert stood_for.radius == pytest.approx(noise.scale * mu_for(1.0, 1e-5), rel=1e-12)
    assert stood_for.terms["training"] == 0.1
    assert stood_for.terms["sampling"] > 0.2 + 1.0
    assert effective_region(rounded, 1.0, 1e-5, 1e-3 * noise.scale).terms == rounded.terms, "never less than the terms"
    plain = Region("residual", terms, shape=Ball(9))
    assert effective_region(plain, 1.0, 1e-5, 1.0) is plain
    assert delta_at(plain, 1.0, 1e-5, 0.5) == delta_of(1.0, plain.radius / 0.5)


# Grids of published noise, and of shapes ---------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", [1, 4, 640, 10**6, 10**9])
@pytest.mark.parametrize("mu", [1e-9, 1e-4, 2.0**-9, 0.3, 4.0])
@pytest.mark.parametrize("scale", [2.0**-20, 0.25, 1.0, 64.0])
def test_a_published_grid_costs_a_thousandth_at_most_where_it_can_be_finer(parameters, mu, scale):
    """The coarsest of those that go with the scale, down to 2^-40, whose term is at most 2^-10 of what mu hides."""
    allowed = [
        exponent
        for exponent in range(grid_exponent(scale), -41, -1)
        if math.sqrt(parameters) * math.ldexp(1.0, exponent) <= mu * scale / 1024
    ]
    assert public_grid(scale, Ball(parameters), mu) == (allowed[0] if allowed else -40)


def test_a_grid_that_costs_exactly_a_thousandth_is_fine_enough():
    assert public_grid(1.0, Ball(4), 2.0**-9) == -20  # sqrt 4 2^-20 = 2^-9 2^-10
    assert public_grid(1.0, Ball(4), math.nextafter(2.0**-9, 0.0)) == -21


def test_what_drawing_adds_is_counted_at_no_smaller_scale_than_the_noise_has():
    shape = EllipsoidNumbers(4, largest=16.0, least=0.25, inverse_trace=9.0, weights=1e6)
    region, found = calibrate_noise(Region("deposit", {"solver": 0.5}, shape=shape), 1.0, 1e-5)
    assert math.isfinite(found.scale)
    assert region.terms["drawing"] >= shape.drawing(found.scale) > 0.0
    assert region.terms["drawing"] == pytest.approx(shape.drawing(found.scale), rel=1e-5)
    assert found.scale == sigma_for(region.radius, 1.0, 1e-5)


def test_a_weight_as_far_as_float64_adds_exactly_is_taken_and_one_step_more_refused():
    inside = np.array([2.0**52 - 1.0, -(2.0**52 - 1.0)])
    assert rounded_sum(inside, 1e-9, 0, seeded_bytes(0)).tolist() == inside.tolist()
    for value in (2.0**52, -(2.0**52)):
        with pytest.raises(ModelError, match=r"more than 2\^52 grid steps"):
            rounded_sum(np.array([0.0, value]), 1.0, 0, seeded_bytes(0))


def test_noise_of_a_policy_is_handed_out_as_it_was_set_and_a_rung_is_climbed_until_it_is_enough():
    region = Region("residual", {"solver": 0.5}, shape=Ball(9))
    least = sigma_for(region.radius, 1.0, 1e-5)
    for value in (0.5 * least, 2.0 * least):
        rounded, found, required = choose_noise(region, 1.0, 1e-5, None, Scale("policy", value))
        assert found.scale == value
        assert found.grid_exponent == public_grid(value, Ball(9), mu_for(1.0, 1e-5))
        assert required == sigma_for(rounded.radius, 1.0, 1e-5) > least
    _, found, required = choose_noise(region, 1.0, 1e-5, None, Scale("ladder"))
    assert found.scale == 2.0 >= required > 1.0
    # a region that needs all of a rung: with its grid's term it needs the next
    whole = Region("residual", {"solver": 2.0 * mu_for(1.0, 1e-5) * (1.0 - 2e-9)}, shape=Ball(9))
    assert 1.0 < sigma_for(whole.radius, 1.0, 1e-5) <= 2.0
    assert choose_noise(whole, 1.0, 1e-5, None, Scale("ladder"))[1].scale == 4.0
    exact, noise_of_it, required = choose_noise(region, 1.0, 1e-5, None, Scale("exact"))
    assert (exact, noise_of_it) == calibrate_noise(region, 1.0, 1e-5)
    assert required == noise_of_it.scale
    endless = Region("residual", {"solver": math.inf}, shape=Ball(9))
    _, found, required = choose_noise(endless, 1.0, 1e-5, None, Scale("ladder"))
    assert (found.scale, found.grid_exponent, required) == (math.inf, -40, math.inf)


@pytest.mark.parametrize("first", [2.0**-20, 0.6, 0.995])  # where the bits, the cosine and the logarithm lose most
def test_how_near_to_the_middle_of_two_points_further_bits_are_asked_for(first, monkeypatch):
    """Within the arithmetic's error and no farther, on either side of the middle."""
    bits = (int(first * 2.0**64), 1 << 60)
    first = (float(bits[0]) + 0.5) * 2.0**-64
    radius = math.sqrt(-2.0 * math.log(first))
    drawn = radius * math.cos((float(bits[1]) + 0.5) * 2.0**-64 * 2.0 * math.pi)
    error = radius * 2.0**-48 + (2.0**-51 + 2.0**-64 / first) / radius
    asked = []
    monkeypatch.setattr(noise, "_settle", lambda *given: asked.append(given[:2]) or 0)
    for share, settled in ((0.9, 1), (-0.9, 1), (1.1, 0), (-1.1, 0)):
        asked.clear()
        noise.rounded_gaussian(1, 0.5 / (drawn - share * error), 0, lambda _: struct.pack("<2Q", *bits))
        assert asked == [bits] * settled, share


def test_noise_whose_drawing_always_needs_more_is_counted_twenty_times_and_then_is_none():
    class Greedy(Ball):
        def drawing(self, scale):
            return scale

    asked = []

    def twice(radius, epsilon, delta):
        asked.append(radius)
        return 2.0 ** len(asked)

    region, made = noise.calibrate_noise(Region("residual", {"solver": 1.0}, shape=Greedy(3)), 1.0, 1e-5, twice)
    assert len(asked) == 1 + 20
    assert (region.radius, made.scale) == (math.inf, math.inf)


# What the noise belongs to, and edges of the search for it --------------------------------------------------------


def test_what_noise_under_a_key_belongs_to_byte_for_byte():
    """Scale, grid and the values in steps of it, each in eight bytes, lowest first."""
    values = np.array([[0.3, -1.26], [2.0, 0.125]])
    assert Noise(0.5, -2, Ball(4)).centre(values) == struct.pack("<dq4q", 0.5, -2, 1, -5, 8, 0)


def test_an_epsilon_that_is_just_enough_is_found():
    assert smallest_epsilon(lambda epsilon: epsilon >= 3.0) == pytest.approx(3.0 * (1 + 1e-9), rel=1e-12)


def test_a_rung_that_is_just_enough_is_taken():
    """A calibration that asks for 2 whatever the radius: the rung of 2, not the next."""
    region = Region("residual", {"solver": 0.5}, shape=Ball(9))
    _, found, required = choose_noise(region, 1.0, 1e-5, lambda radius, epsilon, delta: 2.0, Scale("ladder"))
    assert (found.scale, required) == (2.0, 2.0)


def test_what_drawing_adds_is_counted_anew_at_a_millionth_more_than_was_needed():
    asked = []

    class Growing(Ball):
        def drawing(self, scale):
            asked.append(scale)
            return 1e-3 * scale

    region, made = calibrate_noise(Region("residual", {"solver": 1.0}, shape=Growing(3)), 1.0, 1e-5)
    # of each round: what is counted, what is then needed, and again what was counted
    assert asked[2] == asked[0] < asked[1]
    assert asked[3] == asked[1] * (1.0 + 2.0**-20)
    assert made.scale == sigma_for(region.radius, 1.0, 1e-5)


# Offsets, which are rounded together with the draw ----------------------------------------------------------------


@pytest.mark.parametrize("offset", [-0.5, -0.4, -0.2, 0.0, 0.2, 0.4, 0.5])
def test_an_offset_is_added_to_the_draw_before_it_is_rounded(offset):
    """sqrt(2 ln 2) = 1.1774 of a grid step, and its mirror image."""
    drawn = rounded_gaussian(2, 1.0, 0, Script([2**63] * 2, [0, 2**63]), np.full(2, offset))
    assert drawn.tolist() == [round(1.17741 + offset), round(-1.17741 + offset)]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_further_bits_are_asked_for_within_what_adding_an_offset_can_lose_as_well(sign, monkeypatch):
    """A draw of next to nothing, a quarter of a turn round, whose own error is 0.8 of 2^-54; the sum with an offset of a
    half may be off by (1/2 + 1) 2^-52, six times 2^-54. So 6 of them below the middle are in doubt, 7 are not."""
    bits = (2**63, 2**62)
    radius = math.sqrt(2.0 * math.log(2.0))
    own = radius * 2.0**-48 + (2.0**-51 + 2.0**-63) / radius
    asked = []
    monkeypatch.setattr(noise, "_settle", lambda *given: asked.append(given[-1]) or 0)
    for steps, settled in ((6, 1), (7, 0)):
        asked.clear()
        offset = sign * (0.5 - steps * 2.0**-54)
        rounded_gaussian(1, 0.8 * 2.0**-54 / own, 0, lambda _: struct.pack("<2Q", *bits), np.array([offset]))
        assert asked == [offset] * settled, steps


def test_the_uniforms_that_begin_with_some_bits_reach_from_these_to_the_next():
    assert noise._ends(5, 64) == (mpmath.ldexp(5, -64), mpmath.ldexp(6, -64))
    low, high = noise._ends(0, 64)
    assert 0 < low < mpmath.ldexp(1, -120), "kept off 0, far below the other end"
    assert high == mpmath.ldexp(1, -64)
