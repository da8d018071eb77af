"""Heads of the ledger that were kept, in the desk and outside it, and what a desk that was put back meets with."""

from __future__ import annotations

import json

from expunge.certificate.statement import committed_head
from expunge.desk.layout import Layout
from expunge.desk.ledger import Head, Ledger, PublishedHead
from expunge.errors import FileError, VerificationFailed

OLDER = "Do not run it: find out who put it back, and restore the newest copy."


AFTER = "ledger head after"  # what a commitment beside a model is for; that of its statement is the head before


def published_head(ledger: Ledger, number: int, size: int | None = None) -> PublishedHead:
    """What is published of the head as it was once this model was: after `size` entries, where that is known."""
    size = ledger.published_at()[number] if size is None else size
    present = ledger.head()
    head = present if present.size == size else Head(size, ledger.root_at(size))
    return committed_after(number, ledger.model(number).facts.head_key, head)


def committed_after(number: int, key: str, head: Head) -> PublishedHead:
    """The commitment to a head that lies beside a model."""
    return PublishedHead(number, committed_head(key, head.to_json(), AFTER))


def head_bytes(head: Head | PublishedHead) -> bytes:
    """A head as it is saved."""
    return json.dumps(head.to_json()).encode() + b"\n"


def require_contains(ledger: Ledger, kept: Head | PublishedHead, what: str = "a saved head") -> None:
    """Refuse a ledger whose first entries are not those of a head."""
    if isinstance(kept, PublishedHead):
        _require_published(ledger, kept, what)
        return
    present = ledger.head()
    if kept.size > present.size:
        raise VerificationFailed(
            f"{what} has {kept.size:,} entries, the ledger {present.size:,}", "a ledger only ever grows", OLDER
        )
    if (present.root if kept.size == present.size else ledger.root_at(kept.size)) != kept.root:
        raise VerificationFailed(f"the first {kept.size:,} entries are not those of {what}", "entries stay", OLDER)


def _require_published(ledger: Ledger, kept: PublishedHead, what: str) -> None:
    if kept.model not in ledger.published_at():
        raise VerificationFailed(
            f"{what} is of model {kept.model}, which the ledger has not published", "a ledger only ever grows", OLDER
        )
    if published_head(ledger, kept.model) != kept:
        raise VerificationFailed(f"the entries up to model {kept.model} are not those of {what}", "entries stay", OLDER)


def require_free(layout: Layout, number: int) -> None:
    """Refuse to publish where something lies already, before anything is started; nothing is removed."""
    for place in (layout.published_model(number), layout.dossier_of(number)):
        if place.exists() or place.is_symlink():
            raise FileError(
                f"{place} is there already, and the ledger has no model {number}",
                "a desk that was put back from a copy must not publish again what it published before",
                "If the desk was restored, restore its newest copy; if somebody put it there, move it away.",
            )
