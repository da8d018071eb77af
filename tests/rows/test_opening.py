"""What a path stands for: files read whole, files and folders that are streamed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from safetensors.numpy import save_file

from expunge.errors import DataError, ExpungeError, FileError
from expunge.rows import open_data
from expunge.rows.files import EncodedRows
from expunge.rows.streams import Stream, StreamedRows, load
from stream_sources import NOTHING, PLENTY, X, Y, columns, form, npy, opened, parquet

pytestmark = pytest.mark.usefixtures("small_reads")


@pytest.mark.parametrize("source", [npy, parquet])
def test_files_that_were_written_again_since_they_were_opened_are_refused(
    source: Callable[[Path], Stream], tmp_path: Path
) -> None:
    found = source(tmp_path)
    source(tmp_path)
    with pytest.raises(FileError, match="was changed after it was opened"):
        load(found)
    with pytest.raises(FileError, match="was changed after it was opened"):
        StreamedRows(found, form(), NOTHING)


def test_columns_that_are_not_there_are_refused(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table(columns()), tmp_path / "a.parquet")
    for names, message in ((["x0", "nowhere"], "'nowhere'"), (["y"], "'y'"), ([], "at least one feature column")):
        with pytest.raises(ExpungeError, match=message):
            open_data(tmp_path, columns=names)
    with pytest.raises(DataError, match="holds string"):
        load(opened(tmp_path))
    np.savez(tmp_path / "rows.npz", X=X, y=Y)
    with pytest.raises(FileError, match="only tables"):
        open_data(tmp_path / "rows.npz", columns=["x0"])


def test_files_are_read_whole_where_they_fit(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", X=X, y=Y)
    np.savez_compressed(tmp_path / "small.npz", X=X, y=Y)
    pa.parquet.write_table(pa.table({"x": X[:, 0], "y": Y}), tmp_path / "a.parquet")
    save_file({"X": X, "y": Y}, tmp_path / "a.safetensors")
    for name in ("rows.npz", "a.parquet", "a.safetensors"):
        assert isinstance(open_data(tmp_path / name, memory=PLENTY), EncodedRows)
        assert isinstance(open_data(tmp_path / name, memory=NOTHING), Stream)
    assert isinstance(open_data(tmp_path / "small.npz", memory=NOTHING), EncodedRows)


def test_the_encoder_of_shards_is_known(tmp_path: Path) -> None:
    save_file({"X": X, "y": Y}, tmp_path / "a.safetensors", {"encoder": "0" * 64})
    assert opened(tmp_path).encoder == "0" * 64
