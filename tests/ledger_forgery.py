"""What a forger does to a ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import pytest

from expunge.desk import Desk, Head, verify_desk
from expunge.desk.ledger import Entry, Ledger, SavedHead
from expunge.errors import VerificationFailed


def change(desk: Desk, *statements: str) -> None:
    """What somebody with write access could do; the seal is made anew, as they would."""
    with sqlite3.connect(desk.layout.ledger) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    desk.layout.seal.unlink(missing_ok=True)


def rejected(desk: Desk, saved: Sequence[SavedHead] = ()) -> str:
    with pytest.raises(VerificationFailed) as caught:
        verify_desk(desk, saved)
    return str(caught.value)


def head(desk: Desk) -> Head:
    with desk.reading() as opened:
        return opened.head()


def rebuild(desk: Desk, entries: list[Entry]) -> None:
    """A forger's work: the same desk with other entries, the chain made anew."""
    for path in (desk.layout.ledger, desk.layout.seal):
        path.unlink(missing_ok=True)
    Ledger.create(desk.layout.ledger)
    with Ledger.open(desk.layout.ledger) as ledger:
        for entry in entries:
            ledger.append(entry.body, entry.time)
