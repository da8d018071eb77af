"""What a forger does to a ledger."""

from __future__ import annotations

import sqlite3

import pytest

from expunge.desk import Desk, Head, verify_desk
from expunge.desk.ledger import Entry, Ledger
from expunge.errors import VerificationFailed


def change(desk: Desk, *statements: str) -> None:
    """What somebody with write access could do; the seal is made anew, as they would."""
    with sqlite3.connect(desk.layout.ledger) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    desk.layout.seal.unlink()


def rejected(desk: Desk, saved: list[Head] | None = None) -> str:
    with pytest.raises(VerificationFailed) as caught:
        verify_desk(desk, saved)
    return str(caught.value)


def head(desk: Desk) -> Head:
    with desk.reading() as opened:
        return opened.head()


def rebuild(desk: Desk, entries: list[Entry]) -> None:
    """A forger's work: the same desk with other entries, chain and root made anew."""
    for path in (desk.layout.ledger, desk.layout.seal):
        path.unlink()
    Ledger.create(desk.layout.ledger)
    with Ledger.open(desk.layout.ledger) as ledger:
        for entry in entries:
            ledger.append(entry.body, entry.time)
