"""Digests of a file's blocks: those of what was written, and nothing else, are worked out anew."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desk_use import Rows, ask
from expunge.desk import Desk, run, verify_desk
from expunge.desk.ledger import BLOCK, blocks_digest, file_blocks, kept_blocks, logged_blocks, renewed
from ledger_forgery import rejected


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9000)), min_size=1, max_size=5), max_size=5))
def test_with_the_log_they_are_those_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, transactions: list[list[tuple[int, int]]]
) -> None:
    path = tmp_path_factory.mktemp("blocks") / "file"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("CREATE TABLE kept (number INTEGER PRIMARY KEY, text TEXT)")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        blocks = file_blocks(path)
        for rows in transactions:
            connection.execute("BEGIN")
            for number, length in rows:
                connection.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (number, "x" * length))
            connection.execute("COMMIT")
            changed = logged_blocks(path.with_name("file-wal"))
            assert changed
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            blocks = renewed(blocks, path, changed)
            assert blocks == file_blocks(path)


def test_blocks_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * BLOCK + b"b")
    expected = hashlib.sha256(b"a" * BLOCK).digest() + hashlib.sha256(b"b").digest()
    assert file_blocks(path) == expected
    assert renewed(b"", path, set()) == expected
    assert renewed(expected + bytes(32), path, {7}) == expected, "a file that is shorter than it was"
    assert blocks_digest(expected) == hashlib.sha256(expected).hexdigest()
    assert kept_blocks(tmp_path / "nothing") == b""


@pytest.mark.parametrize("content", [b"x", b"x" * 100, bytes.fromhex("377f0682002de21800002000") + bytes(100)])
def test_a_log_that_is_none_is_not_gone_by(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(content)
    assert logged_blocks(tmp_path / "log") is None
    assert logged_blocks(tmp_path / "no log") == set()


def test_a_command_does_not_read_the_whole_ledger_to_seal_it(
    ledger: Desk, source: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole(_: Path) -> bytes:
        raise AssertionError("the whole file was read")

    ask(ledger, source, 20, 21)
    with monkeypatch.context() as patched:
        patched.setattr("expunge.desk.ledger.file_blocks", whole)
        ask(ledger, source, 21, 22)
        run(ledger)
    assert verify_desk(ledger).sealed


@pytest.mark.parametrize("content", [None, b"", b"x" * 64])
def test_digests_that_are_missing_or_others_are_worked_out_anew(
    content: bytes | None, ledger: Desk, source: Rows
) -> None:
    ledger.layout.blocks.unlink(missing_ok=True)
    if content is not None:
        ledger.layout.blocks.write_bytes(content)
    ask(ledger, source, 20, 21)
    assert verify_desk(ledger).sealed
    assert ledger.layout.blocks.read_bytes() == file_blocks(ledger.layout.ledger)


def test_damage_is_not_sealed_by_the_next_command(ledger: Desk, source: Rows) -> None:
    """A byte that SQLite does not use, in a block that the next command does not write."""
    ask(ledger, source, 20, 21)
    before = ledger.layout.ledger.read_bytes()
    ask(ledger, source, 21, 22)
    after = ledger.layout.ledger.read_bytes()
    still = [at for at in range(0, len(before), BLOCK) if before[at : at + BLOCK] == after[at : at + BLOCK]]
    gaps = [at for at in still if after[at + 200 : at + 328] == bytes(128)]
    damaged = bytearray(after)
    damaged[gaps[-1] + 264] ^= 1
    ledger.layout.ledger.write_bytes(damaged)
    ask(ledger, source, 22, 23)
    assert ledger.layout.ledger.read_bytes()[gaps[-1] + 264] == 1
    assert "not the one that was sealed" in rejected(ledger)
