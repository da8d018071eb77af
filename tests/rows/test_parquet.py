"""Parquet files that say little and mean gigabytes, or lie about what they hold: refused before they are decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from expunge import DataError, ExpungeError, FileError, open_data, read_data
from expunge.rows.streams import ParquetStream, Share
from hostile_parquet import (
    DOUBLE,
    INT32,
    PLAIN,
    Column,
    Page,
    constant,
    one_list,
    one_word,
    parquet,
    prefixed_words,
    run,
    thrift,
)

MILLION = 10**6
LIMIT = 100 * MILLION


@pytest.fixture(autouse=True)
def a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPUNGE_MAX_BYTES", str(LIMIT))


def short_codes(name: str, rows: int, word: bytes) -> Column:
    made = one_word(name, word, rows)
    made.pages[0].count = 2**30  # entries in a dictionary of a few bytes
    return made


BOMBS: dict[str, tuple[bytes, str]] = {
    "rows": (parquet([constant("a", 100 * MILLION), constant("y", 100 * MILLION)], 100 * MILLION), "in a file of"),
    "fewer rows": (
        parquet([constant("a", 30 * MILLION), constant("y", 30 * MILLION)], 30 * MILLION), "in a file of",
    ),
    "a list": (parquet([one_list("a", [150 * MILLION]), constant("y", 1)], 1), "bytes in memory|features"),
    "one list of many": (
        parquet([one_list("a", [150 * MILLION, *[1] * 999]), constant("y", 1000)], 1000), "bytes in memory",
    ),
    "a word": (parquet([constant("a", 2000), one_word("y", b"x" * MILLION, 2000)], 2000), "1,000,000 characters"),
    "a short word": (
        parquet([constant("a", 5 * MILLION), one_word("y", b"x" * 999, 5 * MILLION)], 5 * MILLION), "in a file|label",
    ),
    "prefixes": (parquet([constant("a", 2000), prefixed_words("y", b"x" * MILLION, 2000)], 2000), "DELTA_BYTE_ARRAY"),
    "a feature of words": (parquet([one_word("a", b"x" * MILLION, 2000), constant("y", 2000)], 2000), "numbers"),
    "a page that inflates": (
        parquet(
            [Column("a", DOUBLE, [Page(bytes(8 * 15 * MILLION), 15 * MILLION, PLAIN)], 10, codec=2), constant("y", 10)],
            10,
        ),
        "declares 120,000,000 bytes",
    ),
    "a page that says it does": (
        parquet(
            [Column("a", DOUBLE, [Page(bytes(80), 10, PLAIN, inflated=2**31 - 1)], 10, codec=2), constant("y", 10)], 10
        ),
        "declares 2,147,483,647 bytes",
    ),
    "a page of no size": (
        parquet([Column("a", DOUBLE, [Page(bytes(80), 10, PLAIN, inflated=-1)], 10), constant("y", 10)], 10), "no size",
    ),
    "more values than rows": (
        parquet([Column("a", INT32, [Page(b"\x01" + run(2**30), 2**30)], 10), constant("y", 10)], 10),
        "hold 1,073,741,824 values",
    ),
    "more in lists than said": (
        parquet(
            [Column("a", INT32, one_list("a", [2**30]).pages, 10, lists=True), constant("y", 1)],
            1,
        ),
        "hold 1,073,741,824 values",
    ),
    "a dictionary of nothing": (parquet([constant("a", 9), short_codes("y", 9, b"w")], 9), "1,073,741,824 entries"),
    "beyond the file": (parquet([constant("a", 9, offset=10**9), constant("y", 9)], 9), "headers must tell"),
    "before the file": (parquet([constant("a", 9, offset=-5), constant("y", 9)], 9), "bad.parquet"),
    "longer than the file": (parquet([constant("a", 9, length=10**9), constant("y", 9)], 9), "headers must tell"),
}  # fmt: skip


def taken(path: Path, streamed: bool) -> int:
    """What Arrow takes at once, going over a file."""
    pool, before = pa.system_memory_pool(), pa.default_memory_pool()
    counted = pa.proxy_memory_pool(pool)
    POOLS.append(counted)
    pa.set_memory_pool(counted)
    try:
        if streamed:
            for _ in ParquetStream(str(path), [path], None, None).chunks(Share()):
                pass
        else:
            read_data(path)
    finally:
        pa.set_memory_pool(before)
        Taken.most = counted.max_memory()
    return counted.max_memory()


POOLS: list[Any] = []  # a pool must outlive what was taken from it


class Taken:
    """The last figure, where the reader raised."""

    most = 0


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", BOMBS)
def test_what_would_be_gigabytes_is_refused_before_it_is_taken(name: str, streamed: bool, tmp_path: Path) -> None:
    content, words = BOMBS[name]
    path = tmp_path / "bad.parquet"
    path.write_bytes(content)
    with pytest.raises((FileError, DataError), match=words):
        taken(path, streamed)
    assert Taken.most < 20 * MILLION


def test_such_files_are_as_small_as_they_were_found() -> None:
    """928 bytes became 2.3 gigabytes, 1,056 bytes 1.7; these are still smaller."""
    for name in ("rows", "a list"):
        assert len(BOMBS[name][0]) < 928


def honest(**options: Any) -> pa.Table:
    rng = np.random.default_rng(0)
    kinds = np.array(["cat", "dog", "owl"])[rng.integers(0, 3, 3000)]
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=3000 * 6)), 6).cast(pa.list_(pa.float64()))
    columns = {"a": rng.normal(size=3000), "b": rng.integers(0, 9, 3000), "c.d": np.zeros(3000), "e": lists}
    return pa.table({**columns, "y": options.get("labels", kinds)})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "none"},
        {"compression": "gzip", "data_page_version": "2.0"},
        {"use_dictionary": False, "data_page_size": 1000},
        {"use_dictionary": False, "column_encoding": {"a": "BYTE_STREAM_SPLIT", "b": "DELTA_BINARY_PACKED"}},
        {"row_group_size": 700, "write_statistics": False},
        {"version": "1.0", "dictionary_pagesize_limit": 16},
        {"write_page_index": True, "write_page_checksum": True},
    ],
    ids=str,
)  # fmt: skip
def test_honest_files_of_every_kind_are_read(options: dict[str, Any], tmp_path: Path) -> None:
    table, path = honest(), tmp_path / "good.parquet"
    pq.write_table(table, path, **options)
    wanted = np.column_stack([table[name].to_numpy() for name in ("a", "b", "c.d")])
    wide = np.array(table["e"].to_pylist())
    whole = read_data(path)
    np.testing.assert_array_equal(whole.features, np.column_stack([wanted, wide]))
    assert whole.labels.tolist() == table["y"].to_pylist()
    stream = open_data(path, stream=True)
    assert isinstance(stream, ParquetStream)
    parts = [tuple(map(np.array, chunk)) for chunk in stream.chunks(Share())]
    np.testing.assert_array_equal(np.concatenate([features for features, _ in parts]), whole.features)
    assert np.concatenate([labels for _, labels in parts]).tolist() == whole.labels.tolist()


def test_a_footer_of_a_million_columns_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    element = thrift((1, "i", INT32), (3, "i", 0), (4, "b", b"c"))
    path = tmp_path / "bad.parquet"
    path.write_bytes(parquet([constant("y", 9)], 9, schema=[element] * 300_000))
    with pytest.raises(ExpungeError, match=r"bytes in memory|not a whole|columns"):
        read_data(path)
    monkeypatch.setenv("EXPUNGE_MAX_BYTES", "1000")
    path.write_bytes(parquet([constant("y", 9)], 9, schema=[element] * 500_000))
    with pytest.raises(FileError, match=r"the footer takes [0-9,]+ bytes in memory"):
        read_data(path)
