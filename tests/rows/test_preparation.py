"""Columns that become features: as scikit-learn's own transformers make them, from plain numbers alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from expunge.errors import DataError, FileError
from expunge.rows.learning import RARE, learn
from expunge.rows.preparation import Category, Number, Preparation
from expunge.rows.raw_tables import read_raw
from expunge.rows.values import MISSING, RawTable
from ordinary_tables import credit_lines, write_credit


def table(columns: dict[str, object], typed: bool = True) -> RawTable:
    return RawTable(pa.table(columns), "t", typed)


def test_it_is_what_scikit_learn_makes_of_the_same_columns(tmp_path: Path) -> None:
    source, later = write_credit(tmp_path / "a.csv"), write_credit(tmp_path / "b.csv", credit_lines(50, 3))
    made = learn(read_raw(source), "pays", coarse=False).preparation
    raw = read_raw(later)
    features = made.features(raw)
    first = read_raw(source)
    numbers = [np.column_stack([t.numbers(n) for n in ("age", "income", "debts")]) for t in (first, raw)]
    imputer = SimpleImputer(strategy="median").fit(numbers[0])
    scaler = StandardScaler().fit(imputer.transform(numbers[0]))
    expected = scaler.transform(imputer.transform(numbers[1]))
    names = list(made.feature_names)
    assert np.array_equal(features[:, [names.index(n) for n in ("age", "income", "debts")]], expected)
    words = [np.array([*t.words("job").listed(), MISSING], object)[t.words("job").codes][:, None] for t in (first, raw)]
    encoder = OneHotEncoder(min_frequency=RARE, handle_unknown="infrequent_if_exist", sparse_output=False).fit(words[0])
    coded = [place for place, name in enumerate(names) if name.startswith("job=")]
    assert np.array_equal(features[:, coded], encoder.transform(words[1]))


def test_order_of_columns_and_other_columns_do_not_matter(tmp_path: Path) -> None:
    made = learn(read_raw(write_credit(tmp_path / "a.csv")), "pays").preparation
    raw = read_raw(tmp_path / "a.csv")
    shuffled = RawTable(raw.table.select(raw.columns[::-1]).append_column("new", raw.table["age"]), "t", False, True)
    assert np.array_equal(made.features(raw), made.features(shuffled))


def test_a_value_that_training_did_not_know_is_another_or_nothing() -> None:
    other, none = Category("job", ("a", MISSING), True), Category("job", ("a", "b"), False)
    cells = table({"job": ["a", "never seen", None, "b"]})
    made = Preparation("y", True, (other,)).features(cells)
    assert made.tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 1]]
    assert Preparation("y", True, (none,)).features(cells).tolist() == [[1, 0], [0, 0], [0, 0], [0, 1]]


def test_it_travels_as_json_and_says_the_same_afterwards(tmp_path: Path) -> None:
    made = learn(read_raw(write_credit(tmp_path / "a.csv")), "pays").preparation
    again = Preparation.of(json.loads(json.dumps(made.to_json())))
    assert again == made
    assert np.array_equal(again.features(read_raw(tmp_path / "a.csv")), made.features(read_raw(tmp_path / "a.csv")))
    assert made.width == len(made.feature_names) == 9
    assert made.column_names == ("age", "income", "job", "debts")


def test_what_does_not_fit_is_refused_by_name() -> None:
    made = Preparation("y", False, (Number("age", 1.0, 2.0, 3.0),))
    assert made.features(table({"age": [5.0, None]})).tolist() == [[1.0], [-1 / 3]]
    with pytest.raises(FileError, match="no column 'age'"):
        made.features(table({"Age": [1.0]}))
    with pytest.raises(DataError, match="column 'age' has 'old'; it held numbers at training"):
        made.features(table({"age": ["1", "old"]}, typed=False))
    with pytest.raises(FileError, match="no column 'y'"):
        made.labels(table({"age": [1.0]}))


def test_the_room_that_features_take_is_known_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Preparation("y", True, (Category("job", tuple(map(str, range(2000))), False),))
    monkeypatch.setattr("expunge.runtime.memory.room", lambda: 1_000_000)
    with pytest.raises(FileError, match="features takes"):
        made.features(table({"job": ["1"] * 1000}))


@pytest.mark.parametrize(("trained", "later"), [("1", "1.0"), ("1.0", "1"), ("-3", "-3.00"), ("1", "1")])
def test_a_whole_number_is_the_same_category_with_a_point_and_without(trained: str, later: str) -> None:
    """Else it would be taken for one of the rare ones, and somebody else's row for this one."""
    made = Category("code", ("0", trained), other=True)
    into = np.empty((3, 3))
    made.fill(into, table({"code": [later, "7.0", "1.05"]}))
    assert into.tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]


def test_both_ways_of_writing_a_number_stay_apart_where_both_were_there() -> None:
    made = Category("code", ("1", "1.0"), other=False)
    into = np.empty((2, 2))
    made.fill(into, table({"code": ["1", "1.0"]}))
    assert into.tolist() == [[1.0, 0.0], [0.0, 1.0]]
