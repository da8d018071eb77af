"""Sets of rows, and the one way in which everything goes over them: block by block, then one total.

    total = zeros
    for block in rows.blocks():
        total += something(block)
    mean = rows.total(total) / len(rows)

`Rows` holds a set in memory and its blocks are views. Other sets read their blocks anew in each pass, or hold only a
share of the rows, the rest being with other processes: `total` and `largest` then go over all of them. The order of
blocks is fixed, and so is the order of summing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from expunge.errors import DataError
from expunge.runtime.arrays import (
    Array,
    Device,
    Dtype,
    cast,
    copy,
    is_sparse,
    load_torch,
    namespace,
    on_cpu,
    put,
    size,
    slice_rows,
    to_numpy,
)
from expunge.runtime.memory import room

# How many rows were longer than the norm bound, and by how much: counted by length, block by block -----------------

A_HAIR = 1e-6  # a row that is longer by less than this is longer by rounding alone
STEPS = 32  # of length, for each factor of 2
OCTAVES = 2100  # all that float64 can tell apart
FEW = 0.01  # of all rows: what a norm bound may scale without a word


@dataclass(frozen=True)
class Scaling:
    """`n_scaled` of `n_rows` rows were scaled down to the norm bound, the median one of them by `factor` (1: none was).

    `bound_for_few` is a norm bound that would scale one row in a hundred, to 2 % from above.
    """

    n_rows: int
    n_scaled: int
    factor: float
    bound_for_few: float

    @property
    def share(self) -> float:
        return self.n_scaled / max(1, self.n_rows)


class Lengths:
    """Rows that are too long, counted by their length over the norm bound."""

    def __init__(self, max_norm: float) -> None:
        self.max_norm = max_norm
        self.counts = np.zeros(STEPS * OCTAVES)
        self.n_rows = 0

    def add(self, norms: Array) -> None:
        """Count these rows."""
        self.n_rows += len(norms)
        with np.errstate(over="ignore"):  # to infinity, which counts as the longest there are
            ratio = to_numpy(norms).astype(np.float64) / self.max_norm
        over = ratio[ratio > 1.0 + A_HAIR]
        if len(over):
            steps = (np.log2(over) * STEPS).clip(0, len(self.counts) - 1).astype(np.int64)
            self.counts += np.bincount(steps, minlength=len(self.counts))

    def scaling(self, total: Callable[[Array], Array] = lambda part: part) -> Scaling:
        """What was counted, over all processes."""
        n_rows, counts = int(total(np.array([float(self.n_rows)]))[0]), to_numpy(total(self.counts))
        n_scaled = int(counts.sum())
        if n_scaled == 0:
            return Scaling(n_rows, 0, 1.0, self.max_norm)
        above = n_scaled - counts.cumsum(0)  # rows longer than the upper edge of each step
        median, few = (int((above <= most).nonzero()[0][0]) for most in (n_scaled / 2, FEW * n_rows))
        enough = self.max_norm if n_scaled <= FEW * n_rows else self.max_norm * 2.0 ** min((few + 1) / STEPS, 1023.0)
        return Scaling(n_rows, n_scaled, 2.0 ** (-(median + 1) / STEPS), enough)


def scaling_of(norms: Array, max_norm: float) -> Scaling:
    """How many of these rows, all at hand, are longer than the norm bound, and by how much.

    >>> scaling_of(np.array([1.0, 1.0, 4.0, 4.0]), 1.0).share
    0.5
    """
    lengths = Lengths(max_norm)
    lengths.add(norms)
    return lengths.scaling()


# Sets of rows, and the one way in which everything goes over them: block by block, then one total ------------------

BLOCK_BYTES = 1 << 22  # a block of rows stays in cache between the two products that use it


def block_rows(n_features: int, item_bytes: int, device: Device) -> int:
    """How many rows a block has."""
    size = max(16, BLOCK_BYTES // max(1, n_features * item_bytes))
    return size if on_cpu(device) else size * 64


def device_room(device: Device, limit: int | None) -> int:
    """Bytes of a GPU's memory that may be taken now: what is free, and no more than is left of the limit given."""
    torch = load_torch("a GPU")
    free = int(torch.cuda.mem_get_info(device)[0])
    return free if limit is None else max(0, min(free, limit - torch.cuda.memory_allocated(device)))


@dataclass(frozen=True)
class Block:
    """Some rows of a set, one after another; `start` counts the rows that came before them in the pass."""

    features: Array
    labels: Array
    weights: Array | None
    start: int

    def __len__(self) -> int:
        return int(self.features.shape[0])

    def __getitem__(self, part: slice) -> Block:
        weights = None if self.weights is None else self.weights[part]
        return Block(self.features[part], self.labels[part], weights, self.start)

    def weighted(self, values: Array, dim: int) -> Array:
        """Values of these rows, which run along `dim`, times the rows' weights."""
        if self.weights is None:
            return values
        shape = [1] * values.ndim
        shape[dim] = -1
        return values * cast(self.weights, values.dtype).reshape(shape)


class RowSet(ABC):
    """Rows with class indices and, where they differ in weight, weights of mean 1; on one device, in one dtype.

    `n_scaled` of them had to be scaled to the norm bound. A block is good until the next one is asked for.
    """

    n_scaled: int
    scaling: Scaling | None = None  # how many, and by how much, where that was looked at

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows, wherever they are."""

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Width of a row, bias column included."""

    @property
    @abstractmethod
    def dtype(self) -> Dtype:
        """The dtype of the features; weights are float64 whatever it is."""

    @property
    @abstractmethod
    def device(self) -> Device:
        """Where blocks are handed over."""

    @property
    @abstractmethod
    def has_weights(self) -> bool:
        """Whether rows differ in weight."""

    @property
    @abstractmethod
    def largest_weight(self) -> float:
        """The largest weight of a row; 1 without weights."""

    @property
    @abstractmethod
    def effective(self) -> float:
        """Effective sample size, `(sum w)^2 / sum w^2`: as many rows of equal weight average as well."""

    @property
    def n_stored(self) -> int:
        """How many numbers the features are; of sparse rows those that are stored."""
        return len(self) * self.n_features

    @property
    def n_mine(self) -> int:
        """How many of the rows this process goes over in a pass."""
        return len(self)

    @property
    def n_before(self) -> int:
        """How many rows the processes before this one go over.

        A row's number in the set does not depend on who has it.
        """
        return 0

    @property
    def n_expected(self) -> int | None:
        """How many of the rows this process goes over, where that is known before the first pass."""
        return self.n_mine

    @abstractmethod
    def blocks(self) -> Iterable[Block]:
        """One pass over the rows that this process goes over."""

    @abstractmethod
    def of_classes(self, shares: Array, counts: Array) -> RowSet:
        """The rows of classes whose share is above 0, each weighted by its class's share.

        `counts` are the rows left of each.
        """

    def affords(self, n_bytes: int) -> bool:
        """Whether every process may take that much memory for a while: they decide alike, and all have to ask."""
        return not on_cpu(self.device) or n_bytes <= room()

    def keeps(self, bytes_per_row: int) -> bool:
        """Whether values of that size may be kept for every row of this process until the next pass."""
        return True

    def total(self, part: Array) -> Array:
        """The sum of what each process has of it."""
        return part

    def largest(self, part: float) -> float:
        """The largest that a process has."""
        return part

    def agreed(self, value: Array) -> Array:
        """What the first process has of it."""
        return value


class WholeSet(RowSet):
    """Examples of a network, in the memory of one process, each counted once, computed with in float64."""

    n_scaled = 0
    has_weights = False
    largest_weight = 1.0

    @property
    def dtype(self) -> Dtype:
        return load_torch("a network").float64

    @property
    def effective(self) -> float:
        return float(len(self))

    @property
    def n_features(self) -> int:
        raise NotImplementedError

    @property
    def device(self) -> Device:
        raise NotImplementedError

    def blocks(self) -> Iterable[Block]:
        raise NotImplementedError

    def of_classes(self, shares: Array, counts: Array) -> RowSet:
        raise NotImplementedError


@dataclass(frozen=True)
class Rows(RowSet):
    """Rows in memory: features (bias column included), class indices and, where they differ, `weights` (float64).

    Features may be sparse, a csr_array of scipy: then so are those of blocks.
    """

    features: Array
    labels: Array
    weights: Array | None = None
    n_scaled: int = 0
    scaling: Scaling | None = None

    def __len__(self) -> int:
        return int(self.features.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.features.shape[1])

    @property
    def dtype(self) -> Dtype:
        return self.features.dtype

    @property
    def device(self) -> Device:
        return "cpu" if is_sparse(self.features) else self.features.device

    @property
    def n_stored(self) -> int:
        return int(self.features.nnz if is_sparse(self.features) else size(self.features))

    @property
    def has_weights(self) -> bool:
        return self.weights is not None

    @property
    def largest_weight(self) -> float:
        return 1.0 if self.weights is None else float(self.weights.max())

    @property
    def effective(self) -> float:
        return float(len(self)) if self.weights is None else len(self) ** 2 / float((self.weights * self.weights).sum())

    def of_classes(self, shares: Array, counts: Array) -> Rows:
        each = put(shares, self.features)[self.labels]
        chosen = each > 0
        if bool(chosen.all()):
            return replace(self, weights=each)
        return Rows(self.features[chosen], self.labels[chosen], each[chosen], self.n_scaled, self.scaling)

    @cached_property
    def _views(self) -> tuple[Block, ...]:
        # a stored value is twice as long with its place
        wide = 2 * self.n_stored // max(1, len(self)) + 8 if is_sparse(self.features) else self.n_features
        step = block_rows(wide, self.dtype.itemsize, self.device)
        parts = [slice(start, min(start + step, len(self))) for start in range(0, len(self), step)]
        weights = [None if self.weights is None else self.weights[part] for part in parts]
        return tuple(
            Block(slice_rows(self.features, part), self.labels[part], each, part.start)
            for part, each in zip(parts, weights, strict=True)
        )

    def blocks(self) -> tuple[Block, ...]:
        return self._views


def in_memory(rows: RowSet, purpose: str) -> Rows:
    """The rows, if they are in memory, as some purposes need them."""
    if isinstance(rows, Rows):
        return rows
    raise DataError(
        f"{purpose} on rows that are streamed or shared out",
        "it needs all rows in the memory of one process",
        "Declare the distance, or give fewer rows, a higher memory limit and one process.",
    )


def evenly(rows: RowSet, most: int) -> Rows:
    """At most that many rows, evenly spread, in memory and without their weights."""
    step = -(-len(rows) // most)
    if isinstance(rows, Rows):
        return Rows(copy(rows.features[::step]), copy(rows.labels[::step]))
    features, labels = [], []
    for block in rows.blocks():
        part = slice(-block.start % step, None, step)
        features.append(copy(block.features[part]))
        labels.append(copy(block.labels[part]))
    xp = namespace(features[0])
    return Rows(xp.concat(features), xp.concat(labels))


class BlockValues:
    """A value for each block: computed in the first pass and stored, or in every pass where it may not be stored.

    `source` gives one pass of tuples that begin with the block; calling this gives the same with the value appended.
    Values, `height` numbers a row and the rows last, are stored in one piece of memory.
    """

    def __init__(
        self,
        rows: RowSet,
        source: Callable[[], Iterable[tuple[Any, ...]]],
        compute: Callable[..., Array],
        height: int,
        keep: bool,
    ) -> None:
        self.rows, self.source, self.compute, self.height, self.keep = rows, source, compute, height, keep
        self.values: list[Array] | None = None

    def __call__(self) -> Iterator[tuple[Any, ...]]:
        if self.values is not None:
            for visited, value in zip(self.source(), self.values, strict=True):
                yield (*visited, value)
            return
        made: list[Array] = []
        room: Array = None
        for visited in self.source():
            value = self.compute(*visited)
            if self.keep:
                if room is None:
                    n_values = self.height * self.rows.n_mine
                    room = namespace(value).empty(n_values, dtype=value.dtype, device=value.device)
                start = self.height * visited[0].start
                stored = room[start : start + size(value)].reshape(value.shape)
                stored[...] = value
                made.append(stored)
            yield (*visited, value)
        if self.keep:
            self.values = made
