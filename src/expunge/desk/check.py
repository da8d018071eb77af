"""Checking a desk offline: the ledger, the heads named in certificates, and every published file against its digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from expunge.desk.desk import Desk
from expunge.desk.entries import Json
from expunge.desk.layout import HEAD, OLD_CERTIFICATE, STATEMENT, Layout
from expunge.desk.ledger import Head, Ledger, read_head
from expunge.desk.seal import verify_ledger
from expunge.errors import FileError, VerificationFailed
from expunge.runtime.durable import TEMPORARY

MOST_TRIES = 20  # each of them after another command wrote
NAMING = (STATEMENT, OLD_CERTIFICATE, HEAD)  # the files that name a head of the ledger


@dataclass(frozen=True)
class Checked:
    """`sealed`: the seal spoke for every byte of the ledger's file. `absent`: models whose folder was taken away.

    `backwards`: entries that are dated before the one before them, since a clock was set back (earlier versions wrote
    such; now no entry is).
    """

    head: Head
    sealed: bool
    models: int
    absent: tuple[int, ...]
    backwards: tuple[int, ...]


def verify_desk(desk: Desk, saved: list[Head] | None = None) -> Checked:
    """Raise VerificationFailed if an entry, a byte of the ledger or a published file is not as it was written."""
    return verify_folder(desk.layout, saved or [])


def verify_folder(layout: Layout, saved: list[Head]) -> Checked:
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
        with Ledger.open(layout.ledger) as ledger:
            return ledger.head().size
    except (FileError, ValueError, TypeError):
        return None


def _verified(layout: Layout, saved: list[Head]) -> Checked:
    head, sealed = verify_ledger(layout, [*saved, *_named_heads(layout)])
    with Ledger.open(layout.ledger) as ledger:
        listed, backwards = ledger.models(), ledger.backwards()
    _refuse_unknown(layout, {layout.published_model(model.number).name for model in listed})
    absent, count = [], 0
    for model in listed:
        folder = layout.published_model(model.number)
        if folder.exists():
            count += 1
            for name, digest in model.facts.files.items():
                _require_digest(folder / name, digest)
        elif model.state == "published":
            absent.append(model.number)
    return Checked(head, sealed, count, tuple(absent), backwards)


def _refuse_unknown(layout: Layout, known: set[str]) -> None:
    """Raise VerificationFailed for a folder among the published ones that no entry speaks of."""
    there = sorted(layout.published.iterdir()) if layout.published.is_dir() else []
    odd = [path for path in there if path.name not in known and (path.is_dir() or path.name.isdigit())]
    odd = [path for path in odd if not path.name.startswith(TEMPORARY)]
    if odd:
        raise VerificationFailed(
            f"{odd[0]} is a folder that the ledger does not know",
            "every published model has its entries",
            "The ledger was put back from a copy, or somebody put the folder there: find out which.",
        )


def _named_heads(layout: Layout) -> list[Head]:
    """The heads that statements name, of the ledger before that run, and those that lie beside them, after it."""
    heads = []
    for path in sorted(path for name in NAMING for path in layout.published.glob(f"[0-9]*/{name}")):
        try:
            content = json.loads(path.read_bytes())
            heads.append(read_head(json.dumps(_head_in(path.name, content)).encode(), str(path)))
        except (OSError, ValueError, KeyError, TypeError, RecursionError, FileError) as error:
            raise VerificationFailed(
                f"{path} is not a statement of this desk ({error})",
                "it must be as it was written",
                "Do not rely on it.",
            ) from error
    return heads


def _head_in(name: str, content: Json) -> Json:
    """The head that a published file names; the head itself, where that is all it is."""
    if name == HEAD:
        return content
    sequence = content["series"] if name == STATEMENT else content["data"]["sequence"]
    return dict(sequence["ledger_head"])


def _require_digest(path: Path, digest: str) -> None:
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise VerificationFailed(
            f"{path} is not the file that was published", "its digest is in the ledger", "Do not rely on it."
        )
