"""The ledger: edits, reordering and truncation are visible."""

from __future__ import annotations

import random
import shutil
import sqlite3
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from expunge.desk import Desk, Head, accept, history, open_desk, requests, run, verify_desk, withdraw
from expunge.desk.entries import DeskCreated, Entry, RunRefused
from expunge.desk.ledger import Ledger, entry_bytes, guarded, leaf_hash, read_head
from expunge.errors import FileError, VerificationFailed

Rows = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def used(empty: Path, source: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A desk with two published models, a withdrawn request and a pending one."""
    folder = tmp_path_factory.mktemp("used") / "desk"
    shutil.copytree(empty, folder)
    desk, (X, y) = open_desk(folder), source
    for number in range(2):
        accept(desk, X[number : number + 1], y[number : number + 1], f"case {number}")
        run(desk)
    accept(desk, X[5:6], y[5:6], "a mistake")
    withdraw(desk, 3, "asked by mistake")
    accept(desk, X[6:8], y[6:8], "waiting")
    return folder


@pytest.fixture
def ledger(used: Path, copy: Callable[[Path], Desk]) -> Desk:
    return copy(used)


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
    "statement",
    [
        "UPDATE entries SET body = replace(body, 'case 1', 'case 9') WHERE kind = 'accepted'",
        "UPDATE entries SET time = '2020-01-01T00:00:00+00:00' WHERE number = 3",
        "UPDATE entries SET kind = 'refused' WHERE number = 3",
        "UPDATE entries SET leaf = zeroblob(32) WHERE number = 3",
        "DELETE FROM entries WHERE number = 4",
        "DELETE FROM entries WHERE number = (SELECT max(number) FROM entries)",
        "UPDATE head SET size = size + 1",
        "UPDATE head SET frontier = '[]'",
        "UPDATE requests SET reference = 'another' WHERE id = 1",
        "UPDATE requests SET state = 'done' WHERE state = 'pending'",
        "DELETE FROM row_digests WHERE request = 4",
        "UPDATE models SET body = replace(body, 'conditional', 'proven')",
        "CREATE TABLE more (x)",
        "CREATE TRIGGER sly AFTER INSERT ON entries BEGIN DELETE FROM head; END",
    ],
)
def test_an_edit_is_seen(statement: str, ledger: Desk) -> None:
    change(ledger, statement)
    assert "ledger" in rejected(ledger)


def test_two_entries_that_change_places_are_seen(ledger: Desk) -> None:
    change(
        ledger,
        "UPDATE entries SET number = -1 WHERE number = 2",
        "UPDATE entries SET number = 2 WHERE number = 3",
        "UPDATE entries SET number = 3 WHERE number = -1",
    )
    assert "entry 2" in rejected(ledger)


def rebuild(desk: Desk, entries: list[Entry]) -> None:
    """A forger's work: the same desk with other entries, chain and root made anew."""
    for path in (desk.layout.ledger, desk.layout.seal):
        path.unlink()
    Ledger.create(desk.layout.ledger)
    with Ledger.open(desk.layout.ledger) as ledger:
        for entry in entries:
            ledger.append(entry.body, entry.time)


def test_a_cut_off_tail_is_seen_against_a_saved_head(ledger: Desk) -> None:
    saved = head(ledger)
    shutil.rmtree(ledger.layout.published)  # else the certificates' own heads show it
    ledger.layout.published.mkdir()
    rebuild(ledger, history(ledger)[:-1])
    assert verify_desk(ledger).head.size == saved.size - 1, "by itself it looks whole"
    assert "cut off" in rejected(ledger, [saved])
    with Ledger.open(ledger.layout.ledger) as opened:
        opened.append(RunRefused((), "x", "x"))
    assert "not those of a saved head" in rejected(ledger, [saved])


def test_a_rewritten_history_is_seen_by_the_certificates_it_published(ledger: Desk) -> None:
    first, *others = history(ledger)
    assert isinstance(first.body, DeskCreated)
    forged = replace(first, body=replace(first.body, policy=replace(first.body.policy, days=1)))
    rebuild(ledger, [forged, *others])
    assert "saved head" in rejected(ledger)


def test_a_published_file_that_was_changed_is_seen(ledger: Desk) -> None:
    path = ledger.layout.published_model(2) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    assert "model.safetensors" in rejected(ledger)


def test_a_published_folder_that_was_taken_away_is_told(ledger: Desk) -> None:
    shutil.rmtree(ledger.layout.published_model(1))
    assert verify_desk(ledger).absent == (1,)


def test_a_thousand_bit_flips_of_the_ledger_are_rejected(ledger: Desk) -> None:
    path, generator = ledger.layout.ledger, random.Random(11)
    whole = path.read_bytes()
    survived = []
    for _ in range(1000):
        position, bit = generator.randrange(len(whole)), generator.randrange(8)
        changed = bytearray(whole)
        changed[position] ^= 1 << bit
        path.write_bytes(bytes(changed))
        try:
            verify_desk(ledger)
        except VerificationFailed:
            continue
        survived.append((position, bit))
    assert not survived
    path.write_bytes(whole)
    assert verify_desk(ledger).sealed


def test_every_bit_flip_of_the_seal_is_rejected(ledger: Desk) -> None:
    whole = ledger.layout.seal.read_bytes()
    for position in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[position] ^= 1 << (position % 8)
        ledger.layout.seal.write_bytes(bytes(changed))
        assert rejected(ledger)


def test_the_chain_is_what_the_docstring_says(ledger: Desk) -> None:
    with ledger.reading() as opened:
        rows = opened.connection.execute(
            "SELECT number, time, kind, body, leaf FROM entries ORDER BY number"
        ).fetchall()
    last = ""
    for number, time, kind, body, leaf in rows:
        assert leaf == leaf_hash(entry_bytes(number, time, kind, body, last))
        last = leaf.hex()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"size": 1}', b'{"size": -1, "root": "00"}', b'{"size": 1, "root": "zz"}']
)
def test_what_is_not_a_head(content: bytes) -> None:
    with pytest.raises(FileError):
        read_head(content, "it")


def test_a_copy_that_cannot_be_written_is_read_all_the_same(ledger: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = verify_desk(ledger)
    before = sorted(path.name for path in ledger.layout.folder.iterdir())
    monkeypatch.setattr("expunge.desk.ledger.os.access", lambda path, mode: False)
    assert verify_desk(ledger) == whole
    with ledger.reading() as opened, pytest.raises(FileError, match="readonly"), guarded(ledger.layout.ledger):
        opened.append(RunRefused((), "x", "x"))
    assert sorted(path.name for path in ledger.layout.folder.iterdir()) == before


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


def test_what_is_not_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_bytes(b"SQLite format 3\x00" + bytes(4000))
    with pytest.raises(FileError), Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.head()
    with pytest.raises(FileError), Ledger.open(tmp_path / "nothing"):
        pass
