"""The ledger: an append-only list of entries in SQLite, hash-chained and under a Merkle root.

    entry i     [number, time, kind, body, hex of entry i-1's leaf] as JSON
    leaf i      SHA-256(0x00 || entry i); the chain makes edits and reordering visible, and so does the root
    head        number of entries and root: saved elsewhere, it makes a truncated tail visible

An entry is on disk before `append` returns (WAL, synchronous FULL). The other tables are what follows from the entries,
kept so that nothing has to read all of them; `replay.py` works them out anew and compares.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from expunge.desk.entries import (
    Aside,
    Body,
    DeskCreated,
    Entry,
    Json,
    ModelRow,
    read_body,
    read_model_row,
    strict,
    written,
)
from expunge.desk.merkle import Frontier, leaf_hash
from expunge.errors import FileError
from expunge.runtime.typed_json import read_as

APPLICATION_ID = 0x45585031
GENESIS = ""
PATIENCE = 5.0  # seconds to wait for a reader before the log is left for the next command to fold in
OPEN = ("pending", "aside")
COLUMNS = "id, reference, accepted, due, n_rows, state, model, others, aside"  # of a request
LARGEST = 2**63 - 1  # of SQLite's integers
HEAD_LIMIT = 10_000  # bytes of a saved head
TABLES = ("requests", "row_digests", "open_classes", "models")
# SQLite keeps this text, and a ledger whose text differs is not one: lines are broken without changing it
SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
CREATE TABLE entries (number INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, \
leaf BLOB NOT NULL) STRICT;
CREATE TABLE head (only INTEGER PRIMARY KEY CHECK (only = 1), size INTEGER NOT NULL, last TEXT NOT NULL, \
frontier TEXT NOT NULL) STRICT;
CREATE TABLE requests (id INTEGER PRIMARY KEY, reference TEXT NOT NULL UNIQUE, accepted TEXT NOT NULL, \
due TEXT NOT NULL, n_rows INTEGER NOT NULL,
  fingerprint TEXT NOT NULL UNIQUE, file_mac TEXT NOT NULL, state TEXT NOT NULL, model INTEGER, \
others INTEGER NOT NULL, aside TEXT) STRICT;
CREATE INDEX requests_by_state ON requests (state, id);
CREATE INDEX requests_by_model ON requests (model);
CREATE TABLE row_digests (digest TEXT NOT NULL, request INTEGER NOT NULL) STRICT;
CREATE INDEX row_digests_by_digest ON row_digests (digest);
CREATE INDEX row_digests_by_request ON row_digests (request);
CREATE TABLE open_classes (request INTEGER NOT NULL, class TEXT NOT NULL, n_rows INTEGER NOT NULL) STRICT;
CREATE INDEX open_classes_by_request ON open_classes (request);
CREATE INDEX open_classes_by_class ON open_classes (class);
CREATE TABLE models (number INTEGER PRIMARY KEY, state TEXT NOT NULL, body TEXT NOT NULL) STRICT;
INSERT INTO head VALUES (1, 0, '{GENESIS}', '[]');
"""


@dataclass(frozen=True)
class Head:
    """What speaks for a whole ledger: how many entries, and their Merkle root."""

    size: int
    root: str

    def to_json(self) -> Json:
        return {"size": self.size, "root": self.root}


@dataclass(frozen=True)
class RequestRow:
    """One request: `state` is `pending`, `aside`, `prepared`, `done` or `withdrawn`; `model` is the one it went into.

    `others` of its rows equal rows asked for before, and were declared another person's; `aside` says why it is aside.
    """

    id: int
    reference: str
    accepted: str
    due: str
    n_rows: int
    state: str
    model: int | None
    others: int = 0
    aside: Aside | None = None

    @property
    def open(self) -> bool:
        """Whether it is still to be served: it waits, or is set aside."""
        return self.state in OPEN


def now() -> str:
    """This moment, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def entry_bytes(number: int, time: str, kind: str, body: str, previous: str) -> bytes:
    """What is hashed for one entry."""
    return json.dumps([number, time, kind, body, previous], separators=(",", ":")).encode()


class Ledger:
    """An open ledger. One writer at a time: the desk's lock sees to that."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection, self.path = connection, path

    @staticmethod
    def create(path: Path) -> None:
        """A new, empty ledger that nobody but its owner can read."""
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with Ledger.open(path) as ledger:
            ledger.connection.execute("PRAGMA journal_mode = WAL")  # where it cannot it stays as it is: see `logs`
            ledger.connection.executescript(SCHEMA)

    @staticmethod
    @contextlib.contextmanager
    def open(path: Path) -> Iterator[Ledger]:
        """The ledger at this path; errors of SQLite become Expunge's own."""
        if not path.is_file():
            raise FileError(f"{path} does not exist", "a desk has a ledger", "Open a desk with expunge desk init.")
        with guarded(path):
            connection = _connect(path)
            try:
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA wal_autocheckpoint = 0")
                yield Ledger(connection, path)
            finally:
                connection.close()

    # Writing ------------------------------------------------------------------------------------------------------

    def append(self, body: Body, time: str | None = None) -> Entry:
        """Add an entry and what follows from it, in one transaction that is on disk before this returns."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            entry = self.insert(body, time or now())
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        return entry

    def insert(self, body: Body, time: str) -> Entry:
        """The same, in a transaction of the caller's; dated no earlier than the entry before, whatever the clock."""
        kind, text, time = body.entry_kind, written(body), max(time, self.latest())
        size, last, frontier = self.connection.execute("SELECT size, last, frontier FROM head").fetchone()
        number = size + 1
        leaf = leaf_hash(entry_bytes(number, time, kind, text, last))
        grown = Frontier(size, tuple(bytes.fromhex(part) for part in json.loads(frontier))).append(leaf)
        self.connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (number, time, kind, text, leaf))
        body.follow(self.connection, time)
        self.connection.execute(
            "UPDATE head SET size = ?, last = ?, frontier = ?",
            (number, leaf.hex(), json.dumps([part.hex() for part in grown.subtrees])),
        )
        return Entry(number, time, body)

    @property
    def logs(self) -> bool:
        """Whether what is written stands in a write-ahead log first: not on a remote disk, or if one was full."""
        return bool(self.connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal")

    def checkpoint(self) -> bool:
        """Move everything from the write-ahead log into the file; whether all of it is there."""
        busy, _, _ = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    # Reading ------------------------------------------------------------------------------------------------------

    def head(self) -> Head:
        size, frontier = self.connection.execute("SELECT size, frontier FROM head").fetchone()
        grown = Frontier(size, tuple(bytes.fromhex(part) for part in json.loads(frontier)))
        return Head(size, grown.root.hex())

    def root_at(self, size: int) -> str:
        """The root of the first `size` entries, from their leaves as they stand."""
        grown = Frontier()
        for (leaf,) in self.connection.execute("SELECT leaf FROM entries WHERE number <= ? ORDER BY number", (size,)):
            grown = grown.append(leaf)
        return grown.root.hex()

    def latest(self) -> str:
        """When the last entry was made."""
        row = self.connection.execute("SELECT time FROM entries ORDER BY number DESC LIMIT 1").fetchone()
        return "" if row is None else str(row[0])

    def backwards(self) -> tuple[int, ...]:
        """Entries that are dated before the one before them."""
        query = "SELECT b.number FROM entries a JOIN entries b ON b.number = a.number + 1 WHERE b.time < a.time"
        return tuple(number for (number,) in self.connection.execute(query))

    def entries(self, after: int = 0, limit: int = -1) -> Iterator[Entry]:
        """Entries in order, from the one after `after`."""
        query = "SELECT number, time, kind, body FROM entries WHERE number > ? ORDER BY number LIMIT ?"
        for number, time, kind, body in self.connection.execute(query, (_whole(after), _whole(limit))):
            yield self._entry(number, time, kind, body)

    def _entry(self, number: int, time: str, kind: str, text: str) -> Entry:
        with self._reading(f"entry {number}"):
            return Entry(number, time, read_body(kind, text))

    @contextlib.contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """What is wrong with an entry, as Expunge's own error."""
        try:
            yield
        except (ValueError, RecursionError) as error:
            raise FileError(
                f"{self.path}: {what} is not one ({error})",
                "an entry has the keys of its kind, and no others",
                "Do not rely on it; restore a copy.",
            ) from error

    def created(self) -> DeskCreated:
        """The first entry's body: policy, model, surrogate."""
        first = next(self.entries(limit=1), None)
        if first is None or not isinstance(first.body, DeskCreated):
            raise FileError(
                f"{self.path} is empty", "a desk begins with its policy", "Open a desk with expunge desk init."
            )
        return first.body

    def requests(self, state: str | None = None, limit: int = -1, after: int = 0) -> list[RequestRow]:
        """Requests in the order they were accepted."""
        query = f"SELECT {COLUMNS} FROM requests WHERE id > ?"
        after, limit = _whole(after), _whole(limit)
        if state is None:
            rows = self.connection.execute(query + " ORDER BY id LIMIT ?", (after, limit))
        else:
            rows = self.connection.execute(query + " AND state = ? ORDER BY id LIMIT ?", (after, state, limit))
        return [self._request(*row) for row in rows]

    def open_requests(self) -> list[int]:
        """The numbers of those that wait or are set aside."""
        query = "SELECT id FROM requests WHERE state IN (?, ?)"
        return [number for (number,) in self.connection.execute(query, OPEN)]

    def find(self, reference: str) -> RequestRow | None:
        """The request with this reference."""
        query = f"SELECT {COLUMNS} FROM requests WHERE reference = ?"
        row = self.connection.execute(query, (reference,)).fetchone()
        return None if row is None else self._request(*row)

    def request(self, number: int) -> RequestRow | None:
        """The request of this number."""
        query = f"SELECT {COLUMNS} FROM requests WHERE id = ?"
        row = self.connection.execute(query, (_whole(number),)).fetchone()
        return None if row is None else self._request(*row)

    def _request(self, *row: Any) -> RequestRow:
        with self._reading(f"request {row[0]}"):
            read = RequestRow(*row[:-1])
            return read if row[-1] is None else replace(read, aside=read_as(Aside, strict(row[-1])))

    def holders(self, digests: list[str], but: int | None = None) -> dict[str, set[int]]:
        """Which requests hold each of these rows, where any does, `but` one."""
        query = "SELECT DISTINCT request FROM row_digests WHERE digest = ?"
        found = {}
        for digest in dict.fromkeys(digests):
            holding = {row[0] for row in self.connection.execute(query, (digest,))} - {but}
            if holding:
                found[digest] = holding
        return found

    def times(self, digest: str, request: int) -> int:
        """How often a request holds a row."""
        query = "SELECT count(*) FROM row_digests WHERE digest = ? AND request = ?"
        return int(self.connection.execute(query, (digest, request)).fetchone()[0])

    def accepted_mac(self, request: int) -> str:
        """The keyed digest of the rows' file of a request."""
        row = self.connection.execute("SELECT file_mac FROM requests WHERE id = ?", (request,)).fetchone()
        return str(row[0])

    def counts(self) -> dict[str, int]:
        """How many requests are in each state."""
        return dict(self.connection.execute("SELECT state, count(*) FROM requests GROUP BY state"))

    def pending_rows(self) -> int:
        """How many rows wait to be forgotten."""
        query = "SELECT coalesce(sum(n_rows), 0) FROM requests WHERE state = 'pending'"
        return int(self.connection.execute(query).fetchone()[0])

    def pending_of(self, digest: str) -> int:
        """How many rows of this class wait to be forgotten."""
        query = (
            "SELECT coalesce(sum(open_classes.n_rows), 0) FROM open_classes JOIN requests ON id = request "
            "WHERE class = ? AND state = 'pending'"
        )
        return int(self.connection.execute(query, (digest,)).fetchone()[0])

    def overdue(self, today: str) -> int:
        """How many requests that wait, or are set aside, were due before this day."""
        query = "SELECT count(*) FROM requests WHERE state IN ('pending', 'aside') AND due < ?"
        return int(self.connection.execute(query, (today,)).fetchone()[0])

    def next_request(self) -> int:
        return int(self.connection.execute("SELECT coalesce(max(id), 0) + 1 FROM requests").fetchone()[0])

    def last_number(self) -> int:
        """The number of the last model; 0 where there is none."""
        return int(self.connection.execute("SELECT coalesce(max(number), 0) FROM models").fetchone()[0])

    def last_model(self) -> ModelRow | None:
        """The last model, prepared or published."""
        query = "SELECT number, state, body FROM models ORDER BY number DESC LIMIT 1"
        for number, state, text in self.connection.execute(query):
            with self._reading(f"model {number}"):
                return read_model_row(state, text)
        return None

    def prepared(self) -> list[int]:
        """Numbers of models whose files may not have their names yet."""
        return [number for (number,) in self.connection.execute("SELECT number FROM models WHERE state = 'prepared'")]

    def models(self) -> list[ModelRow]:
        """Every model, prepared or published."""
        models = []
        for number, state, text in self.connection.execute("SELECT number, state, body FROM models ORDER BY number"):
            with self._reading(f"model {number}"):
                models.append(read_model_row(state, text))
        return models

    def last(self, *kinds: type[Body]) -> Body | None:
        """What the latest entry of these kinds says, looked for from the end."""
        marks = ",".join("?" * len(kinds))
        row = self.connection.execute(
            f"SELECT number, time, kind, body FROM entries WHERE kind IN ({marks}) ORDER BY number DESC LIMIT 1",
            [kind.entry_kind for kind in kinds],
        ).fetchone()
        return None if row is None else self._entry(*row).body


def _whole(number: int) -> int:
    """A number as SQLite can hold it: no entry and no request has one beyond."""
    return max(-LARGEST - 1, min(number, LARGEST))


def _connect(path: Path) -> sqlite3.Connection:
    """A connection; a ledger that cannot be written, such as an auditor's copy, is read as it is."""
    log = path.with_name(path.name + "-wal")
    left = log.exists() and log.stat().st_size > 0
    if left or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", isolation_level=None, uri=True)


@contextlib.contextmanager
def guarded(path: Path) -> Iterator[None]:
    """SQLite's errors as Expunge's own."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where a message quotes a damaged name
        raise FileError(
            f"{path} could not be used ({error})",
            "a whole ledger on a disk with room is needed",
            "Nothing that was acknowledged is lost; make room, or check it with expunge desk verify.",
        ) from error


def read_head(content: bytes, name: str) -> Head:
    """A head that was saved."""
    try:
        saved = json.loads(content)
        head = Head(saved["size"], saved["root"])
        if type(head.size) is not int or head.size < 0 or len(bytes.fromhex(head.root)) != 32:
            raise ValueError("size or root")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(
            f"{name} is not a saved head ({error})", "size and root are needed", "Save one with expunge desk head."
        ) from error
    return head


def saved_head(path: Path) -> Head:
    """The head in a file."""
    try:
        with path.open("rb") as stream:
            content = stream.read(HEAD_LIMIT)
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read ({error})", "a saved head is needed", "Check the path.") from error
    return read_head(content, str(path))
