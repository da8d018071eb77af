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
    ModelPrepared,
    ModelPublished,
    ModelRow,
    PublishedHead,
    commit_head,
    hash_entry,
    is_sealed,
    not_sealed,
    read_body,
    read_head,
    read_seal,
)
from expunge.errors import FileError, InputError, VerificationFailed
from expunge.runtime.durable import TEMPORARY
from expunge.runtime.memory import memory_limit

MOST_TRIES = 20  # each of them after another command wrote
MOST_NAMED = 5  # of what lies where nothing should


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


@dataclass(frozen=True)
class _Place:
    """A model of the ledger with the heads before its run and after it, as its entries have them."""

    row: ModelRow
    before: Head
    after: Head | None


def verify_desk(desk: Desk, saved: list[Head | PublishedHead] | None = None) -> DeskCheck:
    """Raise VerificationFailed if an entry, a byte of the ledger, a published file or a dossier is not as it was."""
    return verify_folder(desk.layout, saved or [])


def verify_folder(layout: Layout, saved: list[Head | PublishedHead]) -> DeskCheck:
    """The same for a folder whose private part is not at hand.

    A command that writes meanwhile changes what is compared while it is: then all is checked once more.
    """
    if not layout.ledger.is_file():
        raise FileError(f"{layout.folder} is not a desk", "a folder with a ledger is needed", "Check the path.")
    size = _size(layout)
    for _ in range(MOST_TRIES):
        try:
            return _verified(layout, saved)
        except VerificationFailed:
            before, size = size, _size(layout)
            if size == before:
                raise
    return _verified(layout, saved)


def _size(layout: Layout) -> int | None:
    """How many entries the ledger has; None where it does not say."""
    try:
        with Ledger.read(layout.ledger) as ledger:
            return ledger.head().size
    except (FileError, ValueError, TypeError):
        return None


def _verified(layout: Layout, saved: list[Head | PublishedHead]) -> DeskCheck:
    head, sealed = verify_ledger(layout, [each for each in saved if isinstance(each, Head)])
    try:
        with Ledger.read(layout.ledger) as ledger:
            places = _places(ledger)
        for each in saved:
            if isinstance(each, PublishedHead):
                _require_head(each, places.get(each.model), "a saved head")
        _refuse_unexpected(layout, [place.row for place in places.values()])
        there = {number for number in places if at_hand(layout.published_model(number))}
        dossiers = [number for number in places if at_hand(layout.dossier_of(number))]
        for number, place in places.items():
            _verify_model(layout, place, published=number in there, private=number in dossiers)
    except InputError as error:
        raise VerificationFailed(error.found, error.required, error.remedy) from error
    absent = [number for number, place in places.items() if place.row.state == "published" and number not in there]
    return DeskCheck(head, sealed, len(there), tuple(absent), tuple(dossiers))


def verify_ledger(layout: Layout, saved: list[Head]) -> tuple[Head, bool]:
    """The head, and whether the seal spoke for every byte; raises VerificationFailed if anything was changed."""
    seal = read_seal(layout)
    try:
        with Ledger.read(layout.ledger) as ledger:
            head = verify_entries(ledger, [*saved, *([] if seal is None else [seal.head])])
            sealed = seal is not None and head == seal.head and is_sealed(layout, head)
    except FileError as error:
        raise VerificationFailed(error.found, error.required, "Do not rely on it; restore a copy.") from error
    if seal is not None and head.size == seal.size and not sealed:
        raise not_sealed()
    return head, sealed


def verify_entries(ledger: Ledger, saved: list[Head]) -> Head:
    """Chain, head, derived tables and saved heads, from the entries alone; raises VerificationFailed."""
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
        for kept in saved:
            if kept.size > head.size:
                raise _broken(f"a saved head has {kept.size:,} entries, the ledger {head.size:,}: its end was cut off")
            if ledger.head_at(kept.size) != kept:
                raise _broken(f"the first {kept.size:,} entries are not those of a saved head")
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
        read_body(kind, body).apply(anew, time)
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


def _places(ledger: Ledger) -> dict[int, _Place]:
    """Every model with its heads, by number: a run's intent is the entry before the one that has its facts."""
    prepared, published = ledger.entries_of(ModelPrepared), ledger.entries_of(ModelPublished)
    places = {}
    try:
        for row in ledger.models():
            before = ledger.head_at(prepared[row.number] - 2)
            if before is None:
                raise KeyError(row.number)
            places[row.number] = _Place(row, before, ledger.head_at(published.get(row.number, -1)))
    except KeyError as error:
        raise VerificationFailed(
            "the ledger: a model without its run", "every model has its entries", "Do not rely on it."
        ) from error
    return places


def _verify_model(layout: Layout, place: _Place, *, published: bool, private: bool) -> None:
    """One model: its files by their digests, what they say of the ledger, its statement and its dossier."""
    facts, folder = place.row.facts, layout.published_model(place.row.number)
    dossier = read_dossier(layout, place.row.number, facts.dossier) if private else None
    if not published:
        return
    for name, digest in facts.files.items():
        _require_digest(layout, folder / name, facts.sizes.get(name, 0), digest)
    if at_hand(folder / HEAD):
        told = read_head(layout.bytes_of(folder / HEAD, HEAD_LIMIT, "a head"), str(folder / HEAD))
        if not isinstance(told, PublishedHead) or told.model != place.row.number:
            raise _changed(folder / HEAD)
        _require_head(told, place, str(folder / HEAD))
    statement = parse_document(layout.bytes_of(folder / STATEMENT, SIZE_LIMIT, "a statement"), str(folder / STATEMENT))
    if not isinstance(statement, Statement):
        raise _changed(folder / STATEMENT)
    verify_statement(statement, folder / MODEL, dossier)
    if statement.content["series"]["ledger_head"] != committed_head(facts.head_key, place.before.to_json()):
        raise VerificationFailed(
            f"the entries before model {place.row.number} are not those that its statement commits to",
            "a ledger only ever grows, and entries stay",
            "Do not rely on it; restore a copy.",
        )


def _require_head(told: PublishedHead, place: _Place | None, what: str) -> None:
    if place is None or place.after is None:
        raise VerificationFailed(
            f"{what} is of model {told.model}, which the ledger has not published: its end was cut off",
            "a ledger only ever grows",
            "Do not rely on it; restore the newest copy.",
        )
    if commit_head(told.model, place.row.facts.head_key, place.after) != told:
        raise VerificationFailed(
            f"the entries up to model {told.model} are not those of {what}", "entries stay", "Do not rely on it."
        )


def read_dossier(layout: Layout, number: int, digest: str) -> Certificate:
    """The dossier of a model; raises VerificationFailed where it is not the one that was written."""
    path = layout.dossier_of(number)
    content = layout.bytes_of(path, SIZE_LIMIT, "a dossier")
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


def _refuse_unexpected(layout: Layout, listed: list[ModelRow]) -> None:
    """Raise VerificationFailed for what lies among published files or dossiers and no entry speaks of.

    What a kill left half-written is no matter as long as its run is not finished.
    """
    last = listed[-1] if listed else None
    begun = last is not None and (last.state != "published" or not at_hand(layout.published_model(last.number) / HEAD))
    expected = {layout.published: {layout.published_model(row.number).name for row in listed}}
    expected |= {layout.dossiers: {layout.dossier_of(row.number).name for row in listed}}
    expected |= {layout.published_model(row.number): {*row.facts.files, HEAD} for row in listed}
    odd = [
        folder / name
        for folder, known in expected.items()
        for name in _names(layout, folder)
        if name not in known and not (begun and name.startswith(TEMPORARY))
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


def _require_digest(layout: Layout, path: Path, size: int, digest: str) -> None:
    with layout.opened(path, min(size, memory_limit()), "what was published as it") as stream:
        whole = os.fstat(stream.fileno()).st_size == size
        if not whole or hashlib.file_digest(stream, "sha256").hexdigest() != digest:
            raise _changed(path)


def _changed(path: Path) -> VerificationFailed:
    return VerificationFailed(
        f"{path} is not the file that was published", "its digest is in the ledger", "Do not rely on it."
    )
