"""Block matrices by hand, and their eigenvalue bounds against fifty digits: also where float64 can hardly tell."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.deposit import matrices
from expunge.deposit.matrices import (
    CLOSE,
    UNIT_ROUNDOFF,
    Blocks,
    Norm,
    Shared,
    factored,
    is_definite,
    largest,
    most_shared,
    square_of,
    top_of,
)
from expunge.runtime import arrays as engine

pytestmark = pytest.mark.usefixtures("one_thread")
Array = Any
REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=60)
seeds = st.integers(0, 2**32 - 1)


def of(*matrices: Array, joint: bool = False) -> Blocks:
    return Blocks(np.stack(matrices).astype(np.float64), joint)


def spectrum(seed: int, size: int, condition: float) -> Array:
    """A symmetric matrix of that condition in random directions, one direction weak or all evenly spread."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(size, size)))[0]
    values = np.geomspace(1.0, 1.0 / condition, size) if seed % 2 else np.r_[np.ones(size - 1), 1.0 / condition]
    made = (axes * values) @ axes.T
    return (made + made.T) / 2


def exact(matrix: Array) -> mpmath.matrix:
    return mpmath.matrix(matrix.tolist())


def eigenvalues(matrix: Array) -> list[mpmath.mpf]:
    with mpmath.workdps(50):
        return list(mpmath.eigsy(exact(matrix), eigvals_only=True))


def ratio(matrix: Array, other: Array) -> mpmath.mpf:
    """`lambda_max(M^-1 A)` with fifty digits."""
    with mpmath.workdps(50):
        inverse = mpmath.cholesky(exact(matrix)) ** -1
        return max(mpmath.eigsy(inverse * exact(other) * inverse.T, eigvals_only=True))


def dual_length(matrix: Array, gradient: Array) -> mpmath.mpf:
    with mpmath.workdps(50):
        return mpmath.norm(mpmath.lu_solve(mpmath.cholesky(exact(matrix)), mpmath.matrix(gradient.tolist())))


# By hand --------------------------------------------------------------------------------------------------------------------

FIRST, SECOND = np.array([[4.0, 1.0], [1.0, 2.0]]), np.array([[9.0, 0.0], [0.0, 1.0]])
WEIGHTS = np.array([[1.0, 2.0], [3.0, -1.0]], dtype=np.float64)


def test_blocks_see_their_part_of_the_weights() -> None:
    apart, shared, whole = of(FIRST, SECOND), of(FIRST), of(np.kron(np.eye(2), FIRST), joint=True)
    assert apart.product(WEIGHTS).tolist() == [[6.0, 5.0], [27.0, -1.0]]
    assert shared.product(WEIGHTS).tolist() == whole.product(WEIGHTS).tolist() == [[6.0, 5.0], [11.0, 1.0]]
    assert apart.form(WEIGHTS) == 16.0 + 82.0
    assert shared.form(WEIGHTS) == whole.form(WEIGHTS) == 16.0 + 32.0
    assert (apart.size, whole.size) == (2, 4)


def test_sums_of_blocks_by_hand() -> None:
    made = of(FIRST, SECOND)
    assert made.plus(0.5).values.tolist() == [[[4.5, 1.0], [1.0, 2.5]], [[9.5, 0.0], [0.0, 1.5]]]
    diagonal = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float64)
    assert made.plus(diagonal).values.tolist() == [[[5.0, 1.0], [1.0, 4.0]], [[12.0, 0.0], [0.0, 5.0]]]
    assert made.values.tolist() == [FIRST.tolist(), SECOND.tolist()]  # as it was
    twice = made.combined(2.0, of(SECOND, FIRST), -1.0)
    assert twice.values.tolist() == [[[-1.0, 2.0], [2.0, 3.0]], [[14.0, -1.0], [-1.0, 0.0]]]
    assert made.times(0.5).values.tolist() == [[[2.0, 0.5], [0.5, 1.0]], [[4.5, 0.0], [0.0, 0.5]]]


def test_a_norm_by_hand() -> None:
    norm = Norm.of(of(FIRST, SECOND))
    assert norm is not None
    gradient = np.array([[6.0, 5.0], [27.0, -1.0]], dtype=np.float64)
    assert engine.to_numpy(norm.solved(gradient)) == pytest.approx(engine.to_numpy(WEIGHTS), rel=1e-9, abs=0.0)
    assert norm.dual(gradient) == pytest.approx(math.sqrt(98.0), rel=1e-8, abs=0.0)
    whole = Norm.of(of(np.kron(np.eye(2), FIRST), joint=True))
    assert whole is not None
    assert whole.dual(WEIGHTS) == pytest.approx(math.sqrt((2 - 4 + 16 + 18 + 6 + 4) / 7.0), rel=1e-8, abs=0.0)
    assert engine.to_numpy(whole.solved(WEIGHTS)) == pytest.approx(
        np.linalg.solve(FIRST, engine.to_numpy(WEIGHTS).T).T, rel=1e-9, abs=1e-15
    )


def test_bounds_by_hand() -> None:
    """Eigenvalues of FIRST are 3 +- sqrt 2; of both blocks the smallest and the largest count."""
    norm = Norm.of(of(FIRST, SECOND))
    assert norm is not None
    assert 1.0 / CLOSE / 1.001 < norm.least <= 1.0
    assert 9.0 <= largest(norm.matrix) < 9.0 * CLOSE * 1.001
    assert 3.0 - math.sqrt(2.0) >= Norm.of(of(FIRST)).least > 1.57
    assert 1.0 <= norm.most(norm.matrix) < CLOSE * 1.001
    assert 9.0 <= norm.most(of(np.eye(2), 9.0 * np.eye(2))) < 9.0 * CLOSE * 1.001  # the second, along its weak axis
    assert 10.0 <= norm.most(of(np.eye(2), 9.0 * np.eye(2)), 1.0) < 10.0 * CLOSE * 1.001


def test_rough_factors_prove_no_length_and_give_way_where_there_are_none() -> None:
    rough = Norm.rough(of(FIRST, SECOND))
    assert rough is not None
    assert rough.factor.dtype == np.float32
    assert engine.to_numpy(rough.solved(rough.matrix.product(WEIGHTS))) == pytest.approx(WEIGHTS, rel=1e-5)
    assert rough.dual(WEIGHTS) == math.inf
    assert 1.0 / CLOSE / 1.001 < rough.least <= 1.0, "this is proved, not believed"
    nearly_singular = Norm.rough(of(np.array([[1.0, 1.0], [1.0, 1.0 + 1e-9]])))
    assert nearly_singular is not None
    assert nearly_singular.factor.dtype == np.float64


@pytest.mark.parametrize(
    "matrix", [np.zeros((2, 2)), -np.eye(2), np.array([[1.0, 2.0], [2.0, 1.0]]), np.full((2, 2), np.nan)]
)
def test_what_is_not_definite_has_no_norm(matrix: Array) -> None:
    assert Norm.of(of(matrix)) is None
    assert Norm.of(of(np.eye(2), matrix)) is None
    assert factored(of(matrix)) is None


def test_what_was_lost_is_taken_off_before_the_test() -> None:
    assert is_definite(of(np.eye(2) * 1e-3))
    assert is_definite(of(np.eye(2) * 1e-3), 0.9e-3)
    assert not is_definite(of(np.eye(2) * 1e-3), 1.1e-3)


def test_a_matrix_that_passes_is_judged_alike_and_changed() -> None:
    for entry, lost in ((1e-3, 0.0), (1e-3, 0.9e-3), (1e-3, 1.1e-3), (-1.0, 0.0)):
        matrix = of(np.eye(2) * entry)
        assert is_definite(matrix, lost, in_place=True) == is_definite(of(np.eye(2) * entry), lost)
        assert float(matrix.values[0, 0, 0]) != entry


@pytest.mark.parametrize(("blocks_of", "size"), [(1, 1), (2, 7), (1, matrices.SMALL), (2, 2 * matrices.SMALL + 3)])
def test_the_square_of_triangular_factors_and_solves_by_them(blocks_of: int, size: int) -> None:
    generator = np.random.default_rng(size)
    factor = np.tril(generator.standard_normal((blocks_of, size, size)), -1)
    engine.add_to_diagonal(factor, abs(generator.standard_normal((blocks_of, size))) + 2.0 * size)
    square = square_of(factor)
    assert engine.equal(square, square.mT)
    bound = 2 * size * UNIT_ROUNDOFF * (abs(factor) @ abs(factor).mT)
    assert bool((abs(square - factor @ factor.mT) <= bound).all())
    columns = generator.standard_normal((blocks_of, size, 2))
    assert engine.to_numpy(
        Norm(of(np.eye(2)), factor).other_half(Norm(of(np.eye(2)), factor).half(square @ columns))
    ) == pytest.approx(engine.to_numpy(columns), rel=1e-9, abs=1e-12)


def test_a_factorisation_that_runs_to_its_end_proves_nothing_near_zero() -> None:
    """A singular matrix whose factors float64 finds all the same: it must not be called definite."""
    found = 0
    for seed in range(200):
        columns = np.random.default_rng(seed).normal(size=(6, 5))
        singular = columns @ columns.T
        singular = (singular + singular.T) / 2
        found += factored(of(singular)) is not None
        assert not is_definite(of(singular))
    assert found > 10


# Against fifty digits -------------------------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 6), st.floats(0.0, 15.5))
@REPRODUCIBLE
def test_bounds_are_true_and_close(seed: int, size: int, exponent: float) -> None:
    matrix = spectrum(seed, size, 10.0**exponent)
    norm = Norm.of(of(matrix, joint=True))
    values = eigenvalues(matrix)
    assert max(values) <= largest(of(matrix)) <= max(values) * 1.05
    if norm is None:
        assert min(values) < 40 * (size + 4) * UNIT_ROUNDOFF * np.trace(matrix)
        return
    assert 0.0 <= norm.least <= min(values)
    if exponent < 12:
        assert norm.least > 0.9 * min(values)
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(size, int(rng.integers(1, size + 1))))
    other = matrix * 1.5 if seed % 3 == 0 else columns @ columns.T
    true = ratio(matrix, other)
    assert norm.most(of(other, joint=True)) >= true
    if exponent < 10:
        assert norm.most(of(other, joint=True)) < 1.05 * true


@given(seeds, st.integers(1, 6), st.floats(0.0, 15.5))
@REPRODUCIBLE
def test_the_dual_length_is_certain(seed: int, size: int, exponent: float) -> None:
    matrix = spectrum(seed, size, 10.0**exponent)
    norm = Norm.of(of(matrix, joint=True))
    if norm is None:
        return
    gradient = np.random.default_rng(seed).normal(size=size)
    weak = np.linalg.eigh(matrix)[1][:, 0]
    for each in (gradient, weak):
        true, found = dual_length(matrix, each), norm.dual(each.copy()[None])
        assert found >= true
        if exponent < 10:
            assert found < 1.001 * true


def test_a_dual_length_without_what_the_factors_lost_would_be_false() -> None:
    """The product of the factors is not the matrix: by as much as the weak direction, in the end."""
    false = 0
    for seed in range(0, 120, 2):
        matrix = spectrum(seed, 4, 1e14)
        norm = Norm.of(of(matrix, joint=True))
        if norm is None:
            continue
        weak = np.linalg.eigh(matrix)[1][:, 0].copy()
        half = engine.solve_triangular(norm.factor, weak[None, :, None])
        false += float(engine.norm(half)) * (1.0 + 2.0**-30) < dual_length(matrix, weak)
    assert false > 5


def test_what_the_factors_and_the_solve_may_lose_is_charged_to_a_dual_length_by_hand() -> None:
    matrix = np.diag([1.0, 0.5, 1e-12])
    norm = Norm.of(of(matrix, joint=True))
    assert norm is not None
    one = np.array([[1.0, 0.0, 0.0]])
    factors = math.sqrt(1.0 + matrices.cholesky_error(norm.matrix) / norm.least)
    solve = 1.0 + 2.0 * 2.0 * 7 * 2.0**-53 * math.sqrt(2.0 * 1.5 / norm.least)
    assert solve > 1.0 + 2.0**-30
    assert norm.dual(one) == pytest.approx(factors * solve * (1.0 + 2.0**-30), rel=1e-11, abs=0.0)


def test_an_eigenvalue_bound_without_what_the_difference_lost_would_be_false() -> None:
    """Two seeds of 3,000 at which a Cholesky factorisation of `bound M - A` runs to its end and should not."""
    for seed in range(400):
        rng = np.random.default_rng(seed)
        matrix = spectrum(2 * seed, int(rng.integers(2, 4)), 10.0 ** rng.uniform(12, 15.3))
        norm = Norm.of(of(matrix, joint=True))
        if norm is not None:
            other = matrix * (1.0 + rng.uniform(0.0, 0.5))
            assert norm.most(of(other, joint=True)) >= ratio(matrix, other)


def test_where_the_factors_say_nothing_the_dual_length_is_infinite() -> None:
    matrix = of(np.diag([1.0, 1e-15]))
    norm = Norm(matrix, np.linalg.cholesky(matrix.values))
    assert norm.dual(np.ones((1, 2), dtype=np.float64)) == math.inf
    assert norm.least == 0.0 or norm.least <= 1e-15


def test_a_matrix_without_a_least_eigenvalue_has_zero_and_one_without_a_ratio_infinity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    singular = of(np.diag([1.0, 0.0]))
    norm = Norm(singular, np.eye(2, dtype=np.float64)[None])
    assert norm.most(of(np.eye(2))) == math.inf
    monkeypatch.setattr(matrices, "TRIES", 3)
    assert Norm(singular, np.eye(2, dtype=np.float64)[None]).least == 0.0
    monkeypatch.setattr(matrices, "TRIES", 0)
    assert largest(of(FIRST)) == of(FIRST).row_sum()


def shared_problem(
    seed: int, classes: int, width: int, exponent: float, *, joint: bool
) -> tuple[Array, Shared, Array, Norm]:
    """M, of clustered eigenvalues or nearly singular; a matrix for every class, and it written out; factors near M."""
    rng, size = np.random.default_rng(seed), classes * width if joint else width
    axes = np.linalg.qr(rng.normal(size=(size, size)))[0]
    values = np.geomspace(1.0, 10.0**-exponent, size)
    if seed % 3 == 1:  # two clusters, each of eigenvalues that agree in all digits but the last few
        values = np.where(np.arange(size) < size // 2, 1.0, 10.0**-exponent) * (1.0 + 1e-14 * rng.normal(size=size))
    made = (axes * np.maximum(values, 0.0)) @ axes.T
    made = (made + made.T) / 2
    columns = rng.normal(size=(width, int(rng.integers(1, width + 1))))
    own = columns @ columns.T
    written = np.kron(np.eye(classes) - 1.0 / classes, own) if joint else own
    near = Norm.of(of(made * rng.uniform(0.5, 2.0) + np.eye(size) * 0.3, joint=joint))
    assert near is not None
    return made, Shared(own, classes, joint), written, near


@given(seeds, st.integers(2, 3), st.integers(1, 3), st.floats(0.0, 15.5), st.booleans())
@REPRODUCIBLE
def test_a_matrix_for_every_class_is_bounded_without_factors(
    seed: int, classes: int, width: int, exponent: float, joint: bool
) -> None:
    """True with fifty digits, close where that can be told, and as far as it can be told with a matrix written out."""
    made, other, written, near = shared_problem(seed, classes, width, exponent, joint=joint)
    found = most_shared(of(made, joint=joint), other, 0.0, near)
    assert other.frobenius == pytest.approx(np.linalg.norm(written), rel=1e-12)
    least = min(eigenvalues(made))
    if least <= 0.0:
        return
    true = ratio(made, written)
    assert found >= true
    if exponent < 8:
        assert found <= max(true * 1.05, 1e-250)


def test_a_matrix_for_every_class_is_what_it_is_written_out() -> None:
    rng = np.random.default_rng(2)
    for joint in (True, False):
        made, other, written, _ = shared_problem(4, 3, 4, 3.0, joint=joint)
        columns = rng.normal(size=(1, len(made), 2))
        assert other.product(columns) == pytest.approx(written @ columns, rel=1e-12, abs=1e-13)
        assert other.taken_from(of(made, joint=joint)).values[0] == pytest.approx(made - written, rel=1e-13, abs=1e-15)
    alone = Shared(FIRST, 2, joint=False)
    blocks = of(4.0 * FIRST, FIRST)  # one for each of two classes: the second counts
    near = Norm.of(blocks)
    assert near is not None
    assert 1.0 <= most_shared(blocks, alone, 0.0, near) < CLOSE * 1.001
    slack = most_shared(of(np.eye(2), np.eye(2)), Shared(np.eye(2), 2, joint=False), 0.25, near)
    assert 1.25 <= slack < 1.5
    singular = of(np.diag([1.0, 0.0]), np.eye(2))
    assert most_shared(singular, Shared(np.eye(2), 2, joint=False), 0.0, near) == math.inf


# Found ----------------------------------------------------------------------------------------------------------------------


def test_lanczos_finds_the_largest_eigenvalue_of_large_blocks() -> None:
    rng = np.random.default_rng(0)
    size = matrices.SMALL + 44
    values = np.stack([np.diag(np.r_[np.linspace(0.0, 1.0, size - 1), top]) for top in (3.0, 5.0)])
    axes = np.linalg.qr(rng.normal(size=(size, size)))[0]
    made = Blocks(axes @ values @ axes.T, False)
    assert top_of(lambda vectors: made.values @ vectors, made.values) == pytest.approx(5.0, rel=1e-3, abs=0.0)
    assert 5.0 <= largest(made) <= 5.0 * CLOSE * 1.02
    norm = Norm.of(made.plus(0.5))
    assert norm is not None
    assert 0.4 < norm.least <= 0.5 + 1e-12
    assert 5.0 / 5.5 <= norm.most(made) < 0.95


@pytest.mark.parametrize("guess", [1e-6, 1e3])
def test_a_wrong_guess_is_corrected_or_only_costs(guess: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found is a guess; what is returned was proved."""
    norm = Norm.of(of(FIRST))
    assert norm is not None
    monkeypatch.setattr(matrices, "top_of", lambda image, like: guess)
    assert largest(of(FIRST)) >= 3.0 + math.sqrt(2.0)
    assert norm.most(of(np.eye(2))) >= 1.0 / (3.0 - math.sqrt(2.0))
    assert 0.0 < norm.least <= 3.0 - math.sqrt(2.0)
