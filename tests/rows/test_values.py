"""Cells as numbers, words and labels."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

from expunge.errors import DataError
from expunge.rows.values import MISSING, RawTable, as_labels_of, as_numbers, as_words, is_dates


def raw(values: list[object], typed: bool = False, kind: pa.DataType | None = None) -> RawTable:
    return RawTable(pa.table({"a": pa.array(values, kind)}), "t", typed)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", " 2.5 ", "-3e2"], [1.0, 2.5, -300.0]),
        (["1", "", "?", "NA", "n/a", "NaN", "none", "-", "null", "Missing"], [1.0] + [np.nan] * 9),
        (["true", "FALSE", ""], [1.0, 0.0, np.nan]),
        (["1", "inf"], [1.0, np.nan]),
        (["1", "x"], None),
        (["1,5", "2"], None),
    ],
)
def test_text_is_numbers_where_every_cell_is_one_or_empty(cells: list[str], expected: list[float] | None) -> None:
    found = as_numbers(pa.chunked_array([cells]))
    assert found is None if expected is None else np.array_equal(found, expected, equal_nan=True)


def test_a_comma_may_be_a_decimal_point_where_that_is_said() -> None:
    found = as_numbers(pa.chunked_array([["1,5", "-2", "?"]]), decimal_comma=True)
    assert np.array_equal(found, [1.5, -2.0, np.nan], equal_nan=True)
    assert as_numbers(pa.chunked_array([["1,500,000"]]), decimal_comma=True) is None


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None, 3], pa.int32()),
        pa.array([1.0, float("nan"), 3.0]),
        pa.array([1, None, 3], pa.int64()).dictionary_encode(),
        pa.array(["1", "", "3"]).dictionary_encode(),
    ],
)
def test_types_do_not_change_what_a_number_is(values: pa.Array) -> None:
    assert np.array_equal(as_numbers(pa.chunked_array([values])), [1.0, np.nan, 3.0], equal_nan=True)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([" b", "a ", "?", None, "b"]),
        pa.array(["b", "a", "NA", None, "b"]).dictionary_encode(),
        pa.array(["b", "a", "", None, "b"], pa.large_string()),
    ],
)
def test_words_have_no_spaces_around_them_and_empty_cells_none(values: pa.Array) -> None:
    words = as_words(pa.chunked_array([values]))
    assert [None if code < 0 else words.listed()[code] for code in words.codes] == ["b", "a", None, None, "b"]
    assert words.missing == 2
    assert words.longest == 1
    assert words.places(["a"]).tolist() == [-2, 0, -1, -1, -2]


def test_whole_numbers_as_words_have_no_point() -> None:
    assert as_words(pa.chunked_array([[1.0, 2.0, None]])).listed() == ["1", "2"]
    assert as_words(pa.chunked_array([[1.5, 2.0]])).listed() == ["1.5", "2"]
    assert as_words(pa.chunked_array([[True, False]])).listed() == ["true", "false"]


@pytest.mark.parametrize("cell", ["2024-01-31", "2024-01-31T10:20:30Z", "31.12.2024", "12/31/24", "2024/1/2", "10:30"])
def test_dates_are_known_by_how_they_are_written(cell: str) -> None:
    assert is_dates(pa.chunked_array([[cell, "", cell]]), typed=False)
    assert not is_dates(pa.chunked_array([[cell, "soon"]]), typed=False)
    assert not is_dates(pa.chunked_array([["", ""]]), typed=False)
    assert is_dates(pa.chunked_array([[datetime.date(2024, 1, 31)]]), typed=True)


def test_labels_are_whole_numbers_or_text() -> None:
    assert as_labels_of(raw(["1", "0", "1.0"]), "a").tolist() == [1, 0, 1]
    assert as_labels_of(raw([" yes", "no"]), "a").tolist() == ["yes", "no"]
    assert as_labels_of(raw(["1", "0"]), "a", text=True).tolist() == ["1", "0"]
    assert as_labels_of(raw(["1", "0"], typed=True), "a").tolist() == ["1", "0"]
    assert as_labels_of(raw(["none", "-"]), "a").tolist() == ["none", "-"]
    assert as_labels_of(raw([0.5, 1.0], typed=True), "a").tolist() == [0.5, 1.0]  # refused where classes are made


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["yes", "?", ""], "2 of 3 rows have no value in the label column"),
        (["x" * 2000, "y"], "a label of 2,000 characters"),
        ([datetime.date(2024, 1, 1)] * 2, "holds date32"),
    ],
)
def test_labels_that_are_none_are_refused(values: list[object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_labels_of(raw(values), "a")


def test_the_word_for_a_missing_value_is_no_value() -> None:
    assert MISSING not in as_words(pa.chunked_array([["a", None]])).listed()
