"""Rows that are read anew, block by block, in each pass: raw arrays in files, Parquet row groups, iterators.

Nothing is mapped: what is read lies in buffers that are used again, so that a pass takes as much memory for a thousand
rows as for a billion. Each process of a group reads its own share.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch

from expunge.errors import DataError, FileError
from expunge.record import MOST_NAMES
from expunge.rows.files import DAMAGE, not_whole
from expunge.rows.parquet_pages import Wanted, opened, require_group_bearable
from expunge.rows.raw import RawArray
from expunge.rows.tables import feature_names, is_list, require_types, table_arrays, table_columns
from expunge.runtime.memory import require_room

READ_BYTES = 1 << 24  # of features at once: long enough for a disk, short enough for memory
ARRAY_ROWS = 8192
Chunk = tuple[Any, Any]  # features (rows x d) and labels, or None for labels


@dataclass(frozen=True)
class Share:
    """The part of a set that one of `size` processes reads."""

    rank: int = 0
    size: int = 1

    def of(self, count: int) -> range:
        """Its share of `count` things, as equal as can be."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)


class Stream(ABC):
    """Rows that can be gone over as often as needed. `n_rows` and `n_features` are None where only a pass tells."""

    name: str
    encoder: str | None = None
    encoder_trained: str | None = None
    feature_names: tuple[str, ...] | None = None
    labelled: bool = True
    unprepared: bool = False  # whether these are the columns of a table as they are
    owned: bool = False  # whether a chunk may be written on
    own_rows: bool = False  # whether each process of a group gives its own rows, whatever its share
    n_rows: int | None = None
    n_features: int | None = None
    opened_as: Any = None  # the stamp when it was made

    @abstractmethod
    def chunks(self, share: Share) -> Iterator[Chunk]:
        """One pass: features and labels, in order. A chunk is good until the one after the next is asked for."""

    def stamp(self) -> Any:
        """Something that changes when the rows do."""
        return None

    def require_as_opened(self) -> None:
        """Refuse files that are no longer those whose sizes were read when this was made."""
        if self.stamp() != self.opened_as:
            raise FileError(
                f"{self.name} was changed after it was opened",
                "where its rows lie was read then",
                "Leave the files alone while they are used, and open them again.",
            )

    @property
    def bytes_in_memory(self) -> int | None:
        """What all features would take in float64, where that is known."""
        return None if self.n_rows is None or self.n_features is None else 8 * self.n_rows * self.n_features


@dataclass(frozen=True)
class Segment:
    """Features and labels of one file."""

    features: RawArray
    labels: RawArray | None


class RawStream(Stream):
    """Arrays that lie in files as they lie in memory: .npy, .npz (not compressed), .safetensors."""

    owned = True

    def __init__(self, name: str, segments: Sequence[Segment], encoder: str | None = None) -> None:
        self.name, self.segments, self.encoder = name, tuple(segments), encoder
        widths = {segment.features.shape[1] for segment in segments}
        if len(widths) != 1:
            raise FileError(
                f"{name}: files with {' and '.join(map(str, sorted(widths)))} features",
                "all need the same",
                "Write them again from one set of rows.",
            )
        self.n_features = widths.pop()
        self.n_rows = sum(segment.features.shape[0] for segment in segments)
        self.labelled = all(segment.labels is not None for segment in segments)
        self.opened_as = self.stamp()

    def stamp(self) -> Any:
        return tuple(
            array.stamp()
            for segment in self.segments
            for array in (segment.features, segment.labels)
            if array is not None
        )

    def chunks(self, share: Share) -> Iterator[Chunk]:
        assert self.n_rows is not None
        wanted, before = share.of(self.n_rows), 0
        for segment in self.segments:
            count = segment.features.shape[0]
            first, last = max(wanted.start - before, 0), min(wanted.stop - before, count)
            before += count
            if first < last:
                yield from _read(segment, range(first, last))


def _read(segment: Segment, wanted: range) -> Iterator[Chunk]:
    features = segment.features
    size = max(1, READ_BYTES // max(1, features.row_bytes))
    if features.row_bytes > READ_BYTES:
        require_room(8 * features.row_bytes, features.path, "a row, read ahead and made ready,")
    buffers = [np.empty((min(size, len(wanted)), *features.shape[1:]), features.stored) for _ in range(4)]
    with features.opened() as file, contextlib.ExitStack() as stack:
        labels = None if segment.labels is None else stack.enter_context(segment.labels.opened())
        for turn, start in enumerate(range(wanted.start, wanted.stop, size)):
            stop = min(start + size, wanted.stop)
            values = features.read(file, start, stop, buffers[turn % len(buffers)])
            named = None
            if segment.labels is not None and labels is not None:
                named = segment.labels.read(labels, start, stop, None)
            yield values, named


class ParquetStream(Stream):
    """Row groups of Parquet files, of which only the columns that are needed are read."""

    owned = True
    unprepared = True

    def __init__(self, name: str, files: Sequence[Path], label: str | None, columns: Sequence[str] | None) -> None:
        self.name, self.files = name, tuple(files)
        self.metadata: dict[Path, Any] = {}
        self.borne: set[tuple[Path, int]] = set()  # row groups whose pages were looked at
        self.groups: list[tuple[Path, int, int]] = []
        schemas, metadata = [], self.metadata
        for path in self.files:
            try:
                metadata[path] = opened(path)
                schemas.append(pa.parquet.ParquetFile(path, metadata=metadata[path]).schema_arrow)
                for index in range(metadata[path].num_row_groups):
                    self.groups.append((path, index, metadata[path].row_group(index).num_rows))
            except DAMAGE as error:
                raise not_whole(path, error) from error
        if any(not schema.equals(schemas[0], check_metadata=False) for schema in schemas):
            raise FileError(
                f"{name}: files with different columns", "all need the same, of the same types", "Write them again."
            )
        self.label, self.columns = table_columns(schemas[0], self.files[0], label, columns)
        require_types(schemas[0], self.files[0], self.label, self.columns)
        self.wanted = Wanted.of(schemas[0], self.label, self.columns)
        self.n_features, by_list = len(self.columns), {}
        lists = [name for name in self.columns if is_list(schemas[0].field(name).type)]
        if lists:
            groups = (metadata[path].row_group(index) for path, index, rows in self.groups if rows)
            lengths = {tuple(_values_a_row(group, name) for name in lists) for group in groups}
            if len(lengths) > 1:
                raise DataError(
                    f"{name}: columns {', '.join(lists)} have lists of different lengths in different files or row "
                    "groups",
                    "all rows need as many features",
                    "Pad or drop them as was done for training.",
                )
            by_list = dict(zip(lists, map(int, next(iter(lengths), (0,) * len(lists))), strict=True))
            self.n_features += sum(length - 1 for length in by_list.values())
        if self.n_features > MOST_NAMES:
            raise FileError(
                f"{name} has {self.n_features:,} features", f"at most {MOST_NAMES:,} are read", "Save the rows as .npy."
            )
        self.feature_names = feature_names(self.columns, by_list)
        self.n_rows = sum(rows for _, _, rows in self.groups)
        if self.n_rows == 0:
            raise DataError(f"{name} has no rows", "at least one is needed", "Check how the files were written.")
        self.opened_as = self.stamp()

    def stamp(self) -> Any:
        return tuple((path.stat().st_size, path.stat().st_mtime_ns) for path in self.files)

    def chunks(self, share: Share) -> Iterator[Chunk]:
        before = 0
        assert self.n_rows is not None
        wanted = share.of(self.n_rows)
        for path, index, rows in self.groups:
            if before in wanted and rows:  # a row group is read by the process whose share it begins in
                yield from self._group(path, index)
            before += rows

    def _group(self, path: Path, index: int) -> Iterator[Chunk]:
        size = max(64, READ_BYTES // (8 * max(1, self.n_features or 1)))
        text = sorted(self.wanted.text) or None
        try:
            if (path, index) not in self.borne:
                require_group_bearable(path, self.metadata[path], index, self.wanted, size)
                self.borne.add((path, index))
            options = {"memory_map": False, "pre_buffer": False, "buffer_size": 1 << 16, "read_dictionary": text}
            file = pa.parquet.ParquetFile(path, metadata=self.metadata[path], **options)
            batches = file.iter_batches(size, [index], [*self.columns, self.label], use_threads=False)
            for batch in batches:
                yield table_arrays(pa.Table.from_batches([batch]), path, self.label, self.columns)
        except DAMAGE as error:
            raise not_whole(path, error) from error


def _values_a_row(group: Any, column: str) -> float:
    """How many numbers a row group has in a column of lists, for each row."""
    leaves = (group.column(place) for place in range(group.num_columns))
    return float(
        sum(leaf.num_values for leaf in leaves if leaf.path_in_schema.startswith(column + ".")) / group.num_rows
    )


class ArrayStream(Stream):
    """Arrays in memory, for a group: each process goes over its share of them."""

    def __init__(self, features: Any, labels: Any, name: str, encoder: str | None) -> None:
        self.features, self.labels, self.name, self.encoder = features, labels, name, encoder
        self.n_rows, self.labelled = len(features), labels is not None
        if labels is not None and len(labels) != len(features):
            raise DataError(
                f"{name}: {len(labels):,} labels for {len(features):,} rows",
                "one label a row is needed",
                "Check that X and y belong together.",
            )

    def chunks(self, share: Share) -> Iterator[Chunk]:
        wanted = share.of(len(self.features))
        for start in range(wanted.start, wanted.stop, ARRAY_ROWS):
            part = slice(start, min(start + ARRAY_ROWS, wanted.stop))
            yield self.features[part], None if self.labels is None else self.labels[part]


class OrderedStream(Stream):
    """Another stream's rows, their columns in another order."""

    owned = True

    def __init__(self, stream: Stream, order: Any, names: tuple[str, ...]) -> None:
        self.stream, self.order, self.feature_names = stream, order, names
        self.name, self.encoder, self.encoder_trained = stream.name, stream.encoder, stream.encoder_trained
        self.labelled, self.own_rows, self.opened_as = stream.labelled, stream.own_rows, stream.opened_as
        self.unprepared = stream.unprepared
        self.n_rows, self.n_features = stream.n_rows, stream.n_features

    def stamp(self) -> Any:
        return self.stream.stamp()

    def chunks(self, share: Share) -> Iterator[Chunk]:
        for values, labels in self.stream.chunks(share):
            yield np.ascontiguousarray(values[:, self.order]), labels


class IteratorStream(Stream):
    """Blocks from the caller's own function, called for each pass; in a group each process gives its own rows."""

    own_rows = True

    def __init__(self, blocks: Callable[[], Iterable[Any]], name: str, encoder: str | None, labelled: bool) -> None:
        self.make, self.name, self.encoder, self.labelled = blocks, name, encoder, labelled

    def chunks(self, share: Share) -> Iterator[Chunk]:
        for item in self.make():
            features, labels = item if isinstance(item, tuple) else (item, None)
            yield _copied(features), _copied(labels)


def _copied(values: Any) -> Any:
    """The values, whatever the caller, asked for more while these are used, does with the memory they came in."""
    if isinstance(values, dict):
        return {name: _copied(column) for name, column in values.items()}
    copy = getattr(values, "clone", None) or getattr(values, "copy", None)  # of tensors; of arrays, lists and tables
    return values if copy is None else copy()


def stream(
    blocks: Callable[[], Iterable[Any]], *, labelled: bool = True, encoder: str | None = None, name: str = "the stream"
) -> Stream:
    """Rows from a function that gives, each time it is called, the same blocks: (features, labels), or features alone.

    Blocks that are frames are matched by column name, and prepared where the model's record says how; one that has the
    label column of training needs no labels beside it.

    Where there are no labels, say so with `labelled=False`. Blocks are copied: the function may use their memory again.

    >>> import numpy as np
    >>> stream(lambda: ((np.ones((2, 3)), [0, 1]) for _ in range(4))).labelled
    True
    """
    if not callable(blocks):
        raise DataError(
            f"{type(blocks).__name__} given as a stream",
            "a function is needed that begins a new pass each time it is called",
            "Write stream(lambda: blocks()), since an iterator is used up after one pass.",
        )
    return IteratorStream(blocks, name, encoder, labelled)


def read_ahead(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """The same, the next one being read by another thread while this one is used."""
    ready: queue.Queue[tuple[Chunk | None, BaseException | None]] = queue.Queue(maxsize=1)
    stopped = threading.Event()

    def put(item: tuple[Chunk | None, BaseException | None]) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(item, timeout=0.1)
                return

    def work() -> None:
        try:
            for chunk in chunks:
                put((chunk, None))
                if stopped.is_set():
                    return
            put((None, None))
        except BaseException as error:  # the reader's errors are the caller's
            put((None, error))

    reader = threading.Thread(target=work, daemon=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads - 1))  # a core for the reader: threads that wait for work would starve it
    reader.start()
    try:
        while True:
            chunk, error = ready.get()
            if error is not None:
                raise error
            if chunk is None:
                return
            yield chunk
    finally:
        stopped.set()
        reader.join()
        torch.set_num_threads(threads)
