"""A set of rows that is read anew in each pass, and made ready block by block.

In a group, each process reads its share.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from expunge.errors import DataError
from expunge.heads import Block, RowSet
from expunge.heads.rows import block_rows, device_room
from expunge.heads.scaling import Lengths, Scaling
from expunge.record import Label
from expunge.rows.prepare import (
    any_too_long,
    as_labels,
    as_table,
    encode,
    made_ready,
    require_finite,
    require_range,
    require_width,
    row_norms,
)
from expunge.rows.streams import Share, Stream, read_ahead
from expunge.runtime.group import ALONE, Group
from expunge.runtime.memory import Memory

Watch = Callable[[int, int | None], None]
REMEMBERED_SHARE = 0.25  # of the memory that may be kept, for labels and norms
FIRST_ROWS = 1 << 16  # room for so many is made where nobody knows how many there are
HELD_SHARE = 0.5  # of it, for whole sets: what is computed from them needs the rest


@dataclass(frozen=True)
class Form:
    """What rows are made into: see `prepare`."""

    classes: Sequence[Label]
    max_norm: float
    bias: bool
    dtype: torch.dtype
    device: torch.device
    width: int
    name: str

    @property
    def row_bytes(self) -> int:
        return (self.width + int(self.bias)) * self.dtype.itemsize


class _PerRow:
    """Something of every row, in one piece of memory, as long as that is not larger than allowed; then nothing.

    One piece: many small ones that stay, allocated between large ones that do not, would leave holes the system never
    gets back.
    """

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device, known: int | None, allowed: float) -> None:
        self.width, self.allowed = width, allowed
        self.row_bytes = max(1, width) * dtype.itemsize
        self.values: Tensor | None = torch.empty(0, dtype=dtype, device=device)
        self._reserve(FIRST_ROWS if known is None else known)

    def _reserve(self, rows: int) -> None:
        if self.values is not None and rows * self.row_bytes <= self.allowed:
            shape = (rows, self.width) if self.width else (rows,)
            grown = self.values.new_empty(shape)
            grown[: len(self.values)] = self.values.reshape(-1, *shape[1:])
            self.values = grown
        else:
            self.values = None

    def put(self, start: int, values: Tensor) -> None:
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

    def __init__(
        self,
        stream: Stream,
        form: Form,
        memory: Memory,
        group: Group = ALONE,
        watch: Watch = lambda *_: None,
    ) -> None:
        self.stream, self.form, self.group, self.watch = stream, form, group, watch
        self._spare, self._on_device = memory.spare, memory.on_device
        self._share = Share(group.rank, group.size)
        stream.require_as_opened()
        self._stamp = stream.stamp()
        self._prints: list[int] | None = None
        self.scaling: Scaling | None = None
        self._norms = _PerRow(0, torch.float64, form.device, None, 0.0)
        self._some_long = False
        self._labels = _PerRow(0, torch.int32, form.device, None, 0.0)
        self._held = _PerRow(0, form.dtype, form.device, None, 0.0)
        self._shares: Tensor | None = None
        self._n_rows = 0
        self._mine = 0
        self._before = 0
        self._counts = torch.zeros(len(form.classes), dtype=torch.int64)
        self._largest_weight, self._effective = 1.0, 0.0
        self.n_scaled, self._lengths = 0, Lengths(form.max_norm)

    # What it is ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        self._require_seen()
        return self._n_rows

    @property
    def n_features(self) -> int:
        return self.form.width + int(self.form.bias)

    @property
    def dtype(self) -> torch.dtype:
        return self.form.dtype

    @property
    def device(self) -> torch.device:
        return self.form.device

    @property
    def has_weights(self) -> bool:
        return self._shares is not None

    @property
    def largest_weight(self) -> float:
        return self._largest_weight

    @property
    def effective(self) -> float:
        return self._effective

    def of_classes(self, shares: Tensor, counts: Tensor) -> StreamedRows:
        made = copy.copy(self)
        made._shares = shares.to(self.device)
        made._n_rows = int(counts.sum())
        made._mine = int(self._counts[shares.cpu() > 0].sum())
        made._before = self.group.before(made._mine)
        made._largest_weight = float(shares[counts > 0].max())
        made._effective = made._n_rows**2 / float((counts * shares.square()).sum())
        return made

    def affords(self, n_bytes: int) -> bool:
        return self.group.largest(float(not self._has_room(n_bytes))) == 0.0

    def keeps(self, bytes_per_row: int) -> bool:
        return self._has_room(bytes_per_row * self.n_mine)

    def _has_room(self, n_bytes: int) -> bool:
        if self.device.type != "cpu":
            return n_bytes <= HELD_SHARE * device_room(self.device, self._on_device)
        return n_bytes <= self._spare - self._held.used - self._norms.used - self._labels.used

    @property
    def n_mine(self) -> int:
        self._require_seen()
        return self._mine

    @property
    def n_before(self) -> int:
        self._require_seen()
        return self._before

    def total(self, part: Tensor) -> Tensor:
        return self.group.total(part)

    def largest(self, part: float) -> float:
        return self.group.largest(part)

    def agreed(self, value: Tensor) -> Tensor:
        return self.group.agreed(value)

    @property
    def n_expected(self) -> int | None:
        known = self.stream.n_rows
        return int(self._counts.sum()) or (None if known is None else len(self._share.of(known)))

    # A pass ----------------------------------------------------------------------------------------------------

    def blocks(self) -> Iterable[Block]:
        whole = self._held.values is not None and self._labels.values is not None
        one_pass = self._views() if whole and self._prints is not None else self._passing()
        return one_pass if self._shares is None else self._weighted(one_pass, self._shares)

    def _views(self) -> Iterator[Block]:
        """A pass over rows that are held."""
        assert self._held.values is not None
        assert self._labels.values is not None
        size = self._block_rows
        count = int(self._counts.sum())
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            yield Block(self._held.values[part], self._labels.values[part].long(), None, start)

    @property
    def _block_rows(self) -> int:
        return block_rows(self.n_features, self.form.dtype.itemsize, self.device)

    def _weighted(self, blocks: Iterable[Block], shares: Tensor) -> Iterator[Block]:
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

    def _passing(self) -> Iterator[Block]:
        first = self._prints is None
        if first:
            self._begin()
        if self.stream.stamp() != self._stamp:
            raise self._changed()
        size = self._block_rows
        out = torch.empty((size, self.n_features), dtype=self.form.dtype, device=self.device)
        prints: list[int] = []
        start = 0
        counts = torch.zeros(len(self.form.classes), dtype=torch.int64)
        for turn, (values, named) in enumerate(read_ahead(self.stream.chunks(self._share))):
            chunk = as_table(values, self.form.name) if len(values) else torch.empty((0, self.form.width))
            require_width(chunk.shape[1], self.form.width, self.form.name)
            if first:
                require_finite(chunk, self.form.name, start)
            labels = self._named(named, start, len(chunk), first)
            prints.append(_fingerprint(chunk, labels, whole=self._stamp is None))
            if self._prints is not None and self._prints[turn : turn + 1] != prints[-1:]:
                raise self._changed()
            counts += torch.bincount(labels.cpu(), minlength=len(counts))
            for begin in range(0, len(chunk), size):
                part = slice(begin, begin + size)
                rows = chunk[part]
                norms = self._measured(rows, start + begin, first)
                form = self.form
                ready = made_ready(
                    rows,
                    norms,
                    max_norm=form.max_norm,
                    bias=form.bias,
                    dtype=form.dtype,
                    device=form.device,
                    out=out,
                    owned=self.stream.owned,
                )
                block = Block(ready, labels[part].to(self.device), None, start + begin)
                if first:
                    self._held.put(block.start, ready)
                yield block
            start += len(chunk)
            self.watch(start, self.n_expected)
        if self.stream.stamp() != self._stamp or (self._prints is not None and self._prints != prints):
            raise self._changed()
        if first:
            self._settle(counts, prints)

    def _begin(self) -> None:
        self._lengths = Lengths(self.form.max_norm)
        known, device, half = self.n_expected, self.device, REMEMBERED_SHARE / 2 * self._spare
        self._norms = _PerRow(0, torch.float64, torch.device("cpu"), known, half)
        self._labels = _PerRow(0, torch.int32, device, known, half)
        room = self._spare if device.type == "cpu" else device_room(device, self._on_device)
        self._held = _PerRow(self.n_features, self.dtype, device, known, HELD_SHARE * room)

    def _settle(self, counts: Tensor, prints: list[int]) -> None:
        """What the first pass found, over all processes."""
        if not self._some_long:
            self._norms = _PerRow(0, torch.float64, torch.device("cpu"), 0, 0.0)
        self._counts, self._mine, self._prints = counts, int(counts.sum()), prints
        self._before = self.group.before(self._mine)
        self.scaling = self._lengths.scaling(self.group.total)
        self._n_rows, self.n_scaled = self.scaling.n_rows, self.scaling.n_scaled
        self._effective = float(self._n_rows)
        self._require_shared_out(prints)
        if self._n_rows == 0:
            raise DataError(f"{self.form.name}: no rows", "at least one row is needed", "Check how it was written.")

    def _require_shared_out(self, prints: list[int]) -> None:
        """Refuse rows that would be counted twice, or left out, because processes disagree on who has which."""
        if self.group.size == 1:
            return
        if not self.stream.own_rows:
            counts = self.group.each(float(self.stream.n_rows or 0))
            if len(set(counts)) > 1:
                raise DataError(
                    f"{self.form.name}: {self.stream.name} has "
                    f"{' and '.join(f'{n:,.0f}' for n in sorted(set(counts)))} rows, depending on the process",
                    "all processes must see the same files",
                    "Put them on a file system that all hosts share, or copy them anew.",
                )
            return
        seen = self.group.each(float(zlib.crc32(np.array(prints, np.uint64).tobytes())) if self._mine else -1.0)
        first_prints = [value for value in seen if value >= 0]
        if len(set(first_prints)) < len(first_prints):
            raise DataError(
                f"{self.form.name}: two processes gave the same rows",
                "each must give its own, or every row would be counted more than once",
                "Let the function give the rows of this process alone: every so many blocks, by its rank.",
            )

    def _named(self, named: Any, start: int, count: int, first: bool) -> Tensor:
        """Class indices of a chunk."""
        if not first and self._labels.values is not None:
            return self._labels.values[start : start + count].long()
        if not self.stream.labelled or not count:
            indices = torch.zeros(count, dtype=torch.int64)
        elif named is None:
            raise DataError(
                f"{self.form.name}: {count:,} rows without labels after {start:,}",
                "all rows have labels, or none",
                "Give (features, labels) in every block, or say that there are none: stream(blocks, labelled=False).",
            )
        else:
            indices = encode(as_labels(named, count, self.form.name), self.form.classes, self.form.name)
        if first:
            self._labels.put(start, indices)
        return indices

    def _measured(self, rows: Tensor, start: int, first: bool) -> Tensor | None:
        """Norms of a block's rows, None where none is too long; in the first pass they are counted by length."""
        if not (first or self._some_long):
            return None
        kept = None if first else self._norms.values
        norms = row_norms(rows) if kept is None else kept[start : start + len(rows)]
        if first:
            require_range(norms, bias=self.form.bias, name=self.form.name, before=start)
            self._norms.put(start, norms)
            self._lengths.add(norms)
        long = any_too_long(norms, self.form.max_norm, self.form.dtype)
        self._some_long |= long
        return norms if long else None

    def _require_seen(self) -> None:
        """The first pass is made where nobody has made it."""
        if self._prints is None:
            for _ in self.blocks():
                pass

    def _changed(self) -> DataError:
        return DataError(
            f"{self.form.name}: {self.stream.name} gave other rows than in the first pass",
            "every pass must give the same rows, in the same order",
            "Leave the files alone while they are read; a stream of blocks must begin anew each time.",
        )


def _fingerprint(chunk: Tensor, labels: Tensor, whole: bool) -> int:
    """A checksum of a chunk's size, labels and rows.

    Of the first and last row where something else watches the others.
    """
    if not len(chunk):
        return 0
    rows = (chunk if whole else chunk[[0, -1]]).contiguous().cpu().view(torch.uint8).numpy()
    return zlib.crc32(labels.cpu().numpy().tobytes(), zlib.crc32(rows.data, len(chunk)))


def loaded(stream: Stream) -> tuple[Any, Any]:
    """All rows of a stream in memory, as (features, labels)."""
    features, labels = [], []
    stream.require_as_opened()
    for values, named in stream.chunks(Share()):
        features.append(np.array(values))
        labels.append(np.array(named))
    stream.require_as_opened()
    if not features:
        raise DataError(f"{stream.name} has no rows", "at least one is needed", "Check how it was written.")
    joined = np.concatenate(features)
    return joined, np.concatenate(labels) if stream.labelled else None


def fits(stream: Stream, form: Form, memory: Memory) -> bool:
    """Whether the whole set may be held in memory, beside a copy of it while it is made ready."""
    if stream.n_rows is None:
        return False
    computed = 16 * len(form.classes)  # what the step and the moments keep of each row
    return stream.n_rows * (form.row_bytes + 8 * form.width + computed) <= memory.spare
