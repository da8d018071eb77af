"""Tables as they are: files with and without header, Parquet, frames; and columns that are missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from expunge.errors import DataError, FileError
from expunge.rows.raw_tables import raw_frame, read_raw, require_columns


def test_columns_without_a_header_are_called_by_place_or_as_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("39, clerk, yes\n40, worker, no\n")
    assert read_raw(path, header=False).columns == ["0", "1", "2"]
    named = read_raw(path, header=False, names=("age", "job", "pays"))
    assert named.columns == ["age", "job", "pays"]
    assert named.words("job").listed() == ["clerk", "worker"]
    with pytest.raises(DataError, match="has 3 columns; 2 names"):
        read_raw(path, header=False, names=("a", "b"))
    with pytest.raises(FileError, match="names are for files without one"):
        read_raw(path, names=("a", "b", "c"))


def test_a_later_file_may_have_the_header_that_the_first_had_not(tmp_path: Path) -> None:
    known = ("age", "job", "pays")
    (tmp_path / "bare.csv").write_text("39,clerk,yes\n")
    (tmp_path / "named.csv").write_text("age,job,pays\n39,clerk,yes\n")
    for name in ("bare.csv", "named.csv"):
        assert read_raw(tmp_path / name, known=known).table.to_pydict() == {
            "age": ["39"], "job": ["clerk"], "pays": ["yes"],
        }  # fmt: skip


def test_parquet_keeps_its_types_and_what_has_none_of_ours_is_left_unread(tmp_path: Path) -> None:
    coded = pa.array(["1", "2"]).dictionary_encode()
    table = pa.table({"a": [1.5, None], "job": coded, "blob": [b"x", b"y"], "list": [[1], [2]], "y": [0, 1]})
    pq.write_table(table, tmp_path / "t.parquet")
    raw = read_raw(tmp_path / "t.parquet")
    assert raw.typed
    assert np.array_equal(raw.numbers("a"), [1.5, np.nan], equal_nan=True)
    assert raw.words("job").listed() == ["1", "2"]
    assert raw.table["blob"].type == raw.table["list"].type == pa.null()
    with pytest.raises(FileError, match="names its columns itself"):
        read_raw(tmp_path / "t.parquet", header=False)
    (tmp_path / "t.pq").write_bytes((tmp_path / "t.parquet").read_bytes()[:-20])
    with pytest.raises(FileError, match="not a whole"):
        read_raw(tmp_path / "t.pq")


def test_frames_of_all_kinds_are_the_same_table() -> None:
    columns = {"age": [39.0, None], "job": ["clerk", None]}
    pandas = pd.DataFrame(columns, index=[7, 9])
    for frame in (pandas, pl.DataFrame(columns), pa.table(columns), pandas.astype({"job": "category"})):
        raw = raw_frame(frame, "the frame")
        assert raw.columns == ["age", "job"]
        assert np.array_equal(raw.numbers("age"), [39.0, np.nan], equal_nan=True)
        assert raw.words("job").codes.tolist() == [0, -1]
    with pytest.raises(DataError, match="values of several kinds"):
        raw_frame(pd.DataFrame({"a": ["x", 1]}), "the frame")
    with pytest.raises(DataError, match="two columns of one name"):
        raw_frame(pd.DataFrame([[1, 2]], columns=["a", "a"]), "the frame")


def test_a_missing_column_is_told_with_the_nearest_and_all_columns_once(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    names = [f"f{place}" for place in range(30)] + ["default"]
    path.write_text(",".join(names) + "\n" + ",".join("1" * 31) + "\n")
    with pytest.raises(FileError, match=r"no column 'Defualt'.*\(31 columns\).*Did you mean default\?") as caught:
        require_columns(read_raw(path), ["Defualt"], "it is needed")
    assert str(caught.value).count("f0,") == 1
    path.write_text("39,clerk\n40,worker\n")
    with pytest.raises(FileError, match="--no-header"):
        require_columns(read_raw(path), ["age"], "it is needed")
