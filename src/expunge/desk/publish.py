"""What a desk writes, and in which order: a kill at any moment loses nothing that was acknowledged.

    any command   the lock; a ledger that is older than its seal, or damaged, is refused; what a kill left is put right
                  (`recover`); then the command's own writes, and the seal last
    a request     private/rows/000001.npz, synced -> entry `accepted` -> whoever asked is told
    a run         1. entry `started`, the intent
                  2. private/staging/: the state to come, the dossier and all public files, synced
                  3. entry `prepared`, with their digests
                  4. dossier, state and published/0001/ get their names
                  5. entry `published`
                  6. published/0001/head.json, a commitment to the ledger as it is now
                  7. rows that are forgotten, the state before and staging are removed

Killed before 3 nothing was visible: staging is thrown away, the requests still wait, and run again from the same state
they give the same model (`state.py`, Secret). After 3 the very same files get their names and the run is finished.
"""

from __future__ import annotations

import os
from pathlib import Path

from expunge.desk.layout import HEAD, Layout
from expunge.desk.ledger import Ledger, ModelPrepared, ModelPublished, RunAbandoned, RunStarted, head_bytes
from expunge.errors import FileError
from expunge.runtime.files import (
    PRIVATE,
    PRIVATE_FOLDER,
    TEMPORARY,
    make_folder,
    make_private,
    move,
    remove,
    same_content,
    sync_folder,
    write_synced,
    write_whole,
)
from expunge.runtime.files import PUBLIC as READABLE

STATE, PUBLIC, DOSSIER = "state.safetensors", "public", "dossier.json"  # in staging/


def require_free(layout: Layout, number: int) -> None:
    """Refuse to publish where something lies already, before anything is started; nothing is removed."""
    for place in (layout.published_model(number), layout.dossier_of(number)):
        if place.exists() or place.is_symlink():
            raise FileError(
                f"{place} is there already, and the ledger has no model {number}",
                "a desk that was put back from a copy must not publish again what it published before",
                "If the desk was restored, restore its newest copy; if somebody put it there, move it away.",
            )


def publish(
    layout: Layout, ledger: Ledger, facts: ModelPrepared, state: bytes, dossier: bytes, files: dict[str, bytes]
) -> None:
    """Steps 1 to 7 of a run."""
    ledger.append(RunStarted(facts.model, facts.requests))
    layout.staging.mkdir(mode=PRIVATE_FOLDER)
    write_synced(layout.staging / STATE, state, PRIVATE)
    write_synced(layout.staging / DOSSIER, dossier, PRIVATE)
    make_folder(layout.staging / PUBLIC, files, private=False)
    sync_folder(layout.staging)
    sync_folder(layout.private)
    ledger.append(facts)
    finish(layout, ledger, facts.model)
    tidy(layout, ledger)


def finish(layout: Layout, ledger: Ledger, number: int) -> None:
    """Give the staged files of a prepared model their names, then say so in the ledger: steps 4 to 6."""
    make_private(layout.dossiers)
    for staged, target in (
        (layout.staging / DOSSIER, layout.dossier_of(number)),
        (layout.staging / STATE, layout.state_of(number)),
        (layout.staging / PUBLIC, layout.published_model(number)),
    ):
        if not target.exists():
            move(staged, target)
        elif staged.exists() and not same_content(staged, target):
            raise FileError(
                f"{target} is there already, and is not what was prepared for it",
                "nothing is written over or removed",
                "Move it away, then run the command again.",
            )
    ledger.append(ModelPublished(number))
    _write_head(layout, ledger)


def recover(layout: Layout, ledger: Ledger) -> None:
    """Bring folder and ledger to a state from which any command may go on."""
    following = ledger.next_request()
    for name in _names(layout.rows):  # a kill leaves the rows of the next request at most
        request = name.removesuffix(".npz")
        if request != name and request.isdecimal() and int(request) > following:
            raise FileError(
                f"{layout.rows / name} is of a request that the ledger does not know",
                "a ledger that was put back must not write over what was accepted since",
                "Restore the newest ledger; if somebody put the file there, move it away.",
            )
    for number in ledger.prepared():
        for folder in (layout.dossiers, layout.published):  # a kill while they were copied there is all that leaves any
            _remove_leftovers(folder)
        finish(layout, ledger, number)
    last = ledger.last(RunStarted, RunAbandoned, ModelPrepared, ModelPublished)
    if isinstance(last, RunStarted):
        remove(layout.staging)
        ledger.append(RunAbandoned(last.model))
    tidy(layout, ledger)
    _write_head(layout, ledger)


def _write_head(layout: Layout, ledger: Ledger) -> None:
    """Commit to the head next to the last model, if nothing does: saved elsewhere, it shows a desk put back."""
    number = ledger.last_number()
    folder, head = layout.published_model(number), ledger.published_head(number)
    if head is not None and folder.is_dir() and not (folder / HEAD).exists():
        write_whole(folder / HEAD, head_bytes(head), READABLE)


def tidy(layout: Layout, ledger: Ledger) -> None:
    """Remove what must not stay: rows that are forgotten, earlier weights, files a crash left half-written.

    Where the state that the ledger speaks of is not there, the ledger was put back and the rest was not: then nothing
    is removed, so that the newest ledger finds everything again.
    """
    last = ledger.last_number()
    if not layout.state_of(last).exists():
        return
    rows = {layout.rows_of(request).name for request in ledger.open_requests()}
    for folder, keep in ((layout.rows, rows), (layout.states, {layout.state_of(last).name})):
        for name in _names(folder):
            if name not in keep:
                remove(folder / name)
    remove(layout.staging)
    for folder in (layout.folder, layout.private, layout.published_model(last)):
        _remove_leftovers(folder)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files; the folder may not be there."""
    for name in _names(folder) if folder.is_dir() else ():
        if name.startswith(TEMPORARY):
            remove(folder / name)


def _names(folder: Path) -> list[str]:
    """What lies in a folder, without a path for each of what may be thousands."""
    with os.scandir(folder) as found:
        return sorted(entry.name for entry in found)
