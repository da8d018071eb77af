"""Row digests: keyed, so that without the desk's key nobody can test whether a row was asked to be forgotten."""

from __future__ import annotations

import hashlib
import hmac
import io
import secrets
from typing import Any

import numpy as np

from expunge.data.files import ENCODER
from expunge.heads import Rows

KEY_BYTES = 32


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


def fingerprint(key: bytes, digests: list[str]) -> str:
    """One digest for a request: the same rows in any order are the same request."""
    return mac(key, "request", "\n".join(sorted(digests)).encode())


def arrays_bytes(features: Any, labels: Any, encoder: str | None = None) -> bytes:
    """Rows as the bytes of an npz file, nothing pickled, with the digest of their encoder where it is known."""
    stream = io.BytesIO()
    named = {} if encoder is None else {ENCODER: np.array(encoder)}
    np.savez(stream, allow_pickle=False, X=np.asarray(features), y=np.asarray(labels), **named)
    return stream.getvalue()
