"""The ledger: an append-only list of entries in SQLite, hash-chained and under a Merkle root.

    entry i     [number, time, kind, body, hex of entry i-1's leaf] as JSON
    leaf i      SHA-256(0x00 || entry i); the chain makes edits and reordering visible, and so does the root
    head        number of entries and root: saved elsewhere, it makes a truncated tail visible

An entry is on disk before `append` returns (WAL, synchronous FULL). The other tables are what follows from the entries,
kept so that nothing has to read all of them; `replay.py` works them out anew and compares.

Whoever opens a ledger may not have made it. Its files must be plain ones of a size that a ledger can have, and its
tables a ledger's to the letter, with no view or trigger, before anything is asked of them; readers cannot write, and
what they ask takes no more steps than a ledger of that size can need.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
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
    ModelPrepared,
    ModelPublished,
    ModelRow,
    read_body,
    read_model_row,
    strict,
    written,
)
from expunge.desk.merkle import Frontier, leaf_hash
from expunge.errors import FileError
from expunge.runtime.paths import plain_bytes, readable
from expunge.runtime.strict_json import read_json
from expunge.runtime.typed_json import read_as

APPLICATION_ID = 0x45585031
GENESIS = ""
PATIENCE = 5.0  # seconds to wait for a reader before the log is left for the next command to fold in
OPEN = ("pending", "aside")
AT_ONCE = 500  # digests that one query looks up
COLUMNS = "id, reference, accepted, due, n_rows, state, model, others, aside"  # of a request
LARGEST = 2**63 - 1  # of SQLite's integers
HEAD_LIMIT = 10_000  # bytes of a saved head
LARGEST_LEDGER = 16 << 30  # bytes of its file, and of its log
LONGEST = 1 << 28  # bytes of one value in it
STEPS, STEPS_A_BYTE, BETWEEN = 20_000_000, 50, 100_000  # that reading may take; between two looks
FILES = ("", "-wal", "-shm", "-journal")  # of a ledger, by what is added to its name
NAMES_ANOTHER = bytes.fromhex("d9d505f920a163d7")  # ends a journal that names another file, which SQLite would remove
TABLES = ("requests", "row_digests", "open_classes", "models")
# SQLite keeps this text, and a ledger whose text differs is not one: lines are broken without changing it
SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
CREATE TABLE entries (number INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, \
leaf BLOB NOT NULL) STRICT;
CREATE TABLE head (only INTEGER PRIMARY KEY CHECK (only = 1), size INTEGER NOT NULL, last TEXT NOT NULL, \
frontier TEXT NOT NULL) STRICT;
CREATE TABLE requests (id INTEGER PRIMARY KEY, reference TEXT NOT NULL, accepted TEXT NOT NULL, \
due TEXT NOT NULL, n_rows INTEGER NOT NULL,
  fingerprint TEXT NOT NULL UNIQUE, file_mac TEXT NOT NULL, state TEXT NOT NULL, model INTEGER, \
others INTEGER NOT NULL, aside TEXT) STRICT;
CREATE INDEX requests_by_reference ON requests (reference);
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
class PublishedHead:
    """What a published folder has of the head after its model: a commitment, which says nothing of how many entries.

    Only the ledger, which has the key of it, can be held against it.
    """

    model: int
    commitment: str

    def to_json(self) -> Json:
        return {"model": self.model, "commitment": self.commitment}


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
        with _connected(path, writing=True) as connection:
            connection.execute("PRAGMA journal_mode = WAL")  # where it cannot it stays as it is: see `logs`
            connection.executescript(SCHEMA)

    @staticmethod
    @contextlib.contextmanager
    def open(path: Path) -> Iterator[Ledger]:
        """The ledger at this path, to write in; errors of SQLite become Expunge's own."""
        with _connected(path, writing=True) as connection:
            _require_schema(connection, path)
            yield Ledger(connection, path)

    @staticmethod
    @contextlib.contextmanager
    def read(path: Path) -> Iterator[Ledger]:
        """The same to look at, whoever made it."""
        with _connected(path, writing=False) as connection:
            _require_schema(connection, path)
            yield Ledger(connection, path)

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

    def roots(self, sizes: set[int]) -> dict[int, str]:
        """The same for several sizes, in one pass."""
        grown, found = Frontier(), {}
        for (leaf,) in self.connection.execute("SELECT leaf FROM entries ORDER BY number"):
            grown = grown.append(leaf)
            if grown.size in sizes:
                found[grown.size] = grown.root.hex()
        return found

    def published_at(self) -> dict[int, int]:
        """The number of the entry that says so, for each model that is published."""
        query = "SELECT number, time, kind, body FROM entries WHERE kind = ? ORDER BY number"
        found = (self._entry(*row) for row in self.connection.execute(query, (ModelPublished.entry_kind,)))
        return {entry.body.model: entry.number for entry in found if isinstance(entry.body, ModelPublished)}

    def prepared_at(self) -> dict[int, int]:
        """The number of the entry that has its facts, for each model; the run's intent is the entry before it."""
        query = "SELECT number, time, kind, body FROM entries WHERE kind = ? ORDER BY number"
        found = (self._entry(*row) for row in self.connection.execute(query, (ModelPrepared.entry_kind,)))
        return {entry.body.model: entry.number for entry in found if isinstance(entry.body, ModelPrepared)}

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

    def named(self, reference: str) -> list[RequestRow]:
        """The requests with this reference, in the order they were accepted."""
        query = f"SELECT {COLUMNS} FROM requests WHERE reference = ? ORDER BY id"
        return [self._request(*row) for row in self.connection.execute(query, (reference,))]

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
        found: dict[str, set[int]] = {}
        wanted = list(dict.fromkeys(digests))
        for some in (wanted[start : start + AT_ONCE] for start in range(0, len(wanted), AT_ONCE)):
            query = f"SELECT DISTINCT digest, request FROM row_digests WHERE digest IN ({','.join('?' * len(some))})"
            for digest, request in self.connection.execute(query, some):
                if request != but:
                    found.setdefault(digest, set()).add(request)
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

    def model(self, number: int) -> ModelRow:
        """One of the models there are."""
        query = "SELECT state, body FROM models WHERE number = ?"
        row = self.connection.execute(query, (_whole(number),)).fetchone()
        with self._reading(f"model {number}"):
            if row is None:
                raise ValueError("it is not there")
            return read_model_row(*row)

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


@contextlib.contextmanager
def _connected(path: Path, *, writing: bool) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise FileError(f"{path} does not exist", "a desk has a ledger", "Open a desk with expunge desk init.")
    size = _plain_size(path)
    with guarded(path):
        connection = _connect(path, writing=writing)
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            if not writing:
                connection.execute("PRAGMA query_only = ON")
                connection.set_progress_handler(_counted(STEPS + STEPS_A_BYTE * size), BETWEEN)
            yield connection
        finally:
            connection.close()


def _counted(steps: int) -> Callable[[], bool]:
    """Whether so many steps are used up; asked every BETWEEN of them."""
    left = iter(range(steps // BETWEEN))
    return lambda: next(left, None) is None


def _plain_size(path: Path) -> int:
    """How many bytes a ledger has, its log included; refuses what SQLite should not even open."""
    total = 0
    for name in (path.with_name(path.name + more) for more in FILES):
        with contextlib.suppress(FileNotFoundError):
            found = name.lstat()
            if not stat.S_ISREG(found.st_mode):
                raise FileError(
                    f"{name} is no plain file", "a ledger's files are", "Do not rely on it; restore a copy."
                )
            total += found.st_size
    if total > LARGEST_LEDGER:
        raise FileError(f"{path} has {total:,} bytes", f"a ledger has at most {LARGEST_LEDGER:,}", "Do not rely on it.")
    journal = path.with_name(path.name + "-journal")
    with contextlib.suppress(FileNotFoundError), journal.open("rb") as stream:
        stream.seek(max(0, journal.lstat().st_size - len(NAMES_ANOTHER)))
        if stream.read() == NAMES_ANOTHER:
            raise FileError(f"{journal} names another file", "a ledger's journal is of it alone", "Do not rely on it.")
    return total


def _connect(path: Path, *, writing: bool) -> sqlite3.Connection:
    """A connection; a ledger that cannot be written, such as an auditor's copy, is read as it is.

    What a killed command left in a journal is put back first, by readers too: without that there is no ledger to read.
    """
    log, journal = (path.with_name(path.name + more) for more in ("-wal", "-journal"))
    left = log.exists() and log.stat().st_size > 0
    torn = journal.exists() and journal.stat().st_size > 0
    if left or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        mode = (
            "ro" if left and not (writing or torn) else "rw"
        )  # closed, the latter leaves no files where it found none
        named = f"{path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(named, isolation_level=None, timeout=PATIENCE, uri=True)
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", isolation_level=None, uri=True)


def schema_of(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """Every table, index, view and trigger, with the text that made it."""
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name").fetchall()


@functools.cache
def _own_schema() -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as anew:
        anew.executescript(SCHEMA)
        return schema_of(anew)


def _require_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file whose tables are not a ledger's: a view among them could run for ever, a trigger write."""
    if schema_of(connection) != _own_schema():
        raise FileError(
            f"{path}: its tables are not a ledger's",
            "a ledger has its own tables and indices, and no views or triggers",
            "Do not rely on it; restore a copy.",
        )


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
    head = _parsed_head(content, name)
    if not isinstance(head, Head):
        raise FileError(f"{name} is a commitment to a head", "the head itself is needed", "Check the file.")
    return head


def read_published_head(content: bytes, name: str) -> PublishedHead:
    """The commitment that lies beside a published model."""
    head = _parsed_head(content, name)
    if not isinstance(head, PublishedHead):
        raise FileError(f"{name} is a head", "what is published only commits to one", "Do not rely on it.")
    return head


def _parsed_head(content: bytes, name: str) -> Head | PublishedHead:
    try:
        saved = read_json(content)
        if "commitment" in saved:
            model, digest = saved["model"], saved["commitment"]
            if type(model) is not int or model < 1 or len(bytes.fromhex(digest)) != 32 or len(saved) != 2:
                raise ValueError("model or commitment")
            return PublishedHead(model, digest)
        head = Head(saved["size"], saved["root"])
        if type(head.size) is not int or head.size < 0 or len(bytes.fromhex(head.root)) != 32:
            raise ValueError("size or root")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(
            f"{name} is not a saved head ({error})",
            "size and root, or a model and its commitment, are needed",
            "Save one with expunge desk head.",
        ) from error
    return head


def saved_head(path: Path) -> Head | PublishedHead:
    """The head in a file: one that was saved, or what lies beside a published model."""
    return _parsed_head(plain_bytes(readable(path).resolve(), HEAD_LIMIT, "a saved head"), str(path))
