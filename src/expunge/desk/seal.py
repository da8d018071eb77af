"""The seal: a digest of the ledger's file, block by block (`blocks.py`), written after every command that changed it.

The chain speaks for the entries; the seal speaks for every byte of the file, those that SQLite does not use included.
If a crash came before it could be written it is older than the ledger, which is then checked by its entries alone.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from expunge.desk.blocks import blocks_digest, file_blocks, keep_blocks, kept_blocks, logged_blocks, renewed
from expunge.desk.heads import require_contains
from expunge.desk.layout import Layout
from expunge.desk.ledger import HEAD_LIMIT, Head, Ledger, read_head
from expunge.desk.replay import verify_entries
from expunge.errors import FileError, VerificationFailed
from expunge.runtime.durable import write_whole


def write_seal(layout: Layout, ledger: Ledger, blocks: bytes | None = None) -> None:
    """Seal the ledger as it is, unless somebody is reading it: then the next command does.

    `blocks` are the digests of the file's blocks as it was before this command wrote in it, where they are known.
    """
    changed = None if blocks is None else logged_blocks(_log(layout))  # before they are moved into the file
    if not ledger.checkpoint():
        return
    file = layout.ledger
    made = file_blocks(file) if blocks is None or changed is None else renewed(blocks, file, changed)
    keep_blocks(layout.blocks, made)
    write_whole(layout.seal, _content(ledger.head(), blocks_digest(made)))


def sealed_blocks(layout: Layout, ledger: Ledger) -> bytes | None:
    """The digests of the blocks of a ledger as it was sealed, before anything is written in it; None if unknown.

    What is in its file then counts as sealed without being read: a byte that was changed meanwhile stays one that
    `verify` finds. Where they are not known the file is read, and refused if it is not as it was sealed: sealing it
    anew would hide that.
    """
    log = _log(layout)
    if not layout.seal.exists() or (log.exists() and log.stat().st_size):
        return None
    blocks, head = kept_blocks(layout.blocks), ledger.head()
    if ledger.logs and _seal(layout) == _content(head, blocks_digest(blocks)):
        return blocks
    if sealed_head(layout) == head and not _matches(layout, head):
        raise _not_sealed()
    return None


def require_sealed(layout: Layout, ledger: Ledger) -> None:
    """Refuse to go on with a ledger that is older than its seal: it was put back, and the seal was not."""
    sealed = sealed_head(layout)
    if sealed is not None:
        require_contains(ledger, sealed, "the seal")


def _content(head: Head, digest: str, kind: str = "blocks_sha256") -> bytes:
    return json.dumps({**head.to_json(), kind: digest}, indent=1).encode() + b"\n"


def _seal(layout: Layout) -> bytes:
    return layout.bytes_of(layout.seal, HEAD_LIMIT, "a seal")


def _log(layout: Layout) -> Path:
    return layout.ledger.with_name(layout.ledger.name + "-wal")


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def verify_ledger(layout: Layout, saved: list[Head]) -> tuple[Head, bool]:
    """The head, and whether the seal spoke for every byte; raises VerificationFailed if anything was changed."""
    sealed = sealed_head(layout)
    try:
        with Ledger.read(layout.ledger) as ledger:
            kept = [] if sealed is None else [sealed]
            head = verify_entries(ledger, [*saved, *kept])
            exact = sealed is not None and head == sealed and _matches(layout, head)
    except FileError as error:
        raise VerificationFailed(error.found, error.required, "Do not rely on it; restore a copy.") from error
    if sealed is not None and head.size == sealed.size and not exact:
        raise _not_sealed()
    return head, exact


def _not_sealed() -> VerificationFailed:
    return VerificationFailed(
        "the ledger's file is not the one that was sealed",
        "every byte must be as it was written",
        "Do not rely on it; restore a copy.",
    )


def sealed_head(layout: Layout) -> Head | None:
    """The sealed head, if there is a seal."""
    if not layout.seal.exists() and not layout.seal.is_symlink():
        return None
    try:
        return read_head(_seal(layout), str(layout.seal))
    except FileError as error:
        raise VerificationFailed(error.found, error.required, "The seal was damaged; restore a copy.") from error


def _matches(layout: Layout, head: Head) -> bool:
    """Whether every byte of the file is as it was sealed; earlier versions sealed the digest of the whole file."""
    sealed = _seal(layout)
    if b"file_sha256" in sealed:
        return sealed == _content(head, file_digest(layout.ledger), "file_sha256")
    return sealed == _content(head, blocks_digest(file_blocks(layout.ledger)))
