"""Checking a ledger from its entries alone: chain, root, and every table that follows from them."""

from __future__ import annotations

import contextlib
import sqlite3

from expunge.desk.entries import read_body
from expunge.desk.ledger import GENESIS, SCHEMA, TABLES, Head, Ledger, entry_bytes
from expunge.desk.merkle import EMPTY_ROOT, Frontier, leaf_hash
from expunge.errors import VerificationFailed


def verify_entries(ledger: Ledger, saved: list[Head]) -> Head:
    """Chain, root, derived tables and saved heads, from the entries alone; raises VerificationFailed."""
    try:
        ((answer,),) = ledger.connection.execute("PRAGMA integrity_check(1)").fetchall()
        if answer != "ok":
            raise _broken(f"SQLite says {answer}")
        anew = sqlite3.connect(":memory:", isolation_level=None)
        with contextlib.closing(anew):
            anew.executescript(SCHEMA)
            anew.execute("BEGIN")
            head, roots = _replay(ledger.connection, anew, {saved_head.size for saved_head in saved})
            for table in TABLES:
                query = f"SELECT * FROM {table} ORDER BY 1, 2"
                if not _same(ledger.connection.execute(query), anew.execute(query)):
                    raise _broken(f"table {table} does not follow from the entries")
        if ledger.head() != head:
            raise _broken("the head is not that of the entries")
    except (sqlite3.Error, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise _broken(f"{type(error).__name__}: {error}") from error
    for kept in saved:
        if kept.size > head.size:
            raise _broken(f"a saved head has {kept.size:,} entries, the ledger {head.size:,}: its end was cut off")
        if roots[kept.size] != kept.root:
            raise _broken(f"the first {kept.size:,} entries are not those of a saved head")
    return head


def _replay(source: sqlite3.Connection, anew: sqlite3.Connection, sizes: set[int]) -> tuple[Head, dict[int, str]]:
    frontier, last, roots = Frontier(), GENESIS, {0: EMPTY_ROOT.hex()}
    rows = source.execute("SELECT number, time, kind, body, leaf FROM entries ORDER BY number")
    for expected, (number, time, kind, body, leaf) in enumerate(rows, start=1):
        if number != expected:
            raise _broken(f"entry {expected} is missing")
        if leaf != leaf_hash(entry_bytes(number, time, kind, body, last)):
            raise _broken(f"entry {number} was changed, or the one before it")
        read_body(kind, body).follow(anew, time)
        frontier, last = frontier.append(leaf), leaf.hex()
        if number in sizes:
            roots[number] = frontier.root.hex()
    (kept,) = source.execute("SELECT last FROM head").fetchone()
    if kept != last:
        raise _broken("the last entry is not the head's")
    return Head(frontier.size, frontier.root.hex()), roots


def _same(first: sqlite3.Cursor, second: sqlite3.Cursor) -> bool:
    while True:
        left, right = first.fetchmany(1000), second.fetchmany(1000)
        if left != right:
            return False
        if not left:
            return True


def _broken(what: str) -> VerificationFailed:
    return VerificationFailed(
        f"the ledger: {what}", "every entry must be as it was written", "Do not rely on it; restore a copy."
    )
