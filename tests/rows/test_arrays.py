"""Arrays in files, a few rows at a time."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from safetensors.numpy import save_file

from expunge.errors import DataError, FileError
from expunge.rows import open_data
from expunge.rows.files import EncodedRows
from expunge.rows.streams import Share, load
from stream_sources import WIDTH, X, Y, npy, opened

pytestmark = pytest.mark.usefixtures("small_reads")


def test_other_arrays_beside_the_rows_do_not_matter(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=X, y=Y, scale=np.zeros((2, 2, 2)))
    assert np.array_equal(load(opened(tmp_path / "a.npz", stream=True))[0], X)
    np.savez(tmp_path / "b.npz", X=X, y=Y, encoder=np.array("a" * 64))
    found = open_data(tmp_path / "b.npz", stream=True)
    assert isinstance(found, EncodedRows)
    assert found.encoder == "a" * 64


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X[:0])
    np.save(tmp_path / "y.npy", Y[:0])
    with pytest.raises(DataError, match="has no rows"):
        load(opened(tmp_path))


def write_bad(folder: Path, kind: str) -> Path:
    if kind == "columns first":
        np.save(folder / "X.npy", np.asfortranarray(X))
    elif kind == "objects":
        np.save(folder / "X.npy", np.array([[object()]]), allow_pickle=True)
    elif kind == "cut short":
        np.save(folder / "X.npy", X)
        (folder / "X.npy").write_bytes((folder / "X.npy").read_bytes()[:-5])
    elif kind == "no array":
        (folder / "X.npy").write_bytes(b"nothing of the kind")
    elif kind == "three dimensions":
        np.save(folder / "X.npy", X.reshape(10, 100, WIDTH))
    elif kind == "text":
        np.save(folder / "X.npy", np.array([["a", "b"]]))
    elif kind == "labels too few":
        np.save(folder / "X.npy", X)
        np.save(folder / "y.npy", Y[:-1])
    elif kind == "widths":
        save_file({"X": X, "y": Y}, folder / "a.safetensors")
        save_file({"X": X[:, :2].copy(), "y": Y}, folder / "b.safetensors")
    elif kind == "encoders":
        save_file({"X": X, "y": Y}, folder / "a.safetensors", {"encoder": "0" * 64})
        save_file({"X": X, "y": Y}, folder / "b.safetensors", {"encoder": "1" * 64})
    elif kind == "no X":
        save_file({"Z": X}, folder / "a.safetensors")
    elif kind == "header too long":
        (folder / "a.safetensors").write_bytes((2**40).to_bytes(8, "little") + b"{}")
    elif kind == "two kinds":
        save_file({"X": X, "y": Y}, folder / "a.safetensors")
        pa.parquet.write_table(pa.table({"x": X[:, 0], "y": Y}), folder / "a.parquet")
    elif kind == "schemas":
        pa.parquet.write_table(pa.table({"x": X[:, 0], "y": Y}), folder / "a.parquet")
        pa.parquet.write_table(pa.table({"x": X[:, 0].astype(float), "y": Y}), folder / "b.parquet")
    elif kind == "parquet rubbish":
        (folder / "a.parquet").write_bytes(b"PAR1 nothing PAR1")
    return folder


BAD = {
    "columns first": "column after column",
    "objects": "unpickling",
    "cut short": "declares 28,000 bytes but 27,995 follow",
    "no array": "is not an array",
    "three dimensions": "rows, one after another",
    "text": "a table of numbers is needed",
    "labels too few": "one label a row",
    "widths": "files with 2 and 7 features",
    "encoders": "files made by 2 encoders",
    "no X": "tensors X and y are needed",
    "header too long": "a header of",
    "two kinds": "with files of one of these kinds",
    "schemas": "files with different columns",
    "parquet rubbish": "is not a whole .parquet file",
    "nothing": "0 .safetensors and 0 Parquet",
}


@pytest.mark.parametrize("kind", BAD)
def test_files_that_cannot_be_streamed_are_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=BAD[kind]):
        open_data(write_bad(tmp_path, kind))


def test_a_file_cut_short_while_it_is_read_is_refused(tmp_path: Path) -> None:
    found = npy(tmp_path)
    with (tmp_path / "trainX.npy").open("r+b") as file:
        file.truncate(2000)
    with pytest.raises(FileError, match="ends after 2,000 bytes"):
        list(found.chunks(Share()))
