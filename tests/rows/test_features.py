"""What a row is: the norm bound is a fact afterwards, the caller's arrays are as they were; classes weighted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import reference
from asking import asked
from class_shift import example, shifted_problem
from expunge import Distance, unlearn, verify
from expunge.bounds import retained_bound
from expunge.certificate.claim import retained_facts
from expunge.certificate.dossier import Certificate
from expunge.errors import DataError, VacuousClaim
from expunge.heads import Rows
from expunge.mechanism import measure
from expunge.rows import as_features, as_labels, bound_rows, encode, weight_classes
from expunge.rows.features import require_finite, row_norms
from expunge.runtime import arrays as engine
from expunge.runtime.arrays import to_numpy

CPU = "cpu"


def ready(
    given: object,
    *,
    max_norm: float = 1.0,
    bias: bool = False,
    dtype: str = "float64",
    width: int | None = None,
) -> Rows:
    table = as_features(given, "rows")
    labels = np.zeros(len(table), np.int64)
    return bound_rows(
        table, labels, max_norm=max_norm, bias=bias, dtype=np.dtype(dtype), device=CPU, width=width, name="rows"
    )


# Features -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["f2", "f4", "f8", ">f8", ">f4", ">f2", "u1", "i1", "i2", ">i2", "u2", ">u2", "u4", "i8", "u8", "?"]
)
@pytest.mark.parametrize("layout", ["C", "F", "reversed", "strided", "read-only"])
def test_features_keep_their_values(dtype: str, layout: str) -> None:
    values = np.array([[0, 1, 1, 0], [1, 0, 1, 1], [0, 0, 0, 1]]).astype(dtype)
    array = {
        "C": values,
        "F": np.asfortranarray(values),
        "reversed": values[::-1][::-1, ::-1][:, ::-1],
        "strided": np.repeat(values, 2, axis=1)[:, ::2],
        "read-only": values.copy(),
    }[layout]
    array.flags.writeable = layout != "read-only"
    assert engine.double(as_features(array, "rows")).tolist() == values.astype(float).tolist()


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool]
)
def test_tensors_are_features_too(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1], [1, 1]], dtype=dtype)
    assert ready(tensor, max_norm=9.0).features.tolist() == [[0, 1], [1, 1]]


def test_plain_float64_is_not_copied() -> None:
    array = np.eye(3)
    assert np.shares_memory(as_features(array, "rows"), array)
    assert np.shares_memory(ready(array).features, array)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((2, 2), dtype=complex), "complex128"),
        (torch.zeros(2, 2, dtype=torch.complex64), "complex64"),
        (np.array([["1", "2"]]), "U1"),
        (np.array([[1, None]], dtype=object), "object"),
        (np.zeros((2, 2), dtype="M8[s]"), "datetime64"),
        (np.zeros(4), r"\(4,\)"),
        (np.float64(1.0), r"\(\)"),
        (np.zeros((1, 2, 3)), r"\(1, 2, 3\)"),
        (np.zeros((0, 3)), "no rows"),
        (np.zeros((3, 0)), "no feature columns"),
        ([[1.0, np.nan]], "row 0, column 1 is nan"),
        (torch.tensor([[1.0], [-torch.inf]]), "row 1, column 0 is -inf"),
        (np.full((20_000, 1), np.inf)[:, :1], "row 0, column 0 is inf"),
        ([[1.0, 2.0], [3.0]], "rows"),
        ("table.npz", "rows"),
        (None, "rows"),
    ],
    ids=str,
)
def test_features_that_cannot_be_used(values: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        as_features(values, "rows")


# Labels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1, 2], [0, 1, 2]),
        ([0.0, 1.0, 2.0], [0, 1, 2]),
        (np.array([0, 1, 2], dtype=np.uint8), [0, 1, 2]),
        (np.array([0, 1, 2], dtype=">i4"), [0, 1, 2]),
        (np.array([[0], [1], [2]]), [0, 1, 2]),
        (np.array([False, True, True]), [0, 1, 1]),
        (torch.tensor([0, 1, 2]), [0, 1, 2]),
        (["b", "a", "c"], ["b", "a", "c"]),
        ([-(2**63), 2**63 - 1, 0], [-(2**63), 2**63 - 1, 0]),
    ],
    ids=str,
)
def test_labels(values: object, expected: list[object]) -> None:
    assert as_labels(values, 3, "rows").tolist() == expected


@pytest.mark.parametrize(
    "values",
    [
        [0, 1],
        [0, 1, 2, 3],
        np.eye(3),
        np.int64(1),
        [0, 0.5, 1],
        [0, np.nan, 1],
        [0, np.inf, 1],
        [0, 1e300, 1],
        [0.0, 2.0**63, 1.0],
        np.array([0, 2**63, 1], dtype=np.uint64),
        np.array([0, 1, 1j]),
        np.array([b"a", b"b", b"c"]),
        np.array([1, None, 2], dtype=object),
        np.zeros(3, dtype="M8[s]"),
    ],
    ids=str,
)
def test_labels_that_cannot_be_used(values: object) -> None:
    with pytest.raises(DataError):
        as_labels(values, 3, "rows")


def test_encode() -> None:
    assert encode(np.array(["b", "a", "b"]), ("a", "b", "c"), "rows").tolist() == [1, 0, 1]
    assert encode(np.array([7, 3, 3]), (3, 7), "rows").tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("labels", "classes"), [(np.array([0, 3]), (0, 1)), (np.array(["0", "1"]), (0, 1)), (np.array([0, 1]), ("0", "1"))]
)
def test_encode_refuses_what_is_not_a_class(labels: np.ndarray, classes: tuple[int | str, ...]) -> None:
    with pytest.raises(DataError, match=r"is not a class|are not classes") as caught:
        encode(labels, classes, "rows")
    assert "capitals" not in str(caught.value)


# Preparation ----------------------------------------------------------------------------------------------------

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64)
USABLE = FLOATS.map(lambda value: value if abs(value) >= 1e-30 else 0.0)  # shorter rows are refused
TABLES = arrays.arrays(np.float64, arrays.array_shapes(min_dims=2, max_dims=2, max_side=5), elements=USABLE)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(table=TABLES, max_norm=st.floats(1e-3, 1e3), bias=st.booleans(), single=st.booleans())
def test_rows_are_within_the_bound(table: np.ndarray, max_norm: float, bias: bool, single: bool) -> None:
    before = table.copy()
    dtype = "float32" if single else "float64"
    rows = ready(table, max_norm=max_norm, bias=bias, dtype=dtype).features
    assert np.array_equal(table, before)
    assert rows.dtype == dtype
    assert rows.shape == (table.shape[0], table.shape[1] + bias)
    wide = engine.double(rows[:, : table.shape[1]])
    assert bool(np.isfinite(to_numpy(wide)).all())
    assert bool((np.linalg.norm(to_numpy(wide), axis=1) <= max_norm * (1 + 1e-15)).all())
    assert not bias or bool((rows[:, -1] == 1).all())


@settings(derandomize=True, deadline=None, max_examples=300)
@given(table=TABLES, max_norm=st.floats(1e-3, 1e3))
def test_long_rows_keep_their_direction_and_reach_the_bound(table: np.ndarray, max_norm: float) -> None:
    """However long: a row of 1e200 is scaled down like any other, not to zero."""
    largest = np.abs(table).max(axis=1, keepdims=True)
    scaled = table / np.where(largest > 0, largest, 1)
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(scaled, axis=1) * largest[:, 0] / max_norm  # at most a rounding from the true ratio
    rows = engine.to_numpy(ready(table, max_norm=max_norm).features)
    for row, original, direction, ratio in zip(rows, table, scaled, lengths, strict=True):
        if ratio > 1 + 1e-9:
            expected = direction / np.linalg.norm(direction) * max_norm
            assert np.allclose(row, expected, rtol=1e-9, atol=max_norm * 1e-12)
        elif ratio < 1 - 1e-9:
            assert np.array_equal(row, original)


def test_training_and_unlearning_scale_alike() -> None:
    """A row is prepared the same alone as among many."""
    table = np.random.default_rng(1).normal(size=(9000, 3)) * 5
    together = ready(table).features
    for index in (0, 17, 8191, 8192, 8999):
        assert engine.equal(ready(table[index : index + 1]).features[0], together[index])


@settings(derandomize=True, deadline=None)
@given(table=TABLES)
def test_norms_are_those_of_plain_arithmetic(table: np.ndarray) -> None:
    """To a few roundings, for rows as long and as short as float64 has them."""
    found = row_norms(torch.from_numpy(table))
    for row, norm in zip(table, found.tolist(), strict=True):
        assert norm == pytest.approx(math.hypot(*row), rel=1e-14, abs=1e-300)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64], ids=str)
@settings(derandomize=True, deadline=None)
@given(shape=st.tuples(st.integers(1, 40), st.integers(1, 40)), data=st.data())
def test_one_entry_that_is_not_finite_is_found(
    kind: torch.dtype, bad: float, shape: tuple[int, int], data: st.DataObject
) -> None:
    table = torch.ones(shape, dtype=kind)
    row, column = (data.draw(st.integers(0, size - 1)) for size in shape)
    require_finite(table, "rows")
    table[row, column] = bad
    with pytest.raises(DataError, match=f"row {row + 7}, column {column} is {bad}"):
        require_finite(table, "rows", before=7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_whose_powers_vanish_are_refused(dtype: torch.dtype) -> None:
    """Of rows of 1e-105 cubes are 0 in float64, and so is the bound on what was lost of them."""

    def made(rows: list[list[float]], *, bias: bool = False) -> Rows:
        table, labels = torch.tensor(rows, dtype=torch.float64), torch.zeros(len(rows), dtype=torch.int64)
        return bound_rows(table, labels, max_norm=1.0, bias=bias, dtype=dtype, device=torch.device("cpu"), name="it")

    for length in (1e-31, 1e-105, 5e-324):
        with pytest.raises(DataError, match="it: row 1 has length"):
            made([[1.0, 0.0], [0.0, length]])
        made([[1.0, 0.0], [0.0, length]], bias=True)
    made([[1.0, 1e-105], [0.0, 0.0], [1e-30, 0.0]])


pytestmark = pytest.mark.usefixtures("one_thread")


def test_weights_are_ratios_of_proportions() -> None:
    rows = Rows(torch.zeros(10, 1, dtype=torch.float64), torch.tensor([0] * 5 + [1] * 4 + [2]))
    matched = weight_classes(rows, (20, 80, 0), ("a", "b", "c"))
    assert matched.weights is not None
    np.testing.assert_allclose(
        to_numpy(matched.weights),
        to_numpy(torch.tensor([0.36] * 5 + [1.8] * 4, dtype=torch.float64)),
        rtol=1e-7,
        atol=1e-7,
    )
    assert len(matched) == 9  # the row of a class that the source had none of does not count
    assert matched.largest_weight == pytest.approx(1.8)
    assert matched.effective == pytest.approx(81 / (5 * 0.36**2 + 4 * 1.8**2))
    assert rows.effective == 10
    assert rows.largest_weight == 1.0


def test_a_class_of_the_source_that_is_absent_is_an_error() -> None:
    rows = Rows(torch.zeros(3, 1, dtype=torch.float64), torch.tensor([0, 0, 2]))
    with pytest.raises(DataError, match="no rows of class 'b'"):
        weight_classes(rows, (1, 5, 1), ("a", "b", "c"))


def test_a_pure_shift_of_class_proportions_is_removed_altogether() -> None:
    made = example("softmax", n=90)
    rng = np.random.default_rng(3)
    X, y = made["X"], rng.permutation(np.arange(90) % 3)
    source = Rows(torch.tensor(X), torch.tensor(y))
    times = np.array([1, 4, 9])[y]  # the surrogate: the source's rows, each class repeated another number of times
    surrogate = Rows(torch.tensor(np.repeat(X, times, axis=0)), torch.tensor(np.repeat(y, times)))
    matched = weight_classes(surrogate, (30, 30, 30), (0, 1, 2))
    head, W, U = made["head"], made["W"], made["U"]
    truth = head.change_mean(W, U, source)
    assert float(engine.norm(truth - head.change_mean(W, U, surrogate))) > 1e-3
    assert float(engine.norm(truth - head.change_mean(W, U, matched))) < 1e-14


def deltas(seed: int, **options: Any) -> tuple[float, float]:
    """Delta and the true distance to retraining."""
    model, X, y, gone, S = shifted_problem(seed)
    request = asked(model, (X[gone], y[gone]), S, epsilon=1.0, delta=0.01, force=True, **options)
    measured = measure(request, seed=1)
    assert isinstance(request.distance, Distance)
    total = retained_bound(retained_facts(measured.facts), request.distance, averaged=False).radius
    kept = np.setdiff1d(np.arange(len(X)), gone)
    target = reference.retrain(X[kept], y[kept], 3, 0.05, "softmax").weights
    return total, float(np.linalg.norm(target - engine.to_numpy(request.weights + measured.step.update)))


def test_the_bound_holds_under_a_shift_of_class_proportions() -> None:
    found = [deltas(seed, distance="same", match_classes=True) for seed in range(40)]
    assert all(truth <= total for total, truth in found)
    assert np.median([total / truth for total, truth in found]) < 35.0


def test_so_it_does_with_what_was_seen_where_that_is_not_refused() -> None:
    """Refused where a forget row changes more than every surrogate row: the surrogate then does not show all there is."""
    distance, found, refused = Distance("same", 0.0, sampling="seen"), [], []
    for seed in range(40):
        try:
            found.append(deltas(seed, distance=distance, match_classes=True))
        except VacuousClaim as refusal:
            refused.append(refusal.found)
    assert 0 < len(refused) < 10
    assert all("a forget row changes by" in words for words in refused)
    assert all(truth <= total for total, truth in found)
    assert np.median([total / truth for total, truth in found]) < 10.0


def certificate(**options: Any) -> Certificate:
    model, X, y, gone, S = shifted_problem(0, n=3000, s=3000)
    made = unlearn(
        model, (X[gone[:1]], y[gone[:1]]), S, epsilon=2.0, delta=1e-3, distance="same", match_classes=True, **options
    )
    return made.certificate


def test_a_certificate_with_matched_classes_says_so_and_verifies() -> None:
    found = certificate()
    verify(found)
    assert found.status == "conditional"
    assert found.content["distance"]["matched"] is True
    assert "weighted so that its classes have the source's proportions" in found.content["distance"]["meaning"]
    assert any("weighted by class" in sentence for sentence in found.content["assumptions"])
    assert 1 < found.content["data"]["effective_surrogate_rows"] < 3000
