"""RFC 6962's Merkle tree over a growing list: one 32-byte root speaks for every entry and their order.

    leaf(x) = SHA-256(0x00 || x),   node(l, r) = SHA-256(0x01 || l || r)

Only the roots of the complete subtrees are kept (at most one a power of two), so that appending costs O(log n).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

EMPTY_ROOT = hashlib.sha256(b"").digest()


def leaf_hash(content: bytes) -> bytes:
    """Hash of one entry."""
    return hashlib.sha256(b"\x00" + content).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash of two subtrees."""
    return hashlib.sha256(b"\x01" + left + right).digest()


@dataclass(frozen=True)
class Frontier:
    """Roots of the complete subtrees of `size` entries, largest first: one for each 1 in the binary of `size`."""

    size: int = 0
    subtrees: tuple[bytes, ...] = ()

    def append(self, leaf: bytes) -> Frontier:
        """The frontier with one more entry."""
        subtrees, size = [*self.subtrees, leaf], self.size
        while size & 1:
            right = subtrees.pop()
            subtrees[-1] = node_hash(subtrees[-1], right)
            size >>= 1
        return Frontier(self.size + 1, tuple(subtrees))

    @property
    def root(self) -> bytes:
        """The tree's root.

        >>> Frontier().root == EMPTY_ROOT
        True
        """
        if not self.subtrees:
            return EMPTY_ROOT
        root = self.subtrees[-1]
        for left in reversed(self.subtrees[:-1]):
            root = node_hash(left, root)
        return root
