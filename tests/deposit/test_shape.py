"""The shape of a deposit's noise: second moments that rows leave without a trace, and a power of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import fractional_matrix_power
from sklearn.linear_model import LogisticRegression

from expunge.deposit import matrices
from expunge.deposit.file import Deposit
from expunge.deposit.matrices import (
    EXACT_BELOW,
    FEW_FEATURES,
    GRID,
    HALF,
    OFFSET,
    POWER,
    Gram,
    _in_no_row,
    centred_shape,
    gram_of,
    gram_share,
    powered,
    rested,
    shape_of,
    split,
    unsure,
    unused,
)
from expunge.deposit.membership import look_up, remove_rows
from expunge.door import ask
from expunge.errors import DataError
from expunge.evidence import foresee
from expunge.heads import Rows, head_for
from expunge.mechanism import measure
from expunge.model import from_matrix
from expunge.record import TrainingRecord
from expunge.request.promise import Promise
from expunge.runtime.arrays import double, equal, norm, to_numpy
from expunge.sklearn import deposit as keep_of
from expunge.sklearn import unlearn as unlearned
from expunge.unlearn import deposit

pytestmark = pytest.mark.usefixtures("one_thread")
Array = Any
REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=60)
LONGEST = 16383.0 * HALF + 16383.0


def rows_of(X: Array, y: Array | None = None) -> Rows:
    return Rows(np.asarray(X, dtype=float), np.zeros(len(X), dtype=np.int64) if y is None else y)


def same(one: Gram, other: Gram) -> bool:
    parts = all(equal(getattr(one, name), getattr(other, name)) for name in ("parts", "support", "off"))
    return parts and one.count == other.count and equal(one.mean, other.mean)


def whole_moments(X: Array) -> list[list[int]]:
    """Sums of products of features on the grid, in whole numbers of any length."""
    whole = [[round_to_grid(value) for value in row] for row in X]
    return [[sum(row[i] * row[j] for row in whole) for j in range(len(X[0]))] for i in range(len(X[0]))]


def round_to_grid(value: float) -> int:
    return int(min(max(round(value * 512.0 + 0.0656), -LONGEST), LONGEST))


# Features on the grid --------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-2e6, 2e6), min_size=1, max_size=30))
@REPRODUCIBLE
def test_parts_are_whole_numbers_of_fifteen_bits_and_make_the_feature_again(values: list[float]) -> None:
    features = np.array(values, dtype=np.float64)
    high, low = split(features)
    for part in (high, low):
        assert equal(part, part.round())
        assert float(abs(part).max()) <= 2.0**14
    inside = abs(features) * 512.0 < LONGEST - 1.0
    off = ((high * HALF + low) * GRID - features)[inside]
    assert float(abs(off - OFFSET * GRID).max() if len(off) else 0.0) <= 0.5 * GRID * (1.0 + 1e-6)
    assert [int(h * HALF + low_part) for h, low_part in zip(high, low, strict=True)] == list(map(round_to_grid, values))


def test_parts_by_hand() -> None:
    """A step is 1/512; `15 bits, sign included` are -16384 to 16383, and what is longer is cut off."""
    values = np.array([0.0, -0.0, 1.0, -1.0, 32.0, 64.0, -64.0, 1e9, -1e9, 0.5 / 512], dtype=np.float64)
    high, low = split(values)
    assert high.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, -1.0, 16383.0, -16383.0, 0.0]
    assert low.tolist() == [0.0, 0.0, 512.0, -512.0, -16384.0, 0.0, 0.0, 16383.0, -16383.0, 1.0]
    assert (GRID, HALF, EXACT_BELOW) == (2.0**-9, 2.0**15, 2.0**53)


def test_ordinary_numbers_are_far_from_where_rounding_turns() -> None:
    """So that a copy in float32 of a row that is not long is sure."""
    for parts in (10_000, 255, 256):
        features = double(np.arange(-4 * parts, 4 * parts + 1))[:, None] / parts
        assert not bool(unsure(features, np.full((len(features),), 1.5e-6, dtype=np.float64)).any())


def test_what_is_unsure_by_hand() -> None:
    turn = (0.5 - OFFSET) * GRID  # here a feature is rounded up
    values = [[0.0, turn + 1e-5], [0.0, turn - 1e-5], [5.0, turn + GRID], [0.0, 0.0]]
    features = np.array(values, dtype=np.float64)

    def doubtful(away: float) -> list[bool]:
        return unsure(features, np.full((4,), away, dtype=np.float64)).tolist()

    assert doubtful(0.99e-5) == [False, False, True, False]
    assert doubtful(1.01e-5) == [True, True, True, False]
    assert doubtful(0.0) == [False, False, True, False]
    for steps, doubted in ((0.95e-9, True), (1.05e-9, False)):  # what a division may change
        value = np.array([[turn + steps * GRID]], dtype=np.float64)
        assert unsure(value, np.zeros(1, dtype=np.float64)).item() is doubted
    mixed = np.array([2e-5, 0.0, 0.0, 0.0], dtype=np.float64)
    assert unsure(features, mixed).tolist() == [True, False, True, False], "row by row"


@given(st.integers(0, 10_000), st.floats(1e-9, 1e-3))
@REPRODUCIBLE
def test_a_copy_that_is_sure_is_on_the_same_point_of_the_grid(seed: int, away: float) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(20, 3)) * 10.0 ** rng.uniform(-3, 2)
    step = rng.normal(size=X.shape)
    copy = X + away * step / np.linalg.norm(step, axis=1, keepdims=True)
    sure = ~to_numpy(unsure(copy, np.full((20,), away * (1.0 + 1e-9), dtype=np.float64)))
    for one, other in zip(split(X[sure]), split(copy[sure]), strict=True):
        assert equal(one, other)


# Second moments --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 5), st.sampled_from([1e-3, 1.0, 300.0, 1e6]))
@REPRODUCIBLE
def test_moments_are_those_of_whole_numbers(seed: int, n: int, width: int, scale: float) -> None:
    X = np.random.default_rng(seed).standard_t(2, size=(n, width)) * scale
    gram = gram_of(rows_of(X))
    high, mixed, low = (part.tolist() for part in gram.parts)
    base = int(HALF)
    made = [
        [int(high[i][j]) * base**2 + int(mixed[i][j]) * base + int(low[i][j]) for j in range(width)]
        for i in range(width)
    ]
    assert made == whole_moments(X.tolist())
    expected = np.array(made, dtype=float) / 512.0**2 / n
    assert to_numpy(gram.mean) == pytest.approx(expected, rel=1e-12, abs=1e-18)
    assert gram.support.tolist() == (X != 0.0).sum(axis=0).tolist()


@given(st.integers(0, 10_000), st.sampled_from([1.0, 300.0]))
@REPRODUCIBLE
def test_rows_leave_the_moments_without_a_trace(seed: int, scale: float) -> None:
    """In any order, any number at a time, some of them twice: to the last bit those of what is left."""
    rng = np.random.default_rng(seed)
    n, width = int(rng.integers(6, 60)), int(rng.integers(1, 6))
    X = rng.standard_t(2, size=(n, width)) * scale * (rng.random((n, width)) < 0.7)
    X = np.concatenate([X, X[: n // 3]])
    order = rng.permutation(len(X))
    stay = int(rng.integers(1, len(X)))
    gram = gram_of(rows_of(X))
    going = order[stay:]
    while len(going):
        some = int(rng.integers(1, len(going) + 1))
        gram, going = gram.without(gram_of(rows_of(X[going[:some]]))), going[some:]
    kept = rng.permutation(order[:stay])
    assert same(gram, gram_of(rows_of(X[kept])))


def test_weights_of_classes_do_not_enter_the_moments() -> None:
    rows = rows_of(np.random.default_rng(0).normal(size=(10, 2)))
    assert same(gram_of(replace(rows, weights=double(np.linspace(0.1, 1.0, 10)))), gram_of(rows))


def test_features_that_no_row_has() -> None:
    X = np.array([[1.0, 0.0, 0.0, 1e-7], [0.0, -0.0, 2.0, 0.0]])
    gram = gram_of(rows_of(X))
    assert gram.support.tolist() == [1.0, 0.0, 1.0, 1.0]
    assert gram.unseen.tolist() == [1]
    assert gram.without(gram_of(rows_of(X[:1]))).unseen.tolist() == [0, 1, 3]


def test_sums_that_float64_would_round_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`2 sum of squares < 2^53` of either part: 16 million rows of the longest features are few enough."""
    assert EXACT_BELOW > 2.0 * 2**24 * 16383.0**2
    monkeypatch.setattr(matrices, "EXACT_BELOW", 2.0 * 3 * 2.0**18 + 1.0)
    gram_of(rows_of(np.ones((3, 1))))  # 512^2 of each in the low part
    gram_of(rows_of(np.full((3, 1), 512.0 * 64.0)))  # and of each in the high one
    for value in (1.0, 512.0 * 64.0):
        with pytest.raises(DataError, match="4 rows that float64 does not hold exactly"):
            gram_of(rows_of(np.full((4, 1), value)))
    monkeypatch.setattr(matrices, "EXACT_BELOW", 2.0 * 3 * 2.0**18)
    with pytest.raises(DataError, match="3 rows"):
        gram_of(rows_of(np.ones((3, 1))))


# The power and the shape -----------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.sampled_from([0.5, 0.75, 0.9]))
@REPRODUCIBLE
def test_a_power_of_a_matrix_is_scipy_s(seed: int, exponent: float) -> None:
    rng = np.random.default_rng(seed)
    width = int(rng.integers(1, 7))
    X = rng.normal(size=(width + 20, width)) * 10.0 ** rng.uniform(-1, 1, width)
    G = X.T @ X / len(X)
    scale = np.trace(G) / width
    expected = scale * fractional_matrix_power(G / scale, exponent)
    found = powered(G, exponent)
    assert to_numpy(found) == pytest.approx(expected, rel=1e-8, abs=1e-10 * scale)
    assert equal(found, found.T)
    assert equal(powered(G, 1.0), G)


def head(loss: str, classes: int = 3, width: int = 2) -> Any:
    return head_for(loss, l2=0.0, n_classes=classes, n_features=width, row_bound=9.0)


def test_the_share_of_the_moments_in_a_hessian() -> None:
    """Where all classes are as likely: the largest eigenvalue of C(p) is 1/K, a sigmoid's slope 1/4."""
    assert gram_share(head("ridge")) == 1.0
    assert gram_share(head("logistic", 1)) == gram_share(head("one-vs-rest", 7)) == 0.25
    for classes in (2, 3, 10):
        p = np.full(classes, 1.0 / classes)
        assert gram_share(head("softmax", classes)) == pytest.approx(
            np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))[-1]
        )


@pytest.mark.parametrize("loss", ["softmax", "logistic", "one-vs-rest", "ridge"])
def test_the_shape_is_a_power_of_the_moments_and_the_regulariser(loss: str) -> None:
    X = np.random.default_rng(2).normal(size=(50, 3)) * [1.0, 3.0, 0.2]
    gram, regulariser = gram_of(rows_of(X)), np.array([0.1, 0.1, 0.0], dtype=np.float64)
    own = head(loss, 1 if loss == "logistic" else 3, 3)
    factor = shape_of(own, gram, regulariser)
    assert factor is not None
    assert factor.shape == (1, 3, 3)
    assert equal(factor, np.tril(factor))
    G = to_numpy(gram.mean)
    scale = np.trace(G) / 3
    power = G if loss == "ridge" else scale * fractional_matrix_power(G / scale, 0.75)
    expected = gram_share(own) * power + np.diag([0.1, 0.1, 0.0])
    assert to_numpy(factor[0] @ factor[0].T) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_wide_tables_have_the_moments_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    gram = gram_of(rows_of(np.random.default_rng(2).normal(size=(50, 3)) * [1.0, 3.0, 0.2]))
    zero = np.full((3,), 0.01, dtype=np.float64)
    for most, expected in ((2, gram.mean), (3, powered(gram.mean, POWER))):
        monkeypatch.setattr(matrices, "FEW_FEATURES", most)
        factor = shape_of(head("logistic", 1, 3), gram, zero)
        assert factor is not None
        np.testing.assert_allclose(factor[0] @ factor[0].T, 0.25 * expected + np.diag(zero))
    assert FEW_FEATURES == 1_000


def test_there_is_no_shape_where_nothing_holds_a_direction() -> None:
    gram = gram_of(rows_of([[1.0, 0.0], [2.0, 0.0]]))
    assert shape_of(head("ridge"), gram, double(np.zeros(2))) is None
    assert shape_of(head("ridge"), gram, np.full((2,), 1e-3)) is not None


def test_the_shape_that_classes_see_by_hand() -> None:
    """`(I - 11'/K) x M_0`: of weights whose classes sum to zero their length, of what is common to all nothing."""
    factor = np.array([[[2.0, 0.0], [1.0, 3.0]]], dtype=np.float64)
    matrix = centred_shape(factor, 3)
    M0 = factor[0] @ factor[0].T
    assert matrix.shape == (6, 6)
    weights = np.random.default_rng(0).normal(size=(3, 2))
    centred = weights - weights.mean(axis=0)
    expected = float((centred @ M0 * centred).sum())
    for given_weights in (weights, centred, weights + np.array([7.0, -3.0])):
        flat = given_weights.reshape(-1)
        assert float(flat @ matrix @ flat) == pytest.approx(expected, rel=1e-12)
    assert float(abs(matrix @ np.kron(np.ones((3, 1)), np.eye(2))).max()) < 1e-14


# A deposit's shape and levels know the retained rows alone ---------------------------------------------------------------


def kept(X: Array, y: Array, loss: str, fixed_c: bool, seed: int) -> Deposit:
    """A deposit whose records agree in all that does not come from rows; each is made with noise of its own."""
    classes = 2 if loss == "logistic" else 3
    l2 = 1.0 / (0.5 * len(X)) if fixed_c else 0.02
    counts = tuple(np.bincount(y, minlength=classes).tolist())
    record = TrainingRecord(
        len(X), tuple(range(classes)), counts, l2, loss, 64.0, True, 0.0, provenance="declared",
        fixed_c=0.5 if fixed_c else None, free_bias=True if fixed_c else None,
    )  # fmt: skip
    zeros = np.zeros((1 if loss == "logistic" else classes, 4), dtype=np.float64)
    return deposit(from_matrix(zeros, bias=True, dtype=np.float64).with_record(record), X, y, seed=seed)


def without(before: Deposit, X: Array, y: Array) -> Deposit:
    membership = look_up(before, X, y)
    rows = rows_of(np.column_stack([X, np.ones(len(X))]), y)
    return remove_rows(before, rows, membership)


@pytest.mark.parametrize("loss", ["softmax", "logistic", "one-vs-rest", "ridge"])
@pytest.mark.parametrize("fixed_c", [False, True])
def test_shape_and_levels_are_the_same_whoever_left(loss: str, fixed_c: bool) -> None:
    """Sources of the retained rows with nobody, with somebody rare and long, with sixty others: the last bit is the same."""
    rng = np.random.default_rng(11)
    classes = 2 if loss == "logistic" else 3
    X = np.column_stack([rng.normal(size=(80, 2)), np.zeros(80)])
    y = rng.integers(0, classes, 80)
    y[:classes] = np.arange(classes)
    rare = np.array([[23.0, -17.3, 5.0]])  # the only one with the third feature
    many = rng.normal(size=(60, 3)) * 3.0
    alone = kept(X, y, loss, fixed_c, 1)
    seen = []
    for number, gone_rows in enumerate((rare, many)):
        labels = rng.integers(0, classes, len(gone_rows))
        order = rng.permutation(len(X) + len(gone_rows))
        source = np.concatenate([X, gone_rows])[order], np.concatenate([y, labels])[order]
        before = kept(*source, loss, fixed_c, number + 2)
        seen.append(without(before, gone_rows, labels))
        assert not equal(before.shape, alone.shape), "it did know them"
    halves = kept(np.concatenate([X, many]), np.concatenate([y, np.arange(60) % classes]), loss, fixed_c, 9)
    for part in (slice(0, 25), slice(25, 60)):
        halves = without(halves, many[part], (np.arange(60) % classes)[part])
    for after in (*seen, halves):
        assert equal(after.shape, alone.shape)
        assert after.levels == alone.levels
        assert after.output_noise == alone.output_noise
        assert (after.ellipsoid.largest, after.ellipsoid.least) == (alone.ellipsoid.largest, alone.ellipsoid.least)
        assert after.ellipsoid.inverse_trace == alone.ellipsoid.inverse_trace
        assert same(after.gram, alone.gram)
        assert after.record.l2 == pytest.approx(alone.record.l2, rel=1e-12)
        assert after.penalty(80).l2 == alone.penalty(80).l2
        assert float(abs(after.anchor[:, 2]).max()) == 0.0, "nobody has the feature any more"
        parts = (after.sums.gradient[:, 2], after.sums.curvature.diagonal.reshape(-1, 4)[:, 2])
        assert max(float(abs(part).max()) for part in parts) == 0.0


# Directions that no row has --------------------------------------------------------------------------------------------


def people(rng: np.random.Generator, n: int) -> Array:
    """Two numbers, four categories, three categories, a constant."""
    categories = np.eye(4)[rng.integers(0, 4, n)], np.eye(3)[rng.integers(0, 3, n)]
    return np.column_stack([rng.normal(size=(n, 2)), *categories, np.ones(n)])


def test_a_constant_is_all_categories_of_a_column() -> None:
    X = people(np.random.default_rng(0), 50)
    found = to_numpy(unused(gram_of(rows_of(X))))
    assert found.shape == (2, 10)
    assert np.abs(X @ found.T).max() == 0.0
    wanted = np.array([[0, 0, 1, 1, 1, 1, 0, 0, 0, -1], [0, 0, 0, 0, 0, 0, 1, 1, 1, -1.0]])
    assert np.linalg.matrix_rank(np.concatenate([found, wanted])) == 2


def test_only_what_no_row_has_exactly_is_such_a_direction() -> None:
    X = people(np.random.default_rng(0), 50)
    for change in (2.0**-9, 1e-15, -1.0):  # a step of the grid, a last digit, another number altogether
        odd = X.copy()
        odd[7, -1] += change
        found = to_numpy(unused(gram_of(rows_of(odd))))
        assert len(found) == 1, "two columns still say the same of each other"
        assert np.abs(odd @ found.T).max() == 0.0
        assert found[0, -1] == 0.0
    assert len(unused(gram_of(rows_of(X[:, :2])))) == 0
    thirds = np.column_stack([X[:, 2], X[:, 2] / 3.0])  # not on the grid, and no whole number of the other
    assert len(unused(gram_of(rows_of(thirds)))) == 0
    wide = np.random.default_rng(1).integers(-(2**20), 2**20, size=(6, 9)).astype(float)  # more features than rows
    assert np.abs(wide @ to_numpy(unused(gram_of(rows_of(wide)))).T).max(initial=0.0) == 0.0


def test_a_direction_is_in_no_row_where_whole_numbers_say_so_and_float64_holds_them() -> None:
    half = int(HALF)
    for parts in (
        (0, 0, 0),
        (1, -half, 0),
        (0, 1, -half),
        (1, 1 - half, -half),
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
        (0, half, 0),
    ):
        wanted = parts[0] * half**2 + parts[1] * half + parts[2] == 0
        assert _in_no_row(np.array(parts, dtype=float)[:, None, None], np.ones((1, 1))).tolist() == [wanted], parts
    both = np.full((3, 2, 2), 2.0**40)
    assert _in_no_row(both, np.array([[1.0, -1.0], [2.0**20, -(2.0**20)]])).tolist() == [True, False]


@pytest.mark.parametrize("free", [False, True])
def test_weights_at_rest_have_the_same_outputs_and_what_the_regulariser_puts_there(free: bool) -> None:
    rng = np.random.default_rng(3)
    X, weights = people(rng, 60), (rng.normal(size=(3, 10)))
    X[:, 3] = 0.0  # nobody has the second category: those who had have none
    regulariser = np.full((10,), 0.02, dtype=np.float64)
    regulariser[-1] = 0.0 if free else 0.02
    weights[:, 3] = 0.0
    gram = gram_of(rows_of(X))
    made, lost = rested(weights, gram, regulariser)
    directions = unused(gram)
    assert len(directions) == 1, "the other column is no constant any more"
    assert float(np.linalg.norm(X @ (made - weights).T, axis=1).max()) <= lost * float(np.sqrt((X**2).sum(1)).max())
    assert 0.0 < lost < 1e-12
    assert float(abs((directions * regulariser) @ made.T).max()) <= 1e-15
    assert float(norm(made - weights)) > 0.1
    again, _ = rested(made + (rng.normal(size=(3, 1))) * directions, gram, regulariser)
    assert np.allclose(again, made, rtol=0.0, atol=1e-13), "whatever was there is gone"


def with_somebody(label: int | None) -> Array:
    """A source in which she alone has the fourth category, or, without a label, one of the same rows without her."""
    rng = np.random.default_rng(8)
    X, y = people(rng, 4_000)[:, :-1], rng.integers(0, 2, 4_000)
    X[:, 4] += X[:, 5]
    X[:, 5] = 0.0
    if label is None:
        return X[1:], y[1:]
    X[0, 2:6], y[0] = [0.0, 0.0, 0.0, 1.0], label
    return X, y


@pytest.mark.parametrize("label", [0, 1])
def test_what_her_category_weighed_is_not_in_the_weights_of_the_others(label: int) -> None:
    """Weights of a column's categories sum to zero at an optimum; without hers the others would sum to its opposite."""
    X, y = with_somebody(label)
    model = LogisticRegression(tol=1e-10, max_iter=1000).fit(X, y)
    before = keep_of(model, X, y, seed=1)
    after = unlearned(model, (X[:1], y[:1]), before, epsilon=1.0, delta=1e-3).deposit
    hers = float(before.anchor[0, 5])
    assert hers * (label - 0.5) > 0.1, "she moves it"
    assert abs(float(after.anchor[0, 2:6].sum())) <= 1e-12
    alone = keep_of(LogisticRegression().fit(*with_somebody(None)), *with_somebody(None), seed=1)
    assert abs(float(alone.anchor[0, 2:6].sum())) <= 1e-12
    assert after.gram.off.tolist() == alone.gram.off.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_the_refit_is_inside_where_no_row_has_directions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = people(rng, 1_500)[:, :-1]
    y = (rng.logistic(size=len(X)) + X[:, 0] + X[:, 3] > 0.2).astype(int)
    chosen = rng.choice(len(X), int(rng.integers(1, 12)), replace=False)
    if seed % 2:  # all of a category leave
        chosen = np.union1d(chosen, np.flatnonzero(X[:, 8] == 1.0)[:3])
        X[np.setdiff1d(np.flatnonzero(X[:, 8] == 1.0), chosen), 6:9] = [1.0, 0.0, 0.0]
    stay = np.setdiff1d(np.arange(len(X)), chosen)
    model = LogisticRegression(tol=1e-10, max_iter=1000).fit(X, y)
    before = keep_of(model, X, y, seed=seed)
    request = ask(None, (X[chosen], y[chosen]), None, Promise(1.0, 1e-3, force=True), deposit=before)
    measured = measure(request)
    refit = LogisticRegression(solver="newton-cholesky", tol=1e-14, max_iter=1000).fit(X[stay], y[stay])
    goal = np.column_stack([refit.coef_, refit.intercept_])
    deposit = measured.retained.deposit
    assert deposit is not None
    away = deposit.length(request.weights + measured.step.update - goal)
    radius = foresee(request, measured)[1].region.radius
    assert away <= radius + 1e-11
    assert radius < 1e-3
