"""The Merkle tree, against RFC 6962's recursive definition and its published roots."""

from __future__ import annotations

import hashlib
from functools import reduce

import pytest

from expunge.desk.ledger import EMPTY_ROOT, Frontier, leaf_hash, node_hash

ENTRIES = [
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
# roots of the first 0 to 8 of these entries, as Certificate Transparency's implementations agree on
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def recursive(entries: list[bytes]) -> bytes:
    if not entries:
        return hashlib.sha256(b"").digest()
    if len(entries) == 1:
        return hashlib.sha256(b"\x00" + entries[0]).digest()
    split = 1 << ((len(entries) - 1).bit_length() - 1)
    return hashlib.sha256(b"\x01" + recursive(entries[:split]) + recursive(entries[split:])).digest()


@pytest.mark.parametrize("count", range(9))
def test_published_roots(count: int) -> None:
    frontier = reduce(Frontier.append, map(leaf_hash, ENTRIES[:count]), Frontier())
    assert frontier.root.hex() == ROOTS[count]


def test_every_size_up_to_130() -> None:
    entries = [bytes([number]) * 3 for number in range(130)]
    frontier = Frontier()
    for count in range(131):
        assert frontier.root == recursive(entries[:count])
        assert frontier.size == count
        assert len(frontier.subtrees) == count.bit_count()
        if count < 130:
            frontier = frontier.append(leaf_hash(entries[count]))
    assert Frontier().root == EMPTY_ROOT
    assert node_hash(b"a", b"b") != node_hash(b"b", b"a")
