"""Putting right what a crash left: finish what was prepared, discard what was not.

A run goes: `started` (intent) -> files staged and synced -> `prepared` (their digests) -> files renamed -> `published`.
Before `prepared` nothing was visible: staging is thrown away and the requests are still pending. After it the noise is
drawn and must not be drawn again, so the very same files get their names and the run is finished.
"""

from __future__ import annotations

from pathlib import Path

from expunge.desk.entries import ModelPrepared, ModelPublished, RunAbandoned, RunStarted
from expunge.desk.layout import Layout
from expunge.desk.ledger import Ledger
from expunge.runtime.durable import TEMPORARY, make_private, move, remove

STATE, PUBLIC, DOSSIER = "state.safetensors", "public", "dossier.json"


def recover(layout: Layout, ledger: Ledger) -> list[str]:
    """Bring folder and ledger to a state from which any command may go on; says what was done."""
    done = []
    for model in ledger.models():
        if model.state == "prepared":
            finish(layout, ledger, model.number)
            done.append(f"finished model {model.number}")
    last = ledger.last(RunStarted, RunAbandoned, ModelPrepared, ModelPublished)
    if isinstance(last, RunStarted):
        remove(layout.staging)
        ledger.append(RunAbandoned(last.model))
        done.append(f"gave up an unfinished model {last.model}")
    tidy(layout, ledger)
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
    ledger.append(ModelPublished(number))


def tidy(layout: Layout, ledger: Ledger) -> None:
    """Remove what must not stay: rows that are forgotten, earlier weights, files a crash left half-written."""
    models = ledger.models()
    keep = {layout.state_of(models[-1].number if models else 0)}
    keep |= {layout.rows_of(request.id) for request in ledger.requests("pending")}
    for folder in (layout.rows, layout.states):
        for path in sorted(folder.iterdir()):
            if path not in keep:
                remove(path)
    remove(layout.staging)
    for folder in (layout.folder, layout.private, layout.published):
        for path in leftovers(folder):
            remove(path)


def leftovers(folder: Path) -> list[Path]:
    """Temporary files in a folder."""
    return sorted(folder.glob(f"{TEMPORARY}*"))
