"""Tables: CSV as people write it, Parquet, frames; their cells as numbers, words and labels; what is too much."""

from __future__ import annotations

import datetime
import gzip
import io
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from expunge import DataError, ExpungeError, FileError, read_data
from expunge.rows.preparation import learn
from expunge.rows.tables import (
    MISSING,
    SAMPLE,
    Table,
    as_numbers,
    as_words,
    find_separator,
    frame_table,
    open_table,
)
from ordinary_tables import credit_lines, write_credit
from table_files import read, read_table

pytestmark = pytest.mark.usefixtures("one_thread")


# Cells ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", " 2.5 ", "-3e2"], [1.0, 2.5, -300.0]),
        (["1", "", "?", "NA", "n/a", "NaN", "none", "-", "null", "Missing"], [1.0] + [np.nan] * 9),
        (["true", "FALSE", ""], [1.0, 0.0, np.nan]),
        (["1", "inf"], [1.0, np.nan]),
        (["1", "x"], None),
        (["1,5", "2"], None),
        (pa.array([1, None, 3], pa.int32()), [1.0, np.nan, 3.0]),
        (pa.array([1.0, float("nan"), 3.0]), [1.0, np.nan, 3.0]),
        (pa.array([1, None, 3], pa.int64()).dictionary_encode(), [1.0, np.nan, 3.0]),
        (pa.array(["1", "", "3"]).dictionary_encode(), [1.0, np.nan, 3.0]),
    ],
)
def test_a_column_is_numbers_where_every_cell_is_one_or_empty(cells: object, expected: list[float] | None) -> None:
    found = as_numbers(pa.chunked_array([cells]))
    assert found is None if expected is None else np.array_equal(found, expected, equal_nan=True)


def test_a_comma_may_be_a_decimal_point_where_that_is_said() -> None:
    found = as_numbers(pa.chunked_array([["1,5", "-2", "?"]]), decimal_comma=True)
    assert np.array_equal(found, [1.5, -2.0, np.nan], equal_nan=True)
    assert as_numbers(pa.chunked_array([["1,500,000"]]), decimal_comma=True) is None


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
    assert (words.missing, words.longest) == (2, 1)
    assert words.places(["a"]).tolist() == [-2, 0, -1, -1, -2]
    assert MISSING not in words.listed()


def column(values: list[object], typed: bool = False, kind: pa.DataType | None = None) -> Table:
    return Table(pa.table({"a": pa.array(values, kind)}), "t", typed)


@pytest.mark.parametrize("cell", ["2024-01-31", "2024-01-31T10:20:30Z", "31.12.2024", "12/31/24", "2024/1/2", "10:30"])
def test_dates_are_known_by_how_they_are_written(cell: str) -> None:
    assert column([cell, "", cell]).has_dates("a")
    assert not column([cell, "soon"]).has_dates("a")
    assert not column(["", ""]).has_dates("a")
    assert not column([cell], typed=True).has_dates("a")
    assert column([datetime.date(2024, 1, 31)], typed=True).has_dates("a")


def test_labels_are_whole_numbers_or_text() -> None:
    assert column(["1", "0", "1.0"]).labels("a").tolist() == [1, 0, 1]
    assert column([" yes", "no"]).labels("a").tolist() == ["yes", "no"]
    assert column(["1", "0"]).labels("a", text=True).tolist() == ["1", "0"]
    assert column(["1", "0"], typed=True).labels("a").tolist() == ["1", "0"]
    assert column(["none", "-"]).labels("a").tolist() == ["none", "-"]
    assert column([0.5, 1.0], typed=True).labels("a").tolist() == [0.5, 1.0]  # refused where classes are made
    assert column([2**60 + 1, 0], typed=True).labels("a").tolist() == [2**60 + 1, 0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["yes", "?", ""], "2 of 3 rows have no value in the label column"),
        ([1, None], "1 of 2 rows have no value in the label column"),
        ([datetime.date(2024, 1, 1)] * 2, "holds date32"),
    ],
)
def test_labels_that_are_none_are_refused(values: list[object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        column(values).labels("a")


@pytest.mark.parametrize("coded", [False, True])
def test_a_label_is_the_name_of_a_class(coded: bool) -> None:
    for length in (1_000, 1_001):
        labels = pa.array(["é" * length, "b", "b"])
        table = Table(pa.table({"y": labels.dictionary_encode() if coded else labels}), "t", True)
        if length == 1_000:
            assert table.labels("y").tolist() == labels.to_pylist()
        else:
            with pytest.raises(DataError, match="1,001 characters"):
                table.labels("y")


# CSV -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_what_stands_between_cells_is_found(sign: str, tmp_path: Path) -> None:
    lines = [["name", "income", "y"], ["Anna", '"1, 2; 3"', "a"], ["Ben", "4", "b"]]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(sign.join(line) for line in lines) + "\n")
    assert find_separator(path.read_bytes()) == sign
    expected = {"name": ["Anna", "Ben"], "income": ["1, 2; 3", "4"], "y": ["a", "b"]}
    assert read_table(path).arrow.to_pydict() == expected


def test_a_decimal_comma_is_read_with_semicolons_only(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;y\n1,5;x\n")
    (tmp_path / "t.tsv").write_text("a\ty\n1,500\tx\n")
    assert read_table(tmp_path / "t.csv").numbers("a").tolist() == [1.5]
    assert read_table(tmp_path / "t.tsv").numbers("a") is None  # thousands, perhaps


@pytest.mark.parametrize("sign", [",", ";", "\t"])
@pytest.mark.parametrize("packed", [False, True])
def test_numbers_are_the_same_however_they_are_laid_out(sign: str, packed: bool, tmp_path: Path) -> None:
    text = f"\n\na{sign} b{sign}y\n1{sign}2.5{sign}x\n\n3{sign}-4{sign}z\n".encode()
    path = tmp_path / (("t.tsv" if sign == "\t" else "t.csv") + ".gz" * packed)
    path.write_bytes(gzip.compress(text, mtime=0) if packed else text)
    found = read_data(path)
    assert found.features.tolist() == [[1.0, 2.5], [3.0, -4.0]]
    assert found.labels.tolist() == ["x", "z"]
    assert found.feature_names == ("a", "b")
    assert read_data(path, columns=("b",)).features.tolist() == [[2.5], [-4.0]]
    assert read_table(path).arrow.to_pydict() == {"a": [1.0, 3.0], "b": [2.5, -4.0], "y": ["x", "z"]}


LATE = SAMPLE // 8  # a row that is far behind those that are looked at before a column is read as numbers


@pytest.mark.parametrize(
    ("odd", "numbers"),
    [(" 7 ", 7.0), ("?", np.nan), (" NA", np.nan), ("uNKnown", np.nan), ("+7", 7.0), ("inf", np.nan), ("true", None),
     ("2024-01-31", None), ("7,5", None)],
)  # fmt: skip
def test_a_column_is_what_all_of_its_cells_are_however_late_one_comes(
    odd: str, numbers: float | None, tmp_path: Path
) -> None:
    """Columns are read as numbers where the first lines are; a cell that is none, anywhere, decides like the first."""
    cells = [str(place % 50) for place in range(2 * LATE)]
    cells[LATE] = odd
    lines = [f'"{cell}",{place},w,{place % 2}' for place, cell in enumerate(cells)]
    (tmp_path / "t.csv").write_text("a,b,c,y\n" + "\n".join(lines) + "\n")
    table, expected = read_table(tmp_path / "t.csv"), as_numbers(pa.chunked_array([cells]))
    found = table.numbers("a")
    if numbers is None:
        assert found is expected is None
        assert table.words("a").listed() == [*map(str, range(50)), odd]
    else:
        assert found is not None
        assert np.array_equal(found, expected, equal_nan=True)
        assert np.array_equal(found[LATE], numbers, equal_nan=True)
    assert table.numbers("b").tolist() == list(range(2 * LATE))
    asked = open_table(tmp_path / "t.csv").read(["y", "a"], words=["a"])
    assert asked.arrow.column_names == ["y", "a"]
    assert asked.names == ["a", "b", "c", "y"]
    assert asked.arrow["a"].to_pylist() == cells


def test_a_line_may_be_longer_than_what_is_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge.rows.tables.CSV_BYTES", 1 << 10)
    (tmp_path / "t.csv").write_text("a,b,y\n1,x,0\n2," + "z" * 5_000 + ",1\n")
    assert read_table(tmp_path / "t.csv").numbers("a").tolist() == [1.0, 2.0]


def test_a_byte_order_mark_and_dos_line_ends(tmp_path: Path) -> None:
    found = read(tmp_path, b"\xef\xbb\xbfa,y\r\n1.5,0\r\n2.5,1\r\n", "csv")
    assert found.features.tolist() == [[1.5], [2.5]]
    assert found.feature_names == ("a",)


def test_columns_without_a_header_are_called_by_place_or_as_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("39, clerk, yes\n40, worker, no\n")
    assert read_table(path, header=False).names == ["0", "1", "2"]
    named = read_table(path, header=False, names=("age", "job", "pays"))
    assert named.names == ["age", "job", "pays"]
    assert named.words("job").listed() == ["clerk", "worker"]
    with pytest.raises(DataError, match="has 3 columns; 2 names"):
        read_table(path, header=False, names=("a", "b"))
    with pytest.raises(FileError, match="names are for files without one"):
        read_table(path, names=("a", "b", "c"))
    path.write_text("1,2,0\n3,4,1\n")
    assert read_data(path, "2", header=False).feature_names == ("0", "1")
    assert read_data(path, "c", header=False, names=["a", "b", "c"]).labels.tolist() == [0, 1]


def test_a_later_file_may_have_the_header_that_the_first_had_not(tmp_path: Path) -> None:
    (tmp_path / "bare.csv").write_text("39,clerk,yes\n")
    (tmp_path / "named.csv").write_text("age,job,pays\n39,clerk,yes\n")
    for name in ("bare.csv", "named.csv"):
        table = read_table(tmp_path / name, known=("age", "job", "pays"))
        assert table.arrow.to_pydict() == {"age": [39.0], "job": ["clerk"], "pays": ["yes"]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"a,y\n1,2\n1,2,3\n", r"is not a table .*',' between cells"),
        ("t.csv", b"a,a\n1,2\n", "two columns of one name, 'a'"),
        ("t.csv", b"a,b\n", "no rows"),
        ("t.csv.gz", gzip.compress(b"a,y\n" * 1000, mtime=0)[:30], "is not a table"),
        ("t.csv.gz", gzip.compress(b"", mtime=0), "Empty CSV file"),
    ],
)
def test_a_damaged_csv_is_said_to_be_one(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    for read_it in (read_table, lambda path: read_data(path, "a")):
        with pytest.raises(ExpungeError, match=message):
            read_it(tmp_path / name)


# Which column is which -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "label"), [("a,y", None), ("a,label", None), ("a,species", "species"), ("y,a", "a"), ("label,y", None)]
)
def test_label_column(header: str, label: str | None, tmp_path: Path) -> None:
    found = read(tmp_path, f"{header}\n1.5,2\n2.5,0\n".encode(), "csv", label)
    place = header.split(",").index(label or ("y" if "y" in header.split(",") else "label"))
    table = np.array([[1.5, 2.0], [2.5, 0.0]])
    assert np.array_equal(found.labels, table[:, place])
    assert np.array_equal(found.features[:, 0], table[:, 1 - place])


def test_a_missing_column_is_told_with_the_nearest_and_all_columns_once(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    names = [f"f{place}" for place in range(30)] + ["default"]
    path.write_text(",".join(names) + "\n" + ",".join("1" * 31) + "\n")
    with pytest.raises(FileError, match=r"no column 'Defualt'.*\(31 columns\).*Did you mean default\?") as caught:
        read_data(path, "Defualt")
    assert str(caught.value).count("f0,") == 1
    path.write_text("39,clerk\n40,worker\n")
    with pytest.raises(FileError, match="--no-header"):
        read_data(path, "age")


# Parquet and frames --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 2], pa.int8()),
        pa.array([True, False]),
        pa.array([1.5, 2.5], pa.float32()),
        pa.array([1, 2], pa.uint64()),
    ],
)
def test_parquet_columns(values: pa.Array, tmp_path: Path) -> None:
    stream = io.BytesIO()
    labels = pa.array(["x", "z"]).dictionary_encode()
    table = pa.table({"a": values, "word": ["u", "v"], "label": labels})
    pq.write_table(table.drop_columns(["word"]), stream, row_group_size=1)
    found = read(tmp_path, stream.getvalue(), "parquet")
    assert found.features.tolist() == [[float(value)] for value in values.to_pylist()]
    assert found.labels.tolist() == ["x", "z"]
    pq.write_table(table, tmp_path / "t.parquet")
    assert np.array_equal(read_data(tmp_path / "t.parquet", columns=["a"]).features, found.features)
    with pytest.raises(DataError, match="column 'word' holds text"):
        read_data(tmp_path / "t.parquet")


def test_parquet_keeps_its_types_and_what_has_none_of_ours_is_left_unread(tmp_path: Path) -> None:
    coded = pa.array(["1", "2"]).dictionary_encode()
    table = pa.table({"a": [1.5, None], "job": coded, "blob": [b"x", b"y"], "list": [[1], [2]], "y": [0, 1]})
    pq.write_table(table, tmp_path / "t.parquet")
    found = read_table(tmp_path / "t.parquet")
    assert found.typed
    assert np.array_equal(found.numbers("a"), [1.5, np.nan], equal_nan=True)
    assert found.words("job").listed() == ["1", "2"]
    assert found.arrow["blob"].null_count == found.arrow["list"].null_count == 2
    with pytest.raises(FileError, match="names its columns itself"):
        read_table(tmp_path / "t.parquet", header=False)
    (tmp_path / "t.pq").write_bytes((tmp_path / "t.parquet").read_bytes()[:-20])
    with pytest.raises(FileError, match="not a whole"):
        read_table(tmp_path / "t.pq")


def test_frames_of_all_kinds_are_the_same_table() -> None:
    columns = {"age": [39.0, None], "job": ["clerk", None]}
    pandas = pd.DataFrame(columns, index=[7, 9])

    class Streamed:
        """A library that Arrow knows nothing of."""

        columns = ("age", "job")

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.table(columns).__arrow_c_stream__(requested_schema)

    for frame in (pandas, pl.DataFrame(columns), pa.table(columns), pandas.astype({"job": "category"}), columns,
                  Streamed()):  # fmt: skip
        found = frame_table(frame, "the frame")
        assert found.names == ["age", "job"]
        assert np.array_equal(found.numbers("age"), [39.0, np.nan], equal_nan=True)
        assert found.words("job").codes.tolist() == [0, -1]
    with pytest.raises(DataError, match="columns that make no table"):
        frame_table(pd.DataFrame({"a": ["x", 1]}), "the frame")
    with pytest.raises(FileError, match="two columns of one name"):
        frame_table(pd.DataFrame([[1, 2]], columns=["a", "a"]), "the frame")


# Prepared as at training ---------------------------------------------------------------------------------------------


def test_a_model_s_preparation_is_applied_and_its_label_known(tmp_path: Path) -> None:
    preparation, _ = learn(read_table(write_credit(tmp_path / "a.csv")), "pays")
    write_credit(tmp_path / "b.csv", credit_lines(20, 5))
    found = read_data(tmp_path / "b.csv", preparation=preparation.to_json())
    assert np.array_equal(found.features, preparation.features(read_table(tmp_path / "b.csv")))
    assert set(found.labels.tolist()) <= {"yes", "no"}
    assert found.feature_names == preparation.feature_names
    with pytest.raises(FileError, match=r"--columns age.*names its columns"):
        read_data(tmp_path / "b.csv", columns=["age"], preparation=preparation.to_json())
    lines = [line.rsplit(";", 1)[0] for line in (tmp_path / "b.csv").read_text().splitlines()]
    (tmp_path / "c.csv").write_text("\n".join(lines) + "\n")
    unlabelled = read_data(tmp_path / "c.csv", preparation=preparation.to_json(), labelled=False)
    assert np.array_equal(unlabelled.features, found.features)
    with pytest.raises(FileError, match="no column 'pays'"):
        read_data(tmp_path / "c.csv", preparation=preparation.to_json())


# Wide, and too much --------------------------------------------------------------------------------------------------


def test_many_columns_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of hundreds of kilobytes is unusual, not damaged; where there is no room for its columns it is refused."""
    path, names = tmp_path / "a.csv", [f"a_rather_long_name_of_column_{place}" for place in range(20_000)]
    path.write_text("\n".join([",".join([*names, "y"]), ",".join(["0.25"] * len(names) + ["1"]), ""]))
    assert read_data(path).feature_names == tuple(names)
    monkeypatch.setenv("EXPUNGE_MAX_BYTES", "100000000")
    with pytest.raises(FileError, match="limit is"):
        read_data(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"a,b,c,y\n" + b"0,0,0,1\n" * 2_000_000),  # short values count by number, not by their text
        (
            "a.csv.gz",
            gzip.compress(b"a,y\n" + b"1,2\n" * 30_000_000, 1, mtime=0),
        ),  # refused before all of it is inflated
    ],
)
def test_what_is_too_much_is_refused(
    name: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPUNGE_MAX_BYTES", "100000000")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match="limit is"):
        read_data(tmp_path / name)
