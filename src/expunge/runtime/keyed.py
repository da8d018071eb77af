"""Pseudorandom bytes under a secret key: a key for each purpose by HMAC-SHA-256, and ChaCha20's stream of it.

Whoever does not have the key cannot tell them from fresh random bytes (that HMAC-SHA-256 and ChaCha20 are pseudorandom
functions is what every TLS connection relies on); with the key, the same input gives the same bytes again.
"""

from __future__ import annotations

import hashlib
import hmac

KEY_BYTES = 32
MOST_BYTES = 64 * 2**32  # of one ChaCha20 stream: its counter of 64-byte blocks has 32 bits


def prf(key: bytes, content: bytes) -> bytes:
    """HMAC-SHA-256 (RFC 2104, RFC 4231)."""
    return hmac.digest(key, content, hashlib.sha256)


def derived_key(key: bytes, purpose: str, *parts: bytes) -> bytes:
    """A key of its own for each purpose and list of parts; every part goes in with its length, so that none run on.

    >>> derived_key(bytes(32), "a", b"bc") == derived_key(bytes(32), "a", b"b", b"c")
    False
    """
    return prf(key, b"".join(len(part).to_bytes(8, "little") + part for part in (purpose.encode(), *parts)))


class KeyedBytes:
    """ChaCha20's stream (RFC 8439, nonce 0) under a key that is used for nothing else: each call goes on in it."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes; {KEY_BYTES} are needed")
        self._stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
        self._given = 0

    def __call__(self, count: int) -> bytes:
        """So many bytes more."""
        self._given += count
        if self._given > MOST_BYTES:
            raise ValueError(f"{self._given:,} bytes of one stream; there are {MOST_BYTES:,}")
        return self._stream.update(bytes(count))
