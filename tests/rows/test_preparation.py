"""What becomes of each column: learnt, told, applied as scikit-learn's transformers do it; and when a table is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from expunge.errors import DataError, FileError, OptionError
from expunge.record import LEARNT_COARSE, LEARNT_ELSEWHERE
from expunge.rows.files import as_source, read_source
from expunge.rows.preparation import ALMOST_SAME, RARE, Category, Number, Preparation, is_row_number, learn
from expunge.rows.tables import MISSING, Table, frame_table
from ordinary_tables import credit_lines, write_credit
from table_files import read_table


def frame(**columns: object) -> Table:
    return frame_table(pd.DataFrame(columns), "t")


def table(columns: dict[str, object], typed: bool = True) -> Table:
    return Table(pa.table(columns), "t", typed)


# Learnt --------------------------------------------------------------------------------------------------------------


def test_an_ordinary_table_is_understood_and_every_decision_told(tmp_path: Path) -> None:
    preparation, decisions = learn(read_table(write_credit(tmp_path / "a.csv")), "pays")
    assert preparation.text_labels
    assert dict(preparation.dropped).keys() == {"customer", "since"}
    for words in (
        "label: pays (text)", "numbers, standardised: age, income, debts", "filled with the median: age (",
        "job (5 values, rare ones together)", "coarse: numbers of 2 digits", "customer (row numbers", "since (dates)",
        "4 columns become 9 features", "a date is no number",
    ):  # fmt: skip
        assert words in "\n".join(decisions)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("Unnamed: 0", range(5), True),
        ("index_level", range(3, 40), True),
        ("customer_id", [7 * place % 41 for place in range(40)], True),
        ("customerId", [7 * place % 41 for place in range(40)], True),
        ("income", [7 * place % 41 for place in range(40)], False),
        ("paid", [*range(39), 5], False),
        ("id", [1, 1, 2] * 10, False),
        ("age", range(5), False),
    ],
)
def test_row_numbers_are_noticed(name: str, values: list[int], expected: bool) -> None:
    assert is_row_number(name, np.array(list(values), dtype=float)) is expected


def test_columns_that_say_nothing_are_left_out_with_the_reason() -> None:
    n = 60
    preparation, _ = learn(
        frame(
            same=["x"] * n,
            constant=[1.0] * n,
            empty=[None] * n,
            lists=[[1.0, 2.0]] * n,
            note=[f"text {place}" for place in range(n)],
            long=["a" * 400, "b" * 400] * (n // 2),
            when=pd.date_range("2024-01-01", periods=n),
            rare=[f"v{place % 20}" for place in range(n)],
            ok=[0.5, 1.5] * (n // 2),
            y=[0, 1] * (n // 2),
        )
    )
    assert preparation.column_names == ("ok",)
    reasons = dict(preparation.dropped)
    assert reasons["same"] == reasons["constant"] == ALMOST_SAME
    assert reasons["empty"] == ALMOST_SAME, "as with a value in a few rows"
    assert "neither numbers nor words" in reasons["lists"]
    assert reasons["note"] == "a different text in most rows"
    assert reasons["long"] == "free text"
    assert reasons["when"] == "dates"
    assert reasons["rare"] == f"no value that {RARE} rows have"


def test_rare_values_share_a_feature_and_their_names_are_not_kept() -> None:
    jobs = ["clerk"] * 30 + ["worker"] * 20 + ["astronaut", "pope"] + [None] * 12
    preparation, _ = learn(frame(job=jobs, y=[0, 1] * 32))
    assert preparation.columns == (Category("job", (MISSING, "clerk", "worker"), True),)
    assert "astronaut" not in str(preparation.to_json())


def test_codes_that_are_text_in_parquet_are_categories_and_numbers_in_csv() -> None:
    codes = ["1", "2"] * 20
    typed, _ = learn(table({"c": codes, "y": [0, 1] * 20}))
    bare, _ = learn(table({"c": codes, "y": ["0", "1"] * 20}, typed=False))
    assert [each.kind for each in (*typed.columns, *bare.columns)] == ["category", "number"]


def test_columns_that_are_asked_for_are_taken_and_no_others(tmp_path: Path) -> None:
    source = read_table(write_credit(tmp_path / "a.csv"))
    preparation, _ = learn(source, "pays", ["customer", "age"])
    assert preparation.column_names == ("customer", "age")
    assert dict(preparation.dropped)["job"] == "not among --columns"
    with pytest.raises(FileError, match=r"no column 'wage'.*Did you mean age"):
        learn(source, "pays", ["wage"])
    with pytest.raises(DataError, match="label column 'pays'"):
        learn(source, "pays", ["age", "pays"])
    with pytest.raises(DataError, match="none of the columns since can be used"):
        learn(source, "pays", ["since"])


# Applied -------------------------------------------------------------------------------------------------------------


def test_it_is_what_scikit_learn_makes_of_the_same_columns(tmp_path: Path) -> None:
    source = read_table(write_credit(tmp_path / "a.csv"))
    later = read_table(write_credit(tmp_path / "b.csv", credit_lines(50, 3)))
    preparation, _ = learn(source, "pays", coarse=False)
    features, names = preparation.features(later), list(preparation.feature_names)
    numeric = ("age", "income", "debts")
    numbers = [np.column_stack([each.numbers(name) for name in numeric]) for each in (source, later)]
    imputer = SimpleImputer(strategy="median").fit(numbers[0])
    scaler = StandardScaler().fit(imputer.transform(numbers[0]))
    expected = scaler.transform(imputer.transform(numbers[1]))
    assert np.array_equal(features[:, [names.index(name) for name in numeric]], expected)
    words = [each.words("job") for each in (source, later)]
    jobs = [np.array([*each.listed(), MISSING], object)[each.codes][:, None] for each in words]
    encoder = OneHotEncoder(min_frequency=RARE, handle_unknown="infrequent_if_exist", sparse_output=False).fit(jobs[0])
    coded = [place for place, name in enumerate(names) if name.startswith("job=")]
    assert np.array_equal(features[:, coded], encoder.transform(jobs[1]))


def test_order_of_columns_and_other_columns_do_not_matter(tmp_path: Path) -> None:
    source = read_table(write_credit(tmp_path / "a.csv"))
    preparation, _ = learn(source, "pays")
    shuffled = Table(
        source.arrow.select(source.names[::-1]).append_column("new", source.arrow["age"]), "t", False, True
    )
    assert np.array_equal(preparation.features(source), preparation.features(shuffled))


def test_a_value_that_training_did_not_know_is_another_or_nothing() -> None:
    other, none = Category("job", ("a", MISSING), True), Category("job", ("a", "b"), False)
    cells = table({"job": ["a", "never seen", None, "b"]})
    assert Preparation("y", True, (other,)).features(cells).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 1]]
    assert Preparation("y", True, (none,)).features(cells).tolist() == [[1, 0], [0, 0], [0, 0], [0, 1]]


def test_it_travels_as_json_and_says_the_same_afterwards(tmp_path: Path) -> None:
    source = read_table(write_credit(tmp_path / "a.csv"))
    preparation, _ = learn(source, "pays")
    again = Preparation.of(json.loads(json.dumps(preparation.to_json())))
    assert again == preparation
    assert np.array_equal(again.features(source), preparation.features(source))
    assert preparation.width == len(preparation.feature_names) == 9
    assert preparation.column_names == ("age", "income", "job", "debts")


def test_what_does_not_fit_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    preparation = Preparation("y", False, (Number("age", 1.0, 2.0, 3.0),))
    assert preparation.features(table({"age": [5.0, None]})).tolist() == [[1.0], [-1 / 3]]
    with pytest.raises(FileError, match="no column 'age'"):
        preparation.features(table({"Age": [1.0]}))
    with pytest.raises(DataError, match="column 'age' has 'old'; it held numbers at training"):
        preparation.features(table({"age": ["1", "old"]}, typed=False))
    with pytest.raises(FileError, match="no column 'y'"):
        preparation.labels(table({"age": [1.0]}))
    wide = Preparation("y", True, (Category("job", tuple(map(str, range(2000))), False),))
    monkeypatch.setattr("expunge.runtime.memory.room", lambda: 1_000_000)
    with pytest.raises(FileError, match="features takes"):
        wide.features(table({"job": ["1"] * 1000}))


@pytest.mark.parametrize(
    ("trained", "later", "expected"),
    [(("0", "1"), ["1.0", "7.0", "1.05"], [1, 2, 2]), (("0", "1.0"), ["1", "7.0", "1.05"], [1, 2, 2]),
     (("0", "-3"), ["-3.00", "7", "3"], [1, 2, 2]), (("1", "1.0"), ["1", "1.0", "7"], [0, 1, 2])],
)  # fmt: skip
def test_a_whole_number_is_the_same_category_with_a_point_and_without(
    trained: tuple[str, ...], later: list[str], expected: list[int]
) -> None:
    """Else it would be taken for one of the rare ones; where both ways of writing it were there, they stay apart."""
    preparation = Preparation("y", True, (Category("code", trained, other=True),))
    features = preparation.features(table({"code": later}))
    assert features.argmax(axis=1).tolist() == expected
    assert features.sum() == 3


# When a table is prepared --------------------------------------------------------------------------------------------

NUMBERS = "a,b,y\n" + "\n".join(f"{place % 7},{place * 0.5},{place % 2}" for place in range(40)) + "\n"


@pytest.mark.parametrize(
    ("prepare", "bounded", "expected"),
    [("auto", True, False), ("auto", False, True), ("table", True, True), ("none", False, False)],
)
def test_numbers_in_every_cell_stay_as_they_are_where_a_norm_bound_is_given(
    prepare: str, bounded: bool, expected: bool, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(NUMBERS)
    found = read_source(tmp_path / "t.csv", prepare=prepare, bounded=bounded)
    assert (found.preparation is not None) is expected
    assert found.learnt == (LEARNT_COARSE if expected else None)
    assert bool(found.decisions) is expected
    if not expected:
        assert found.rows.features[3].tolist() == [3.0, 1.5]


def test_anything_but_numbers_is_prepared_even_then(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(NUMBERS.replace("\n3,", "\n?,", 1))
    assert read_source(tmp_path / "t.csv", bounded=True).preparation is not None
    assert read_source(write_credit(tmp_path / "c.csv"), "pays", bounded=True).preparation is not None
    with pytest.raises(DataError, match="empty cells"):
        read_source(tmp_path / "c.csv", "pays", prepare="none")
    pq.write_table(pa.table({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]}), tmp_path / "t.parquet")
    for prepare, message in (("none", "holds list"), ("auto", "neither numbers nor words")):
        with pytest.raises(DataError, match=message):
            read_source(tmp_path / "t.parquet", prepare=prepare)


def test_it_is_learnt_from_another_file_where_one_is_given(tmp_path: Path) -> None:
    write_credit(tmp_path / "a.csv")
    write_credit(tmp_path / "b.csv", credit_lines(300, 9))
    found = read_source(tmp_path / "a.csv", "pays", prepare_from=tmp_path / "b.csv")
    (tmp_path / "short.csv").write_text("job;pays\nclerk;yes\ncook;no\n")
    with pytest.raises(FileError, match="--prepare-from needs the feature columns"):
        read_source(tmp_path / "a.csv", "pays", prepare_from=tmp_path / "short.csv")
    assert found.learnt == LEARNT_ELSEWHERE
    assert len(found.rows.labels) == 400
    with pytest.raises(OptionError, match="nothing to learn"):
        read_source(tmp_path / "a.csv", "pays", prepare="none", prepare_from=tmp_path / "b.csv")


def test_the_source_in_another_order_is_the_source(tmp_path: Path) -> None:
    people = pd.DataFrame({"age": np.arange(40) % 7, "job": ["clerk", "", "cook", None] * 10, "pays": [0, 1] * 20})
    people.to_csv(tmp_path / "a.csv", index=False)
    people.iloc[::-1, ::-1].to_csv(tmp_path / "b.csv", index=False)
    people.iloc[:-1].to_csv(tmp_path / "c.csv", index=False)
    people.assign(pays=people["pays"].iloc[::-1].to_numpy()).to_csv(tmp_path / "d.csv", index=False)
    with pytest.raises(OptionError, match="is the source itself"):
        read_source(tmp_path / "a.csv", "pays", prepare_from=tmp_path / "b.csv")
    for other in ("c.csv", "d.csv"):
        assert read_source(tmp_path / "a.csv", "pays", prepare_from=tmp_path / other).learnt == LEARNT_ELSEWHERE


def test_arrays_cannot_be_prepared(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", X=np.ones((2, 2)), y=[0, 1])
    assert read_source(tmp_path / "t.npz").preparation is None
    with pytest.raises(FileError, match="columns that can be prepared"):
        read_source(tmp_path / "t.npz", prepare="table")
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(FileError, match=r"unknown file type '\.xlsx'"):
        read_source(tmp_path / "t.xlsx", prepare="table")
    with pytest.raises(OptionError, match="auto, table, none"):
        read_source(tmp_path / "t.npz", prepare="yes")


FRAME = {"age": [20.0, 30.0, None, 50.0] * 10, "job": ["a", "b", "a", "b"] * 10}
LABELS = ["no", "yes"] * 20


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table])
def test_frames_are_prepared_alike_with_the_label_in_them_or_apart(kind: type) -> None:
    apart = as_source(kind(FRAME), np.array(LABELS, dtype=object), None)
    inside = as_source(kind({**FRAME, "pays": LABELS}), None, "pays")
    assert np.array_equal(apart.rows.features, inside.rows.features)
    assert apart.rows.labels.tolist() == inside.rows.labels.tolist() == LABELS
    assert apart.rows.feature_names == inside.rows.feature_names == ("age", "job=a", "job=b", "job=(other)")
    assert inside.preparation is not None
    assert inside.preparation.label == "pays"


def test_frames_of_numbers_stay_where_a_norm_bound_is_given() -> None:
    numbers = pd.DataFrame({"a": [1.0, 2.0], "b": [3, 4], "y": [0, 1]})
    found = as_source(numbers, None, "y", bounded=True)
    assert found.preparation is None
    assert np.asarray(found.rows.features).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert found.rows.labels.tolist() == [0, 1]


def test_what_only_frames_have_is_refused_of_arrays() -> None:
    with pytest.raises(DataError, match="only data frames"):
        as_source(np.ones((2, 2)), None, "y")
    with pytest.raises(DataError, match="no labels"):
        as_source(np.ones((2, 2)), None, None)
    with pytest.raises(FileError, match="no column 'pay'"):
        as_source(pd.DataFrame(FRAME), None, "pay")
