"""Putting right what a crash left: finish what was prepared, discard what was not.

A run goes: `started` (intent) -> files staged and synced -> `prepared` (their digests) -> files renamed -> `published`.
Before `prepared` nothing was visible: staging is thrown away and the requests are still pending; run again from the
same state, they give the same model (`secret.py`). After it the very same files get their names and the run is
finished. The ledger's head is written beside a model once the ledger says that it is published.
"""

from __future__ import annotations

import os
from pathlib import Path

from expunge.desk.layout import HEAD, Layout
from expunge.desk.ledger import (
    Ledger,
    ModelPrepared,
    ModelPublished,
    RunAbandoned,
    RunStarted,
    head_bytes,
    published_head,
)
from expunge.errors import FileError
from expunge.runtime.durable import PUBLIC as READABLE
from expunge.runtime.durable import TEMPORARY, make_private, move, remove, same_content, write_whole

STATE, PUBLIC, DOSSIER = "state.safetensors", "public", "dossier.json"


def recover(layout: Layout, ledger: Ledger) -> list[str]:
    """Bring folder and ledger to a state from which any command may go on; says what was done."""
    _require_known(layout, ledger)
    done = []
    for number in ledger.prepared():
        for folder in (layout.dossiers, layout.published):  # a kill while they were copied there is all that leaves any
            _remove_leftovers(folder)
        finish(layout, ledger, number)
        done.append(f"finished model {number}")
    last = ledger.last(RunStarted, RunAbandoned, ModelPrepared, ModelPublished)
    if isinstance(last, RunStarted):
        remove(layout.staging)
        ledger.append(RunAbandoned(last.model))
        done.append(f"gave up an unfinished model {last.model}")
    tidy(layout, ledger)
    _write_head(layout, ledger)
    return done


def finish(layout: Layout, ledger: Ledger, number: int) -> None:
    """Give the staged files of a prepared model their names, then say so in the ledger."""
    pairs = [
        (layout.staging / STATE, layout.state_of(number)),
        (layout.staging / PUBLIC, layout.published_model(number)),
    ]
    if (layout.staging / DOSSIER).exists():  # earlier versions wrote none
        make_private(layout.dossiers)
        pairs.insert(0, (layout.staging / DOSSIER, layout.dossier_of(number)))
    for staged, target in pairs:
        if not target.exists():
            move(staged, target)
        elif staged.exists() and not same_content(staged, target):
            raise FileError(
                f"{target} is there already, and is not what was prepared for it",
                "nothing is written over or removed",
                "Move it away, then run the command again.",
            )
    entry = ledger.append(ModelPublished(number))
    _write_head(layout, ledger, entry.number)


def _write_head(layout: Layout, ledger: Ledger, size: int | None = None) -> None:
    """What commits to the head beside the last model, if it is not there: kept elsewhere, it shows a desk put back."""
    number = ledger.last_number()
    folder = layout.published_model(number)
    if folder.is_dir() and not (folder / HEAD).exists():
        write_whole(folder / HEAD, head_bytes(published_head(ledger, number, size)), READABLE)


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
        for name in sorted(set(_names(folder)) - keep):
            remove(folder / name)
    remove(layout.staging)
    for folder in (layout.folder, layout.private, layout.published_model(last)):
        _remove_leftovers(folder)


def _require_known(layout: Layout, ledger: Ledger) -> None:
    """Refuse a ledger that was put back while rows stayed: a kill leaves those of the next request at most."""
    following = ledger.next_request()
    for name in _names(layout.rows):
        number = name.removesuffix(".npz")
        if number != name and number.isdecimal() and int(number) > following:
            raise FileError(
                f"{layout.rows / name} is of a request that the ledger does not know",
                "a ledger that was put back must not write over what was accepted since",
                "Restore the newest ledger; if somebody put the file there, move it away.",
            )


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files; the folder may not be there."""
    try:
        left = sorted(name for name in _names(folder) if name.startswith(TEMPORARY))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in left:
        remove(folder / name)


def _names(folder: Path) -> list[str]:
    """What lies in a folder, without a path for each of what may be thousands."""
    with os.scandir(folder) as found:
        return [entry.name for entry in found]
