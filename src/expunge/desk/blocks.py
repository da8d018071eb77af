"""A ledger's file by the digests of its blocks: after a command only the blocks that it wrote are read again.

A block is a page of SQLite. What a command writes stands in the write-ahead log, page by page, until it is moved into
the file; so whoever has the digests from before, and the log, has those from after. The digests themselves are only
kept to save time: they count where their own digest is the one in the seal, and are worked out anew where not.
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

from expunge.runtime.durable import PRIVATE

BLOCK, SIZE = 4096, 32  # bytes of a block, and of its digest
LOG_HEADER, FRAME_HEADER = 32, 24  # bytes, of the write-ahead log and of each page in it
MAGIC = (0x377F0682, 0x377F0683)


def file_blocks(path: Path) -> bytes:
    """The digests of a file's blocks, one after another; the last block may be short."""
    with path.open("rb") as stream:
        return b"".join(hashlib.sha256(block).digest() for block in iter(lambda: stream.read(BLOCK), b""))


def blocks_digest(blocks: bytes) -> str:
    """One digest for all of them."""
    return hashlib.sha256(blocks).hexdigest()


def logged_blocks(log: Path) -> set[int] | None:
    """Numbers, from 0, of the blocks in a write-ahead log; None for a log that is not as ours are."""
    try:
        content = log.read_bytes()
    except FileNotFoundError:
        return set()
    if not content:
        return set()
    if len(content) < LOG_HEADER:
        return None
    magic, _, page = struct.unpack_from(">III", content)
    if magic not in MAGIC or page != BLOCK:
        return None
    frames = range(LOG_HEADER, len(content) - FRAME_HEADER - BLOCK + 1, FRAME_HEADER + BLOCK)
    return {struct.unpack_from(">I", content, at)[0] - 1 for at in frames}


def renewed(blocks: bytes, path: Path, changed: set[int]) -> bytes:
    """The digests after these blocks of the file were written; what lies beyond those known is read, too."""
    count = -(-path.stat().st_size // BLOCK)
    made = bytearray(blocks[: SIZE * count].ljust(SIZE * count, b"\0"))
    with path.open("rb") as stream:
        for number in sorted(changed | set(range(len(blocks) // SIZE, count))):
            if number < count:
                stream.seek(BLOCK * number)
                made[SIZE * number : SIZE * (number + 1)] = hashlib.sha256(stream.read(BLOCK)).digest()
    return bytes(made)


def keep_blocks(path: Path, blocks: bytes) -> None:
    """Keep them for the next command; half-written they are not what the seal says, and so no matter."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
    with os.fdopen(handle, "wb") as stream:
        stream.write(blocks)


def kept_blocks(path: Path) -> bytes:
    """Those that were kept; none where there are none."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
