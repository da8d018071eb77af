"""A desk: its folder, its policy and its key, the ledger for one writer or for readers; what is written in which order.

What a desk writes, and in which order, so that a kill at any moment loses nothing that was acknowledged:

    any command   the lock; a ledger that is older than its seal, or damaged, is refused; what a kill left is put
                  right (`recover`); then the command's own writes, and the seal last
    a request     private/rows/000001.npz, synced -> entry `accepted` -> whoever asked is told
    a run         1. entry `started`, the intent
                  2. private/staging/: the state to come, the dossier and all public files, synced
                  3. entry `prepared`, with their digests
                  4. dossier, state and published/0001/ get their names
                  5. entry `published`
                  6. rows that are forgotten, the state before and staging are removed

What a kill leaves, and what the next command that writes makes of it (`recover`):

    a request     before its entry, rows that no entry speaks of: they are removed. After it the request is there,
                  though nobody was told: asked again, with the same reference and rows, it is that one
    a run         before 3 nothing was visible: staging is thrown away, entry `abandoned`; the requests still wait, and
                  run again from the same state they give the same model (`state.py`, Secret). From 3 on the very same
                  files get their names, the run is finished, and what must not stay is removed
    any command   before the seal, one that is older than the ledger: it is written anew
    a new desk    a folder under a temporary name, which goes when the same desk is made again (`rows/output.py`)

The folder's names are in `policy.py`, entries in `ledger.py`.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from expunge.desk.ledger import (
    Ledger,
    ModelPrepared,
    ModelPublished,
    RunAbandoned,
    RunStarted,
    require_sealed,
    write_seal,
)
from expunge.desk.policy import Layout, Policy
from expunge.errors import FileError
from expunge.runtime.files import (
    PRIVATE,
    PRIVATE_FOLDER,
    TEMPORARY,
    cannot_write,
    make_folder,
    move,
    plain_bytes,
    remove,
    sync_folder,
    write_synced,
)

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
    """Steps 1 to 6 of a run."""
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
    """Give the staged files of a prepared model their names, then say so in the ledger: steps 4 and 5."""
    layout.dossiers.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    for staged, target in (
        (layout.staging / DOSSIER, layout.dossier_of(number)),
        (layout.staging / STATE, layout.state_of(number)),
        (layout.staging / PUBLIC, layout.published_model(number)),
    ):
        if not target.exists():
            move(staged, target)
        elif staged.exists():
            raise FileError(
                f"{target} is there already, and was not put there by this desk",
                "nothing is written over or removed",
                "Move it away, then run the command again.",
            )
    ledger.append(ModelPublished(number))


def recover(layout: Layout, ledger: Ledger) -> None:
    """Bring folder and ledger to a state from which any command may go on."""
    following = ledger.next_request()
    for path in layout.rows.glob("*.npz"):  # a kill leaves the rows of the next request at most
        if path.stem.isdecimal() and int(path.stem) > following:
            raise FileError(
                f"{path} is of a request that the ledger does not know",
                "a ledger that was put back must not write over what was accepted since",
                "Restore the newest ledger; if somebody put the file there, move it away.",
            )
    last = ledger.last(RunStarted, RunAbandoned, ModelPrepared, ModelPublished)
    if isinstance(last, ModelPrepared):
        finish(layout, ledger, last.model)
    if isinstance(last, RunStarted):
        remove(layout.staging)
        ledger.append(RunAbandoned(last.model))
    tidy(layout, ledger)


def tidy(layout: Layout, ledger: Ledger) -> None:
    """Remove what must not stay: rows that are forgotten, earlier weights, files a crash left half-written.

    Where the state that the ledger speaks of is not there, the ledger was put back and the rest was not: then nothing
    is removed, so that the newest ledger finds everything again.
    """
    last = ledger.last_model()
    state = layout.state_of(0 if last is None else last.number)
    if not state.exists():
        return
    waiting = [*ledger.requests("pending"), *ledger.requests("aside")]
    stay = {state, *(layout.rows_of(request.id) for request in waiting)}
    leftovers = [path for folder in (layout.folder, layout.private) for path in folder.glob(f"{TEMPORARY}*")]
    for path in (*layout.rows.iterdir(), *layout.states.iterdir(), layout.staging, *leftovers):
        if path not in stay:
            remove(path)


# A desk ---------------------------------------------------------------------------------------------------------------

Rows = tuple[Any, Any]
OTHERS = 0o077  # bits of a mode that are not the owner's


@dataclass(frozen=True)
class Desk:
    """An existing desk."""

    layout: Layout
    policy: Policy
    key: bytes = field(repr=False)
    timeout: float = 0.0  # seconds to wait for another command that writes

    @contextlib.contextmanager
    def writing(self) -> Iterator[Ledger]:
        """The ledger, for one writer: what an earlier crash left is put right first, and the seal comes last."""
        try:
            with lock(self.layout, self.timeout), Ledger.open(self.layout.ledger) as ledger:
                require_sealed(self.layout, ledger, whole=True)
                recover(self.layout, ledger)
                yield ledger
                write_seal(self.layout, ledger)
        except OSError as error:
            raise cannot_write(self.layout.folder, error) from error

    @contextlib.contextmanager
    def reading(self) -> Iterator[Ledger]:
        """The ledger, to look at, unless it is older than its seal.

        What a damaged one makes of arithmetic and tables is an error of its own.
        """
        with Ledger.open(self.layout.ledger, writing=False) as ledger:
            try:
                require_sealed(self.layout, ledger)
                yield ledger
            except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
                raise FileError(
                    f"{self.layout.ledger} says what cannot be ({type(error).__name__}: {error})",
                    "a ledger as it was written is needed",
                    "Check it with expunge desk verify; restore a copy.",
                ) from error

    def rows_in(self, path: Path) -> Rows:
        """The surrogate, or the rows of a request."""
        from expunge.rows import read_data  # with all it needs, which looking at a ledger does not

        return read_data(path)


def open_desk(folder: str | Path, timeout: float = 0.0) -> Desk:
    """The desk in this folder; a command that changes it waits so many seconds for another one to end."""
    layout = Layout(Path(folder))
    try:
        if not layout.ledger.is_file() or not layout.key.is_file():
            raise FileError(
                f"{layout.folder} is not a desk", "a folder made by expunge desk init is needed", "Check the path."
            )
        mode = stat.S_IMODE(layout.private.stat().st_mode)
        if mode & OTHERS:
            raise FileError(
                f"{layout.private} has mode {mode:04o}",
                "nobody but its owner may have access: it holds a key, rows and weights without noise",
                "Run chmod 700 on it, and find out who has read it.",
            )
        key = plain_bytes(layout.inside(layout.key), 1000, "a desk's key")
    except (OSError, ValueError) as error:
        raise FileError(
            f"{layout.folder} cannot be read ({getattr(error, 'strerror', None) or error})",
            "a desk is used by the user who opened it",
            "Check the path, or run this as that user.",
        ) from error
    with Ledger.open(layout.ledger, writing=False) as ledger:
        return Desk(layout, ledger.created().policy, key, timeout)


@contextlib.contextmanager
def lock(layout: Layout, timeout: float = 0.0) -> Iterator[None]:
    """Keep other commands from writing; refused where one still writes after so many seconds."""
    own = FileLock(layout.lock, timeout=timeout, mode=PRIVATE)
    try:
        own.acquire()
    except Timeout as error:
        waited = f", and was for {timeout:g} seconds" if timeout else ""
        raise FileError(
            f"{layout.folder} is in use by another command{waited}",
            "one writer at a time",
            "Wait until it is done, or longer (--timeout).",
        ) from error
    try:
        yield
    finally:
        own.release()
