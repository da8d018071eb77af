"""CSV as people write it: what stands between cells, compression, headers, limits."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from expunge.errors import DataError, FileError
from expunge.rows.raw_tables import read_raw
from expunge.rows.text_tables import inflated, open_text, separator_of, table_ending


@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_what_stands_between_cells_is_found(sign: str, tmp_path: Path) -> None:
    lines = [["name", "income", "y"], ["Anna", '"1, 2; 3"', "a"], ["Ben", "4", "b"]]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(sign.join(line) for line in lines) + "\n")
    raw = read_raw(path)
    assert separator_of(path.read_bytes()) == sign
    assert raw.table.to_pydict() == {"name": ["Anna", "Ben"], "income": ["1, 2; 3", "4"], "y": ["a", "b"]}


def test_a_decimal_comma_is_read_with_semicolons_only(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;y\n1,5;x\n")
    (tmp_path / "t.tsv").write_text("a\ty\n1,500\tx\n")
    assert read_raw(tmp_path / "t.csv").numbers("a").tolist() == [1.5]
    assert read_raw(tmp_path / "t.tsv").numbers("a") is None  # thousands, perhaps


@pytest.mark.parametrize("name", ["t.csv.gz", "t.tsv.gz"])
def test_compressed_files_are_read(name: str, tmp_path: Path) -> None:
    sign = "\t" if "tsv" in name else ","
    (tmp_path / name).write_bytes(gzip.compress(f"a{sign}y\n1{sign}x\n".encode()))
    assert read_raw(tmp_path / name).table.to_pydict() == {"a": ["1"], "y": ["x"]}


def test_a_file_that_inflates_to_too_much_is_refused_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"a,y\n" + b"1,2\n" * 20_000_000))
    monkeypatch.setenv("EXPUNGE_MAX_BYTES", "10000000")
    with pytest.raises(FileError, match="limit is"):
        inflated(path)


def test_a_damaged_file_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a,y\n" * 1000)[:30])
    with pytest.raises(FileError, match=r"not a whole \.gz file"):
        open_text(path)
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(FileError, match="is empty"):
        open_text(path)


def test_rows_of_other_lengths_are_refused_with_what_was_taken_for_the_separator(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,2\n1,2,3\n")
    with pytest.raises(FileError, match=r"is not a table .*',' between cells"):
        read_raw(tmp_path / "t.csv")
    (tmp_path / "u.csv").write_text("a,a\n1,2\n")
    with pytest.raises(FileError, match="two columns of one name, 'a'"):
        read_raw(tmp_path / "u.csv")
    (tmp_path / "v.csv").write_text("a,b\n")
    with pytest.raises(DataError, match="no rows"):
        read_raw(tmp_path / "v.csv")


def test_endings() -> None:
    endings = [table_ending(Path(name)) for name in ("a.csv", "a.b.CSV.GZ", "model.v2.parquet", "x")]
    assert endings == [".csv", ".csv.gz", ".parquet", ""]
