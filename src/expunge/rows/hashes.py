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
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import OptionError
from expunge.rows.features import as_features, as_labels
from expunge.rows.streams import Share, Stream
from expunge.runtime.arrays import double, is_sparse, row_of_each, slice_rows, to_numpy

KEY_BYTES = 32
HASH_BYTES = 16
NOTHING = np.zeros((0, HASH_BYTES), np.uint8)
PRECISIONS = ("float64", "float32", "six decimals")
PERSON = b"expunge row"
BLOCK, NUMBERS = 4096, 1 << 20  # rows that are hashed at a time, at most, and numbers in them
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


def hash_rows(key: bytes, features: Any, labels: Any, name: str = "the rows") -> RowHashes:
    """Hash rows with their labels, as they are given; refuses values that are not finite."""
    if len(key) != KEY_BYTES:
        raise OptionError(f"a key of {len(key)} bytes", f"{KEY_BYTES} secret ones are needed", "Make one at random.")
    table = as_features(features, name, sparse=True)
    labels = as_labels(labels, table.shape[0], name)
    width = table.shape[1]
    different, label_of = np.unique(labels, return_inverse=True)
    prefixes = [_keyed_prefixes(key, width, value.item()) for value in different]
    digests: list[list[bytes]] = [[], [], []]
    size = max(16, min(BLOCK, NUMBERS // max(1, width)))
    for start in range(0, len(labels), size):
        part, places = slice_rows(table, slice(start, min(start + size, len(labels)))), None
        if is_sparse(part):
            part, places = _side_by_side(part)
        values = to_numpy(double(part)) + 0.0  # so that -0 is 0
        for level, rows in enumerate((values, _to_float32(values), _to_six_decimals(values))):
            content = (rows if places is None else _in_place(rows, places, width)).astype("<f8", copy=False).tobytes()
            made = []
            for number, label in enumerate(label_of[start : start + size].tolist()):
                digest = prefixes[label][level].copy()
                digest.update(content[8 * width * number : 8 * width * (number + 1)])
                made.append(digest.digest())
            digests[level].append(b"".join(made))  # a million on their own would take four times as much memory
    first, second, third = (np.frombuffer(b"".join(level), np.uint8).reshape(-1, HASH_BYTES) for level in digests)
    return RowHashes((first, second, third))


def hash_stream(
    key: bytes, rows: Stream, name: str = "the rows", advance: Callable[[int], None] = lambda _: None
) -> RowHashes:
    """Hash all rows of a stream in one pass; `advance` is told how many are done."""
    hashed: list[RowHashes] = []
    done = 0
    for values, labels in rows.chunks(Share()):
        if len(values):
            hashed.append(hash_rows(key, values, labels, name))
            done += len(hashed[-1])
            advance(done)
    first, second, third = (np.concatenate([NOTHING, *(each.digests[level] for each in hashed)]) for level in range(3))
    return RowHashes((first, second, third))


def _keyed_prefixes(key: bytes, width: int, label: int | str) -> list[hashlib.blake2b]:
    """One hash for each precision, with everything in it that comes before the values."""
    text = isinstance(label, str)
    content = label.encode() if isinstance(label, str) else label.to_bytes(8, "little", signed=True)
    before = width.to_bytes(8, "little") + (b"s" if text else b"i") + len(content).to_bytes(8, "little") + content
    return [
        hashlib.blake2b(bytes([precision]) + before, digest_size=HASH_BYTES, key=key, person=PERSON)
        for precision in range(len(PRECISIONS))
    ]


def _side_by_side(rows: Any) -> tuple[NDArray[np.float64], Any]:
    """The stored values of sparse rows, each row's at its beginning and then zeros; and where they are, and belong."""
    each = row_of_each(rows)
    among = np.arange(len(each)) - rows.indptr[each]
    values = np.zeros((rows.shape[0], int(np.diff(rows.indptr).max(initial=1))))
    values[each, among] = rows.data
    return values, (each, among, rows.indices)


def _in_place(values: NDArray[np.float64], places: Any, width: int) -> NDArray[np.float64]:
    """Rows written out whole, from their values side by side."""
    each, among, columns = places
    rows = np.zeros((len(values), width))
    rows[each, columns] = values[each, among]
    return rows


def _to_float32(values: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore", under="ignore"):
        narrowed = values.astype(np.float32).astype(np.float64) + 0.0
    return np.where(np.isfinite(narrowed).all(axis=1, keepdims=True), narrowed, values)


def _to_six_decimals(values: NDArray[np.float64]) -> NDArray[np.float64]:
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


def match_hashes(rows: RowHashes, among: RowHashes) -> Matches:
    """Pair rows with those of another set hashed with the same key, finest precision first.

    A row that is there twice in `rows` needs two in `among`.
    """
    given = np.full(len(rows), -1, np.int64)
    precision, times = given.copy(), np.zeros(len(rows), np.int64)
    taken: set[int] = set()
    for level in range(len(PRECISIONS)):
        asked = np.flatnonzero(given < 0)
        wanted = rows.digests[level][asked]
        places = _find_places(among.digests[level], wanted)
        free = {digest: deque(place for place in found if place not in taken) for digest, found in places.items()}
        for row, digest in zip(asked.tolist(), map(bytes, wanted), strict=True):
            if free.get(digest):
                given[row], precision[row], times[row] = free[digest].popleft(), level, len(places[digest])
                taken.add(int(given[row]))
    return Matches(given, precision, times)


def find_occurrences(rows: RowHashes, among: RowHashes) -> NDArray[np.bool_]:
    """Whether each row occurs in another set at any precision, be it once for several of them."""
    found = np.zeros(len(rows), bool)
    for own, others in zip(rows.digests, among.digests, strict=True):
        places = _find_places(others, own)
        found |= np.fromiter((bytes(digest) in places for digest in own), bool, len(own))
    return found


def _find_places(digests: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> dict[bytes, list[int]]:
    """The places of the hashes that are wanted."""
    places: dict[bytes, list[int]] = {}
    own, sought = (np.ascontiguousarray(each).view(f"S{HASH_BYTES}").reshape(-1) for each in (digests, wanted))
    for place in np.flatnonzero(np.isin(own, sought)).tolist():
        places.setdefault(bytes(digests[place]), []).append(place)
    return places
