"""The seal: every flipped bit is seen, and a reader only delays it."""

from __future__ import annotations

import pytest

from desk_use import Rows
from expunge.desk import Desk, accept, verify_desk
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
