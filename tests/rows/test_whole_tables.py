"""Tables read whole: ready numbers, whatever the layout, and columns that a preparation makes into features."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from expunge.errors import ExpungeError, FileError
from expunge.rows import read_data
from expunge.rows.learning import learn
from expunge.rows.raw_tables import read_raw
from expunge.rows.whole_tables import Layout, read_table
from ordinary_tables import credit_lines, write_credit


@pytest.mark.parametrize("sign", [",", ";", "\t"])
@pytest.mark.parametrize("packed", [False, True])
def test_numbers_are_the_same_however_they_are_laid_out(sign: str, packed: bool, tmp_path: Path) -> None:
    text = f"a{sign}b{sign}y\n1{sign}2.5{sign}x\n3{sign}-4{sign}z\n".encode()
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(text) if packed else text)
    features, labels, names = read_table(path, Layout())
    assert features.tolist() == [[1.0, 2.5], [3.0, -4.0]]
    assert labels.tolist() == ["x", "z"]
    assert names == ("a", "b")
    assert read_table(path, Layout(columns=("b",)))[0].tolist() == [[2.5], [-4.0]]


def test_a_table_without_a_header_and_many_columns(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1,2,0\n3,4,1\n")
    assert read_data(tmp_path / "t.csv", "2", header=False).feature_names == ("0", "1")
    assert read_data(tmp_path / "t.csv", "c", header=False, names=["a", "b", "c"]).labels.tolist() == [0, 1]
    wide = ",".join(["y", *(f"f{place}" for place in range(4100))])
    (tmp_path / "w.csv").write_text(f"{wide}\n" + "\n".join(",".join(["1", *["2"] * 4100]) for _ in range(2)) + "\n")
    assert read_data(tmp_path / "w.csv").features.shape == (2, 4100)
    assert read_data(tmp_path / "w.csv", columns=["f7", "f2"]).feature_names == ("f7", "f2")


def test_columns_of_parquet_can_be_chosen(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1.0, 2.0], "word": ["x", "z"], "y": [0, 1]}), tmp_path / "t.parquet")
    assert read_data(tmp_path / "t.parquet", columns=["a"]).features.tolist() == [[1.0], [2.0]]
    with pytest.raises(ExpungeError, match="word"):
        read_data(tmp_path / "t.parquet")


def test_a_model_s_preparation_is_applied_and_its_label_known(tmp_path: Path) -> None:
    made = learn(read_raw(write_credit(tmp_path / "a.csv")), "pays").preparation
    write_credit(tmp_path / "b.csv", credit_lines(20, 5))
    read = read_data(tmp_path / "b.csv", preparation=made.to_json())
    assert np.array_equal(read.features, made.features(read_raw(tmp_path / "b.csv")))
    assert set(read.labels.tolist()) <= {"yes", "no"}
    assert read.feature_names == made.feature_names
    with pytest.raises(FileError, match=r"--columns age.*names its columns"):
        read_data(tmp_path / "b.csv", columns=["age"], preparation=made.to_json())
    lines = [line.rsplit(";", 1)[0] for line in (tmp_path / "b.csv").read_text().splitlines()]
    (tmp_path / "c.csv").write_text("\n".join(lines) + "\n")
    assert np.array_equal(
        read_data(tmp_path / "c.csv", preparation=made.to_json(), labelled=False).features, read.features
    )
    with pytest.raises(FileError, match="no column 'pays'"):
        read_data(tmp_path / "c.csv", preparation=made.to_json())


def test_arrays_have_no_columns_to_choose(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", X=np.ones((2, 2)), y=[0, 1])
    for options in ({"label": "y"}, {"columns": ["a"]}, {"header": False}, {"names": ["a"]}):
        with pytest.raises(FileError, match="only tables"):
            read_data(tmp_path / "t.npz", **options)
    assert len(read_data(tmp_path / "t.npz", preparation={"ignored": "an npz file has ready features"}).labels) == 2
