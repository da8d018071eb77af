"""The ledger: entries, chain, heads and seal; edits, reordering and truncation are visible."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from desk_use import Rows
from expunge.bounds.calibration import Composition
from expunge.desk import Desk, accept, history, requests, verify_desk
from expunge.desk.ledger import (
    KINDS,
    Aside,
    Body,
    DeskCreated,
    Head,
    Ledger,
    ModelPrepared,
    ModelPublished,
    RequestAccepted,
    RequestResumed,
    RequestSetAside,
    RequestWithdrawn,
    RunAbandoned,
    RunRefused,
    RunStarted,
    read_body,
    read_head,
)
from expunge.desk.policy import Policy
from expunge.desk.status import verify_entries
from expunge.errors import FileError, VerificationFailed
from ledger_forgery import head, rejected

# Entries ----------------------------------------------------------------------------------------------------------------

PREPARED = ModelPrepared(
    *(1, (1,), 1, 299, "00", "conditional", 1.0, 1e-05, 0.25, 0.5, 0.125, {"training": 0.0625}),
    *(Composition(1, 0.5, 1e-05, 1e-06), 0.75, None, {"model.safetensors": "11"}, {"model.safetensors": 8}, "22", "33"),
    *(None, 3, 0),
)
WITHDRAWN = RequestWithdrawn(1, "a mistake")
BODIES: list[Body] = [
    DeskCreated(Policy(0.5, 0.001, "same"), "aa", "bb", "cc", "float64"),
    RequestAccepted(1, "case 1", "2030-01-01", 1, ("d1",), "m1", {"c1": 1}, 0, None),
    RunStarted(1, (1,)),
    RunAbandoned(1),
    PREPARED,
    ModelPublished(1),
    RunRefused((1,), "RetrainNow", "why"),
    WITHDRAWN,
    RequestSetAside(1, Aside("repeat", "why", "what to do")),
    RequestResumed(1, 2),
]


def changes(content: dict[str, Any]) -> list[dict[str, Any]]:
    """An entry with a key more, each key less, and each value of another type."""
    changed: list[dict[str, Any]] = [content | {"note": ""}]
    changed += [{key: value for key, value in content.items() if key != name} for name in content]
    return changed + [content | {name: {"odd": [1]}} for name in content]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.entry_kind)
def test_an_entry_is_read_as_it_was_written_and_strictly(body: Body) -> None:
    assert {type(each) for each in BODIES} == set(KINDS.values())
    assert read_body(body.entry_kind, body.to_text()) == body
    assert WITHDRAWN.to_text() == '{"reason":"a mistake","request":1}', "sorted keys, no spaces: it is hashed"
    for content in changes(body.to_json()):
        with pytest.raises(ValueError, match=r"lacks or adds|\[1\]"):
            read_body(body.entry_kind, json.dumps(content))


def test_what_is_no_entry() -> None:
    for kind, text in (
        ("unheard of", "{}"),
        *(("published", text) for text in ("[]", "1", '{"model":1,"model":1}', '{"model":true}', '{"model":1.0}')),
        ("started", '{"model":1,"requests":["1"]}'),
        ("prepared", PREPARED.to_text().replace('"mu":0.5', '"mu":NaN')),
        ("created", BODIES[0].to_text().replace('"days":30', '"days":30,"years":1')),
    ):
        with pytest.raises(ValueError, match=r"\S"):
            read_body(kind, text)


def test_a_ledger_with_a_strange_entry_is_refused_when_read_and_when_checked(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path)
    with Ledger.open(path) as ledger:
        for body in BODIES:
            ledger.append(body)
        verify_entries(ledger)
    with sqlite3.connect(path) as connection:
        connection.execute("""UPDATE entries SET body = '{"model":1,"note":2}' WHERE kind = 'published'""")
    connection.close()
    with Ledger.open(path) as ledger:
        with pytest.raises(FileError, match=r"entry 6 is not one \(lacks or adds note\)"):
            list(ledger.entries())
        with pytest.raises(FileError, match="keys of its kind"):
            ledger.last(ModelPublished)
        with pytest.raises(VerificationFailed):
            verify_entries(ledger)


# The ledger: edits, reordering and truncation are visible.


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


def test_what_is_not_a_head() -> None:
    for content in (
        *(b"", b"[]", b'{"size": 1}', b'{"size": -1, "hash": "00"}', b'{"size": 1, "hash": "zz"}', b'{"series": {}}'),
        b'{"series": null}',
    ):
        with pytest.raises(FileError):
            read_head(content, "it")


def test_a_copy_that_cannot_be_written_is_read_all_the_same(ledger: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = verify_desk(ledger)
    before = sorted(path.name for path in ledger.layout.folder.iterdir())
    monkeypatch.setattr("expunge.desk.ledger.os.access", lambda path, mode: mode == os.R_OK)
    assert verify_desk(ledger) == whole
    with pytest.raises(FileError, match="readonly"), ledger.reading() as opened:
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


# The seal: every flipped bit is seen, and a reader only delays it.


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


def test_damage_is_not_sealed_by_the_next_command(ledger: Desk, source: Rows) -> None:
    """At a place that SQLite does not use: the next command refuses, where sealing it anew would hide that."""
    whole = bytearray(ledger.layout.ledger.read_bytes())
    assert whole[72:92] == bytes(20)  # of the header, for later versions
    whole[80] ^= 1
    ledger.layout.ledger.write_bytes(whole)
    with pytest.raises(VerificationFailed, match="is not the one that was sealed"):
        accept(ledger, source[0][20:21], source[1][20:21], "next")
    assert "not the one that was sealed" in rejected(ledger)
