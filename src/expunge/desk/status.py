"""Where a desk stands: what waits, what was published; and checking all of it offline."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import sqlite3
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from expunge.bounds.calibration import deletions_left, models_left
from expunge.certificate.dossier import Certificate
from expunge.certificate.statement import SIZE_LIMIT, Statement, parse_document, require_kind
from expunge.certificate.verify import verify_statement
from expunge.desk.desk import Desk
from expunge.desk.ledger import (
    GENESIS,
    SCHEMA,
    TABLES,
    Entry,
    Head,
    Json,
    Ledger,
    ModelRow,
    RequestRow,
    RunRefused,
    SavedHead,
    hash_entry,
    now,
    read_body,
    read_seal,
    require_contains,
    require_whole,
)
from expunge.desk.policy import MODEL, STATEMENT, Layout
from expunge.errors import FileError, InputError, OptionError, RetrainNow, VerificationFailed
from expunge.runtime.files import opened_plain, plain_bytes
from expunge.runtime.memory import memory_limit

# Where a desk stands: what waits, what was published, what is left --------------------------------------------------


@dataclass(frozen=True)
class Status:
    """`epsilon` is that of all published models together.

    `models_left` says how many more `limit` and `planned` allow, `deletions_left` how many runs like those so far the
    noise still covers. With a deposit, `reach` is how much of it the last model used: of the largest region its noise
    hides, or of the way to where no region is finite any more, whichever is more; `forgotten` is how many rows have
    left, and `rows_left` how many more like them it reaches. `retrain` is why the last run refused requests that are
    not done yet. `overdue` counts those that wait and those that are set aside.
    """

    pending: int
    aside: int
    overdue: int
    done: int
    withdrawn: int
    models: int
    planned: int
    epsilon: float
    delta: float
    limit: float
    models_left: int
    deletions_left: int | None
    reach: float | None
    forgotten: int | None
    rows_left: int | None
    retrain: str | None
    head: Head
    time: str

    def to_json(self) -> Json:
        return asdict(self)


def status(desk: Desk) -> Status:
    """Counts, composed epsilon and remaining capacity; reads no rows and no weights."""
    with desk.reading() as ledger:
        policy, counts, made = desk.policy, ledger.counts(), [model.facts for model in ledger.models()]
        last = made[-1] if made else None
        reach, forgotten = (last.reach, last.forgotten) if last is not None else (0.0, 0)
        left, runs_left, rows_left = policy.planned, None, None
        if last is not None:
            squares, delta = math.fsum(facts.mu**2 for facts in made), policy.delta - last.composition.failures
            left = min(policy.planned - len(made), models_left(squares, last.mu, delta, policy.limit))
            if policy.with_deposit and reach is not None:  # what is used grows at most with the square of the rows
                rows_left = max(0, math.floor((math.sqrt(1.0 / max(reach, 1e-12)) - 1.0) * forgotten))
                runs_left = rows_left * len(made) // sum(facts.n_rows for facts in made)
            elif policy.noise is not None:  # the bound grows with every deletion, the noise does not
                runs_left = max(0, math.floor((last.mu * policy.noise / last.total - 1.0) * len(made)))
            elif last.noise_share is not None:
                runs_left = deletions_left(last.total, last.terms["training"], last.noise_share)
        return Status(
            pending=counts["pending"],
            aside=counts["aside"],
            overdue=ledger.overdue(now()[:10]),
            done=counts["done"] + counts["prepared"],
            withdrawn=counts["withdrawn"],
            models=len(made),
            planned=policy.planned,
            epsilon=0.0 if last is None else last.composition.epsilon,
            delta=policy.delta,
            limit=policy.limit,
            models_left=left,
            deletions_left=runs_left,
            reach=reach if policy.with_deposit else None,
            forgotten=forgotten if policy.with_deposit else None,
            rows_left=rows_left,
            retrain=_retrain(ledger),
            head=ledger.head(),
            time=now(),
        )


def _retrain(ledger: Ledger) -> str | None:
    """The reason of the last refusal, if all requests that were refused still wait, or are set aside."""
    last = ledger.last(RunRefused)
    if not isinstance(last, RunRefused) or last.kind != RetrainNow.__name__:
        return None
    refused = [ledger.request(number) for number in last.requests]
    return last.reason if all(request is not None and request.open for request in refused) else None


def requests(
    desk: Desk, state: str | None = None, *, limit: int = -1, reference: str | None = None
) -> list[RequestRow]:
    """Requests in the order they were accepted, those of a state or of a reference; the first ones up to a limit.

    For those who run the desk: the state of a request depends on what others asked for.
    """
    with desk.reading() as ledger:
        found = ledger.requests(state, limit, reference=reference)
    if reference is not None and not found:
        raise OptionError(f"reference {reference!r} is unknown", "one that was accepted is needed", "Check it.")
    return found


def models(desk: Desk) -> list[Json]:
    """Facts of every published model, as they are written, with the time."""
    with desk.reading() as ledger:
        return [model.facts.to_json() | {"time": model.time} for model in ledger.models()]


def history(desk: Desk, *, after: int = 0, limit: int = -1) -> list[Entry]:
    """The ledger's entries in order."""
    with desk.reading() as ledger:
        return list(ledger.entries(after, limit))


# Checking a desk offline: the ledger, what statements commit to, every published file and every dossier -------------
# The folder may be somebody else's work, made to deceive or to do harm: only plain files inside it are read, none that
# is larger than what it should be, and of the ledger nothing is asked before its tables are known to be a ledger's.

MOST_TRIES = 20  # each of them after another command wrote
MOST_NAMED = 5  # of what lies where nothing should
CHANGED = "the ledger has the digest of what was written"


@dataclass(frozen=True)
class DeskCheck:
    """`sealed`: the seal spoke for every byte of the ledger's file. `absent`: models whose folder was taken away.

    `dossiers` are the models whose dossier was at hand, and was checked with the statement.
    """

    head: Head
    sealed: bool
    models: int
    absent: tuple[int, ...]
    dossiers: tuple[int, ...]


def verify_desk(desk: Desk | Layout, saved: Sequence[SavedHead] = ()) -> DeskCheck:
    """Raise VerificationFailed if an entry, a byte of the ledger, a published file or a dossier is not as it was.

    Of a folder whose private part is not at hand its layout is enough. A command that writes meanwhile changes what is
    compared while it is: then all is checked once more.
    """
    layout = desk if isinstance(desk, Layout) else desk.layout
    if not layout.ledger.is_file():
        raise FileError(f"{layout.folder} is not a desk", "a folder with a ledger is needed", "Check the path.")
    for _ in range(MOST_TRIES):
        before = _size(layout)
        try:
            return _verify(layout, saved)
        except VerificationFailed:
            if _size(layout) == before:
                raise
    return _verify(layout, saved)


def _size(layout: Layout) -> int | None:
    """How many entries the ledger has; None where it does not say."""
    try:
        with Ledger.open(layout.ledger, writing=False) as ledger:
            return ledger.head().size
    except (FileError, ValueError, TypeError):
        return None


def _verify(layout: Layout, saved: Sequence[SavedHead]) -> DeskCheck:
    seal = read_seal(layout)
    try:
        with Ledger.open(layout.ledger, writing=False) as ledger:
            head = verify_entries(ledger)
            sealed = seal is not None and head.size == seal.size
            if sealed:
                require_whole(layout, head)
            for each in (*saved, *(() if seal is None else (seal,))):
                require_contains(ledger, each)
            models = ledger.models()
            _refuse_unexpected(layout, models)
            there = {model.number for model in models if at_hand(layout.published_model(model.number))}
            dossiers = [model.number for model in models if at_hand(layout.dossier_of(model.number))]
            for model in models:
                dossier = None
                if model.number in dossiers:
                    dossier = read_dossier(layout, model.number, model.facts.dossier)
                if model.number in there:
                    _verify_model(layout, ledger, model, dossier)
    except InputError as error:
        raise VerificationFailed(error.found, error.required, error.remedy) from error
    absent = [model.number for model in models if model.published and model.number not in there]
    return DeskCheck(head, sealed, len(there), tuple(absent), tuple(dossiers))


def verify_entries(ledger: Ledger) -> Head:
    """The head that the entries give; raises VerificationFailed where chain, head or the other tables differ."""
    try:
        ((answer,),) = ledger.connection.execute("PRAGMA integrity_check(1)").fetchall()
        if answer != "ok":
            raise _ledger_failure(f"SQLite says {answer}")
        with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as anew:
            anew.executescript(SCHEMA)
            anew.execute("BEGIN")
            head = _replay(ledger.connection, anew)
            for table in TABLES:
                query = f"SELECT * FROM {table} ORDER BY 1, 2"
                if not _same(ledger.connection.execute(query), anew.execute(query)):
                    raise _ledger_failure(f"table {table} does not follow from the entries")
        if ledger.head() != head:
            raise _ledger_failure("the head is not that of the entries")
    except (sqlite3.Error, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise _ledger_failure(f"{type(error).__name__}: {error}") from error
    return head


def _replay(source: sqlite3.Connection, anew: sqlite3.Connection) -> Head:
    """The head that follows from the entries, whose consequences are written into `anew`."""
    last, latest, number = GENESIS, "", 0
    rows = source.execute("SELECT number, time, kind, body, hash FROM entries ORDER BY number")
    for expected, (number, time, kind, body, digest) in enumerate(rows, start=1):
        if number != expected:
            raise _ledger_failure(f"entry {expected} is missing")
        if digest != hash_entry(number, time, kind, body, last):
            raise _ledger_failure(f"entry {number} was changed, or the one before it")
        if time < latest:
            raise _ledger_failure(f"entry {number} is dated before the one before it")
        read_body(kind, body).apply(anew, number, time)
        last, latest = digest.hex(), time
    return Head(number, last)


def _same(first: sqlite3.Cursor, second: sqlite3.Cursor) -> bool:
    while True:
        left, right = first.fetchmany(1000), second.fetchmany(1000)
        if left != right or not left:
            return left == right


def _ledger_failure(what: str) -> VerificationFailed:
    return VerificationFailed(
        f"the ledger: {what}", "every entry must be as it was written", "Do not rely on it; restore a copy."
    )


def _verify_model(layout: Layout, ledger: Ledger, model: ModelRow, dossier: Certificate | None) -> None:
    """One published model: its files by their digests, its statement and its dossier, and the head it commits to."""
    facts, folder = model.facts, layout.inside(layout.published_model(model.number) / MODEL).parent
    for name, digest in facts.files.items():
        size = facts.sizes.get(name, 0)
        with opened_plain(folder / name, min(size, memory_limit()), "what was published as it") as stream:
            whole = os.fstat(stream.fileno()).st_size == size
            if not whole or hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                raise VerificationFailed(
                    f"{folder / name} is not the file that was published", CHANGED, "Do not rely on it."
                )
    statement = parse_document(plain_bytes(folder / STATEMENT, SIZE_LIMIT, "a statement"), str(folder / STATEMENT))
    if not isinstance(statement, Statement):
        raise VerificationFailed(f"{folder / STATEMENT} is no statement", "a desk publishes one", "Do not rely on it.")
    verify_statement(statement, folder / MODEL, dossier)
    if statement.content["series"]["ledger_head"] != ledger.commitment(model):
        raise VerificationFailed(
            f"the entries before model {model.number} are not those that its statement commits to",
            "a ledger only ever grows, and entries stay",
            "Do not rely on it; restore a copy.",
        )


def read_dossier(layout: Layout, number: int, digest: str) -> Certificate:
    """The dossier of a model; raises VerificationFailed where it is not the one that was written."""
    path = layout.inside(layout.dossier_of(number))
    content = plain_bytes(path, SIZE_LIMIT, "a dossier")
    if hashlib.sha256(content).hexdigest() != digest:
        raise VerificationFailed(f"{path} is not the dossier that was written", CHANGED, "Do not rely on it.")
    return require_kind(Certificate, parse_document(content, str(path)), path)


def at_hand(path: Path) -> bool:
    """Whether something is there that may be looked at; what is private need not be."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    return True


def _refuse_unexpected(layout: Layout, models: list[ModelRow]) -> None:
    """Raise VerificationFailed for what lies among published files or dossiers and no entry speaks of."""
    expected = {layout.published: {layout.published_model(model.number).name for model in models}}
    expected |= {layout.dossiers: {layout.dossier_of(model.number).name for model in models}}
    expected |= {layout.published_model(model.number): set(model.facts.files) for model in models}
    odd = [folder / name for folder, known in expected.items() for name in _names(layout, folder) if name not in known]
    if odd:
        named = ", ".join(map(str, odd[:MOST_NAMED])) + (f" and {len(odd) - MOST_NAMED} more" * (len(odd) > MOST_NAMED))
        raise VerificationFailed(
            f"{named}: unexpected, the ledger does not know of {'it' if len(odd) == 1 else 'them'}",
            "what lies there was published by the desk, or is a dossier that it wrote",
            "The ledger was put back, or somebody put it there: find out which. Keep other files elsewhere.",
        )


def _names(layout: Layout, folder: Path) -> list[str]:
    """What lies in a folder of the desk; nothing where it was taken away, or is private."""
    for each in (folder, *folder.parents):
        if each == layout.folder:
            break
        if at_hand(each) and not stat.S_ISDIR(each.lstat().st_mode):
            raise VerificationFailed(
                f"{each} is no folder", "a desk's folders are its own, not links or files", "Do not rely on it."
            )
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
