"""The seal: every flipped bit is seen, and a reader only delays it."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from desk_use import Rows
from expunge.desk import Desk, accept, verify_desk
from expunge.errors import VerificationFailed
from ledger_forgery import rejected


def test_every_bit_flip_of_the_seal_is_rejected(ledger: Desk) -> None:
    whole = ledger.layout.seal.read_bytes()
    for position in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[position] ^= 1 << (position % 8)
        ledger.layout.seal.write_bytes(bytes(changed))
        assert rejected(ledger)


def test_a_reader_delays_the_seal_and_nothing_else(ledger: Desk, source: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge.desk.ledger.PATIENCE", 0.05)
    with ledger.reading() as opened:
        opened.connection.execute("BEGIN")
        before = opened.head()
        accept(ledger, source[0][20:21], source[1][20:21], "while somebody reads")
        assert opened.head() == before, "a reader sees one moment"
        assert not verify_desk(ledger).sealed
        opened.connection.execute("ROLLBACK")
    assert verify_desk(ledger, [before]).head.size == before.size + 1
    accept(ledger, source[0][21:22], source[1][21:22], "afterwards")
    assert verify_desk(ledger).sealed


def plain(ledger: Desk) -> None:
    """As a ledger is where a disk was full when it was made: what a command wrote stands nowhere but in the file."""
    with contextlib.closing(sqlite3.connect(ledger.layout.ledger)) as opened:
        assert opened.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)


def reseal(ledger: Desk) -> None:
    ledger.layout.seal.unlink()
    with ledger.writing():
        pass


def test_a_ledger_without_a_write_ahead_log_is_sealed_whole(ledger: Desk, source: Rows) -> None:
    plain(ledger)
    reseal(ledger)
    for row in (20, 21):
        accept(ledger, source[0][row : row + 1], source[1][row : row + 1], str(row))
        assert verify_desk(ledger).sealed


@pytest.mark.parametrize("log", [True, False])
def test_damage_is_not_sealed_by_the_next_command(ledger: Desk, source: Rows, log: bool) -> None:
    """At a place that SQLite does not use: the next command refuses, where sealing it anew would hide that."""
    if not log:
        plain(ledger)
        reseal(ledger)
    whole = bytearray(ledger.layout.ledger.read_bytes())
    assert whole[72:92] == bytes(20)  # of the header, for later versions
    whole[80] ^= 1
    ledger.layout.ledger.write_bytes(whole)
    with pytest.raises(VerificationFailed, match="is not the one that was sealed"):
        accept(ledger, source[0][20:21], source[1][20:21], "next")
    assert "not the one that was sealed" in rejected(ledger)
