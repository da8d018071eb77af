"""Heads of the ledger that were kept, in the desk and outside it, and what a desk that was put back meets with."""

from __future__ import annotations

import json

from expunge.desk.layout import Layout
from expunge.desk.ledger import Head, Ledger
from expunge.errors import FileError, VerificationFailed

OLDER = "Do not run it: find out who put it back, and restore the newest copy."


def head_bytes(head: Head) -> bytes:
    """A head as it is saved."""
    return json.dumps(head.to_json()).encode() + b"\n"


def require_contains(ledger: Ledger, kept: Head, what: str = "a saved head") -> None:
    """Refuse a ledger whose first entries are not those of a head."""
    present = ledger.head()
    if kept.size > present.size:
        raise VerificationFailed(
            f"{what} has {kept.size:,} entries, the ledger {present.size:,}", "a ledger only ever grows", OLDER
        )
    if (present.root if kept.size == present.size else ledger.root_at(kept.size)) != kept.root:
        raise VerificationFailed(f"the first {kept.size:,} entries are not those of {what}", "entries stay", OLDER)


def require_free(layout: Layout, number: int) -> None:
    """Refuse to publish where something lies already, before anything is started; nothing is removed."""
    for place in (layout.published_model(number), layout.dossier_of(number)):
        if place.exists() or place.is_symlink():
            raise FileError(
                f"{place} is there already, and the ledger has no model {number}",
                "a desk that was put back from a copy must not publish again what it published before",
                "If the desk was restored, restore its newest copy; if somebody put it there, move it away.",
            )
