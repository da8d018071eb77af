"""Checking a desk offline: the ledger, what statements commit to, every published file and every dossier.

The folder may be somebody else's work, made to deceive or to do harm: only plain files inside it are read, none that is
larger than what it should be, and of the ledger nothing is asked before its tables are known to be a ledger's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from expunge.certificate.dossier import SIZE_LIMIT, Certificate, parse_certificate
from expunge.certificate.statement import Statement, committed_head, parse_document
from expunge.certificate.verify import verify_statement
from expunge.desk.desk import Desk
from expunge.desk.layout import HEAD, MODEL, STATEMENT, Layout
from expunge.desk.ledger import (
    GENESIS,
    HEAD_LIMIT,
    SCHEMA,
    TABLES,
    Head,
    Ledger,
    ModelRow,
    PublishedHead,
    hash_entry,
    is_sealed,
    not_sealed,
    read_body,
    read_head,
    read_seal,
    require_contains,
)
from expunge.errors import FileError, InputError, VerificationFailed
from expunge.runtime.files import TEMPORARY, opened_plain, plain_bytes
from expunge.runtime.memory import memory_limit

MOST_TRIES = 20  # each of them after another command wrote
MOST_NAMED = 5  # of what lies where nothing should
Heads = Sequence[Head | PublishedHead]


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


def verify_desk(desk: Desk | Layout, saved: Heads | None = None) -> DeskCheck:
    """Raise VerificationFailed if an entry, a byte of the ledger, a published file or a dossier is not as it was.

    Of a folder whose private part is not at hand its layout is enough. A command that writes meanwhile changes what is
    compared while it is: then all is checked once more.
    """
    layout = desk if isinstance(desk, Layout) else desk.layout
    if not layout.ledger.is_file():
        raise FileError(f"{layout.folder} is not a desk", "a folder with a ledger is needed", "Check the path.")
    size = _size(layout)
    for _ in range(MOST_TRIES):
        try:
            return _verify(layout, saved or ())
        except VerificationFailed:
            before, size = size, _size(layout)
            if size == before:
                raise
    return _verify(layout, saved or ())


def _size(layout: Layout) -> int | None:
    """How many entries the ledger has; None where it does not say."""
    try:
        with Ledger.open(layout.ledger, writing=False) as ledger:
            return ledger.head().size
    except (FileError, ValueError, TypeError):
        return None


def _verify(layout: Layout, saved: Heads) -> DeskCheck:
    seal = read_seal(layout)
    try:
        with Ledger.open(layout.ledger, writing=False) as ledger:
            head = verify_entries(ledger)
            sealed = seal is not None and head == seal and is_sealed(layout, head)
            if seal is not None and head.size == seal.size and not sealed:
                raise not_sealed()
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
            raise _broken(f"SQLite says {answer}")
        with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as anew:
            anew.executescript(SCHEMA)
            anew.execute("BEGIN")
            head = _replay(ledger.connection, anew)
            for table in TABLES:
                query = f"SELECT * FROM {table} ORDER BY 1, 2"
                if not _same(ledger.connection.execute(query), anew.execute(query)):
                    raise _broken(f"table {table} does not follow from the entries")
        if ledger.head() != head:
            raise _broken("the head is not that of the entries")
    except (sqlite3.Error, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise _broken(f"{type(error).__name__}: {error}") from error
    return head


def _replay(source: sqlite3.Connection, anew: sqlite3.Connection) -> Head:
    """The head that follows from the entries, whose consequences are written into `anew`."""
    last, latest, number = GENESIS, "", 0
    rows = source.execute("SELECT number, time, kind, body, hash FROM entries ORDER BY number")
    for expected, (number, time, kind, body, digest) in enumerate(rows, start=1):
        if number != expected:
            raise _broken(f"entry {expected} is missing")
        if digest != hash_entry(number, time, kind, body, last):
            raise _broken(f"entry {number} was changed, or the one before it")
        if time < latest:
            raise _broken(f"entry {number} is dated before the one before it")
        read_body(kind, body).apply(anew, number, time)
        last, latest = digest.hex(), time
    return Head(number, last)


def _same(first: sqlite3.Cursor, second: sqlite3.Cursor) -> bool:
    while True:
        left, right = first.fetchmany(1000), second.fetchmany(1000)
        if left != right:
            return False
        if not left:
            return True


def _broken(what: str) -> VerificationFailed:
    return VerificationFailed(
        f"the ledger: {what}", "every entry must be as it was written", "Do not rely on it; restore a copy."
    )


def _verify_model(layout: Layout, ledger: Ledger, model: ModelRow, dossier: Certificate | None) -> None:
    """One published model: its files by their digests, what they say of the ledger, its statement and its dossier."""
    facts, folder = model.facts, layout.inside(layout.published_model(model.number) / MODEL).parent
    for name, digest in facts.files.items():
        size = facts.sizes.get(name, 0)
        with opened_plain(folder / name, min(size, memory_limit()), "what was published as it") as stream:
            whole = os.fstat(stream.fileno()).st_size == size
            if not whole or hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                raise _changed(folder / name)
    if at_hand(folder / HEAD):
        head = read_head(plain_bytes(folder / HEAD, HEAD_LIMIT, "a head"), str(folder / HEAD))
        if not isinstance(head, PublishedHead) or head.model != model.number:
            raise _changed(folder / HEAD)
        require_contains(ledger, head, str(folder / HEAD))
    statement = parse_document(plain_bytes(folder / STATEMENT, SIZE_LIMIT, "a statement"), str(folder / STATEMENT))
    if not isinstance(statement, Statement):
        raise _changed(folder / STATEMENT)
    verify_statement(statement, folder / MODEL, dossier)
    before = ledger.head_at(model.prepared - 2)  # a run's intent is the entry before the one that has its facts
    committed = None if before is None else committed_head(facts.head_key, before.to_json())
    if statement.content["series"]["ledger_head"] != committed:
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
        raise VerificationFailed(
            f"{path} is not the dossier that was written", "its digest is in the ledger", "Do not rely on it."
        )
    return parse_certificate(content, str(path))


def at_hand(path: Path) -> bool:
    """Whether something is there that may be looked at; what is private need not be."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    return True


def _refuse_unexpected(layout: Layout, models: list[ModelRow]) -> None:
    """Raise VerificationFailed for what lies among published files or dossiers and no entry speaks of.

    What a kill left half-written is no matter as long as its run is not finished.
    """
    last = models[-1] if models else None
    unfinished = last and (last.published is None or not at_hand(layout.published_model(last.number) / HEAD))
    expected = {layout.published: {layout.published_model(model.number).name for model in models}}
    expected |= {layout.dossiers: {layout.dossier_of(model.number).name for model in models}}
    expected |= {layout.published_model(model.number): {*model.facts.files, HEAD} for model in models}
    odd = [
        folder / name
        for folder, known in expected.items()
        for name in _names(layout, folder)
        if name not in known and not (unfinished and name.startswith(TEMPORARY))
    ]
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
        with os.scandir(folder) as found:
            return sorted(entry.name for entry in found)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _changed(path: Path) -> VerificationFailed:
    return VerificationFailed(
        f"{path} is not the file that was published", "its digest is in the ledger", "Do not rely on it."
    )
