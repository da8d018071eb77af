"""A set of rows that is read anew in each pass, and made ready block by block; in a group, each process reads its share."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from expunge.data.memory import Memory
from expunge.data.prepare import (
    Label,
    any_too_long,
    as_labels,
    as_table,
    encode,
    made_ready,
    require_finite,
    require_width,
    row_norms,
    scaled_rows,
)
from expunge.data.streams import Share, Stream, read_ahead
from expunge.errors import DataError
from expunge.group import ALONE, Group
from expunge.objectives import Block, RowSet
from expunge.objectives.rows import block_rows

Watch = Callable[[int, int | None], None]
REMEMBERED_SHARE = 0.25  # of the memory that may be kept, for labels and norms
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


class _Remembered:
    """Something small of each block, as long as it is not too much in all; then nothing."""

    def __init__(self, allowed: float) -> None:
        self.items: list[Any] | None = []
        self.allowed, self.used = allowed, 0

    def add(self, item: Any, n_bytes: int) -> None:
        self.used += n_bytes
        if self.used > self.allowed:
            self.items, self.used = None, 0
        elif self.items is not None:
            self.items.append(item)


class StreamedRows(RowSet):
    """Rows of a stream. The first pass checks them; that every later one gives the same rows is checked too."""

    def __init__(
        self,
        stream: Stream,
        form: Form,
        memory: Memory,
        group: Group = ALONE,
        watch: Watch = lambda done, total: None,
    ) -> None:
        self.stream, self.form, self.group, self.watch = stream, form, group, watch
        self._spare = memory.spare
        self._share = Share(group.rank, group.size)
        self._stamp = stream.stamp()
        self._prints: list[int] | None = None
        self._norms = _Remembered(0.0)
        self._labels = _Remembered(0.0)
        self._held: _Remembered | None = None
        self._shares: Tensor | None = None
        self._n_rows = 0
        self._mine = 0
        self._largest_weight, self._effective = 1.0, 0.0
        self.n_scaled = 0

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
        made._largest_weight = float(shares[counts > 0].max())
        made._effective = made._n_rows**2 / float((counts * shares.square()).sum())
        return made

    def affords(self, n_bytes: int) -> bool:
        held = 0 if self._held is None or self.device.type != "cpu" else self._held.used
        return n_bytes <= self._spare - held - self._norms.used - self._labels.used

    def keeps(self, bytes_per_row: int) -> bool:
        self._require_seen()
        return self.affords(bytes_per_row * self._mine)

    def total(self, part: Tensor) -> Tensor:
        return self.group.total(part)

    def largest(self, part: float) -> float:
        return self.group.largest(part)

    def agreed(self, value: Tensor) -> Tensor:
        return self.group.agreed(value)

    @property
    def n_expected(self) -> int | None:
        known = self.stream.n_rows
        return self._mine or (None if known is None else len(self._share.of(known)))

    # A pass ----------------------------------------------------------------------------------------------------

    def blocks(self) -> Iterable[Block]:
        if self._prints is not None and self._held is not None and self._held.items is not None:
            found: Iterable[Block] = self._held.items
        else:
            found = self._passing()
        return found if self._shares is None else self._weighted(found, self._shares)

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
        size = block_rows(self.n_features, self.form.dtype.itemsize, self.device)
        out = torch.empty((size, self.n_features), dtype=self.form.dtype, device=self.device)
        prints: list[int] = []
        start, place, scaled = 0, 0, 0
        for turn, (values, named) in enumerate(read_ahead(self.stream.chunks(self._share))):
            chunk = as_table(values, self.form.name) if len(values) else torch.empty((0, self.form.width))
            require_width(chunk.shape[1], self.form.width, self.form.name)
            prints.append(_print(chunk))
            if self._prints is not None and self._prints[turn : turn + 1] != prints[-1:]:
                raise self._changed()
            if first:
                require_finite(chunk, self.form.name, start)
            labels = self._named(named, len(chunk), turn, first)
            for begin in range(0, len(chunk), size):
                part = slice(begin, begin + size)
                rows = chunk[part]
                norms, longer = self._measured(rows, place, first)
                scaled += longer
                form = self.form
                ready = made_ready(
                    rows, norms, max_norm=form.max_norm, bias=form.bias, dtype=form.dtype, device=form.device, out=out
                )
                block = Block(ready, labels[part].to(self.device), None, start + begin)
                if first and self._held is not None:
                    kept = Block(ready.clone(), block.labels.clone(), None, block.start)
                    self._held.add(kept, ready.numel() * ready.element_size())
                yield block
                place += 1
            start += len(chunk)
            self.watch(start, self.n_expected)
        if self.stream.stamp() != self._stamp or (self._prints is not None and self._prints != prints):
            raise self._changed()
        if first:
            self._settle(start, scaled, prints)

    def _begin(self) -> None:
        self._norms = _Remembered(REMEMBERED_SHARE / 2 * self._spare)
        self._labels = _Remembered(REMEMBERED_SHARE / 2 * self._spare)
        known = None if self.stream.n_rows is None else len(self._share.of(self.stream.n_rows)) * self.form.row_bytes
        room = self._spare if self.device.type == "cpu" else torch.cuda.mem_get_info(self.device)[0]
        if known is None or known <= HELD_SHARE * room:
            self._held = _Remembered(HELD_SHARE * room)

    def _settle(self, mine: int, scaled: int, prints: list[int]) -> None:
        """What the first pass found, over all processes."""
        self._mine, self._prints = mine, prints
        counts = self.group.total(torch.tensor([mine, scaled], dtype=torch.float64)).tolist()
        self._n_rows, self.n_scaled = int(counts[0]), int(counts[1])
        self._effective = float(self._n_rows)
        if self._n_rows == 0:
            raise DataError(f"{self.form.name}: no rows", "at least one row is needed", "Check how it was written.")

    def _named(self, named: Any, count: int, turn: int, first: bool) -> Tensor:
        """Class indices of a chunk."""
        if not first and self._labels.items is not None:
            return self._labels.items[turn].to(torch.int64)  # type: ignore[no-any-return]
        if named is None or not self.stream.labelled:
            found = torch.zeros(count, dtype=torch.int64)
        else:
            found = encode(as_labels(named, count, self.form.name), self.form.classes, self.form.name)
        if first:
            self._labels.add(found.to(torch.int32), 4 * count)
        return found

    def _measured(self, rows: Tensor, place: int, first: bool) -> tuple[Tensor | None, int]:
        """Norms of a block's rows, None where none is too long, and in the first pass how many count as scaled."""
        if not first and self._norms.items is not None:
            return self._norms.items[place], 0
        norms = row_norms(rows)
        found = norms if any_too_long(norms, self.form.max_norm, self.form.dtype) else None
        if not first:
            return found, 0
        self._norms.add(found, 0 if found is None else 8 * len(rows))
        return found, scaled_rows(norms, self.form.max_norm)

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


def _print(chunk: Tensor) -> int:
    """A checksum of a chunk's size and of its first and last row."""
    if not len(chunk):
        return 0
    ends = chunk[[0, -1]].contiguous().cpu().numpy()
    return zlib.crc32(ends.view(np.uint8).data, len(chunk))


def loaded(stream: Stream) -> tuple[Any, Any]:
    """All rows of a stream in memory, as (features, labels)."""
    features, labels = [], []
    for values, named in stream.chunks(Share()):
        features.append(np.array(values))
        labels.append(np.array(named))
    joined = np.concatenate(features)
    return joined, np.concatenate(labels) if stream.labelled else None


def fits(stream: Stream, form: Form, memory: Memory) -> bool:
    """Whether the whole set may be held in memory, beside a copy of it while it is made ready."""
    if stream.n_rows is None:
        return False
    return stream.n_rows * (form.row_bytes + 8 * form.width) <= memory.spare
