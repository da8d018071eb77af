"""Rows put into a model's order: arrays, streams, and what is stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from expunge.errors import DataError, FileError
from expunge.rows import EncodedRows, names_of, open_data, order_columns, read_data
from expunge.rows.columns import to_arrays
from expunge.rows.streams import Share

NAMES = ("age", "hours", "debt", "rent")
SHUFFLED = ("rent", "age", "debt", "hours")
FORGET = (np.arange(12.0).reshape(3, 4), np.array([0, 1, 0]))


def shuffled(part: tuple[np.ndarray, np.ndarray]) -> pd.DataFrame:
    return pd.DataFrame(part[0], columns=list(NAMES))[list(SHUFFLED)]


def test_rows_stay_as_they_are_where_nothing_is_to_be_done() -> None:
    bare, named = FORGET, EncodedRows(*FORGET, None, NAMES)
    assert order_columns(bare, NAMES, 4, "it") is bare
    assert order_columns(named, NAMES, 4, "it") is named
    assert order_columns(named, None, 4, "it") is named
    with pytest.raises(DataError, match="the model takes 3 columns, and these are 4"):
        order_columns(EncodedRows(*FORGET, None, ("", *NAMES[1:])), None, 3, "it")


def test_tensors_stay_tensors_and_what_else_is_known_is_kept() -> None:
    table = torch.tensor(shuffled(FORGET).to_numpy().copy())
    found = order_columns(EncodedRows(table, FORGET[1], "a" * 64, SHUFFLED, "no"), NAMES, 4, "it")
    assert isinstance(found[0], torch.Tensor)
    assert found[0].tolist() == FORGET[0].tolist()
    assert (found.encoder, found.feature_names, found.encoder_trained) == ("a" * 64, NAMES, "no")
    assert np.array_equal(order_columns(shuffled(FORGET), NAMES, 4, "it"), FORGET[0])


def test_what_is_stored_is_plain() -> None:
    words = pd.Series(["a", "b", "a"])
    found = to_arrays(EncodedRows(shuffled(FORGET), words), "it")
    assert found[0].dtype == np.float64
    assert found[1].tolist() == ["a", "b", "a"]
    assert found[1].dtype.kind == "U"


def test_an_npz_may_name_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "named.npz"
    np.savez(file, X=shuffled(FORGET).to_numpy(), y=FORGET[1], feature_names=np.array(SHUFFLED))
    read = read_data(file).rows
    assert names_of(read) == SHUFFLED
    assert np.array_equal(order_columns(read, NAMES, 4, "it")[0], FORGET[0])
    streamed = open_data(file, stream=True)
    assert names_of(getattr(streamed, "rows", streamed)) == SHUFFLED
    for names in (np.array(SHUFFLED[:3]), np.arange(4), np.array(["a", "b", "c", "a"])):
        np.savez(file, X=FORGET[0], y=FORGET[1], feature_names=names)
        with pytest.raises(FileError):
            read_data(file)


def test_lists_in_parquet_have_a_name_a_place(tmp_path: Path) -> None:
    table = pa.table({"pair": [[1.0, 2.0], [3.0, 4.0]], "one": [5.0, 6.0], "y": [0, 1]})
    pa.parquet.write_table(table, tmp_path / "rows.parquet")
    names = ("pair[0]", "pair[1]", "one")
    read, streamed = read_data(tmp_path / "rows.parquet").rows, open_data(tmp_path / "rows.parquet", stream=True)
    assert names_of(read) == names_of(streamed) == names
    turned = order_columns(streamed, ("one", "pair[1]", "pair[0]"), 3, "it")
    (chunk,) = turned.chunks(Share())
    assert chunk[0].tolist() == [[5.0, 2.0, 1.0], [6.0, 4.0, 3.0]]
