"""Columns of tables: which is the label, and what they may hold."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from expunge import DataError
from expunge.rows.tables import label_array, table_arrays
from table_files import read

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2], pa.int8()),
        pa.array([True, False]),
        pa.array([1.5, 2.5], pa.float32()),
        pa.array([1, 2], pa.uint64()),
    ],
)
def test_parquet_columns(column: pa.Array, tmp_path: Path) -> None:
    stream = io.BytesIO()
    pq.write_table(pa.table({"a": column, "label": ["x", "y"]}), stream)
    found = read(tmp_path, stream.getvalue(), "parquet")
    assert found.features.tolist() == [[float(value)] for value in column.to_pylist()]


def test_parquet_categories_and_row_groups(tmp_path: Path) -> None:
    stream = io.BytesIO()
    names = pa.array(["b", "a", "b"]).dictionary_encode()
    pq.write_table(pa.table({"a": [1.0, 2.0, 3.0], "y": names}), stream, row_group_size=1)
    found = read(tmp_path, stream.getvalue(), "parquet")
    assert found.features.tolist() == [[1.0], [2.0], [3.0]]
    assert found.labels.tolist() == ["b", "a", "b"]


@pytest.mark.parametrize(
    ("header", "label"), [("a,y", None), ("a,label", None), ("a,species", "species"), ("y,a", "a")]
)
def test_label_column(header: str, label: str | None, tmp_path: Path) -> None:
    found = read(tmp_path, f"{header}\n1.5,2\n2.5,0\n".encode(), "csv", label)
    column = header.split(",").index(label or header.split(",")[1])
    table = np.array([[1.5, 2.0], [2.5, 0.0]])
    assert np.array_equal(found.labels, table[:, column])
    assert np.array_equal(found.features[:, 0], table[:, 1 - column])


def test_y_goes_before_label(tmp_path: Path) -> None:
    found = read(tmp_path, b"label,y\n5,0\n6,1\n", "csv")
    assert found.labels.tolist() == [0, 1]


def test_csv_with_a_byte_order_mark_and_dos_line_ends(tmp_path: Path) -> None:
    found = read(tmp_path, b"\xef\xbb\xbfa,y\r\n1.5,0\r\n2.5,1\r\n", "csv")
    assert found.features.tolist() == [[1.5], [2.5]]


def test_csv_with_very_many_columns(tmp_path: Path) -> None:
    """A line longer than a megabyte is unusual, not damaged."""
    wide = 70_000
    text = (
        ",".join([*(f"feature_number_{index}" for index in range(wide)), "y"])
        + "\n"
        + ",".join(["0.25"] * wide + ["1"])
        + "\n"
    )
    assert read(tmp_path, text.encode(), "csv").features.shape == (1, wide)


def test_an_empty_entry_of_a_dictionary_is_an_empty_cell() -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array(["a", None]))
    with pytest.raises(DataError, match="1 empty cells"):
        table_arrays(pa.table({"x": [1.0, 2.0, 3.0], "y": words}), Path("t"), "y", ["x"])


@pytest.mark.parametrize("coded", [False, True])
def test_a_label_is_the_name_of_a_class(coded: bool) -> None:
    for length, fits in ((1_000, True), (1_001, False)):
        labels = pa.array(["é" * length, "b", "b"])
        table = pa.table({"y": labels.dictionary_encode() if coded else labels})
        if fits:
            assert label_array(table, Path("t"), "y").tolist() == labels.to_pylist()
        else:
            with pytest.raises(DataError, match="1,001 characters"):
                label_array(table, Path("t"), "y")
