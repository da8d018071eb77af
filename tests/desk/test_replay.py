"""The chain, from the entries alone."""

from __future__ import annotations

from expunge.desk import Desk
from expunge.desk.ledger import entry_bytes, leaf_hash


def test_the_chain_is_what_the_docstring_says(ledger: Desk) -> None:
    with ledger.reading() as opened:
        rows = opened.connection.execute(
            "SELECT number, time, kind, body, leaf FROM entries ORDER BY number"
        ).fetchall()
    last = ""
    for number, time, kind, body, leaf in rows:
        assert leaf == leaf_hash(entry_bytes(number, time, kind, body, last))
        last = leaf.hex()
