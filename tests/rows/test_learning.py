"""What becomes of each column, and that it is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from expunge.errors import DataError, FileError
from expunge.rows.learning import ALMOST_SAME, RARE, is_row_number, learn
from expunge.rows.preparation import Category
from expunge.rows.raw_tables import raw_frame, read_raw
from expunge.rows.values import MISSING, RawTable
from ordinary_tables import credit_lines, write_credit


def frame(**columns: object) -> RawTable:
    return raw_frame(pd.DataFrame(columns), "t")


def test_an_ordinary_table_is_understood_and_every_decision_told(tmp_path: Path) -> None:
    learnt = learn(read_raw(write_credit(tmp_path / "a.csv")), "pays")
    made, told = learnt.preparation, "\n".join(learnt.told)
    assert made.text_labels
    assert dict(made.dropped).keys() == {"customer", "since"}
    for words in (
        "label: pays (text)", "numbers, standardised: age, income, debts", "filled with the median: age (",
        "job (5 values, rare ones together)", "coarse: numbers of 2 digits", "customer (row numbers", "since (dates)", "4 columns become 9 features", "a date is no number",
    ):  # fmt: skip
        assert words in told


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
    made = learn(
        frame(
            same=["x"] * n,
            constant=[1.0] * n,
            empty=[None] * n,
            note=[f"text {place}" for place in range(n)],
            long=["a" * 400, "b" * 400] * (n // 2),
            when=pd.date_range("2024-01-01", periods=n),
            rare=[f"v{place % 20}" for place in range(n)],
            ok=[0.5, 1.5] * (n // 2),
            y=[0, 1] * (n // 2),
        )
    ).preparation
    assert made.column_names == ("ok",)
    reasons = dict(made.dropped)
    assert reasons["same"] == reasons["constant"] == ALMOST_SAME
    assert "no values" in reasons["empty"], "a column without a type"
    assert reasons["note"] == "a different text in most rows"
    assert reasons["long"] == "free text"
    assert reasons["when"] == "dates"
    assert reasons["rare"] == f"no value that {RARE} rows have"


def test_rare_values_share_a_feature_and_their_names_are_not_kept() -> None:
    jobs = ["clerk"] * 30 + ["worker"] * 20 + ["astronaut", "pope"] + [None] * 12
    made = learn(frame(job=jobs, y=[0, 1] * 32)).preparation
    assert made.columns == (Category("job", (MISSING, "clerk", "worker"), True),)
    assert "astronaut" not in str(made.to_json())


def test_codes_that_are_text_in_parquet_are_categories_and_numbers_in_csv(tmp_path: Path) -> None:
    codes = ["1", "2"] * 20
    typed = learn(RawTable(pa.table({"c": codes, "y": [0, 1] * 20}), "t", True)).preparation
    bare = learn(RawTable(pa.table({"c": codes, "y": ["0", "1"] * 20}), "t", False)).preparation
    assert [each.kind for each in (*typed.columns, *bare.columns)] == ["category", "number"]


def test_columns_that_are_asked_for_are_taken_and_no_others(tmp_path: Path) -> None:
    raw = read_raw(write_credit(tmp_path / "a.csv"))
    made = learn(raw, "pays", ["customer", "age"]).preparation
    assert made.column_names == ("customer", "age")
    assert dict(made.dropped)["job"] == "not among --columns"
    with pytest.raises(FileError, match=r"no column 'wage'.*Did you mean age"):
        learn(raw, "pays", ["wage"])
    with pytest.raises(DataError, match="label column 'pays'"):
        learn(raw, "pays", ["age", "pays"])
    with pytest.raises(DataError, match="none of the columns since can be used"):
        learn(raw, "pays", ["since"])


def test_it_can_be_learnt_elsewhere(tmp_path: Path) -> None:
    source = read_raw(write_credit(tmp_path / "a.csv"))
    public = read_raw(write_credit(tmp_path / "b.csv", credit_lines(300, 9)))
    here, there = learn(source, "pays").preparation, learn(source, "pays", elsewhere=public).preparation
    assert there == learn(public, "pays").preparation
    assert there != here
    short = RawTable(public.table.drop_columns(["age"]), "public", False)
    with pytest.raises(FileError, match="--prepare-from needs the feature columns"):
        learn(source, "pays", elsewhere=short)


def test_a_label_that_is_not_there_is_told_with_the_nearest(tmp_path: Path) -> None:
    raw = read_raw(write_credit(tmp_path / "a.csv"))
    with pytest.raises(FileError, match=r"no column 'pay'; .*Did you mean --label pays\? The columns are customer"):
        learn(raw, "pay")
    with pytest.raises(FileError, match=r"has columns customer, .* and none is called y"):
        learn(raw)
