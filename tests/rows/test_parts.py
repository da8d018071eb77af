"""Rows and the part each belongs to: tables, prepared as at training or by themselves, and arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from expunge.errors import DataError, ExpungeError, FileError
from expunge.rows import read_data
from expunge.rows.files import LEARNT_FROM, read_parts, read_source
from expunge.train import train

HEAD = "age,colour,year,default\n"
LINES = [f"{20 + i % 50},{'red' if i % 3 else 'blue'},{2016 + i % 3},{'yes' if i % 2 else 'no'}\n" for i in range(120)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "surrogate.csv"
    path.write_text(HEAD + "".join(LINES))
    return path


def test_a_table_is_prepared_without_its_label_and_the_column_of_parts(table: Path) -> None:
    rows = read_parts(table, "year", "default")
    assert rows.parts == ("2016", "2017", "2018")
    assert list(rows.codes[:4]) == [0, 1, 2, 0]
    assert rows.names == ("age", "colour=blue", "colour=red", "colour=(other)")
    assert rows.features.shape == (120, 4)
    assert abs(rows.features[:, 0].mean()) < 1e-9, "standardised"
    assert "label, no feature: default" in rows.decisions
    assert not any("year" in sentence for sentence in rows.decisions)


def test_columns_may_be_chosen_and_the_label_left_unsaid(table: Path) -> None:
    assert read_parts(table, "year", columns=("age",)).names == ("age",)
    assert "default=no" in read_parts(table, "year").names, "nobody said that it is a label"


def test_with_a_record_rows_are_those_of_training(table: Path) -> None:
    source = read_source(table, "default", columns=("age", "colour", "year"))
    model = train(
        source.rows.features,
        source.rows.labels,
        l2=0.01,
        prepare=source.preparation,
        learnt=source.learnt,
        feature_names=source.rows.feature_names,
        max_norm=1.5,
        force=True,
    )
    assert model.record is not None
    rows = read_parts(table, "year", record=model.record)
    assert rows.names == ("age", "colour=blue", "colour=red", "colour=(other)"), (
        "the year was a feature, and is none here"
    )
    expected = read_data(table, preparation=model.record.table).rows[0][:, :4]
    norms = np.maximum(1.0, np.linalg.norm(expected, axis=1) / 1.5)
    np.testing.assert_allclose(rows.features, expected / norms[:, None])
    assert any("year was a feature at training" in sentence for sentence in rows.decisions)
    assert any("scaled to it" in sentence for sentence in rows.decisions)


def test_plain_columns_of_a_model_are_taken_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "plain.csv"
    values = rng.normal(size=(60, 2))
    path.write_text("b,site,a,y\n" + "".join(f"{b},s{i % 2},{a},{i % 2}\n" for i, (a, b) in enumerate(values)))
    model = train(values, np.arange(60) % 2, l2=0.1, max_norm=10.0, feature_names=("a", "b"))
    rows = read_parts(path, "site", record=model.record)
    np.testing.assert_allclose(rows.features, values)
    assert rows.names == ("a", "b")
    path.write_text("b,site,a,y\n1,s,,0\n2,t,3,1\n")
    with pytest.raises(DataError, match="'a' without numbers"):
        read_parts(path, "site", record=model.record)


def test_arrays_name_the_part_of_each_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    features = np.arange(12.0).reshape(6, 2)
    np.savez(path, X=features, y=np.zeros(6), site=np.array(["b", "a", "b", "a", "b", "a"]))
    rows = read_parts(path, "site")
    assert rows.parts == ("a", "b")
    assert list(rows.codes) == [1, 0, 1, 0, 1, 0]
    np.testing.assert_array_equal(rows.features, features)
    with pytest.raises(DataError, match="the model takes 3"):
        read_parts(path, "site", n_features=3)
    with pytest.raises(FileError, match="arrays X and year are needed"):
        read_parts(path, "year")
    np.savez(path, X=features, site=np.arange(5))
    with pytest.raises(FileError, match="one value a row"):
        read_parts(path, "site")
    np.savez(path, X=np.full((6, 2), np.nan), site=np.arange(6) % 2)
    with pytest.raises(DataError, match="not finite"):
        read_parts(path, "site")


def test_rows_without_a_part_are_left_out_and_numbers_are_in_order(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("x,wave\n" + "".join(f"{i},{('', '2', '10')[i % 3]}\n" for i in range(60)))
    rows = read_parts(path, "wave")
    assert rows.parts == ("2", "10")
    assert len(rows.features) == len(rows.codes) == 40
    assert rows.decisions[0] == "20 rows without a value in wave were left out"


def test_a_long_table_is_prepared_by_some_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    n = 2 * LEARNT_FROM
    path.write_text("x,site\n" + "".join(f"{i % 7},{'ab'[i // LEARNT_FROM]}\n" for i in range(n)))
    rows = read_parts(path, "site")
    assert rows.features.shape == (n, 1)
    assert np.bincount(rows.codes).tolist() == [LEARNT_FROM, LEARNT_FROM]


@pytest.mark.parametrize(
    ("text", "by", "match"),
    [
        ("x,year\n1,2016\n2,2017\n", "yeer", "Did you mean year"),
        ("x,year\n1,2016\n2,2016\n", "year", "one value, '2016'"),
        ("x,year\n1,\n2,\n", "year", "no value"),
        ("x,day\n" + "".join(f"{i},d{i}\n" for i in range(60)), "day", "60 different values"),
        ("year\n2016\n2017\n", "year", "none of the columns"),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path: Path, text: str, by: str, match: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(ExpungeError, match=match):
        read_parts(path, by)


def test_other_files_and_labels(tmp_path: Path, table: Path) -> None:
    with pytest.raises(FileError, match="no column 'defualt'"):
        read_parts(table, "year", "defualt")
    odd = tmp_path / "rows.xlsx"
    odd.write_bytes(b"PK")
    with pytest.raises(FileError):
        read_parts(odd, "year")
    damaged = tmp_path / "rows.npz"
    damaged.write_bytes(b"nothing")
    with pytest.raises(FileError, match=r"rows\.npz"):
        read_parts(damaged, "year")
