"""What a ledger's entries say, one class a kind, and what follows from each in the ledger's other tables.

An entry is written as JSON with sorted keys and no spaces, and read back strictly: an entry that lacks a key, or has
one that its kind does not know, is not one.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from expunge.certificate.compose import Composition
from expunge.desk.policy import Policy
from expunge.runtime.strict_json import STRICTLY
from expunge.runtime.typed_json import read_as

Json = dict[str, Any]


@dataclass(frozen=True)
class Body:
    """What every kind of entry has: the name it is written under, and what it changes."""

    entry_kind: ClassVar[str]
    later: ClassVar[tuple[str, ...]] = ()  # fields that entries of earlier versions lack: not written where None

    def to_json(self) -> Json:
        """As it is written: keys in order, arrays as lists."""
        return dict(json.loads(written(self)))

    def follow(self, connection: sqlite3.Connection, time: str) -> None:
        """Write what follows from this entry into the other tables; nothing, for most kinds."""


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
    each precision of rows as given. Entries of earlier versions have only the first. `classes` counts them by the keyed
    digests of their classes. `others` of them equal rows that were asked for before, and were declared to be another
    person's. A request that is set aside from the start says why in `aside`.
    """

    entry_kind: ClassVar[str] = "accepted"
    later: ClassVar[tuple[str, ...]] = ("classes", "others", "aside")
    request: int
    reference: str
    due: str
    n_rows: int
    rows: tuple[str, ...]
    fingerprint: str
    file_mac: str
    classes: dict[str, int] | None = None
    others: int | None = None
    aside: Aside | None = None

    def follow(self, connection: sqlite3.Connection, time: str) -> None:
        known = (self.request, self.reference, time, self.due, self.n_rows, self.fingerprint, self.file_mac)
        connection.execute(
            "INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, 'pending', NULL, ?, NULL)", (*known, self.others or 0)
        )
        connection.executemany(
            "INSERT INTO row_digests VALUES (?, ?)", [(digest, self.request) for digest in self.rows]
        )
        connection.executemany(
            "INSERT INTO open_classes VALUES (?, ?, ?)",
            [(self.request, digest, count) for digest, count in (self.classes or {}).items()],
        )
        if self.aside is not None:
            RequestSetAside(self.request, self.aside).follow(connection, time)


@dataclass(frozen=True)
class RequestSetAside(Body):
    """A request cannot be served as it is; a person decides, and the others go on."""

    entry_kind: ClassVar[str] = "aside"
    request: int
    aside: Aside

    def follow(self, connection: sqlite3.Connection, time: str) -> None:
        connection.execute(
            "UPDATE requests SET state = 'aside', aside = ? WHERE id = ?",
            (json.dumps(asdict(self.aside), sort_keys=True), self.request),
        )


@dataclass(frozen=True)
class RequestResumed(Body):
    """A request that was set aside waits again; `others` of its rows were declared to be another person's."""

    entry_kind: ClassVar[str] = "resumed"
    request: int
    others: int

    def follow(self, connection: sqlite3.Connection, time: str) -> None:
        connection.execute(
            "UPDATE requests SET state = 'pending', aside = NULL, others = ? WHERE id = ?", (self.others, self.request)
        )


@dataclass(frozen=True)
class RequestWithdrawn(Body):
    """A request that waited, or was set aside, was taken back; the same rows may be asked for again later."""

    entry_kind: ClassVar[str] = "withdrawn"
    request: int
    reason: str

    def follow(self, connection: sqlite3.Connection, time: str) -> None:
        connection.execute("DELETE FROM row_digests WHERE request = ?", (self.request,))
        connection.execute("DELETE FROM open_classes WHERE request = ?", (self.request,))
        connection.execute(
            "UPDATE requests SET state = 'withdrawn', aside = NULL, fingerprint = 'withdrawn ' || id WHERE id = ?",
            (self.request,),
        )


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
class Accuracy:
    """Shares of test rows classified as labelled, by the model published before and by this one.

    `before` is None where that one's folder was taken away; entries of earlier versions have there what the weights
    without noise reached.
    """

    before: float | None
    after: float
    rows: int


@dataclass(frozen=True)
class ModelPrepared(Body):
    """All that is known of a published model, its files by their digests.

    `carried` is the provenance of the bound handed on, `failures` the probability spent on bounds that fail, and
    `noise_share` the noise's expected length over the norm of the weights. With a
    deposit, `reach` is how much of it is used, and `forgotten` how many rows have left it, before this desk too.
    `others` counts the rows forgotten so far that were declared to be another person's. `spent` is how often each pair
    of mu and sigma was published, this model included, so that nobody has to go over all models to add one. `files` are
    digests and `sizes` bytes of what is published, `dossier` is the digest of the dossier's file, and `head_key` the
    key of what the statement, and the file beside it, say of the ledger's head.
    """

    entry_kind: ClassVar[str] = "prepared"
    later: ClassVar[tuple[str, ...]] = ("reach", "forgotten", "others", "spent")
    model: int
    requests: tuple[int, ...]
    n_rows: int
    n_left: int
    state_mac: str
    carried: str
    status: str
    epsilon: float
    delta: float
    sigma: float
    mu: float
    total: float
    terms: dict[str, float]
    failures: float
    composition: Composition
    noise_share: float
    accuracy: Accuracy | None
    keyid: str | None
    files: dict[str, str]
    sizes: dict[str, int]
    dossier: str
    head_key: str
    reach: float | None = None
    forgotten: int | None = None
    others: int | None = None
    spent: dict[str, int] | None = None

    def follow(self, connection: sqlite3.Connection, time: str) -> None:
        connection.execute(
            "INSERT INTO models VALUES (?, 'prepared', ?)",
            (self.model, json.dumps(self.to_json() | {"time": time}, sort_keys=True)),
        )
        connection.executemany(
            "UPDATE requests SET state = 'prepared', model = ? WHERE id = ? AND state = 'pending'",
            [(self.model, request) for request in self.requests],
        )


@dataclass(frozen=True)
class ModelPublished(Body):
    """A prepared model's files have their names."""

    entry_kind: ClassVar[str] = "published"
    model: int

    def follow(self, connection: sqlite3.Connection, time: str) -> None:
        connection.execute("UPDATE models SET state = 'published' WHERE number = ?", (self.model,))
        done = "SELECT id FROM requests WHERE model = ? AND state = 'prepared'"
        connection.execute(f"DELETE FROM open_classes WHERE request IN ({done})", (self.model,))
        connection.execute("UPDATE requests SET state = 'done' WHERE model = ? AND state = 'prepared'", (self.model,))


KINDS: dict[str, type[Body]] = {
    body.entry_kind: body
    for body in (
        DeskCreated,
        RequestAccepted,
        RequestSetAside,
        RequestResumed,
        RequestWithdrawn,
        RunStarted,
        RunAbandoned,
        RunRefused,
        ModelPrepared,
        ModelPublished,
    )
}


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


@dataclass(frozen=True)
class ModelRow:
    """A model of the ledger: `state` is `prepared` or `published`, `time` when it was prepared."""

    state: str
    time: str
    facts: ModelPrepared

    @property
    def number(self) -> int:
        return self.facts.model


def written(body: Body) -> str:
    """An entry's body as it stands in the ledger."""
    content = {name: value for name, value in asdict(body).items() if value is not None or name not in body.later}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def read_body(kind: str, text: str) -> Body:
    """An entry's body from the ledger; ValueError says what is wrong with it."""
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}")
    return read_as(KINDS[kind], strict(text))


def read_model_row(state: str, text: str) -> ModelRow:
    """A model from the ledger's table of them."""
    content = strict(text)
    time = content.pop("time", None) if isinstance(content, dict) else None
    if not isinstance(time, str):
        raise ValueError("a model without a time")
    return ModelRow(state, time, read_as(ModelPrepared, content))


STRICT = json.JSONDecoder(**STRICTLY)


def strict(text: str) -> Any:
    """JSON without repeated keys and without NaN; text that is none is a ValueError too."""
    if not isinstance(text, str):
        raise ValueError(f"{type(text).__name__} in place of text")
    return STRICT.decode(text)
