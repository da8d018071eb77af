"""Rows and labels made plain: what they hold, and what is refused with a remedy."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse

from expunge.errors import DataError
from expunge.sklearn.pipelines import read_labels, select_columns, to_dense

TABLE = np.array([[1.0, 0.0], [0.0, 2.5], [3.0, 0.0]])


@pytest.mark.parametrize(
    "given",
    [
        TABLE,
        TABLE.astype(object),
        TABLE.astype(np.float32),
        TABLE.tolist(),
        pd.DataFrame(TABLE),
        pl.DataFrame(TABLE),
        scipy.sparse.csr_matrix(TABLE),
        scipy.sparse.csr_array(TABLE),
        scipy.sparse.coo_matrix(TABLE),
    ],
)
def test_every_kind_of_table_is_the_same_numbers(given: object) -> None:
    found = to_dense(given, "it")
    assert found.dtype == np.float64
    assert np.array_equal(found, TABLE)


def test_sparse_rows_are_made_dense_where_memory_allows_and_no_further() -> None:
    rows = scipy.sparse.csr_matrix(np.eye(100))
    with patch("expunge.sklearn.pipelines.room", lambda: 2 * 8 * 100 * 100):
        assert np.array_equal(to_dense(rows, "it"), np.eye(100))
    with (
        patch("expunge.sklearn.pipelines.room", lambda: 2 * 8 * 100 * 100 - 1),
        pytest.raises(DataError, match=r"100 x 100; made dense they take .* MB.*max_features"),
    ):
        to_dense(rows, "it")


def test_words_where_the_classifier_begins_are_refused() -> None:
    with pytest.raises(DataError, match="OneHotEncoder"):
        to_dense(np.array([["a", 1.0]], dtype=object), "it")
    with pytest.raises(DataError, match="finite"):
        to_dense(np.array([[np.nan, 1.0]]), "it")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (np.array(["a", "b"], dtype=object), ["a", "b"]),
        (pd.Series(["a", "b"]), ["a", "b"]),
        (pd.Series(["a", "b"], dtype="category"), ["a", "b"]),
        (pl.Series(["a", "b"]), ["a", "b"]),
        (np.array([3, 4], dtype=object), [3, 4]),
        (np.array([True, False], dtype=object), [1, 0]),
        ([1.0, 2.0], [1, 2]),
    ],
)
def test_labels_of_every_kind(given: object, wanted: list[object]) -> None:
    assert read_labels(given, 2, "it").tolist() == wanted


@pytest.mark.parametrize("odd", [None, float("nan"), 1.5, b"a", 3])
def test_labels_that_are_mixed_or_missing_are_refused(odd: object) -> None:
    with pytest.raises(DataError, match="among labels of dtype object"):
        read_labels(np.array(["a", odd], dtype=object), 2, "it")


def test_columns_are_put_in_order_by_name() -> None:
    frame = pd.DataFrame(TABLE, columns=["x", "y"])
    for given in (frame[["y", "x"]], pl.from_pandas(frame)[["y", "x"]], pa.Table.from_pandas(frame[["y", "x"]])):
        assert np.array_equal(to_dense(select_columns(given, ("x", "y"), "it"), "it"), TABLE)
    assert select_columns(frame, ("x", "y"), "it") is frame
    assert select_columns(TABLE, ("x", "y"), "it") is TABLE
    assert select_columns(frame, None, "it") is frame
    with pytest.raises(DataError, match="no column 'z'"):
        select_columns(frame, ("x", "z"), "it")
