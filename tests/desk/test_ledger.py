"""The ledger: edits, reordering and truncation are visible."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest

from expunge.desk import Desk, history, requests, verify_desk
from expunge.desk.ledger import Head, Ledger, RunRefused, read_head, sqlite_errors
from expunge.errors import FileError
from ledger_forgery import head


def test_it_is_whole_and_durable(ledger: Desk) -> None:
    checked = verify_desk(ledger, [head(ledger)])
    assert checked.sealed
    assert checked.models == 2
    assert checked.head.size == len(history(ledger))
    with ledger.reading() as opened:
        assert opened.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert opened.connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert [request.state for request in requests(ledger)] == ["done", "done", "withdrawn", "pending"]
    for path in (ledger.layout.ledger, ledger.layout.seal):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"size": 1}', b'{"size": -1, "hash": "00"}', b'{"size": 1, "hash": "zz"}']
)
def test_what_is_not_a_head(content: bytes) -> None:
    with pytest.raises(FileError):
        read_head(content, "it")


def test_a_copy_that_cannot_be_written_is_read_all_the_same(ledger: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = verify_desk(ledger)
    before = sorted(path.name for path in ledger.layout.folder.iterdir())
    monkeypatch.setattr("expunge.desk.ledger.os.access", lambda path, mode: mode == os.R_OK)
    assert verify_desk(ledger) == whole
    with ledger.reading() as opened, pytest.raises(FileError, match="readonly"), sqlite_errors(ledger.layout.ledger):
        opened.append(RunRefused((), "x", "x"))
    assert sorted(path.name for path in ledger.layout.folder.iterdir()) == before


def test_what_is_not_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_bytes(b"SQLite format 3\x00" + bytes(4000))
    with pytest.raises(FileError), Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.head()
    with pytest.raises(FileError), Ledger.open(tmp_path / "nothing"):
        pass


def test_the_chain_is_what_the_docstring_says(ledger: Desk) -> None:
    query = "SELECT number, time, kind, body, hash FROM entries ORDER BY number"
    with ledger.reading() as opened:
        rows, present = opened.connection.execute(query).fetchall(), opened.head()
        heads = [opened.head_at(size) for size in range(len(rows) + 2)]
    last = ""
    for number, time, kind, body, digest in rows:
        text = json.dumps([number, time, kind, body, last], separators=(",", ":"))
        last = hashlib.sha256(text.encode()).hexdigest()
        assert digest.hex() == last
        assert heads[number] == Head(number, last)
    assert heads[-2:] == [present, None]
