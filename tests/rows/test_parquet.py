"""Parquet files that say little and mean gigabytes, or lie about what they hold: refused before they are decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from expunge import DataError, FileError, open_data, read_data
from expunge.rows.streams import Share, Stream, stream_parquet
from hostile_parquet import INT32, PLAIN, Column, Page, constant, double, one_list, one_word, parquet, run, thrift

MILLION = 10**6


@pytest.fixture(autouse=True)
def a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPUNGE_MAX_BYTES", str(100 * MILLION))


def two(column: Column, rows: int) -> bytes:
    return parquet([column, constant("y", rows)], rows)


def words(word: bytes, rows: int) -> bytes:
    return parquet([constant("a", rows), one_word("y", word, rows)], rows)


BOMBS: dict[str, tuple[bytes, str]] = {
    "rows": (two(constant("a", 100 * MILLION), 100 * MILLION), "in a file of"),
    "a list": (two(one_list("a", [150 * MILLION]), 1), "holds list.*features must be numbers"),
    "a word": (words(b"x" * MILLION, 2000), "1,000,000 characters"),
    "a short word": (words(b"x" * 999, 5 * MILLION), "in a file|label"),
    "a feature of words": (two(one_word("a", b"x" * MILLION, 2000), 2000), "numbers"),
    "a page that says it inflates": (two(double("a", Page(bytes(80), 10, PLAIN, inflated=2**31 - 1)), 10), "not a whole"),
    "a page of no size": (two(double("a", Page(bytes(80), 10, PLAIN, inflated=-1), codec=0), 10), "not a whole"),
    "more values than rows": (
        two(Column("a", INT32, [Page(b"\x01" + run(2**30), 2**30)], 10), 10), "not a whole",
    ),
    "beyond the file": (two(constant("a", 9, offset=10**9), 9), "not a whole"),
    "before the file": (two(constant("a", 9, offset=-5), 9), "not a whole"),
    "longer than the file": (two(constant("a", 9, length=10**9), 9), "not a whole"),
}  # fmt: skip
POOLS: list[Any] = []  # a pool must outlive what was taken from it


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", BOMBS)
def test_what_would_be_gigabytes_is_refused_before_it_is_taken(name: str, streamed: bool, tmp_path: Path) -> None:
    content, said = BOMBS[name]
    path, before = tmp_path / "bad.parquet", pa.default_memory_pool()
    path.write_bytes(content)
    POOLS.append(pa.proxy_memory_pool(pa.system_memory_pool()))
    pa.set_memory_pool(POOLS[-1])
    try:
        with pytest.raises((FileError, DataError), match=said):
            list(stream_parquet(str(path), [path], None, None).chunks(Share())) if streamed else read_data(path)
    finally:
        pa.set_memory_pool(before)
    assert POOLS[-1].max_memory() < 20 * MILLION


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "none"},
        {"compression": "gzip", "data_page_version": "2.0"},
        {"use_dictionary": False, "column_encoding": {"a": "BYTE_STREAM_SPLIT", "b": "DELTA_BINARY_PACKED"}},
        {"row_group_size": 700, "write_statistics": False},
        {"version": "1.0", "dictionary_pagesize_limit": 16},
    ],
    ids=str,
)  # fmt: skip
def test_honest_files_of_every_kind_are_read(options: dict[str, Any], tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "good.parquet"
    plain = {"a": rng.normal(size=3000), "b": rng.integers(0, 9, 3000), "c.d": np.zeros(3000)}
    labels = np.array(["cat", "dog", "owl"])[rng.integers(0, 3, 3000)]
    pq.write_table(pa.table({**plain, "y": labels}), path, **options)
    whole = read_data(path)
    np.testing.assert_array_equal(whole.features, np.column_stack(list(plain.values())))
    assert whole.labels.tolist() == labels.tolist()
    stream = open_data(path, stream=True)
    assert isinstance(stream, Stream)
    parts = [tuple(map(np.array, chunk)) for chunk in stream.chunks(Share())]
    np.testing.assert_array_equal(np.concatenate([features for features, _ in parts]), whole.features)
    assert np.concatenate([labels for _, labels in parts]).tolist() == whole.labels.tolist()


def test_a_footer_of_a_million_columns_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    element = thrift((1, "i", INT32), (3, "i", 0), (4, "b", b"c"))
    path = tmp_path / "bad.parquet"
    monkeypatch.setenv("EXPUNGE_MAX_BYTES", "1000")
    path.write_bytes(parquet([constant("y", 9)], 9, schema=[element] * 500_000))
    with pytest.raises(FileError, match=r"the footer takes [0-9,]+ bytes in memory"):
        read_data(path)
