"""Rows that are read anew, block by block, in each pass: arrays in files, Parquet row groups, a caller's function.

Nothing is mapped, and a block is let go after its use, so that a pass takes as much memory for a thousand rows as for
a billion. Each process of a group reads its own share. `StreamedRows` makes them ready for an objective.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from expunge.errors import DataError, FileError
from expunge.heads import Block, RowSet
from expunge.heads.rows import Lengths, Scaling, block_rows, device_room
from expunge.record import Label
from expunge.rows.arrays import StoredArray
from expunge.rows.features import (
    as_labels,
    as_table,
    bound_features,
    encode,
    norm_limit,
    require_finite,
    require_label_each,
    require_range,
    require_width,
    row_norms,
    to_engine,
)
from expunge.rows.tables import (
    Table,
    choose_columns,
    open_parquet,
    parquet_batches,
    require_types,
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
        """This process's share of `count` things, as equal as can be."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)


def _stamp(files: Sequence[Path]) -> tuple[tuple[int, int, int], ...]:
    """Something that changes when files do."""
    return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in (path.stat() for path in files))


@dataclass(frozen=True)
class Stream:
    """Rows that can be gone over as often as needed.

    `read(share)` is one pass: features and labels, chunk by chunk, in order. Those of a caller's function (`own_rows`:
    in a group each process gives its own) are good until the next is asked for.
    `n_rows` and `n_features` are None where only a pass tells. `files` must stay as they were when this was made;
    `unprepared`: these are the columns of a table as they are.
    """

    name: str
    read: Callable[[Share], Iterator[Chunk]]
    n_rows: int | None = None
    n_features: int | None = None
    labelled: bool = True
    encoder: str | None = None
    encoder_trained: str | None = None
    feature_names: tuple[str, ...] | None = None
    unprepared: bool = False
    own_rows: bool = False
    files: tuple[Path, ...] = ()
    first_stamp: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.first_stamp is None:
            object.__setattr__(self, "first_stamp", self.stamp())

    def chunks(self, share: Share) -> Iterator[Chunk]:
        """One pass; a chunk of files is read by another thread while the one before it is used."""
        if self.own_rows:
            yield from self.read(share)
            return
        chunks = self.read(share)
        with ThreadPoolExecutor(1) as reader:
            following = reader.submit(next, chunks, None)
            while (chunk := following.result()) is not None:
                following = reader.submit(next, chunks, None)
                yield chunk

    def stamp(self) -> Any:
        """Something that changes when the files do."""
        return _stamp(self.files)

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

    def mapped(self, change: Callable[[Any, Any], Chunk], names: tuple[str, ...] | None = None) -> Stream:
        """The stream with each chunk changed by a function; `names` are what the columns are called then."""
        return replace(self, read=lambda share: (change(*chunk) for chunk in self.read(share)), feature_names=names)


def stream_arrays(features: Any, labels: Any, name: str, encoder: str | None) -> Stream:
    """Arrays in memory, for a group: each process goes over its share of them."""
    if labels is not None:
        require_label_each(len(labels), len(features), name)

    def read(share: Share) -> Iterator[Chunk]:
        wanted = share.of(len(features))
        for start in range(wanted.start, wanted.stop, ARRAY_ROWS):
            rows = slice(start, min(start + ARRAY_ROWS, wanted.stop))
            yield features[rows], None if labels is None else labels[rows]

    return Stream(name, read, len(features), labelled=labels is not None, encoder=encoder)


def stream_stored(
    name: str,
    parts: Sequence[tuple[StoredArray, StoredArray | None]],
    encoder: str | None = None,
    trained: str | None = None,
) -> Stream:
    """Features and labels that lie in files as they lie in memory: .npy and .safetensors."""
    for features, labels in parts:
        if len(features.shape) != 2 or features.stored.kind not in "fiub":
            raise FileError(
                f"{features.path}: X of shape {features.shape} and type {features.kind}",
                "a table of numbers is needed, rows x features",
                "Reshape to two dimensions, one row per example.",
            )
        if labels is not None and (labels.shape[0] != features.shape[0] or labels.shape[1:] not in ((), (1,))):
            raise FileError(
                f"{labels.path}: y of shape {labels.shape} for X of shape {features.shape}",
                "one label a row is needed",
                "Check that X and y belong together.",
            )
    widths = sorted({features.shape[1] for features, _ in parts})
    if len(widths) != 1:
        raise FileError(
            f"{name}: files with {' and '.join(map(str, widths))} features",
            "all need the same",
            "Write them again from one set of rows.",
        )
    n_rows = sum(features.shape[0] for features, _ in parts)

    def read(share: Share) -> Iterator[Chunk]:
        wanted, before = share.of(n_rows), 0
        for features, labels in parts:
            count = features.shape[0]
            first, last = max(wanted.start - before, 0), min(wanted.stop - before, count)
            before += count
            if first < last:
                yield from _read_stored(features, labels, range(first, last))

    return Stream(
        name,
        read,
        n_rows,
        widths[0],
        all(labels is not None for _, labels in parts),
        encoder,
        trained,
        files=tuple(array.path for part in parts for array in part if array is not None),
    )


def _read_stored(features: StoredArray, labels: StoredArray | None, wanted: range) -> Iterator[Chunk]:
    size = max(1, READ_BYTES // max(1, features.row_bytes))
    if features.row_bytes > READ_BYTES:
        require_room(8 * features.row_bytes, features.path, "a row, read ahead and made ready,")
    for start in range(wanted.start, wanted.stop, size):
        stop = min(start + size, wanted.stop)
        yield features.read(start, stop), None if labels is None else labels.read(start, stop)


def stream_parquet(name: str, files: Sequence[Path], label: str | None, columns: Sequence[str] | None) -> Stream:
    """Row groups of Parquet files, of which only the columns that are needed are read."""
    footers = [open_parquet(path) for path in files]
    schema = footers[0][1]
    if any(not each.equals(schema, check_metadata=False) for _, each in footers):
        raise FileError(
            f"{name}: files with different columns", "all need the same, of the same types", "Write them again."
        )
    target, chosen = choose_columns(files[0], schema.names, label, columns)
    require_types(schema, files[0], target, chosen)
    groups = [
        (path, metadata, index, metadata.row_group(index).num_rows)
        for path, (metadata, _) in zip(files, footers, strict=True)
        for index in range(metadata.num_row_groups)
    ]
    n_rows = sum(rows for *_, rows in groups)
    if n_rows == 0:
        raise DataError(f"{name} has no rows", "at least one is needed", "Check how the files were written.")

    def read(share: Share) -> Iterator[Chunk]:
        before, wanted = 0, share.of(n_rows)
        size = max(64, READ_BYTES // (8 * len(chosen)))
        for path, metadata, index, rows in groups:
            if before in wanted and rows:  # a row group is read by the process whose share it begins in
                for batch in parquet_batches(path, metadata, schema, [*chosen, target], [index], size):
                    table = Table(pa.Table.from_batches([batch]), str(path), True)
                    yield table.features(chosen), table.labels(target)
            before += rows

    return Stream(name, read, n_rows, len(chosen), feature_names=chosen, unprepared=True, files=tuple(files))


def stream(
    blocks: Callable[[], Iterable[Any]], *, labelled: bool = True, encoder: str | None = None, name: str = "the stream"
) -> Stream:
    """Rows from a function that gives, each time it is called, the same blocks: (features, labels), or features alone.

    Blocks that are frames are matched by column name, and prepared where the model's record says how; one that has the
    label column of training needs no labels beside it.

    Where there are no labels, say so with `labelled=False`. A block is used before the next is asked for: the function
    may use its memory again.

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

    def read(_: Share) -> Iterator[Chunk]:
        for item in blocks():
            values, labels = item if isinstance(item, tuple) else (item, None)
            yield (values.toarray() if hasattr(values, "tocsr") else values), labels  # a block has room, written out

    return Stream(name, read, labelled=labelled, encoder=encoder, own_rows=True)


# Made ready for an objective -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """What rows are made into, by the engine that has `dtype`: see `bound_rows` (features.py)."""

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
        for turn, (values, given) in enumerate(self.stream.chunks(self._share)):
            chunk = to_engine(as_table(values, form.name) if len(values) else np.empty((0, form.width)), form.dtype)
            require_width(chunk.shape[1], form.width, form.name)
            if first:
                require_finite(chunk, form.name, start)
            labels = self._label_indices(given, start, len(chunk), first)
            classes = to_numpy(labels)
            prints.append(_fingerprint(chunk, classes, whole=not self._stamp))
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
