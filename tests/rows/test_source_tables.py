"""When a table is prepared, and when it is taken as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from expunge.errors import DataError, ExpungeError, FileError, OptionError
from expunge.record import LEARNT_COARSE, LEARNT_ELSEWHERE
from expunge.rows.source_tables import as_source, read_source
from hostile_parquet import constant, one_list, one_word, parquet, prefixed_words
from ordinary_tables import credit_lines, write_credit

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
    assert bool(found.told) is expected
    if not expected:
        assert found.rows.features[3].tolist() == [3.0, 1.5]


def test_anything_but_numbers_is_prepared_even_then(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(NUMBERS.replace("\n3,", "\n?,", 1))
    assert read_source(tmp_path / "t.csv", bounded=True).preparation is not None
    assert read_source(write_credit(tmp_path / "c.csv"), "pays", bounded=True).preparation is not None
    with pytest.raises(DataError, match="holds string"):
        read_source(tmp_path / "c.csv", "pays", prepare="none")


def test_columns_of_lists_are_features_already(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]}), tmp_path / "t.parquet")
    assert read_source(tmp_path / "t.parquet", bounded=True).rows.features.shape == (2, 2)


def test_it_is_learnt_from_another_file_where_one_is_given(tmp_path: Path) -> None:
    write_credit(tmp_path / "a.csv")
    write_credit(tmp_path / "b.csv", credit_lines(300, 9))
    found = read_source(tmp_path / "a.csv", "pays", prepare_from=tmp_path / "b.csv")
    assert found.learnt == LEARNT_ELSEWHERE
    assert len(found.rows.labels) == 400
    with pytest.raises(OptionError, match="nothing to learn"):
        read_source(tmp_path / "a.csv", "pays", prepare="none", prepare_from=tmp_path / "b.csv")


def test_the_source_in_another_order_is_the_source(tmp_path: Path) -> None:
    table = pd.DataFrame({"age": np.arange(40) % 7, "job": ["clerk", "", "cook", None] * 10, "pays": [0, 1] * 20})
    table.to_csv(tmp_path / "a.csv", index=False)
    table.iloc[::-1, ::-1].to_csv(tmp_path / "b.csv", index=False)
    table.iloc[:-1].to_csv(tmp_path / "c.csv", index=False)
    table.assign(pays=table["pays"].iloc[::-1].to_numpy()).to_csv(tmp_path / "d.csv", index=False)
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
    assert np.array_equal(apart.rows[0], inside.rows[0])
    assert apart.rows[1].tolist() == inside.rows[1].tolist() == LABELS
    assert apart.names == inside.names == ("age", "job=a", "job=b", "job=(other)")
    assert inside.preparation is not None
    assert inside.preparation.label == "pays"


def test_frames_of_numbers_stay_where_a_norm_bound_is_given() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3, 4], "y": [0, 1]})
    found = as_source(frame, None, "y", bounded=True)
    assert found.preparation is None
    assert np.asarray(found.rows[0]).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert found.rows[1].tolist() == [0, 1]


def test_what_only_frames_have_is_refused_of_arrays() -> None:
    with pytest.raises(DataError, match="only data frames"):
        as_source(np.ones((2, 2)), None, "y")
    with pytest.raises(DataError, match="no labels"):
        as_source(np.ones((2, 2)), None, None)
    with pytest.raises(FileError, match="no column 'pay'"):
        as_source(pd.DataFrame(FRAME), None, "pay")


MILLION = 10**6
HOSTILE = {
    "a long word that a dictionary repeats": (
        parquet([one_word("a", b"x" * MILLION, 2000), constant("b", 2000), constant("y", 2000)], 2000), "one class|used",
    ),
    "a label of a million letters": (
        parquet([constant("a", 2000), one_word("y", b"x" * MILLION, 2000)], 2000), "1,000,000 characters",
    ),
    "words stored as prefixes": (
        parquet([prefixed_words("a", b"x" * MILLION, 2000), constant("y", 2000)], 2000), "DELTA_BYTE_ARRAY",
    ),
    "rows without an end": (
        parquet([constant("a", 100 * MILLION), constant("y", 100 * MILLION)], 100 * MILLION), "in a file of",
    ),
    "a list of millions": (parquet([one_list("a", [150 * MILLION]), constant("y", 1)], 1), "one class|used"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_table_is_refused_within_the_limit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, message = HOSTILE[name]
    (tmp_path / "bad.parquet").write_bytes(content)
    monkeypatch.setenv("EXPUNGE_MAX_BYTES", str(100 * MILLION))
    before, counted = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(counted)
    try:
        with pytest.raises(ExpungeError, match=message):
            read_source(tmp_path / "bad.parquet")
    finally:
        pa.set_memory_pool(before)
    assert counted.max_memory() < 100 * MILLION
    POOLS.append(counted)  # arrays may outlive the test


POOLS: list[pa.MemoryPool] = []
