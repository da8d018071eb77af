"""The keyed hash of a row: one definition for everything that has to recognise a row without keeping it.

A row is hashed as it is given, before scaling, bias or a change of dtype, with its label, at three precisions:

    float64        the values themselves
    float32        rounded to float32; the values themselves in a row that float32 cannot hold
    six decimals   rounded to a whole number of millionths, ties to even, as printf, Python and numpy write them; the
                   values themselves in a row that six decimals would leave fewer than four digits of

A copy that was kept in float32, or written to a csv file with six decimals, has other values than its original but the
same hash at that precision. Each hash is BLAKE2b of 16 bytes, keyed by 32 secret ones:

    precision (1 byte) || width (8) || kind of label (1) || length of label (8) || label || values as float64

Numbers are little-endian, and -0 is 0 throughout. A label is a whole number (`i`, 8 bytes) or a string (`s`, UTF-8); 1
and "1" are two labels. Without the key nobody can test whether a row is among those hashed, so the key never goes where
a model goes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import OptionError
from expunge.rows.prepare import as_features, as_labels
from expunge.rows.streams import Share, Stream

KEY_BYTES = 32
HASH_BYTES = 16
NOTHING = np.zeros((0, HASH_BYTES), np.uint8)
PRECISIONS = ("float64", "float32", "six decimals")
PERSON = b"expunge row"
BLOCK, NUMBERS = 4096, 1 << 20  # rows that are hashed at a time, at most, and numbers in them
ALONE, MOST_THREADS = 1 << 18, 8  # numbers that one thread hashes, and threads for more
MILLION = 1e6
LEAST_AT_SIX_DECIMALS = 1e-3  # the largest entry, once rounded: below it six decimals leave fewer than four digits
EXACT_BELOW = 2.0**33  # from here on neighbouring float64 values differ in six decimals anyway
TWO_FACTORS = 2.0**27 + 1.0  # splits a float64 into two halves whose products with a million are exact


@dataclass(frozen=True)
class RowHashes:
    """Hashes of n rows, one (n, 16) array of bytes for each of `PRECISIONS`."""

    digests: tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]] = field(repr=False)

    def __len__(self) -> int:
        return len(self.digests[0])

    def hex(self, precision: int) -> list[str]:
        """The hashes at one precision, as text."""
        return [row.tobytes().hex() for row in self.digests[precision]]


@dataclass(frozen=True)
class Matches:
    """For each row of one set, where it is in another.

    `row` is the other's row that it was given, -1 for none; no row is given twice. `precision` is the position in
    `PRECISIONS` of the finest at which the two agree, -1 for none. `times` says how many rows of the other set agree
    with it there.
    """

    row: NDArray[np.int64]
    precision: NDArray[np.int64]
    times: NDArray[np.int64]


def row_hashes(key: bytes, features: Any, labels: Any, name: str = "the rows") -> RowHashes:
    """Hashes of rows and their labels, as they are given; refuses values that are not finite."""
    if len(key) != KEY_BYTES:
        raise OptionError(f"a key of {len(key)} bytes", f"{KEY_BYTES} secret ones are needed", "Make one at random.")
    table = as_features(features, name)
    named = as_labels(labels, table.shape[0], name)
    kinds, kind_of = np.unique(named, return_inverse=True)
    starts = [_started(key, table.shape[1], _label(value.item())) for value in kinds]
    threads = threads_for(len(named), table.shape[1])
    size = max(16, min(BLOCK, NUMBERS // threads // max(1, table.shape[1])))

    def of_block(start: int) -> tuple[bytes, ...]:
        values = table[start : start + size].cpu().double().numpy() + 0.0  # so that -0 is 0
        begun = [starts[kind] for kind in kind_of[start : start + size].tolist()]
        precise = enumerate((values, _float32(values), _six_decimals(values)))
        return tuple(b"".join(_hashed(rows, (each[level] for each in begun))) for level, rows in precise)

    blocks = range(0, len(named), size)
    if threads == 1:
        parts = list(map(of_block, blocks))
    else:
        with ThreadPoolExecutor(threads) as pool:  # hashes let go of the interpreter
            parts = list(pool.map(of_block, blocks))
    parts = parts or [(b"", b"", b"")]
    first, second, third = (
        np.frombuffer(b"".join(level), np.uint8).reshape(-1, HASH_BYTES) for level in zip(*parts, strict=True)
    )
    return RowHashes((first, second, third))


def threads_for(rows: int, width: int) -> int:
    """How many threads hash so many rows: few share the memory of one, and a little work is done by one.

    >>> threads_for(10, 10), threads_for(0, 0)
    (1, 1)
    """
    if rows * width <= ALONE:
        return 1
    known = getattr(os, "sched_getaffinity", None)  # what this process may use, where the system says
    return max(1, min(MOST_THREADS, len(known(0)) if known else os.cpu_count() or 1))


def streamed_hashes(
    key: bytes, rows: Stream, name: str = "the rows", advance: Callable[[int], None] = lambda _: None
) -> RowHashes:
    """The same for all rows of a stream, in one pass; `advance` is told how many are done."""
    made: list[RowHashes] = []
    done = 0
    for values, labels in rows.chunks(Share()):
        if len(values):
            made.append(row_hashes(key, values, labels, name))
            done += len(made[-1])
            advance(done)
    first, second, third = (np.concatenate([NOTHING, *(each.digests[at] for each in made)]) for at in range(3))
    return RowHashes((first, second, third))


def _started(key: bytes, width: int, label: bytes) -> list[hashlib.blake2b]:
    """One hash for each precision, with everything in it that comes before the values."""
    before = width.to_bytes(8, "little") + label
    return [
        hashlib.blake2b(bytes([precision]) + before, digest_size=HASH_BYTES, key=key, person=PERSON)
        for precision in range(len(PRECISIONS))
    ]


def _label(value: int | str) -> bytes:
    kind, content = (
        (b"s", value.encode()) if isinstance(value, str) else (b"i", value.to_bytes(8, "little", signed=True))
    )
    return kind + len(content).to_bytes(8, "little") + content


def _hashed(rows: NDArray[np.float64], begun: Iterable[hashlib.blake2b]) -> list[bytes]:
    content, size = rows.astype("<f8", copy=False).tobytes(), 8 * rows.shape[1]
    digests = []
    for number, start in enumerate(begun):
        whole = start.copy()
        whole.update(content[number * size : (number + 1) * size])
        digests.append(whole.digest())
    return digests


def _float32(values: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore", under="ignore"):
        narrowed = values.astype(np.float32).astype(np.float64) + 0.0
    return np.where(np.isfinite(narrowed).all(axis=1, keepdims=True), narrowed, values)


def _six_decimals(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each value as it reads from a text that gives it with six decimals."""
    small = np.abs(values) < EXACT_BELOW
    millionths = np.where(small, values, 0.0) * MILLION
    whole = np.rint(millionths)
    ties = np.flatnonzero(np.abs(millionths - np.trunc(millionths)) == 0.5)
    if len(ties):  # the product was rounded to a tie, or is one: what was lost decides
        lost = _lost(values.flat[ties], millionths.flat[ties])
        whole.flat[ties] = np.where(lost == 0.0, whole.flat[ties], np.floor(millionths.flat[ties]) + (lost > 0.0))
    rounded = np.where(small, whole / MILLION, values) + 0.0
    enough = np.abs(rounded).max(axis=1, keepdims=True) >= LEAST_AT_SIX_DECIMALS
    return np.where(enough, rounded, values)


def _lost(values: NDArray[np.float64], products: NDArray[np.float64]) -> NDArray[np.float64]:
    """What a million times each value is beyond the product that float64 holds, exactly."""
    scaled = values * TWO_FACTORS
    high = scaled - (scaled - values)
    exact: NDArray[np.float64] = (high * MILLION - products) + (values - high) * MILLION
    return exact


def matches(rows: RowHashes, among: RowHashes) -> Matches:
    """Which of the rows occur in another set hashed with the same key, finest precision first.

    A row that is there twice in `rows` needs two in `among`.
    """
    given = np.full(len(rows), -1, np.int64)
    precision, times = given.copy(), np.zeros(len(rows), np.int64)
    free = np.ones(len(among), bool)
    for level in range(len(PRECISIONS)):
        asked = np.flatnonzero(given < 0)
        if not len(asked):
            break
        wanted = rows.digests[level][asked]
        near = _begin_alike(among.digests[level], wanted)
        every = np.concatenate([wanted, among.digests[level][near]])
        kinds = np.unique(np.ascontiguousarray(every).view(f"V{HASH_BYTES}")[:, 0], return_inverse=True)[1]
        of_asked, of_all = kinds[: len(asked)], kinds[len(asked) :]
        left = np.flatnonzero(free[near])
        found = _paired(of_asked, of_all[left])
        here = found >= 0
        given[asked[here]], precision[asked[here]] = near[left[found[here]]], level
        times[asked[here]] = np.bincount(of_all, minlength=int(kinds.max(initial=0)) + 1)[of_asked[here]]
        free[given[asked[here]]] = False
    return Matches(given, precision, times)


def occurring(rows: RowHashes, among: RowHashes) -> NDArray[np.bool_]:
    """Which of the rows occur in another set at any precision, be it once for several of them."""
    found = np.zeros(len(rows), bool)
    for own, others in zip(rows.digests, among.digests, strict=True):
        known = {digest.tobytes() for digest in others[_begin_alike(others, own)]} if len(own) else set()
        found |= np.fromiter((digest.tobytes() in known for digest in own), bool, len(own))
    return found


def _begin_alike(digests: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The places of hashes whose first half is that of one that is wanted: few, and all that can be equal to one."""
    halves = np.unique(_first_halves(wanted))
    own = _first_halves(digests)
    return np.flatnonzero(halves[np.minimum(np.searchsorted(halves, own), len(halves) - 1)] == own)


def _first_halves(digests: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(digests[:, : HASH_BYTES // 2]).view(np.uint64)[:, 0]


def _paired(wanted: NDArray[np.int64], offered: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each wanted number the place of an equal one that is offered, the k-th for the k-th; -1 without one."""
    places = {key: place for place, key in enumerate(zip(offered.tolist(), _ordinals(offered).tolist(), strict=True))}
    keys = zip(wanted.tolist(), _ordinals(wanted).tolist(), strict=True)
    return np.array([places.get(key, -1) for key in keys], np.int64)


def _ordinals(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many equal numbers come before each."""
    order = np.argsort(numbers, kind="stable")
    ranked = numbers[order]
    first = np.flatnonzero(np.diff(ranked, prepend=ranked[:1] - 1))
    ordinals = np.empty(len(numbers), np.int64)
    ordinals[order] = np.arange(len(numbers)) - np.repeat(first, np.diff(np.append(first, len(numbers))))
    return ordinals
