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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from expunge.desk.merkle import Frontier, leaf_hash
from expunge.errors import FileError

Json = dict[str, Any]

APPLICATION_ID = 0x45585031
GENESIS = ""
PATIENCE = 5.0  # seconds to wait for a reader before the log is left for the next command to fold in
HEAD_LIMIT = 10_000  # bytes of a saved head
KINDS = ("created", "accepted", "started", "abandoned", "prepared", "published", "refused", "withdrawn")
TABLES = ("requests", "row_digests", "models")
SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
CREATE TABLE entries (number INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, leaf BLOB NOT NULL) STRICT;
CREATE TABLE head (only INTEGER PRIMARY KEY CHECK (only = 1), size INTEGER NOT NULL, last TEXT NOT NULL, frontier TEXT NOT NULL) STRICT;
CREATE TABLE requests (id INTEGER PRIMARY KEY, reference TEXT NOT NULL UNIQUE, accepted TEXT NOT NULL, due TEXT NOT NULL, n_rows INTEGER NOT NULL,
  fingerprint TEXT NOT NULL UNIQUE, file_mac TEXT NOT NULL, state TEXT NOT NULL, model INTEGER) STRICT;
CREATE INDEX requests_by_state ON requests (state, id);
CREATE TABLE row_digests (digest TEXT NOT NULL, request INTEGER NOT NULL) STRICT;
CREATE INDEX row_digests_by_digest ON row_digests (digest);
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
class Entry:
    """One entry, as it was written."""

    number: int
    time: str
    kind: str
    body: Json


@dataclass(frozen=True)
class RequestRow:
    """One request: `state` is `pending`, `prepared`, `done` or `withdrawn`; `model` is the published model it went into."""

    id: int
    reference: str
    accepted: str
    due: str
    n_rows: int
    state: str
    model: int | None


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
            ledger.connection.execute("PRAGMA journal_mode = WAL")
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

    def append(self, kind: str, body: Mapping[str, Any], time: str | None = None) -> Entry:
        """Add an entry and what follows from it, in one transaction that is on disk before this returns."""
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            entry = self._insert(kind, text, time or now())
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        return entry

    def _insert(self, kind: str, text: str, time: str) -> Entry:
        size, last, frontier = self.connection.execute("SELECT size, last, frontier FROM head").fetchone()
        number = size + 1
        leaf = leaf_hash(entry_bytes(number, time, kind, text, last))
        grown = Frontier(size, tuple(bytes.fromhex(part) for part in json.loads(frontier))).append(leaf)
        self.connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (number, time, kind, text, leaf))
        entry = Entry(number, time, kind, json.loads(text))
        follow(self.connection, entry)
        self.connection.execute(
            "UPDATE head SET size = ?, last = ?, frontier = ?",
            (number, leaf.hex(), json.dumps([part.hex() for part in grown.subtrees])),
        )
        return entry

    def checkpoint(self) -> bool:
        """Move everything from the write-ahead log into the file; whether all of it is there."""
        busy, _, _ = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    # Reading ------------------------------------------------------------------------------------------------------

    def head(self) -> Head:
        size, frontier = self.connection.execute("SELECT size, frontier FROM head").fetchone()
        found = Frontier(size, tuple(bytes.fromhex(part) for part in json.loads(frontier)))
        return Head(size, found.root.hex())

    def entries(self, after: int = 0, limit: int = -1) -> Iterator[Entry]:
        """Entries in order, from the one after `after`."""
        query = "SELECT number, time, kind, body FROM entries WHERE number > ? ORDER BY number LIMIT ?"
        for number, time, kind, body in self.connection.execute(query, (after, limit)):
            yield Entry(number, time, kind, json.loads(body))

    def created(self) -> Json:
        """The first entry's body: policy, model, surrogate."""
        body = self.connection.execute("SELECT body FROM entries WHERE number = 1 AND kind = 'created'").fetchone()
        if body is None:
            raise FileError(
                f"{self.path} is empty", "a desk begins with its policy", "Open a desk with expunge desk init."
            )
        return dict(json.loads(body[0]))

    def requests(self, state: str | None = None, limit: int = -1, after: int = 0) -> list[RequestRow]:
        """Requests in the order they were accepted."""
        query = "SELECT id, reference, accepted, due, n_rows, state, model FROM requests WHERE id > ?"
        if state is None:
            rows = self.connection.execute(query + " ORDER BY id LIMIT ?", (after, limit))
        else:
            rows = self.connection.execute(query + " AND state = ? ORDER BY id LIMIT ?", (after, state, limit))
        return [RequestRow(*row) for row in rows]

    def find(self, column: str, value: str) -> RequestRow | None:
        """The request with this `reference` or `fingerprint`."""
        assert column in ("reference", "fingerprint")
        row = self.connection.execute(
            f"SELECT id, reference, accepted, due, n_rows, state, model FROM requests WHERE {column} = ?", (value,)
        ).fetchone()
        return None if row is None else RequestRow(*row)

    def holders(self, digests: list[str]) -> dict[str, int]:
        """Which request holds each of these rows, where one does."""
        found: dict[str, int] = {}
        for digest in dict.fromkeys(digests):
            row = self.connection.execute(
                "SELECT request FROM row_digests WHERE digest = ? LIMIT 1", (digest,)
            ).fetchone()
            if row is not None:
                found[digest] = row[0]
        return found

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

    def overdue(self, today: str) -> int:
        """How many pending requests were due before this day."""
        query = "SELECT count(*) FROM requests WHERE state = 'pending' AND due < ?"
        return int(self.connection.execute(query, (today,)).fetchone()[0])

    def next_request(self) -> int:
        return int(self.connection.execute("SELECT coalesce(max(id), 0) + 1 FROM requests").fetchone()[0])

    def models(self) -> list[tuple[int, str, Json]]:
        """Number, state (`prepared` or `published`) and facts of every model."""
        rows = self.connection.execute("SELECT number, state, body FROM models ORDER BY number")
        return [(number, state, json.loads(body)) for number, state, body in rows]

    def last(self, *kinds: str) -> Entry | None:
        """The latest entry of these kinds, looked for from the end."""
        marks = ",".join("?" * len(kinds))
        row = self.connection.execute(
            f"SELECT number, time, kind, body FROM entries WHERE kind IN ({marks}) ORDER BY number DESC LIMIT 1", kinds
        ).fetchone()
        return None if row is None else Entry(row[0], row[1], row[2], json.loads(row[3]))


def _connect(path: Path) -> sqlite3.Connection:
    """A connection; a ledger that cannot be written, such as an auditor's copy, is read as it is."""
    log = path.with_name(path.name + "-wal")
    left = log.exists() and log.stat().st_size > 0
    if left or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", isolation_level=None, uri=True)


def follow(connection: sqlite3.Connection, entry: Entry) -> None:
    """What follows from an entry, in the other tables."""
    body = entry.body
    if entry.kind == "accepted":
        connection.execute(
            "INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, 'pending', NULL)",
            (
                body["request"],
                body["reference"],
                entry.time,
                body["due"],
                body["n_rows"],
                body["fingerprint"],
                body["file_mac"],
            ),
        )
        connection.executemany(
            "INSERT INTO row_digests VALUES (?, ?)", [(digest, body["request"]) for digest in body["rows"]]
        )
    elif entry.kind == "prepared":
        connection.execute(
            "INSERT INTO models VALUES (?, 'prepared', ?)",
            (body["model"], json.dumps(body | {"time": entry.time}, sort_keys=True)),
        )
        connection.executemany(
            "UPDATE requests SET state = 'prepared', model = ? WHERE id = ? AND state = 'pending'",
            [(body["model"], request) for request in body["requests"]],
        )
    elif entry.kind == "published":
        connection.execute("UPDATE models SET state = 'published' WHERE number = ?", (body["model"],))
        connection.execute("UPDATE requests SET state = 'done' WHERE model = ?", (body["model"],))
    elif entry.kind == "withdrawn":
        # the same rows may be asked for again later
        connection.execute("DELETE FROM row_digests WHERE request = ?", (body["request"],))
        connection.execute(
            "UPDATE requests SET state = 'withdrawn', fingerprint = 'withdrawn ' || id WHERE id = ?", (body["request"],)
        )
    elif entry.kind not in KINDS:
        raise ValueError(f"kind {entry.kind!r}")


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
        found = json.loads(content)
        head = Head(found["size"], found["root"])
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
