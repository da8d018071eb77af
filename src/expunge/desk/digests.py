"""Row digests: keyed, so that without the desk's key nobody can test whether a row was asked to be forgotten."""

from __future__ import annotations

import hashlib
import hmac
import io
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from expunge.data.files import ENCODER, NAMES
from expunge.data.row_hashes import KEY_BYTES, PRECISIONS, row_hashes
from expunge.heads import Rows


def new_key() -> bytes:
    """A fresh key from the operating system's generator."""
    return secrets.token_bytes(KEY_BYTES)


def mac(key: bytes, purpose: str, content: bytes) -> str:
    """HMAC-SHA-256 of content for one purpose; digests of different purposes never meet."""
    return hmac.new(key, purpose.encode() + b"\x00" + content, hashlib.sha256).hexdigest()


def row_digests(key: bytes, rows: Rows) -> list[str]:
    """One digest a row, over its values as they were trained on and its class."""
    features = rows.features.cpu().double().numpy() + 0.0  # -0.0 and 0.0 are one value
    labels = rows.labels.cpu().numpy().astype("<i8")
    return [
        mac(key, "row", np.ascontiguousarray(row, dtype="<f8").tobytes() + label.tobytes())
        for row, label in zip(features, labels, strict=True)
    ]


@dataclass(frozen=True, repr=False)
class Marks:
    """What rows are recognised by: lists of keyed digests, one digest a row in each.

    The first list is over rows as they were trained on, the others are the hashes of rows as given, at every precision
    (`data/row_hashes.py`): a copy in float32 or with six decimals has one of these in common with its original.
    """

    kinds: tuple[list[str], ...]

    @property
    def every(self) -> tuple[str, ...]:
        """All of them, as the ledger keeps them."""
        return tuple(digest for kind in self.kinds for digest in kind)

    @property
    def by_row(self) -> list[tuple[str, ...]]:
        """The digests of each row."""
        return list(zip(*self.kinds, strict=True))


def marks_of(key: bytes, rows: Rows, features: Any, labels: Any) -> Marks:
    """What `rows`, given as `features` and `labels`, are recognised by."""
    given = row_hashes(key, features, labels)
    return Marks((row_digests(key, rows), *(given.hex(precision) for precision in range(len(PRECISIONS)))))


def class_digests(key: bytes, indices: list[int]) -> list[str]:
    """One digest a row, of its class alone: rows that wait are counted by them."""
    named = {index: mac(key, "class", str(index).encode()) for index in set(indices)}
    return [named[index] for index in indices]


def fingerprint(key: bytes, reference: str, digests: list[str]) -> str:
    """One digest for a request: its reference and its rows, in any order."""
    return mac(key, "request", "\n".join([reference, *sorted(digests)]).encode())


def arrays_bytes(
    features: Any, labels: Any, encoder: str | None = None, feature_names: tuple[str, ...] | None = None
) -> bytes:
    """Rows as the bytes of an npz file, nothing pickled, with their encoder and their columns where these are known."""
    stream = io.BytesIO()
    named = {} if encoder is None else {ENCODER: np.array(encoder)}
    named |= {} if feature_names is None else {NAMES: np.array(feature_names, dtype=str)}
    np.savez(stream, allow_pickle=False, X=np.asarray(features), y=np.asarray(labels), **named)
    return stream.getvalue()
