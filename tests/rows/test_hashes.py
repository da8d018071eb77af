"""A row is recognised in every form it is handed on in, and nobody without the key can test for one."""

from __future__ import annotations

import hashlib
import io
import struct
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.errors import DataError, OptionError
from expunge.rows.hashes import HASH_BYTES, PRECISIONS, RowHashes, hash_rows, match_hashes
from expunge.runtime.arrays import double

KEY = bytes(range(32))
ROWS = settings(max_examples=200, derandomize=True, deadline=None)
VALUES = st.floats(-1e12, 1e12) | st.floats(-2, 2) | st.integers(-(2**20), 2**20).map(lambda k: k / 2**9)


def table(values: list[float]) -> np.ndarray:
    return np.array([[0.5, *values]])  # an entry of ordinary size: below 0.001 six decimals do not speak for a row


def agreeing(a: RowHashes, b: RowHashes) -> list[str]:
    return [name for level, name in enumerate(PRECISIONS) if a.hex(level) == b.hex(level)]


def naive(key: bytes, row: list[float], label: int | str, precision: int) -> str:
    """The definition, one value at a time, decimals by exact arithmetic."""
    if precision == 1:
        row = [struct.unpack("<f", struct.pack("<f", value))[0] for value in row]
    if precision == 2:
        row = [float(Decimal(value).quantize(Decimal("0.000001"), ROUND_HALF_EVEN)) for value in row]
    told = (b"s", label.encode()) if isinstance(label, str) else (b"i", struct.pack("<q", label))
    message = struct.pack("<BQ", precision, len(row)) + told[0] + struct.pack("<Q", len(told[1])) + told[1]
    message += struct.pack(f"<{len(row)}d", *(value + 0.0 for value in row))
    return hashlib.blake2b(message, digest_size=16, key=key, person=b"expunge row").hexdigest()


def test_a_known_answer() -> None:
    hashes = hash_rows(KEY, [[0.1, -2.0, 3.5], [-0.0, 1e-7, 7.0]], ["a", "bc"])
    assert [hashes.hex(level) for level in range(3)] == KNOWN
    assert len(hashes) == 2
    assert all(part.shape == (2, HASH_BYTES) for part in hashes.digests)


KNOWN = [
    ["5b15f81bd56e71ce40deff49ac68f931", "97af8952c1f2d3d7be1af3bdd8a3278a"],
    ["8101d38ed74b7c929592beaee3fa7798", "188d4171cd954ef179541476e6ef2c6d"],
    ["2110db6433902bad7786da99887f9c7a", "4d7d7c68a28246502f0b2ead56f2abb3"],
]


@ROWS
@given(st.lists(VALUES, min_size=1, max_size=4), st.integers(-(2**63), 2**63 - 1) | st.text(min_size=1))
def test_it_is_the_naive_form(values: list[float], label: Any) -> None:
    if isinstance(label, str) and (label.endswith("\x00") or not label.isprintable()):
        label = "printable"
    row = [0.5, *values]
    hashes = hash_rows(KEY, [row], [label])
    assert [hashes.hex(level)[0] for level in range(3)] == [naive(KEY, row, label, level) for level in range(3)]


@ROWS
@given(st.lists(VALUES, min_size=1, max_size=5))
def test_a_copy_is_recognised_at_its_precision(values: list[float]) -> None:
    original = hash_rows(KEY, table(values), [1])
    narrowed = table(values).astype(np.float32)
    written = io.StringIO()
    np.savetxt(written, table(values), fmt="%.6f")
    read = np.array([[float(value) for value in written.getvalue().split()]])
    in_python = np.array([[round(value, 6) for value in table(values)[0].tolist()]])
    assert "float32" in agreeing(original, hash_rows(KEY, narrowed, [1]))
    assert "float32" in agreeing(original, hash_rows(KEY, double(torch.from_numpy(narrowed)), [1.0]))
    for copy in (read, in_python):
        if np.abs(copy).max() < 2**31:  # beyond, float64 itself has hardly more than six decimals
            assert "six decimals" in agreeing(original, hash_rows(KEY, copy, [1]))
    assert agreeing(original, hash_rows(KEY, table(values), np.array([1], np.int8))) == list(PRECISIONS)


@ROWS
@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=5), st.integers(0, 3))
def test_neighbours_agree_where_they_should(values: list[float], step: int) -> None:
    """One ulp apart: the same at lower precisions, but where a rounding boundary lies between them; 1e-4 apart: never."""
    row = np.round(table(values), 7) + 2e-8 * (step + 1)  # off the ties of six decimals
    neighbour, other = np.nextafter(row, 2.0), row.copy()
    other[0, -1] += 1e-4
    original = hash_rows(KEY, row, [1])
    found = agreeing(original, hash_rows(KEY, neighbour, [1]))
    assert "float64" not in found
    assert ("float32" in found) == bool((row.astype(np.float32) == neighbour.astype(np.float32)).all())
    assert ("six decimals" in found) == bool((np.round(row, 6) == np.round(neighbour, 6)).all())
    assert agreeing(original, hash_rows(KEY, other, [1])) == []


def test_ties_are_rounded_as_texts_are() -> None:
    ties = [k / 2**n for n in range(7, 20) for k in range(1, 200, 2)]
    near = [float(f"{k}.{k % 999983:06d}5") for k in range(0, 40000, 7)]  # a decimal tie that no float64 holds
    values = np.array([ties + near])
    copy = np.array([[float(f"{value:.6f}") for value in values[0]]])
    assert "six decimals" in agreeing(hash_rows(KEY, values, [1]), hash_rows(KEY, copy, [1]))


def test_minus_zero_is_zero_at_every_precision() -> None:
    zero, tiny = hash_rows(KEY, [[0.0, 1.0]], [1]), hash_rows(KEY, [[-1e-60, 1.0]], [1])
    assert agreeing(zero, hash_rows(KEY, [[-0.0, 1.0]], [1])) == list(PRECISIONS)
    assert agreeing(zero, tiny) == ["float32", "six decimals"]


def test_rows_that_a_precision_cannot_hold_are_told_apart() -> None:
    """All of them would be infinite in float32, or zero in six decimals."""
    huge, tiny = np.array([[1e200, 0.0], [2e200, 0.0]]), np.array([[1e-8, 2e-8], [3e-8, 1e-8]])
    for rows in (huge, tiny):
        hashes = hash_rows(KEY, rows, [1, 1])
        assert all(len(set(hashes.hex(level))) == 2 for level in range(3))


def test_label_width_and_key_matter() -> None:
    one = hash_rows(KEY, [[1.0, 2.0]], [1])
    others: list[tuple[bytes, Any, Any]] = [
        (KEY, [[1.0, 2.0]], ["1"]),
        (KEY, [[1.0, 2.0]], [2]),
        (KEY, [[1.0, 2.0, 0.0]], [1]),
        (KEY, [[2.0, 1.0]], [1]),
        (KEY[::-1], [[1.0, 2.0]], [1]),
    ]
    assert all(agreeing(one, hash_rows(*other)) == [] for other in others)
    assert agreeing(one, hash_rows(KEY, [[1, 2]], [True])) == list(PRECISIONS)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(64)])
def test_a_key_has_32_bytes(key: bytes) -> None:
    with pytest.raises(OptionError, match="32 secret"):
        hash_rows(key, [[1.0]], [1])


def test_what_is_not_a_row_is_refused() -> None:
    with pytest.raises(DataError, match="finite"):
        hash_rows(KEY, [[np.nan]], [1])
    with pytest.raises(DataError, match="labels"):
        hash_rows(KEY, [[1.0]], [1, 2])


def test_rows_are_taken_once_each_and_the_finest_precision_comes_first() -> None:
    X = np.array([[1 / 3, 2.0], [1 / 3, 2.0], [0.1, 5.0], [0.2, 6.0]])
    source = hash_rows(KEY, X, [1, 1, 2, 3])
    asked = np.array([[np.float32(1 / 3), 2.0], [1 / 3, 2.0], [1 / 3, 2.0], [0.1, 5.0], [0.2, 6.0], [0.333333, 2.0]])
    found = match_hashes(hash_rows(KEY, asked, [1, 1, 1, 2, 2, 1]), source)
    assert found.row.tolist() == [-1, 0, 1, 2, -1, -1], "two exact rows take both; nothing is left for their copies"
    assert found.precision.tolist() == [-1, 0, 0, 0, -1, -1]
    assert found.times.tolist() == [0, 2, 2, 1, 0, 0]
    alone = match_hashes(hash_rows(KEY, asked[[0, 5]], [1, 1]), source)
    assert alone.precision.tolist() == [1, 2]
    assert alone.times.tolist() == [2, 2]
    assert sorted(alone.row.tolist()) == [0, 1]


@ROWS
@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_as_many_are_found_as_there_are(asked: list[int], there: list[int]) -> None:
    if not asked:
        asked = [0]
    found = match_hashes(*(hash_rows(KEY, np.array([part]).T * 1.5, np.ones(len(part))) for part in (asked, there)))
    given_rows = found.row[found.row >= 0].tolist()
    assert len(set(given_rows)) == len(given_rows)
    assert len(given_rows) == sum(min(asked.count(value), there.count(value)) for value in set(asked))
    for value, row, times in zip(asked, found.row, found.times, strict=True):
        assert (row < 0 and times == 0) or (there[row] == value and times == there.count(value))


def test_hashes_that_begin_alike_are_not_the_same() -> None:
    source = hash_rows(KEY, [[1.0], [2.0], [3.0]], [1, 1, 1])
    other = np.array(source.digests[0])
    other[:, 8:] = other[::-1, 8:]  # first halves of some rows with second halves of others
    mixed = RowHashes((other, other, other))
    assert match_hashes(mixed, source).row.tolist() == [-1, 1, -1]
    assert match_hashes(source, mixed).row.tolist() == [-1, 1, -1]
