"""The ledger: what was asked of a desk and what it did, an append-only list of entries in SQLite.

    entry i   [number, time, kind, body, hash of entry i-1] as JSON; its hash is the SHA-256 of that
    head      the number of entries and the hash of the last one, which by the chain speaks for all of them: saved
              elsewhere, it shows that entries were changed or cut off
    seal      the head and the SHA-256 of the ledger's whole file, written after every command: it shows damage to bytes
              that no entry uses, and a ledger that was put back to before the last command

An entry is on disk before `append` returns (WAL, synchronous FULL). The other tables are what follows from the entries,
there so that nothing has to read all of them; `status.py` works them out anew and compares.

Whoever opens a ledger may not have made it. Its files must be plain ones of a size that a ledger can have, and its
tables a ledger's to the letter, with no view or trigger, before anything is asked of them; readers cannot write, and
what they ask takes no more steps than a ledger of that size can need.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sqlite3
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from expunge.bounds.calibration import Composition
from expunge.certificate.statement import committed_head
from expunge.desk.policy import Layout, Policy
from expunge.errors import FileError, VerificationFailed
from expunge.runtime.files import plain_bytes, readable, write_whole
from expunge.runtime.strict_json import STRICTLY, read_as, read_json

Json = dict[str, Any]

# Entries, one class a kind --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Body:
    """What every kind of entry has: the name it is written under, and what it changes."""

    entry_kind: ClassVar[str]

    def to_text(self) -> str:
        """The entry's body as it stands in the ledger: JSON with sorted keys and no spaces."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)

    def to_json(self) -> Json:
        return dict(json.loads(self.to_text()))

    def apply(self, connection: sqlite3.Connection, number: int, time: str) -> None:
        """Write what follows from this entry, the ledger's `number`-th, into the other tables."""


@dataclass(frozen=True)
class DeskCreated(Body):
    """The first entry: what the desk promises, the model it answers for and the surrogate it was opened with."""

    entry_kind: ClassVar[str] = "created"
    policy: Policy
    model_sha256: str
    surrogate_mac: str
    state_mac: str
    store: str


@dataclass(frozen=True)
class Aside:
    """Why a request is set aside for a person to decide: a word, a sentence, and what can be done."""

    kind: str
    reason: str
    remedy: str


@dataclass(frozen=True)
class RequestAccepted(Body):
    """Rows are to be forgotten; `file_mac` is the keyed digest of the file they wait in.

    `rows` are the keyed digests that they are recognised by: first one a row as it was trained on, then one a row for
    each precision of rows as given. `classes` counts them by the keyed digests of their classes. `others` of them equal
    rows that were asked for before, and were declared to be another person's. A request that is set aside from the
    start says why in `aside`.
    """

    entry_kind: ClassVar[str] = "accepted"
    request: int
    reference: str
    due: str
    n_rows: int
    rows: tuple[str, ...]
    file_mac: str
    classes: dict[str, int]
    others: int
    aside: Aside | None

    def apply(self, connection: sqlite3.Connection, number: int, time: str) -> None:
        classes = json.dumps(self.classes, sort_keys=True)
        known = (self.request, self.reference, time, self.due, self.n_rows, self.file_mac, self.others, classes)
        connection.execute("INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, 'pending', NULL, ?, NULL, ?)", known)
        held = [(digest, self.request) for digest in self.rows]
        connection.executemany("INSERT INTO row_digests VALUES (?, ?)", held)
        if self.aside is not None:
            RequestSetAside(self.request, self.aside).apply(connection, number, time)


@dataclass(frozen=True)
class RequestSetAside(Body):
    """A request cannot be served as it is; a person decides, and the others go on."""

    entry_kind: ClassVar[str] = "aside"
    request: int
    aside: Aside

    def apply(self, connection: sqlite3.Connection, number: int, time: str) -> None:
        aside = json.dumps(asdict(self.aside), sort_keys=True)
        connection.execute("UPDATE requests SET state = 'aside', aside = ? WHERE id = ?", (aside, self.request))


@dataclass(frozen=True)
class RequestResumed(Body):
    """A request that was set aside waits again; `others` of its rows were declared to be another person's."""

    entry_kind: ClassVar[str] = "resumed"
    request: int
    others: int

    def apply(self, connection: sqlite3.Connection, number: int, time: str) -> None:
        query = "UPDATE requests SET state = 'pending', aside = NULL, others = ? WHERE id = ?"
        connection.execute(query, (self.others, self.request))


@dataclass(frozen=True)
class RequestWithdrawn(Body):
    """A request that waited, or was set aside, was taken back; the same rows may be asked for again later."""

    entry_kind: ClassVar[str] = "withdrawn"
    request: int
    reason: str

    def apply(self, connection: sqlite3.Connection, number: int, time: str) -> None:
        connection.execute("DELETE FROM row_digests WHERE request = ?", (self.request,))
        connection.execute("UPDATE requests SET state = 'withdrawn', aside = NULL WHERE id = ?", (self.request,))


@dataclass(frozen=True)
class RunStarted(Body):
    """The intent to publish a model; until `prepared` follows nothing of it counts."""

    entry_kind: ClassVar[str] = "started"
    model: int
    requests: tuple[int, ...]


@dataclass(frozen=True)
class RunAbandoned(Body):
    """A run that was started, but not prepared, was given up."""

    entry_kind: ClassVar[str] = "abandoned"
    model: int


@dataclass(frozen=True)
class RunRefused(Body):
    """A run could not certify these requests; `kind` is the error's name."""

    entry_kind: ClassVar[str] = "refused"
    requests: tuple[int, ...]
    kind: str
    reason: str


@dataclass(frozen=True)
class ModelPrepared(Body):
    """All that is known of a published model, its files by their digests.

    `n_rows` were forgotten with it, `forgotten` ever, before the desk too, `others` of them declared to be another
    person's. `composition` is what all models so far say together. `reach` is how much of a deposit is used; without
    one `noise_share` is the noise's expected length over the norm of the weights. `files` are digests and `sizes` bytes
    of what is published, `dossier` is the digest of the dossier's file, and `head_key` the key of what the statement
    says of the ledger's head.
    """

    entry_kind: ClassVar[str] = "prepared"
    model: int
    requests: tuple[int, ...]
    n_rows: int
    n_left: int
    state_mac: str
    status: str
    epsilon: float
    delta: float
    sigma: float
    mu: float
    total: float
    terms: dict[str, float]
    composition: Composition
    noise_share: float | None
    keyid: str | None
    files: dict[str, str]
    sizes: dict[str, int]
    dossier: str
    head_key: str
    reach: float | None
    forgotten: int
    others: int

    def apply(self, connection: sqlite3.Connection, number: int, time: str) -> None:
        connection.execute("INSERT INTO models VALUES (?, ?, NULL)", (self.model, number))
        query = "UPDATE requests SET state = 'prepared', model = ? WHERE id = ? AND state = 'pending'"
        connection.executemany(query, [(self.model, request) for request in self.requests])


@dataclass(frozen=True)
class ModelPublished(Body):
    """A prepared model's files have their names."""

    entry_kind: ClassVar[str] = "published"
    model: int

    def apply(self, connection: sqlite3.Connection, number: int, time: str) -> None:
        connection.execute("UPDATE models SET published = ? WHERE number = ?", (number, self.model))
        connection.execute("UPDATE requests SET state = 'done' WHERE model = ? AND state = 'prepared'", (self.model,))


KINDS: dict[str, type[Body]] = {body.entry_kind: body for body in Body.__subclasses__()}


@dataclass(frozen=True)
class Entry:
    """One entry, as it was written."""

    number: int
    time: str
    body: Body

    @property
    def kind(self) -> str:
        return self.body.entry_kind

    def to_json(self) -> Json:
        return {"number": self.number, "time": self.time, "kind": self.kind, "body": self.body.to_json()}


STRICT = json.JSONDecoder(**STRICTLY)  # without repeated keys and without NaN


def read_body(kind: str, text: str) -> Body:
    """An entry's body from the ledger, read strictly; ValueError says what is wrong with it."""
    if kind not in KINDS or not isinstance(text, str):
        raise ValueError(f"kind {kind!r}, {type(text).__name__}")
    return read_as(KINDS[kind], STRICT.decode(text))


def hash_entry(number: int, time: str, kind: str, body: str, previous: str) -> bytes:
    """The hash of an entry, which names the one before it by its hash."""
    return hashlib.sha256(json.dumps([number, time, kind, body, previous], separators=(",", ":")).encode()).digest()


def ledger_error(found: str, required: str) -> FileError:
    """The error of a file that is not as a desk writes it."""
    return FileError(found, required, "Do not rely on it; restore a copy.")


def now() -> str:
    """This moment, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


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
        return self.state in ("pending", "aside")


@dataclass(frozen=True)
class ModelRow:
    """A model, when it was prepared, and the numbers of the entries that it was prepared and published with."""

    time: str
    facts: ModelPrepared
    prepared: int
    published: int | None

    @property
    def number(self) -> int:
        return self.facts.model


# Heads ----------------------------------------------------------------------------------------------------------------

GENESIS = ""
SAVED_LIMIT, SEAL_LIMIT = 10_000_000, 1000  # bytes of a saved head, which may be a statement, and of a seal


@dataclass(frozen=True)
class Head:
    """What speaks for a whole ledger: how many entries, and the hash of the last one."""

    size: int
    hash: str

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True)
class PublishedHead:
    """What a published statement says of the head before its model: a commitment, which tells nobody how many asked.

    Only the ledger, which has the key of it, can be held against it.
    """

    commitment: str


SavedHead = Head | PublishedHead


def head_bytes(head: Head) -> bytes:
    """A head as it is saved."""
    return json.dumps(head.to_json()).encode() + b"\n"


def read_head(content: bytes, name: str) -> SavedHead:
    """A head that was saved, or a statement that a desk published."""
    try:
        saved = read_json(content)
        if isinstance(saved, dict) and isinstance(saved.get("series"), dict):
            return PublishedHead(str(saved["series"]["ledger_head"]))
        head = read_as(Head, saved)
        if head.size < 0 or len(bytes.fromhex(head.hash)) != 32:
            raise ValueError("a number or a digest that cannot be")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(
            f"{name} is not a saved head ({error})",
            "size and hash, or a statement that the desk published, are needed",
            "Save one with expunge desk head.",
        ) from error
    return head


def saved_head(path: Path) -> SavedHead:
    """The head in a file."""
    return read_head(plain_bytes(readable(path).resolve(), SAVED_LIMIT, "a saved head"), str(path))


def require_contains(ledger: Ledger, saved: SavedHead, what: str = "a saved head") -> None:
    """Refuse a ledger whose first entries are not those of a head, or that has not published a statement."""
    older = "Do not rely on it: find out who put it back, and restore the newest copy."
    if isinstance(saved, PublishedHead):
        if all(ledger.commitment(model) != saved.commitment for model in ledger.models()):
            raise VerificationFailed(
                "the ledger has not published the statement that was saved: its end was cut off or its entries were "
                "changed, or the statement is of another desk",
                "a ledger only ever grows",
                older,
            )
        return
    size = ledger.head().size
    if saved.size > size:
        raise VerificationFailed(
            f"{what} has {saved.size:,} entries, the ledger {size:,}: its end was cut off",
            "a ledger only ever grows",
            older,
        )
    if ledger.head_at(saved.size) != saved:
        raise VerificationFailed(f"the first {saved.size:,} entries are not those of {what}", "entries stay", older)


# The ledger -----------------------------------------------------------------------------------------------------------

PATIENCE = 5.0  # seconds to wait for a reader before the log is left for the next command to fold in
AT_ONCE = 500  # digests that one query looks up
COLUMNS = "id, reference, accepted, due, n_rows, state, model, others, aside"  # of a request
MODELS = "SELECT time, body, prepared, published FROM models JOIN entries ON entries.number = prepared"
LARGEST = 2**63 - 1  # of SQLite's integers
LARGEST_LEDGER = 16 << 30  # bytes of its file, and of its log
LONGEST = 1 << 28  # bytes of one value in it
STEPS, STEPS_A_BYTE, BETWEEN = 20_000_000, 50, 100_000  # that reading may take; between two looks
TABLES = ("requests", "row_digests", "models")
# SQLite keeps this text, and a ledger whose text differs is not one: lines are broken without changing it
SCHEMA = f"""
CREATE TABLE entries (number INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, \
hash BLOB NOT NULL) STRICT;
CREATE TABLE head (only INTEGER PRIMARY KEY CHECK (only = 1), size INTEGER NOT NULL, hash TEXT NOT NULL) STRICT;
CREATE TABLE requests (id INTEGER PRIMARY KEY, reference TEXT NOT NULL, accepted TEXT NOT NULL, due TEXT NOT NULL, \
n_rows INTEGER NOT NULL, file_mac TEXT NOT NULL, state TEXT NOT NULL, model INTEGER, others INTEGER NOT NULL, \
aside TEXT, classes TEXT NOT NULL) STRICT;
CREATE INDEX requests_by_reference ON requests (reference);
CREATE INDEX requests_by_state ON requests (state, id);
CREATE INDEX requests_by_model ON requests (model);
CREATE TABLE row_digests (digest TEXT NOT NULL, request INTEGER NOT NULL) STRICT;
CREATE INDEX row_digests_by_digest ON row_digests (digest);
CREATE INDEX row_digests_by_request ON row_digests (request);
CREATE TABLE models (number INTEGER PRIMARY KEY, prepared INTEGER NOT NULL, published INTEGER) STRICT;
INSERT INTO head VALUES (1, 0, '{GENESIS}');
"""


class Ledger:
    """An open ledger. One writer at a time: the desk's lock sees to that."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection, self.path = connection, path

    @staticmethod
    def create(path: Path) -> None:
        """A new, empty ledger that nobody but its owner can read."""
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with _connected(path, writing=True) as connection:
            if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
                raise sqlite3.OperationalError("no write-ahead log can be made there")
            connection.executescript(SCHEMA)

    @staticmethod
    @contextlib.contextmanager
    def open(path: Path, *, writing: bool = True) -> Iterator[Ledger]:
        """The ledger at this path, to write in or to look at; errors of SQLite become Expunge's own."""
        with _connected(path, writing=writing) as connection:
            if _schema_of(connection) != _own_schema():  # a view could run for ever, a trigger write
                needed = "a ledger has its own tables and indices, and no views or triggers"
                raise ledger_error(f"{path}: its tables are not a ledger's", needed)
            yield Ledger(connection, path)

    # Writing ------------------------------------------------------------------------------------------------------

    def append(self, body: Body, time: str | None = None) -> Entry:
        """Add an entry and what follows from it, in one transaction that is on disk before this returns.

        It is dated no earlier than the entry before, whatever the clock.
        """
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            latest = self._value("SELECT time FROM entries ORDER BY number DESC LIMIT 1") or ""
            kind, text, dated, head = body.entry_kind, body.to_text(), max(time or now(), latest), self.head()
            number = head.size + 1
            digest = hash_entry(number, dated, kind, text, head.hash)
            self.connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (number, dated, kind, text, digest))
            body.apply(self.connection, number, dated)
            self.connection.execute("UPDATE head SET size = ?, hash = ?", (number, digest.hex()))
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        return Entry(number, dated, body)

    # Reading ------------------------------------------------------------------------------------------------------

    def _value(self, query: str, *given: Any) -> Any:
        """The first value that a query gives; None where it gives no row."""
        row = self.connection.execute(query, given).fetchone()
        return None if row is None else row[0]

    @contextlib.contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """What is wrong with an entry, as Expunge's own error."""
        try:
            yield
        except (ValueError, RecursionError) as error:
            raise ledger_error(
                f"{self.path}: {what} is not one ({error})", "an entry has the keys of its kind, and no others"
            ) from error

    def head(self) -> Head:
        return Head(*self.connection.execute("SELECT size, hash FROM head").fetchone())

    def head_at(self, size: int) -> Head | None:
        """The head as it was after so many entries; None where there are fewer."""
        digest = self._value("SELECT hash FROM entries WHERE number = ?", _whole(size))
        return Head(0, GENESIS) if size == 0 else None if digest is None else Head(size, digest.hex())

    def commitment(self, model: ModelRow) -> str | None:
        """What a model's statement says of the ledger: a commitment to the head before its run began."""
        before = self.head_at(model.prepared - 2)  # a run's intent is the entry before the one that has its facts
        return None if before is None else committed_head(model.facts.head_key, before.to_json())

    def entries(self, after: int = 0, limit: int = -1) -> Iterator[Entry]:
        """Entries in order, from the one after `after`."""
        query = "SELECT number, time, kind, body FROM entries WHERE number > ? ORDER BY number LIMIT ?"
        for number, time, kind, text in self.connection.execute(query, (_whole(after), _whole(limit))):
            with self._reading(f"entry {number}"):
                body = read_body(kind, text)
            yield Entry(number, time, body)

    def last(self, *kinds: type[Body]) -> Body | None:
        """What the latest entry of these kinds says, looked for from the end."""
        query = f"SELECT max(number) FROM entries WHERE kind IN ({','.join('?' * len(kinds))})"
        number = self._value(query, *(kind.entry_kind for kind in kinds))
        return None if number is None else next(self.entries(number - 1, 1)).body

    def created(self) -> DeskCreated:
        """The first entry's body: policy, model, surrogate."""
        first = next(self.entries(limit=1), None)
        if first is None or not isinstance(first.body, DeskCreated):
            raise ledger_error(f"{self.path} does not begin with a policy", "that is a desk's first entry")
        return first.body

    def requests(
        self, state: str | None = None, limit: int = -1, after: int = 0, reference: str | None = None
    ) -> list[RequestRow]:
        """Requests in the order they were accepted: all of them, or those of a state or of a reference."""
        where = "".join(f" AND {column} = ?" for column, value in (("state", state), ("reference", reference)) if value)
        query = f"SELECT {COLUMNS} FROM requests WHERE id > ?{where} ORDER BY id LIMIT ?"
        given = [value for value in (state, reference) if value]
        read = []
        for row in self.connection.execute(query, (_whole(after), *given, _whole(limit))):
            with self._reading(f"request {row[0]}"):
                aside = None if row[-1] is None else read_as(Aside, STRICT.decode(row[-1]))
                read.append(replace(RequestRow(*row), aside=aside))
        return read

    def request(self, number: int) -> RequestRow | None:
        """The request of this number."""
        found = self.requests(after=number - 1, limit=1)
        return found[0] if found and found[0].id == number else None

    def holders(self, digests: Sequence[str], but: int | None = None) -> dict[str, set[int]]:
        """Which requests hold each of these rows, where any does, `but` one."""
        found: dict[str, set[int]] = {}
        unique = list(dict.fromkeys(digests))
        for some in (unique[start : start + AT_ONCE] for start in range(0, len(unique), AT_ONCE)):
            query = f"SELECT DISTINCT digest, request FROM row_digests WHERE digest IN ({','.join('?' * len(some))})"
            for digest, request in self.connection.execute(query, some):
                if request != but:
                    found.setdefault(digest, set()).add(request)
        return found

    def times(self, digest: str, request: int) -> int:
        """How often a request holds a row."""
        return int(self._value("SELECT count(*) FROM row_digests WHERE digest = ? AND request = ?", digest, request))

    def accepted_mac(self, request: int) -> str:
        """The keyed digest of the rows' file of a request."""
        return str(self._value("SELECT file_mac FROM requests WHERE id = ?", request))

    def counts(self) -> Counter[str]:
        """How many requests are in each state."""
        return Counter(dict(self.connection.execute("SELECT state, count(*) FROM requests GROUP BY state")))

    def pending_rows(self, digest: str | None = None) -> int:
        """How many rows wait to be forgotten, of all classes or of one."""
        query = "SELECT coalesce(sum(n_rows), 0) FROM requests WHERE state = 'pending'"
        if digest is None:
            return int(self._value(query))
        query = "SELECT coalesce(sum(value), 0) FROM requests, json_each(classes) WHERE state = 'pending' AND key = ?"
        return int(self._value(query, digest))

    def overdue(self, today: str) -> int:
        """How many requests that wait, or are set aside, were due before this day."""
        return int(self._value("SELECT count(*) FROM requests WHERE state IN ('pending', 'aside') AND due < ?", today))

    def next_request(self) -> int:
        return int(self._value("SELECT coalesce(max(id), 0) + 1 FROM requests"))

    def models(self, more: str = "ORDER BY models.number") -> list[ModelRow]:
        """Every model in order, prepared or published; `more` narrows the query."""
        read = []
        for time, text, prepared, published in self.connection.execute(f"{MODELS} {more}"):
            with self._reading(f"entry {prepared}"):
                read.append(ModelRow(time, read_as(ModelPrepared, STRICT.decode(text)), prepared, published))
        return read

    def last_model(self) -> ModelRow | None:
        """The last model, prepared or published."""
        return next(iter(self.models("ORDER BY models.number DESC LIMIT 1")), None)


def _whole(number: int) -> int:
    """A number as SQLite can hold it: no entry and no request has one beyond."""
    return max(-LARGEST - 1, min(number, LARGEST))


@contextlib.contextmanager
def _connected(path: Path, *, writing: bool) -> Iterator[sqlite3.Connection]:
    """A connection to a file that may be somebody else's; SQLite's errors become Expunge's own."""
    if not path.is_file():
        raise FileError(f"{path} does not exist", "a desk has a ledger", "Open a desk with expunge desk init.")
    looks = iter(range((STEPS + STEPS_A_BYTE * _plain_size(path)) // BETWEEN))
    try:
        with contextlib.closing(_connect(path, writing=writing)) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            if not writing:
                connection.execute("PRAGMA query_only = ON")
                connection.set_progress_handler(lambda: next(looks, None) is None, BETWEEN)
            yield connection
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where a message quotes a damaged name
        raise FileError(
            f"{path} could not be used ({error})",
            "a whole ledger on a disk with room is needed",
            "Nothing that was acknowledged is lost; make room, or check it with expunge desk verify.",
        ) from error


def _plain_size(path: Path) -> int:
    """How many bytes a ledger has, its log included; refuses what SQLite should not even open.

    A ledger has a write-ahead log and never a journal: SQLite would follow one to another file, and remove that.
    """
    total = 0
    for more in ("", "-wal", "-shm", "-journal"):
        name = path.with_name(path.name + more)
        with contextlib.suppress(FileNotFoundError):
            found = name.lstat()
            if more == "-journal" or not stat.S_ISREG(found.st_mode):
                raise ledger_error(f"{name} is no part of a ledger", "a ledger is a plain file, and has no journal")
            total += found.st_size
    if total > LARGEST_LEDGER:
        raise ledger_error(f"{path} has {total:,} bytes", f"a ledger has at most {LARGEST_LEDGER:,}")
    return total


def _connect(path: Path, *, writing: bool) -> sqlite3.Connection:
    """A connection; a ledger that cannot be written, such as an auditor's copy, is read as it is."""
    log = path.with_name(path.name + "-wal")
    left = log.exists() and log.stat().st_size > 0
    mode = "mode=ro&immutable=1"
    if left or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        mode = "mode=ro" if left and not writing else "mode=rw"  # closed, the latter leaves no files of its own
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", isolation_level=None, timeout=PATIENCE, uri=True)


def _schema_of(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """Every table, index, view and trigger, with the text that made it."""
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name").fetchall()


@functools.cache
def _own_schema() -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as anew:
        anew.executescript(SCHEMA)
        return _schema_of(anew)


# The seal -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seal(Head):
    """The head, and the digest of the ledger's whole file, as they were when a command ended."""

    file_sha256: str


def write_seal(layout: Layout, ledger: Ledger) -> None:
    """Seal the ledger as it is, unless somebody is reading it: then the next command does."""
    busy, _, _ = ledger.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if not busy:  # all of the log is in the file
        write_whole(layout.seal, _seal_bytes(layout, ledger.head()))


def _seal_bytes(layout: Layout, head: Head) -> bytes:
    """The seal of the ledger's file as it is."""
    with layout.ledger.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return json.dumps(Seal(head.size, head.hash, digest).to_json(), indent=1).encode() + b"\n"


def read_seal(layout: Layout) -> Head | None:
    """The head that was sealed, if there is a seal."""
    if not layout.seal.exists() and not layout.seal.is_symlink():
        return None
    try:
        sealed = read_as(Seal, read_json(plain_bytes(layout.inside(layout.seal), SEAL_LIMIT, "a seal")))
    except (FileError, ValueError, RecursionError) as error:
        raise VerificationFailed(
            f"{layout.seal} is not a seal ({error})", "it has a head and a digest", "Restore a copy."
        ) from error
    return Head(sealed.size, sealed.hash)


def require_whole(layout: Layout, head: Head) -> None:
    """Refuse a ledger of which the seal is of this head, and some byte is not as it was sealed."""
    if layout.seal.read_bytes() != _seal_bytes(layout, head):
        raise VerificationFailed(
            "the ledger's file is not the one that was sealed",
            "every byte must be as it was written",
            "Do not rely on it; restore a copy.",
        )


def require_sealed(layout: Layout, ledger: Ledger, *, whole: bool = False) -> None:
    """Refuse to go on with a ledger that is older than its seal: it was put back, and the seal was not.

    With `whole`, before anything is written, also one whose file is not as it was sealed: sealing it anew would hide
    that. A seal that is older than the ledger, since a kill came before it was written, says nothing of the file.
    """
    sealed = read_seal(layout)
    if sealed is None:
        return
    require_contains(ledger, sealed, "the seal")
    log = layout.ledger.with_name(layout.ledger.name + "-wal")
    if whole and sealed == ledger.head() and not (log.exists() and log.stat().st_size):
        require_whole(layout, sealed)
