"""Rows that are read anew in each pass: the same from every source, ready as those in memory, refused where they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from safetensors.numpy import save_file

from expunge.errors import DataError, ExpungeError, FileError
from expunge.heads import Rows
from expunge.rows import bound_rows, open_data, stream
from expunge.rows.files import EncodedRows
from expunge.rows.streams import Form, Share, Stream, StreamedRows, load
from expunge.runtime.arrays import double, equal, to_numpy
from expunge.runtime.group import Group
from expunge.runtime.memory import Memory
from stream_sources import (
    FILES,
    NOTHING,
    PLENTY,
    ROWS,
    SOURCES,
    WIDTH,
    X,
    Y,
    columns,
    form,
    gathered,
    iterator,
    npy,
    opened,
    parquet,
    safetensors,
)

pytestmark = pytest.mark.usefixtures("small_reads")


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_every_source_gives_the_same_rows_in_every_pass(source: Callable[[Path], Stream], tmp_path: Path) -> None:
    found = source(tmp_path)
    for _ in range(2):
        features, labels = load(found)
        assert np.array_equal(features.astype(np.float32), X)
        assert np.array_equal(labels.reshape(-1), Y)


@pytest.mark.parametrize("size", [1, 3, 50])
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


@pytest.mark.parametrize("memory", [PLENTY, NOTHING], ids=["kept", "not kept"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_streamed_rows_are_made_ready_as_those_in_memory(
    dtype: torch.dtype, bias: bool, memory: Memory, tmp_path: Path
) -> None:
    """Bit for bit, in each pass, whether labels, norms or all of it were kept or not."""
    wanted = bound_rows(
        torch.from_numpy(X), torch.from_numpy(Y), max_norm=2.5, bias=bias, dtype=dtype, device=torch.device("cpu"), name="x"
    )  # fmt: skip
    rows = StreamedRows(safetensors(tmp_path), form(dtype, bias=bias), memory)
    for _ in range(3):
        found = gathered(rows)
        assert equal(found.features, wanted.features)
        assert equal(found.labels, wanted.labels)
    assert (len(rows), rows.n_scaled, rows.n_features) == (ROWS, wanted.n_scaled, WIDTH + bias)
    assert 0 < wanted.n_scaled < ROWS


def test_rows_of_classes_are_weighted_and_others_left_out(tmp_path: Path) -> None:
    rows = StreamedRows(npy(tmp_path), form(), NOTHING)
    gathered(rows)
    counts = double(torch.bincount(torch.from_numpy(Y)))
    counts[1] = 0
    shares = torch.tensor([0.5, 0.0, 1.5], dtype=torch.float64)
    wanted = Rows(double(torch.from_numpy(X)), torch.from_numpy(Y)).of_classes(shares, counts)
    found = rows.of_classes(shares, counts)
    assert gathered(found).labels.tolist() == wanted.labels.tolist()
    weights = torch.cat([block.weights for block in found.blocks() if block.weights is not None])
    assert wanted.weights is not None
    assert equal(weights, wanted.weights)
    assert len(found) == len(wanted)
    assert found.largest_weight == wanted.largest_weight
    assert found.effective == pytest.approx(wanted.effective, rel=1e-12)
    assert len(rows) == ROWS
    assert not rows.has_weights


def second_pass(rows: StreamedRows) -> None:
    gathered(rows)
    gathered(rows)


def test_a_file_that_changes_between_passes_is_refused(tmp_path: Path) -> None:
    rows = StreamedRows(npy(tmp_path), form(), NOTHING)
    gathered(rows)
    np.save(tmp_path / "trainX.npy", X[::-1])
    with pytest.raises(DataError, match="other rows than in the first pass"):
        gathered(rows)


def shuffling() -> Callable[[], Iterator[Any]]:
    generator = np.random.default_rng(1)

    def blocks() -> Iterator[Any]:
        order = generator.permutation(ROWS)
        yield X[order], Y[order]

    return blocks


def test_a_stream_that_gives_other_rows_the_second_time_is_refused() -> None:
    used_up = iter([(X, Y)])
    fewer = iter([[(X, Y), (X, Y)], [(X, Y)]])
    more = iter([[(X, Y)], [(X, Y), (X, Y)]])
    other = X.copy()
    other[500, 3] += 1.0
    inside = iter([[(X, Y)], [(other, Y)]])
    lists = (fewer, more, inside)
    for blocks in (shuffling(), lambda: used_up, *(lambda given=given: iter(next(given)) for given in lists)):  # type: ignore[misc]
        with pytest.raises(DataError, match="other rows than in the first pass"):
            second_pass(StreamedRows(stream(blocks), form(), NOTHING))


def test_a_bad_row_deep_inside_is_named(tmp_path: Path) -> None:
    broken = X.copy()
    broken[789, 4] = np.nan
    np.save(tmp_path / "X.npy", broken)
    np.save(tmp_path / "y.npy", Y)
    with pytest.raises(DataError, match=r"the set: row 789, column 4 is nan"):
        gathered(StreamedRows(opened(tmp_path), form(), PLENTY))


def test_labels_and_widths_are_checked_in_every_block() -> None:
    for blocks, message in (
        ([(X, Y), (X, Y + 1)], "label 3 is not a class"),
        ([(X, Y), (X[:, :3], Y)], "rows have 3 features; the model takes 7"),
        ([(X, Y), (X, Y[:3])], "3 labels for 1,000 rows"),
        ([], "no rows"),
        ([(X[:0], Y[:0])], "no rows"),
    ):
        with pytest.raises(DataError, match=message):
            gathered(StreamedRows(stream(lambda blocks=blocks: iter(blocks)), form(), PLENTY))  # type: ignore[misc]


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["array", "tensor"])
def test_a_caller_may_give_every_block_in_the_same_memory(kind: Callable[[Any], Any]) -> None:
    def blocks() -> Iterator[Any]:
        features, labels = np.empty((50, WIDTH), X.dtype), np.empty(50, Y.dtype)
        for start in range(0, ROWS, 50):
            features[:], labels[:] = X[start : start + 50], Y[start : start + 50]
            yield kind(features), kind(labels)

    found = gathered(StreamedRows(stream(blocks), form(max_norm=100.0), PLENTY))
    assert np.array_equal(to_numpy(found.features), X)
    assert np.array_equal(to_numpy(found.labels), Y)


@dataclass(frozen=True)
class Pair(Group):
    """A group of two, the other of which has the same of everything."""

    size: int = 2
    differs: bool = False

    def total(self, part: torch.Tensor) -> torch.Tensor:
        return 2 * part

    def each(self, part: float) -> list[float]:
        return [part, part + self.differs]


def test_rows_that_two_processes_give_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="two processes gave the same rows"):
        len(StreamedRows(iterator(tmp_path), form(), PLENTY, Pair()))
    assert len(StreamedRows(iterator(tmp_path), form(), PLENTY, Pair(differs=True))) == 2 * ROWS
    assert len(StreamedRows(npy(tmp_path), form(), PLENTY, Pair())) == ROWS


def test_rows_without_labels_among_others_are_refused() -> None:
    with pytest.raises(DataError, match="600 rows without labels after 400"):
        gathered(StreamedRows(stream(lambda: iter([(X[:400], Y[:400]), X[400:]])), form(), PLENTY))


def test_labels_that_change_between_passes_are_refused(tmp_path: Path) -> None:
    turns = iter(range(2))
    with pytest.raises(DataError, match="gave other rows than in the first pass"):
        second_pass(StreamedRows(stream(lambda: iter([(X, (Y + next(turns)) % 3)])), form(), NOTHING))
    rows = StreamedRows(npy(tmp_path), form(), NOTHING)
    assert len(rows) == ROWS
    np.save(tmp_path / "trainy.npy", (Y + 1) % 3)
    with pytest.raises(DataError, match="gave other rows than in the first pass"):
        gathered(rows)


def test_labels_may_be_missing_or_text(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X)
    assert not opened(tmp_path).labelled
    names = np.array(["cat", "dog", "a very long name"])
    np.save(tmp_path / "y.npy", names[Y])
    wanted = Form(tuple(names.tolist()), 2.5, False, torch.float64, torch.device("cpu"), WIDTH, "x")
    assert gathered(StreamedRows(opened(tmp_path), wanted, NOTHING)).labels.tolist() == Y.tolist()


def test_what_is_kept_stays_within_what_may_be(tmp_path: Path) -> None:
    """Of a stream that does not say how long it is, too: what is too much is let go."""
    for spare in (0, 2_000, 20_000, 10**9):
        memory = Memory(int(spare / 0.6) + (160 << 20), 0)
        rows = StreamedRows(iterator(tmp_path), form(), memory)
        gathered(rows)
        kept = rows._labels.used + (rows._held.used if rows._held is not None else 0)
        assert kept <= memory.spare
        assert rows.affords(memory.spare - kept)
        assert not rows.affords(memory.spare - kept + 1)
        assert rows.keeps(8) == (memory.spare - kept >= 8 * ROWS)


def test_processes_that_see_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has 1,000 and 1,001 rows, depending on the process"):
        len(StreamedRows(npy(tmp_path), form(), PLENTY, Pair(differs=True)))


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
    with pytest.raises(DataError, match="holds text"):
        load(opened(tmp_path))
    np.savez(tmp_path / "rows.npz", X=X, y=Y)
    with pytest.raises(FileError, match="only tables"):
        open_data(tmp_path / "rows.npz", columns=["x0"])


def test_files_are_read_whole_where_they_fit(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", X=X, y=Y)
    pa.parquet.write_table(pa.table({"x": X[:, 0], "y": Y}), tmp_path / "a.parquet")
    save_file({"X": X, "y": Y}, tmp_path / "a.safetensors")
    for name in ("a.parquet", "a.safetensors"):
        assert isinstance(open_data(tmp_path / name, memory=PLENTY), EncodedRows)
        assert isinstance(open_data(tmp_path / name, memory=NOTHING), Stream)
    assert isinstance(open_data(tmp_path / "rows.npz", memory=NOTHING), EncodedRows)


def saved(folder: Path, features: Any, labels: Any = None) -> None:
    np.save(folder / "X.npy", features, allow_pickle=True)
    if labels is not None:
        np.save(folder / "y.npy", labels)


def cut_short(folder: Path) -> None:
    saved(folder, X)
    (folder / "X.npy").write_bytes((folder / "X.npy").read_bytes()[:-5])


def shards(folder: Path, *entries: dict[str, Any]) -> None:
    """Files of tensors, each with the encoder it names."""
    for name, given in zip("ab", entries, strict=False):
        encoder = given.pop("encoder", None)
        save_file(given, folder / f"{name}.safetensors", {"encoder": encoder} if encoder else None)


def tables(folder: Path, *columns: Any) -> None:
    for name, values in zip("ab", columns, strict=False):
        pa.parquet.write_table(pa.table({"x": values, "y": Y}), folder / f"{name}.parquet")


def two_kinds(folder: Path) -> None:
    shards(folder, {"X": X, "y": Y})
    tables(folder, X[:, 0])


BOTH = {"X": X, "y": Y}
BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "columns first": (lambda folder: saved(folder, np.asfortranarray(X)), "column after column"),
    "objects": (lambda folder: saved(folder, np.array([[object()]])), "unpickling"),
    "cut short": (cut_short, "declares 28,000 bytes but 27,995 follow"),
    "no array": (lambda folder: (folder / "X.npy").write_bytes(b"nothing of the kind"), "is not an array"),
    "three dimensions": (lambda folder: saved(folder, X.reshape(10, 100, WIDTH)), "rows, one after another"),
    "text": (lambda folder: saved(folder, np.array([["a", "b"]])), "a table of numbers is needed"),
    "labels too few": (lambda folder: saved(folder, X, Y[:-1]), "one label a row"),
    "widths": (lambda folder: shards(folder, BOTH, {"X": X[:, :2].copy(), "y": Y}), "files with 2 and 7 features"),
    "encoders": (
        lambda folder: shards(folder, BOTH | {"encoder": "0" * 64}, BOTH | {"encoder": "1" * 64}),
        "files made by 2 encoders",
    ),
    "no X": (lambda folder: shards(folder, {"Z": X}), "tensors X and y are needed"),
    "header too long": (
        lambda folder: (folder / "a.safetensors").write_bytes((2**40).to_bytes(8, "little") + b"{}"), "a header of",
    ),
    "two kinds": (two_kinds, "with files of one of these kinds"),
    "schemas": (lambda folder: tables(folder, X[:, 0], X[:, 0].astype(float)), "files with different columns"),
    "parquet rubbish": (
        lambda folder: (folder / "a.parquet").write_bytes(b"PAR1 nothing PAR1"), r"is not a whole \.parquet file",
    ),
    "nothing": (lambda folder: None, "0 .safetensors and 0 Parquet"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_files_that_cannot_be_streamed_are_refused(kind: str, tmp_path: Path) -> None:
    write, said = BAD[kind]
    write(tmp_path)
    with pytest.raises(FileError, match=said):
        open_data(tmp_path)


def test_a_file_cut_short_while_it_is_read_is_refused(tmp_path: Path) -> None:
    found = npy(tmp_path)
    with (tmp_path / "trainX.npy").open("r+b") as file:
        file.truncate(2000)
    with pytest.raises(FileError, match="ends after 2,000 bytes"):
        list(found.chunks(Share()))
