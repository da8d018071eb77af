"""Rows that are read anew in each pass: every source gives the same rows, whole or shared out, and says so if it does not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from expunge.errors import DataError
from expunge.rows import stream
from expunge.rows.streams import ArrayStream, Share, Stream, StreamedRows, load, read_ahead
from stream_sources import FILES, NOTHING, PLENTY, SOURCES, WIDTH, X, Y, form, gathered, opened

pytestmark = pytest.mark.usefixtures("small_reads")


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_every_source_gives_the_same_rows_in_every_pass(source: Callable[[Path], Stream], tmp_path: Path) -> None:
    found = source(tmp_path)
    for _ in range(2):
        features, labels = load(found)
        assert np.array_equal(features.astype(np.float32), X)
        assert np.array_equal(labels.reshape(-1), Y)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 50])
@pytest.mark.parametrize("source", FILES, ids=lambda source: source.__name__)
def test_shares_together_are_the_whole(source: Callable[[Path], Stream], size: int, tmp_path: Path) -> None:
    found = source(tmp_path)
    parts = [
        (values.copy(), labels.copy()) for rank in range(size) for values, labels in found.chunks(Share(rank, size))
    ]
    assert np.array_equal(np.concatenate([values for values, _ in parts]).astype(np.float32), X)
    assert np.array_equal(np.concatenate([labels.reshape(-1) for _, labels in parts]), Y)


def test_an_iterator_in_the_place_of_a_function_is_refused() -> None:
    with pytest.raises(DataError, match="begins a new pass"):
        stream(iter([(X, Y)]))  # type: ignore[arg-type]


def test_arrays_to_be_shared_out_have_one_label_a_row() -> None:
    with pytest.raises(DataError, match="1,000 labels for 999 rows"):
        ArrayStream(X[1:], Y, "the surrogate set", None)


def test_blocks_may_be_of_any_kind_of_number() -> None:
    values = torch.from_numpy(X).bfloat16()
    found = gathered(StreamedRows(stream(lambda: iter([(values, Y)])), form(max_norm=100.0), NOTHING))
    assert torch.equal(found.features, values.double())


def test_errors_of_the_callers_own_iterator_reach_the_caller() -> None:
    def blocks() -> Iterator[Any]:
        yield X, Y
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        gathered(StreamedRows(stream(blocks), form(), PLENTY))


def test_lists_that_are_as_long_only_together_are_refused(tmp_path: Path) -> None:
    for name, split in (("a", 3), ("b", 4)):
        parts = {"left": X[:20, :split].tolist(), "right": X[:20, split:].tolist(), "y": Y[:20]}
        pa.parquet.write_table(pa.table(parts), tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match="columns left, right have lists of different lengths"):
        opened(tmp_path)


def test_a_column_of_lists_is_read_a_few_rows_at_a_time(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"e": np.tile(X, (1, 8)).tolist(), "y": Y}), tmp_path / "a.parquet")
    found = opened(tmp_path)
    assert found.n_features == 8 * WIDTH
    assert max(len(values) for values, _ in found.chunks(Share())) == 64


def test_lists_of_different_lengths_are_refused(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"x": [[1.0, 2.0], [3.0]], "y": [0, 1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="lists of 2 lengths"):
        load(opened(tmp_path))


def test_the_reader_has_a_core_and_gives_it_back() -> None:
    before = torch.get_num_threads()
    try:
        for given, left in ((1, 1), (3, 2)):
            torch.set_num_threads(given)
            chunks = read_ahead(iter([(np.zeros((1, 1)), None)] * 4))
            next(chunks)
            assert torch.get_num_threads() == left
            chunks.close()
            assert torch.get_num_threads() == given
    finally:
        torch.set_num_threads(before)
