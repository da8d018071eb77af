"""Rows that are read anew, block by block, in each pass: arrays in files, Parquet row groups, a caller's function.

Nothing is mapped: what is read lies in buffers that are used again, so that a pass takes as much memory for a thousand
rows as for a billion. Each process of a group reads its own share. `StreamedRows` makes them ready for an objective.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from expunge.errors import DataError, FileError
from expunge.heads import Block, RowSet
from expunge.heads.rows import Lengths, Scaling, block_rows, device_room
from expunge.record import MOST_NAMES, Label
from expunge.rows.arrays import DAMAGE, StoredArray, damage_error
from expunge.rows.features import (
    as_labels,
    as_table,
    bound_features,
    encode,
    norm_limit,
    require_finite,
    require_range,
    require_width,
    row_norms,
    to_engine,
)
from expunge.rows.tables import (
    Table,
    choose_columns,
    is_list,
    name_features,
    open_parquet,
    require_bearable,
    require_types,
    text_columns,
)
from expunge.runtime.arrays import Array, Device, Dtype, cast, namespace_of, on_cpu, put, size, to_numpy
from expunge.runtime.group import ALONE, Group
from expunge.runtime.memory import Memory, require_room

READ_BYTES = 1 << 24  # of features at once: long enough for a disk, short enough for memory
ARRAY_ROWS = 8192
REMEMBERED_SHARE = 0.25  # of the memory that may be kept, for labels
FIRST_ROWS = 1 << 16  # room for so many is made where nobody knows how many there are
HELD_SHARE = 0.5  # of it, for whole sets: what is computed from them needs the rest
Chunk = tuple[Any, Any]  # features (rows x d) and labels, or None for labels
Watch = Callable[[int, int | None], None]


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
    first_stamp: Any = None  # the stamp when it was made

    @abstractmethod
    def chunks(self, share: Share) -> Iterator[Chunk]:
        """One pass: features and labels, in order. A chunk is good until the one after the next is asked for."""

    def stamp(self) -> Any:
        """Something that changes when the rows do."""
        return None

    def require_unchanged(self) -> None:
        """Refuse files that are no longer those whose sizes were read when this was made."""
        if self.stamp() != self.first_stamp:
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

    features: StoredArray
    labels: StoredArray | None


class StoredStream(Stream):
    """Arrays that lie in files as they lie in memory: .npy, .npz (not compressed), .safetensors."""

    owned = True

    def __init__(
        self, name: str, segments: Sequence[Segment], encoder: str | None = None, trained: str | None = None
    ) -> None:
        self.name, self.segments, self.encoder, self.encoder_trained = name, tuple(segments), encoder, trained
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
        self.first_stamp = self.stamp()

    def stamp(self) -> Any:
        arrays = (array for segment in self.segments for array in (segment.features, segment.labels))
        return tuple(array.stamp() for array in arrays if array is not None)

    def chunks(self, share: Share) -> Iterator[Chunk]:
        assert self.n_rows is not None
        wanted, before = share.of(self.n_rows), 0
        for segment in self.segments:
            count = segment.features.shape[0]
            first, last = max(wanted.start - before, 0), min(wanted.stop - before, count)
            before += count
            if first < last:
                yield from _read_segment(segment, range(first, last))


def _read_segment(segment: Segment, wanted: range) -> Iterator[Chunk]:
    features = segment.features
    size = max(1, READ_BYTES // max(1, features.row_bytes))
    if features.row_bytes > READ_BYTES:
        require_room(8 * features.row_bytes, features.path, "a row, read ahead and made ready,")
    buffers = [np.empty((min(size, len(wanted)), *features.shape[1:]), features.stored) for _ in range(4)]
    with features.open() as file, contextlib.ExitStack() as stack:
        label_file = None if segment.labels is None else stack.enter_context(segment.labels.open())
        for turn, start in enumerate(range(wanted.start, wanted.stop, size)):
            stop = min(start + size, wanted.stop)
            values = features.read(file, start, stop, buffers[turn % len(buffers)])
            labels = None
            if segment.labels is not None and label_file is not None:
                labels = segment.labels.read(label_file, start, stop, None)
            yield values, labels


class ParquetStream(Stream):
    """Row groups of Parquet files, of which only the columns that are needed are read."""

    owned = True
    unprepared = True

    def __init__(self, name: str, files: Sequence[Path], label: str | None, columns: Sequence[str] | None) -> None:
        self.name, self.files = name, tuple(files)
        self.metadata: dict[Path, Any] = {}
        self.bearable: set[tuple[Path, int]] = set()  # row groups whose pages were looked at
        schemas = []
        for path in self.files:
            try:
                self.metadata[path], schema = open_parquet(path)
            except DAMAGE as error:
                raise damage_error(path, error) from error
            schemas.append(schema)
        schema = schemas[0]
        if any(not each.equals(schema, check_metadata=False) for each in schemas):
            raise FileError(
                f"{name}: files with different columns", "all need the same, of the same types", "Write them again."
            )
        self.label, self.columns = choose_columns(schema, self.files[0], label, columns)
        require_types(schema, self.files[0], self.label, self.columns)
        self.kinds = {column: schema.field(column).type for column in (*self.columns, self.label)}
        self.groups = [
            (path, index, metadata.row_group(index).num_rows)
            for path, metadata in self.metadata.items()
            for index in range(metadata.num_row_groups)
        ]
        self.n_rows = sum(rows for _, _, rows in self.groups)
        if self.n_rows == 0:
            raise DataError(f"{name} has no rows", "at least one is needed", "Check how the files were written.")
        lengths = self._list_lengths()
        self.n_features = len(self.columns) + sum(length - 1 for length in lengths.values())
        if self.n_features > MOST_NAMES:
            raise FileError(
                f"{name} has {self.n_features:,} features", f"at most {MOST_NAMES:,} are read", "Save the rows as .npy."
            )
        self.feature_names = name_features(self.columns, lengths)
        self.first_stamp = self.stamp()

    def _list_lengths(self) -> dict[str, int]:
        """How many numbers a row has in each column of lists: the same in every row group."""
        lists = [column for column in self.columns if is_list(self.kinds[column])]
        found = set()
        for path, index, rows in self.groups:
            group = self.metadata[path].row_group(index)
            leaves = [group.column(place) for place in range(group.num_columns)] if lists else []
            counts = [
                sum(leaf.num_values for leaf in leaves if leaf.path_in_schema.startswith(f"{column}."))
                for column in lists
            ]
            if rows:
                found.add(tuple(count / rows for count in counts))
        if len(found) > 1:
            raise DataError(
                f"{self.name}: columns {', '.join(lists)} have lists of different lengths in different files or row "
                "groups",
                "all rows need as many features",
                "Pad or drop them as was done for training.",
            )
        return dict(zip(lists, map(int, found.pop()), strict=True))

    def stamp(self) -> Any:
        return tuple((path.stat().st_size, path.stat().st_mtime_ns) for path in self.files)

    def chunks(self, share: Share) -> Iterator[Chunk]:
        before = 0
        assert self.n_rows is not None
        wanted = share.of(self.n_rows)
        for path, index, rows in self.groups:
            if before in wanted and rows:  # a row group is read by the process whose share it begins in
                yield from self._read_group(path, index)
            before += rows

    def _read_group(self, path: Path, index: int) -> Iterator[Chunk]:
        size = max(64, READ_BYTES // (8 * max(1, self.n_features or 1)))
        metadata = self.metadata[path]
        try:
            if (path, index) not in self.bearable:
                require_bearable(path, metadata, self.kinds, [index], size)
                self.bearable.add((path, index))
            options = {"memory_map": False, "pre_buffer": False, "buffer_size": 1 << 16}
            file = pa.parquet.ParquetFile(path, metadata=metadata, read_dictionary=text_columns(self.kinds), **options)
            for batch in file.iter_batches(size, [index], list(self.kinds), use_threads=False):
                table = Table(pa.Table.from_batches([batch]), str(path), True)
                yield table.features(self.columns), table.labels(self.label)
        except DAMAGE as error:
            raise damage_error(path, error) from error


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
            rows = slice(start, min(start + ARRAY_ROWS, wanted.stop))
            yield self.features[rows], None if self.labels is None else self.labels[rows]


class MappedStream(Stream):
    """Another stream's rows, each chunk changed by a function."""

    def __init__(
        self, stream: Stream, change: Callable[[Any, Any], Chunk], names: tuple[str, ...] | None = None
    ) -> None:
        self.stream, self.change, self.feature_names = stream, change, names
        self.name, self.encoder, self.encoder_trained = stream.name, stream.encoder, stream.encoder_trained
        self.labelled, self.own_rows, self.unprepared = stream.labelled, stream.own_rows, stream.unprepared
        self.n_rows, self.n_features, self.first_stamp = stream.n_rows, stream.n_features, stream.first_stamp

    def stamp(self) -> Any:
        return self.stream.stamp()

    def chunks(self, share: Share) -> Iterator[Chunk]:
        for values, labels in self.stream.chunks(share):
            yield self.change(values, labels)


class IteratorStream(Stream):
    """Blocks from the caller's own function, called for each pass; in a group each process gives its own rows."""

    own_rows = True

    def __init__(self, blocks: Callable[[], Iterable[Any]], name: str, encoder: str | None, labelled: bool) -> None:
        self.make, self.name, self.encoder, self.labelled = blocks, name, encoder, labelled

    def chunks(self, share: Share) -> Iterator[Chunk]:
        for item in self.make():
            features, labels = item if isinstance(item, tuple) else (item, None)
            yield _copy(features), _copy(labels)


def _copy(values: Any) -> Any:
    """The values, whatever the caller, asked for more while these are used, does with the memory they came in."""
    if isinstance(values, dict):
        return {name: _copy(column) for name, column in values.items()}
    copied = getattr(values, "clone", None) or getattr(values, "copy", None)  # of tensors; of arrays, lists and tables
    return values if copied is None else copied()


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
    """The chunks, the next one being read by another thread while one is used."""
    torch = sys.modules.get("torch")
    threads = 0 if torch is None else torch.get_num_threads()
    if torch is not None:  # a core for the reader: threads that wait for work would starve it
        torch.set_num_threads(max(1, threads - 1))
    try:
        with ThreadPoolExecutor(1) as reader:
            following = reader.submit(next, chunks, None)
            while (chunk := following.result()) is not None:
                following = reader.submit(next, chunks, None)
                yield chunk
    finally:
        if torch is not None:
            torch.set_num_threads(threads)


# Made ready for an objective -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """What rows are made into, by the engine that has `dtype`: see `bound_rows`."""

    classes: Sequence[Label]
    max_norm: float
    bias: bool
    dtype: Dtype
    device: Device
    width: int
    name: str

    @property
    def row_bytes(self) -> int:
        return (self.width + int(self.bias)) * int(self.dtype.itemsize)

    def empty(self, shape: tuple[int, ...], dtype: Dtype = None) -> Array:
        """An array of this engine, on this device."""
        xp = namespace_of(self.dtype)
        return xp.empty(shape, dtype=self.dtype if dtype is None else getattr(xp, dtype), device=self.device)


class _Memo:
    """Something of every row, in one piece of memory, as long as that is not larger than allowed; then nothing.

    One piece: many small ones that stay, allocated between large ones that do not, would leave holes the system never
    gets back.
    """

    def __init__(self, empty: Callable[[int], Array], known: int | None, allowed: float) -> None:
        self.empty, self.allowed = empty, allowed
        one = empty(1)
        self.row_bytes = size(one) * int(one.dtype.itemsize)
        self.values: Array | None = empty(0)
        self._reserve(FIRST_ROWS if known is None else known)

    def _reserve(self, rows: int) -> None:
        if self.values is not None and rows * self.row_bytes <= self.allowed:
            grown = self.empty(rows)
            grown[: len(self.values)] = self.values
            self.values = grown
        else:
            self.values = None

    def put(self, start: int, values: Array) -> None:
        stop = start + len(values)
        if self.values is not None and stop > len(self.values):
            self._reserve(max(stop, 2 * len(self.values)))
        if self.values is not None:
            self.values[start:stop] = values

    @property
    def used(self) -> int:
        return 0 if self.values is None else len(self.values) * self.row_bytes


class StreamedRows(RowSet):
    """Rows of a stream. The first pass checks them; that every later one gives the same rows is checked too."""

    n_features: int = 0
    dtype: Dtype = None
    device: Device = None
    has_weights: bool = False
    largest_weight: float = 1.0
    effective: float = 0.0

    def __init__(
        self, stream: Stream, form: Form, memory: Memory, group: Group = ALONE, watch: Watch = lambda *_: None
    ) -> None:
        self.stream, self.form, self.group, self.watch = stream, form, group, watch
        self.n_features, self.dtype, self.device = form.width + int(form.bias), form.dtype, form.device
        self._spare, self._on_device = memory.spare, memory.on_device
        self._share = Share(group.rank, group.size)
        stream.require_unchanged()
        self._stamp = stream.stamp()
        self._prints: list[int] | None = None
        self.scaling: Scaling | None = None
        self.n_scaled, self._lengths, self._some_long = 0, Lengths(form.max_norm), False
        self._labels, self._held = self._memos(None, 0.0, 0.0)
        self._shares: Array | None = None
        self._n_rows = self._mine = self._before = 0
        self._counts = np.zeros(len(form.classes), np.int64)

    def _memos(self, known: int | None, for_labels: float, for_features: float) -> tuple[_Memo, _Memo]:
        """What is kept of each row from the first pass on: its class, and all of it where there is room."""
        return (
            _Memo(lambda rows: self.form.empty((rows,), "int32"), known, for_labels),
            _Memo(lambda rows: self.form.empty((rows, self.n_features)), known, for_features),
        )

    # What it is

    def __len__(self) -> int:
        self._require_first_pass()
        return self._n_rows

    def of_classes(self, shares: Array, counts: Array) -> StreamedRows:
        rows = copy.copy(self)
        rows._shares, rows.has_weights = put(shares, self.form.empty((0,))), True
        shares, counts = to_numpy(shares), to_numpy(counts)
        rows._n_rows = int(counts.sum())
        rows._mine = int(self._counts[shares > 0].sum())
        rows._before = self.group.before(rows._mine)
        rows.largest_weight = float(shares[counts > 0].max())
        rows.effective = rows._n_rows**2 / float((counts * shares**2).sum())
        return rows

    def affords(self, n_bytes: int) -> bool:
        return self.group.largest(float(not self._has_room(n_bytes))) == 0.0

    def keeps(self, bytes_per_row: int) -> bool:
        return self._has_room(bytes_per_row * self.n_mine)

    def _has_room(self, n_bytes: int) -> bool:
        if not on_cpu(self.device):
            return n_bytes <= HELD_SHARE * device_room(self.device, self._on_device)
        return n_bytes <= self._spare - self._held.used - self._labels.used

    @property
    def n_mine(self) -> int:
        self._require_first_pass()
        return self._mine

    @property
    def n_before(self) -> int:
        self._require_first_pass()
        return self._before

    def total(self, part: Array) -> Array:
        return self.group.total(part)

    def largest(self, part: float) -> float:
        return self.group.largest(part)

    def agreed(self, value: Array) -> Array:
        return self.group.agreed(value)

    @property
    def n_expected(self) -> int | None:
        known = self.stream.n_rows
        return int(self._counts.sum()) or (None if known is None else len(self._share.of(known)))

    # A pass

    def blocks(self) -> Iterable[Block]:
        features, labels = self._held.values, self._labels.values
        if features is None or labels is None or self._prints is None:
            blocks = self._read_blocks()
        else:
            blocks = self._held_blocks(features, labels)
        return blocks if self._shares is None else self._weight(blocks, self._shares)

    def _held_blocks(self, features: Array, labels: Array) -> Iterator[Block]:
        step, count = self._block_rows, int(self._counts.sum())
        for start in range(0, count, step):
            rows = slice(start, min(start + step, count))
            yield Block(features[rows], cast(labels[rows], "int64"), None, start)

    @property
    def _block_rows(self) -> int:
        return block_rows(self.n_features, int(self.dtype.itemsize), self.device)

    def _weight(self, blocks: Iterable[Block], shares: Array) -> Iterator[Block]:
        """The blocks without rows of classes that do not count, the others weighted."""
        start = 0
        for block in blocks:
            each = shares[block.labels]
            chosen = each > 0
            features, labels = block.features, block.labels
            if not bool(chosen.all()):
                features, labels, each = features[chosen], labels[chosen], each[chosen]
            if len(labels):
                yield Block(features, labels, each, start)
            start += len(labels)

    def _read_blocks(self) -> Iterator[Block]:
        form, first, step = self.form, self._prints is None, self._block_rows
        if self.stream.stamp() != self._stamp:
            raise self._change_error()
        if first:
            self._lengths = Lengths(form.max_norm)
            room = self._spare if on_cpu(self.device) else device_room(self.device, self._on_device)
            self._labels, self._held = self._memos(self.n_expected, REMEMBERED_SHARE * self._spare, HELD_SHARE * room)
        out = form.empty((step, self.n_features))
        prints: list[int] = []
        start = 0
        counts = np.zeros(len(form.classes), np.int64)
        for turn, (values, given) in enumerate(read_ahead(self.stream.chunks(self._share))):
            chunk = to_engine(as_table(values, form.name) if len(values) else np.empty((0, form.width)), form.dtype)
            require_width(chunk.shape[1], form.width, form.name)
            if first:
                require_finite(chunk, form.name, start)
            labels = self._label_indices(given, start, len(chunk), first)
            classes = to_numpy(labels)
            prints.append(_fingerprint(chunk, classes, whole=self._stamp is None))
            if self._prints is not None and self._prints[turn : turn + 1] != prints[-1:]:
                raise self._change_error()
            counts += np.bincount(classes, minlength=len(counts))
            for begin in range(0, len(chunk), step):
                rows = chunk[begin : begin + step]
                features = bound_features(
                    rows,
                    self._measure(rows, start + begin, first),
                    max_norm=form.max_norm,
                    bias=form.bias,
                    dtype=form.dtype,
                    device=form.device,
                    out=out,
                    owned=self.stream.owned,
                )
                if first:
                    self._held.put(start + begin, features)
                yield Block(features, put(labels[begin : begin + step], features), None, start + begin)
            start += len(chunk)
            self.watch(start, self.n_expected)
        if self.stream.stamp() != self._stamp or (self._prints is not None and self._prints != prints):
            raise self._change_error()
        if first:
            self._finish_first_pass(counts, prints)

    def _finish_first_pass(self, counts: Array, prints: list[int]) -> None:
        """What the first pass found, over all processes."""
        self._counts, self._mine, self._prints = counts, int(counts.sum()), prints
        self._before = self.group.before(self._mine)
        self.scaling = self._lengths.scaling(self.group.total)
        self._n_rows, self.n_scaled = self.scaling.n_rows, self.scaling.n_scaled
        self.effective = float(self._n_rows)
        self._require_shared_out(prints)
        if self._n_rows == 0:
            raise DataError(f"{self.form.name}: no rows", "at least one row is needed", "Check how it was written.")

    def _require_shared_out(self, prints: list[int]) -> None:
        """Refuse rows that would be counted twice, or left out, because processes disagree on who has which."""
        if self.group.size == 1:
            return
        if not self.stream.own_rows:
            counts = sorted(set(self.group.each(float(self.stream.n_rows or 0))))
            if len(counts) > 1:
                raise DataError(
                    f"{self.form.name}: {self.stream.name} has {' and '.join(f'{n:,.0f}' for n in counts)} rows, "
                    "depending on the process",
                    "all processes must see the same files",
                    "Put them on a file system that all hosts share, or copy them anew.",
                )
            return
        seen = self.group.each(float(zlib.crc32(np.array(prints, np.uint64).data)) if self._mine else -1.0)
        first_prints = [value for value in seen if value >= 0]
        if len(set(first_prints)) < len(first_prints):
            raise DataError(
                f"{self.form.name}: two processes gave the same rows",
                "each must give its own, or every row would be counted more than once",
                "Let the function give the rows of this process alone: every so many blocks, by its rank.",
            )

    def _label_indices(self, given: Any, start: int, count: int, first: bool) -> Array:
        """Class indices of a chunk."""
        if not first and self._labels.values is not None:
            return cast(self._labels.values[start : start + count], "int64")
        if not self.stream.labelled or not count:
            indices = np.zeros(count, np.int64)
        elif given is None:
            raise DataError(
                f"{self.form.name}: {count:,} rows without labels after {start:,}",
                "all rows have labels, or none",
                "Give (features, labels) in every block, or say that there are none: stream(blocks, labelled=False).",
            )
        else:
            indices = encode(as_labels(given, count, self.form.name), self.form.classes, self.form.name)
        indices = to_engine(indices, self.form.dtype)
        if first:
            self._labels.put(start, indices)
        return indices

    def _measure(self, rows: Array, start: int, first: bool) -> Array | None:
        """Norms of a block's rows, None where none is too long; in the first pass they are counted by length."""
        if not (first or self._some_long):
            return None
        norms = row_norms(rows)
        if first:
            require_range(norms, bias=self.form.bias, name=self.form.name, before=start)
            self._lengths.add(norms)
        long = bool((norms > norm_limit(self.form.max_norm, self.form.dtype)).any())
        self._some_long |= long
        return norms if long else None

    def _require_first_pass(self) -> None:
        if self._prints is None:
            for _ in self.blocks():
                pass

    def _change_error(self) -> DataError:
        return DataError(
            f"{self.form.name}: {self.stream.name} gave other rows than in the first pass",
            "every pass must give the same rows, in the same order",
            "Leave the files alone while they are read; a stream of blocks must begin anew each time.",
        )


def _fingerprint(chunk: Array, labels: NDArray[np.int64], whole: bool) -> int:
    """A checksum of a chunk's size, labels and rows; of the first and last row where something else watches others."""
    if not len(chunk):
        return 0
    rows = np.ascontiguousarray(to_numpy(chunk if whole else chunk[[0, -1]]))
    return zlib.crc32(labels.data, zlib.crc32(rows.data, len(chunk)))


def load(stream: Stream) -> tuple[Any, Any]:
    """All rows of a stream in memory, as (features, labels)."""
    stream.require_unchanged()
    chunks = [(np.array(values), np.array(labels)) for values, labels in stream.chunks(Share())]
    stream.require_unchanged()
    if not chunks:
        raise DataError(f"{stream.name} has no rows", "at least one is needed", "Check how it was written.")
    features = np.concatenate([values for values, _ in chunks])
    return features, np.concatenate([labels for _, labels in chunks]) if stream.labelled else None


def fits(stream: Stream, form: Form, memory: Memory) -> bool:
    """Whether the whole set may be held in memory, beside a copy of it while it is made ready."""
    if stream.n_rows is None:
        return False
    computed = 16 * len(form.classes)  # what the step and the moments keep of each row
    return stream.n_rows * (form.row_bytes + 8 * form.width + computed) <= memory.spare
