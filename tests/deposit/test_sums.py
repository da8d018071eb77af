"""What a deposit adds up: against dense sums in longer numbers, with errors that are stated, also after many rows have left."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deposit_problems import LONG, LOSSES, Problem, drawn, gradient, hessian, whole
from expunge.deposit.matrices import Blocks, Gram, gram_of
from expunge.deposit.sums import (
    COARSE,
    CURVATURE_SIZE,
    GAUGE_MU,
    KAPPA_SLACK,
    NU,
    Gauge,
    Sums,
    gauges_of,
    is_joint,
    sums_of,
)
from expunge.heads import Rows
from expunge.runtime.arrays import to_numpy

pytestmark = pytest.mark.usefixtures("one_thread")
Array = Any
REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=25)
problems = st.builds(
    drawn,
    st.integers(0, 10_000),
    st.sampled_from(LOSSES),
    n=st.integers(12, 80),
    width=st.integers(1, 5),
    classes=st.integers(2, 5),
    l2=st.sampled_from([1e-6, 1e-2, 1.0]),
    tails=st.sampled_from([2.0, 50.0]),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    steps=st.sampled_from([0, 2, 50]),
)


def norm_of(difference: Array) -> float:
    """Spectral, of a matrix in longer numbers."""
    return float(np.linalg.norm(difference.astype(np.float64), 2))


def squares_of(gauge: Gauge, X: Array) -> Array:
    """`x' Q^-1 x` in longer numbers, by substitution."""
    factor, halves = to_numpy(gauge.factor).astype(LONG), np.zeros(X.T.shape, dtype=LONG)
    for i in range(len(factor)):
        halves[i] = (X.T.astype(LONG)[i] - factor[i, :i] @ halves[:i]) / factor[i, i]
    return (halves**2).sum(axis=0)


def true_sums(problem: Problem, which: Array) -> tuple[Array, Array, list[Array]]:
    X, y = problem.X[which], problem.y[which]
    weighted = [hessian(problem.anchor, X, problem.loss, squares_of(gauge, X)) for gauge in problem.gauges]
    return gradient(problem.anchor, X, y, problem.loss), hessian(problem.anchor, X, problem.loss), weighted


def off(problem: Problem, sums: Sums, which: Array) -> tuple[float, float, list[float]]:
    """By how much the sums are off."""
    g, H, weighted = true_sums(problem, which)
    return (
        float(np.linalg.norm((to_numpy(sums.gradient) - g).astype(np.float64))),
        norm_of(whole(to_numpy(sums.curvature.values), problem) - H),
        [
            norm_of(whole(to_numpy(own.values), problem) - true)
            for own, true in zip(sums.weighted, weighted, strict=True)
        ],
    )


def require_within(problem: Problem, sums: Sums, which: Array) -> None:
    g, H, weighted = off(problem, sums, which)
    assert g <= sums.gradient_error
    assert sums.curvature_error >= H
    assert all(error <= stated for error, stated in zip(weighted, sums.weighted_errors, strict=True))


# By hand --------------------------------------------------------------------------------------------------------------------

TWO = Rows(np.array([[1.0, 0.0], [0.0, 2.0]], dtype=np.float64), np.array([0, 1]))


def test_sums_by_hand() -> None:
    """At zero weights every p is 1/2: C(p) is 1/4 (1 -1; -1 1), a sigmoid's slope 1/4, ridge's 1."""
    for loss, classes in (("logistic", 1), ("one-vs-rest", 2), ("ridge", 2), ("softmax", 2)):
        problem = Problem(loss, to_numpy(TWO.features), to_numpy(TWO.labels), 2, np.zeros((classes, 2)), 0.1)
        sums = sums_of(problem.head, np.zeros((classes, 2), dtype=np.float64), TWO)
        squares = np.diag([0.5, 2.0])
        expected = {
            "logistic": squares[None] / 4,
            "one-vs-rest": np.stack([squares / 4] * 2),
            "ridge": squares[None],
            "softmax": np.kron([[1, -1], [-1, 1]], squares)[None] / 4,
        }[loss]
        assert np.array_equal(to_numpy(sums.curvature.values), expected)
        assert sums.curvature.joint == is_joint(problem.head) == (loss == "softmax")
        assert (sums.count, sums.weighted, sums.weighted_errors) == (2, (), ())
    assert sums.gradient.tolist() == [[-0.25, 0.5], [0.25, -0.5]]  # softmax: (1/2 - t) x, halved


def test_rows_leave_by_hand() -> None:
    def made(count: int, g: float, h: float, error: float) -> Sums:
        matrix = Blocks(np.full((1, 1, 1), h, dtype=np.float64), False)
        return Sums(
            count,
            np.full((1, 1), g, dtype=np.float64),
            matrix,
            (matrix.times(2.0),),
            error,
            2 * error,
            (4 * error,),
        )

    left = made(10, 1.0, 0.5, 1e-3).without(made(2, 3.0, 1.0, 1e-2))
    assert left.count == 8
    assert left.gradient.item() == 0.5  # (10 - 6)/8
    assert left.curvature.values.item() == 0.375
    assert left.weighted[0].values.item() == 0.75
    added = 2.0**-8  # the power of two above 0.25e-2: what the rows that go add tells no more of them
    assert left.gradient_error == pytest.approx(1.25e-3 + added, rel=1e-11, abs=0.0)
    assert left.curvature_error == pytest.approx(2 * 1.25e-3 + 2 * added, rel=1e-11, abs=0.0)
    assert left.weighted_errors[0] == pytest.approx(4 * 1.25e-3 + 4 * added, rel=1e-11, abs=0.0)
    with pytest.raises(ValueError, match="10 of 10 rows"):
        made(10, 1.0, 0.5, 0.0).without(made(10, 1.0, 0.5, 0.0))
    exact = made(10, 1.0, 0.5, 0.0).without(made(2, 3.0, 1.0, 0.0))
    # a length of 1 for a curvature of 0.375, and half a step of it for the gradient; rounding adds less than as much
    assert exact.gradient_error == pytest.approx(COARSE, rel=1e-11, abs=0.0)
    assert exact.curvature_error == pytest.approx(4.0 * COARSE, rel=1e-11, abs=0.0)
    unknown = made(10, 1.0, 0.5, 0.0).without(made(2, 3.0, 1.0, math.inf))
    assert (unknown.gradient_error, unknown.curvature_error, *unknown.weighted_errors) == (math.inf,) * 3


def test_what_errors_say_of_rows_that_go_is_a_power_of_two() -> None:
    """To the last digit an error would be a number of the rows that left: those of two rows must be the same, or far."""
    problem = drawn(7, "softmax", n=60)
    for name in ("gradient_error", "curvature_error"):
        own = getattr(problem.sums, name) * 60 / 59
        added = [getattr(problem.sums.without(problem.of([row])), name) / (1.0 + 2.0**-40) - own for row in range(60)]
        exponents = np.log2(np.array(added))
        assert np.abs(exponents - np.round(exponents)).max() < 1e-2
        assert len(set(np.round(exponents))) <= 8


def test_nothing_is_left_where_no_retained_row_has_two_features_together() -> None:
    """A text of rare words: pairs of them that nobody else has would stay behind as rounding, and spell it out."""
    rng = np.random.default_rng(0)
    X = np.zeros((40, 30))
    for row in range(39):
        X[row, rng.choice(15, size=5, replace=False) + 15 * (row % 2)] = rng.uniform(0.1, 1.0, size=5)
    X[39, [1, 4, 9, 17, 22, 26]] = rng.uniform(0.1, 1.0, size=6)  # the only one with words of both kinds
    problem = Problem("logistic", X, np.arange(40) % 2, 2, rng.normal(size=(1, 30)), 0.1)
    sums = problem.sums.without(problem.of([39]))
    plain = problem.sums.curvature.combined(40 / 39, problem.of([39]).curvature, -1 / 39)
    apart = plain.values[0, :15, 15:]
    assert bool((apart != 0.0).any()), "so that this can fail"
    for matrix in (sums.curvature, *sums.weighted):
        assert not bool(matrix.values[0, :15, 15:].any())


def test_no_curvature_of_a_row_is_larger_than_the_errors_take() -> None:
    """`||C(p)||_F <= sqrt(1/2)`, attained by two classes that share a row."""
    rng = np.random.default_rng(0)
    for classes in (2, 3, 8):
        p = rng.dirichlet(np.full(classes, 0.4), size=2000)
        curved = np.einsum("nk,kl->nkl", p, np.eye(classes)) - p[:, :, None] * p[:, None, :]
        assert np.sqrt((curved**2).sum(axis=(1, 2))).max() <= CURVATURE_SIZE + 1e-12
    half = np.full((2, 2), -0.25) + 0.5 * np.eye(2)
    assert np.linalg.norm(half) == pytest.approx(0.5, rel=1e-9, abs=0.0)
    assert np.linalg.norm(half) < CURVATURE_SIZE


# Against longer numbers ------------------------------------------------------------------------------------------------------


@given(problems)
@REPRODUCIBLE
def test_sums_are_off_by_no_more_than_they_say(problem: Problem) -> None:
    everything = np.arange(problem.n)
    require_within(problem, problem.sums, everything)
    g, H, weighted = true_sums(problem, everything)
    assert to_numpy(problem.sums.gradient) == pytest.approx(g.astype(float), rel=1e-9, abs=1e-12 * problem.row_bound)
    size = norm_of(H)
    assert off(problem, problem.sums, everything)[1] <= 1e-12 * size + 1e-14 * problem.row_bound**2
    assert len(weighted) == (0 if problem.loss == "ridge" else 2)


@given(problems, st.integers(0, 2**31))
@REPRODUCIBLE
def test_what_is_left_after_many_rows_have_gone_is_off_by_no_more_than_it_says(problem: Problem, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(problem.n)
    kept, sums = problem.n, problem.sums
    while kept > 2:
        gone = max(1, kept // 3)
        sums = sums.without(problem.of(order[kept - gone : kept]))
        kept -= gone
    assert sums.count == kept
    require_within(problem, sums, order[:kept])


@pytest.mark.parametrize("loss", ["softmax", "logistic", "one-vs-rest"])
def test_confident_rows_do_not_cancel_beyond_what_is_charged(loss: str) -> None:
    """The trap: `p - p^2` of a row with p near 1 keeps no digit; the error charged must cover all of H."""
    problem = drawn(5, loss, n=40, scale=1.0)
    confident = replace(problem, anchor=problem.anchor * 60.0 / np.abs(problem.anchor).max())
    require_within(confident, confident.sums, np.arange(40))
    p = 1.0 / (1.0 + np.exp(-np.linspace(30.0, 45.0, 5)))
    assert np.any(p * (1.0 - p) != p * np.exp(-np.linspace(30.0, 45.0, 5)) * p)  # where 1 - p is a difference


def test_weights_of_rows_enter_every_sum_and_every_error() -> None:
    problem = drawn(1, "one-vs-rest", n=30)
    shares = np.random.default_rng(0).dirichlet(np.ones(30)) * 30
    rows = replace(problem.rows(slice(None)), weights=shares)
    weights = problem.anchor
    sums = sums_of(problem.head, weights, rows, problem.gauges)
    H = hessian(problem.anchor, problem.X, problem.loss, shares)
    assert norm_of(whole(to_numpy(sums.curvature.values), problem) - H) <= sums.curvature_error
    for gauge, own in zip(problem.gauges, sums.weighted, strict=True):
        true = hessian(problem.anchor, problem.X, problem.loss, shares * squares_of(gauge, problem.X))
        assert whole(to_numpy(own.values), problem).astype(float) == pytest.approx(
            true.astype(float), rel=1e-9, abs=1e-9
        )
    for error, plain in (
        (sums.curvature_error, problem.sums.curvature_error),
        (sums.gradient_error, problem.sums.gradient_error),
    ):
        assert 0.5 <= error / (plain * shares.max()) <= 2.0, "both are powers of two"
    joint = drawn(1, "softmax", n=30)
    rows = replace(joint.rows(slice(None)), weights=shares)
    sums = sums_of(joint.head, joint.anchor, rows, joint.gauges)
    true = hessian(joint.anchor, joint.X, "softmax", shares * squares_of(joint.gauges[0], joint.X))
    assert to_numpy(sums.weighted[0].values[0]) == pytest.approx(true.astype(float), rel=1e-9, abs=1e-9)


# Gauges -----------------------------------------------------------------------------------------------------------------------


class Silent:
    """In the place of a generator: no noise."""

    def normal(self, size: Any) -> Array:
        return np.zeros(size)


def bare_moments(rows: Rows) -> Array:
    """The matrix that the noise is added to."""
    gauge = gauges_of(rows, gram_of(rows), Silent(), 1)[0]  # type: ignore[arg-type]
    widening = 2.2 * cut_square(rows) / len(rows) * math.sqrt(rows.n_features)
    return to_numpy(gauge.factor @ gauge.factor.T) - widening * np.eye(rows.n_features)


def cut_square(rows: Rows) -> float:
    """c^2: the mean square of rows, up to a power of two."""
    return 2.0 ** math.ceil(math.log2(float(gram_of(rows).mean.trace())))


def test_gauges_by_hand() -> None:
    """Rows of length 2 and 4, mean square 10, so c^2 = 16 and nothing is cut; noise of 8 an entry."""
    rows = Rows(np.array([[2.0, 0.0], [0.0, 4.0]], dtype=np.float64), np.array([0, 1]))
    assert cut_square(rows) == 16.0
    gauges = gauges_of(rows, gram_of(rows), Silent())  # type: ignore[arg-type]
    assert len(gauges) == len(NU) == 2
    for gauge, nu in zip(gauges, (0.0, 0.1), strict=True):
        Q = np.diag([2.0, 8.0]) + (2.2 * 8.0 * math.sqrt(2.0) + nu * 16.0 / 2) * np.eye(2)
        assert to_numpy(gauge.factor @ gauge.factor.T) == pytest.approx(Q, rel=1e-14, abs=0.0)
        largest = max(4.0 / Q[0, 0], 16.0 / Q[1, 1])
        assert gauge.kappa**2 == pytest.approx(2.0 ** math.ceil(math.log2(largest * KAPPA_SLACK**2)), rel=1e-14)
        assert gauge.squares(rows.features).tolist() == pytest.approx(
            [4.0 / Q[0, 0], 16.0 / Q[1, 1]], rel=1e-9, abs=0.0
        )
        assert gauge.length(np.array([[1.0, 1.0], [0.0, 3.0]], dtype=np.float64)).tolist() == pytest.approx(
            [math.sqrt(Q.trace()), 3.0 * math.sqrt(Q[1, 1])], rel=1e-9, abs=0.0
        )
    assert len(gauges_of(rows, gram_of(rows), Silent(), 1)) == 1  # type: ignore[arg-type]
    none = Rows(np.zeros((3, 2), dtype=np.float64), np.zeros(3, dtype=np.int64))
    assert gauges_of(none, gram_of(none), np.random.default_rng(0)) == ()


def test_long_rows_are_cut_in_a_gauge() -> None:
    """99 rows of length 1 and one of 10: mean square 1.99, c^2 = 2, and the long one counts as of length sqrt(2)."""
    features = np.zeros((100, 2), dtype=np.float64)
    features[:, 0] = 1.0
    features[0] = np.array([6.0, 8.0])
    rows = Rows(features, np.zeros(100, dtype=np.int64))
    expected = np.array([[0.99 + 0.02 * 0.36, 0.02 * 0.48], [0.02 * 0.48, 0.02 * 0.64]])
    assert bare_moments(rows) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(st.integers(0, 10_000), st.sampled_from([0.01, 1.0, 1e4]))
@REPRODUCIBLE
def test_one_row_moves_the_moments_of_a_gauge_by_no_more_than_its_noise_hides(seed: int, times: float) -> None:
    """A row of zeros in the place of one by at most `c^2/n`, another row by at most sqrt(2) times that."""
    rng = np.random.default_rng(seed)
    n, width = int(rng.integers(5, 60)), int(rng.integers(1, 6))
    X = rng.standard_t(3, size=(n, width))
    many = np.concatenate([X, rng.normal(size=(2, width)) * times])
    labels = np.zeros(n + 1, dtype=np.int64)
    both = [np.concatenate([X, row[None]]) for row in (many[-1], many[-2], np.zeros(width))]
    one, other, none = (Rows(each, labels) for each in both)
    # whoever is there, rows are cut to the same length: the power of two is public but for those that turn it
    fixed = gram_of(one)
    made = [_moments(each, fixed) for each in (one, other, none)]
    most = 2.0 ** math.ceil(math.log2(float(fixed.mean.trace()))) / (n + 1) / GAUGE_MU
    assert np.linalg.norm(made[0] - made[2]) <= most * (1.0 + 1e-9)
    assert np.linalg.norm(made[0] - made[1]) <= math.sqrt(2.0) * most * (1.0 + 1e-9)


def _moments(rows: Rows, gram: Gram) -> Array:
    gauge = gauges_of(rows, gram, Silent(), 1)[0]  # type: ignore[arg-type]
    return to_numpy(gauge.factor @ gauge.factor.T)


def test_the_noise_of_gauges_has_the_deviation_that_hides_a_row() -> None:
    """1,000 draws: every entry of the lower half is Gaussian, of deviation `c^2/n`, and the matrix is symmetric."""
    rng = np.random.default_rng(3)
    rows = Rows(rng.normal(size=(50, 3)) * [1.0, 2.0, 3.0], np.zeros(50, dtype=np.int64))
    gram, generator, bare = gram_of(rows), np.random.default_rng(4), _moments(rows, gram_of(rows))
    draws = []
    for _ in range(1000):
        found = gauges_of(rows, gram, generator, 1)
        if found:
            draws.append(to_numpy(found[0].factor @ found[0].factor.T) - bare)
    assert len(draws) > 990
    noise = np.array(draws)
    assert np.abs(noise - noise.transpose(0, 2, 1)).max() < 1e-12
    deviation = cut_square(rows) / 50 / GAUGE_MU
    assert noise.std(axis=0) == pytest.approx(np.full((3, 3), deviation), rel=0.12)
    assert np.abs(noise.mean(axis=0)).max() < 5.0 * deviation / math.sqrt(1000)


@given(st.integers(0, 10_000), st.floats(0.0, 6.0))
@REPRODUCIBLE
def test_lengths_by_a_gauge_are_as_accurate_as_it_says(seed: int, exponent: float) -> None:
    rng = np.random.default_rng(seed)
    width = int(rng.integers(2, 9))
    factor = np.linalg.cholesky(
        np.cov(
            (rng.normal(size=(60, width)) * np.geomspace(1.0, 10.0**-exponent, width))
            @ rng.normal(size=(width, width)),
            rowvar=False,
        )
    )
    gauge = Gauge(factor, 1.0)
    X, Q = rng.normal(size=(20, width)), factor @ factor.T
    true = squares_of(gauge, X)
    found = to_numpy(gauge.squares(X)).astype(LONG)
    assert np.all(np.abs(found / true - 1) <= 2.0 * gauge.lost)
    for vectors in (X, np.linalg.eigh(Q)[1].T.copy()):
        exact = np.sqrt(((vectors.astype(LONG) @ factor.astype(LONG)) ** 2).sum(axis=1))
        lengths = to_numpy(gauge.length(vectors))
        assert np.all(lengths >= exact)
        assert np.all(lengths <= exact * (1 + 3 * gauge.lost))


@given(problems)
@REPRODUCIBLE
def test_every_row_is_inside_its_gauge_and_no_range_exceeds_it(problem: Problem) -> None:
    """`|(u_j - u_k) x| <= kappa_x ||u_j - u_k||_Q <= kappa ||u_j - u_k||_Q`, by Cauchy and Schwarz."""
    u = np.random.default_rng(0).normal(size=problem.X.shape[1])
    for gauge in problem.gauges:
        squares = squares_of(gauge, problem.X)
        assert np.all(np.sqrt(squares) <= gauge.kappa)
        assert np.sqrt(squares.max()) >= gauge.kappa / KAPPA_SLACK / 1.0001 / math.sqrt(2.0)
        assert math.log2(gauge.kappa**2) == pytest.approx(round(math.log2(gauge.kappa**2)), abs=1e-12)
        length = gauge.length(u[None]).item()
        assert np.all(np.abs(problem.X @ u) <= np.sqrt(squares) * length)
