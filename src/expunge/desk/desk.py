"""A desk: its folder, its policy and its key, and the ledger for one writer or for readers."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from expunge.desk.layout import Layout
from expunge.desk.ledger import Ledger, require_sealed, write_seal
from expunge.desk.policy import Policy
from expunge.desk.publish import recover
from expunge.errors import FileError
from expunge.runtime.files import PRIVATE, cannot_write, plain_bytes

Rows = tuple[Any, Any]
OTHERS = 0o077  # bits of a mode that are not the owner's
LARGEST_KEY = 1000  # bytes


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
        locked = lock(self.layout, self.timeout)
        with locked, _disk_errors(self.layout.folder), Ledger.open(self.layout.ledger) as ledger:
            require_sealed(self.layout, ledger, whole=True)
            recover(self.layout, ledger)
            yield ledger
            write_seal(self.layout, ledger)

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

        return read_data(path).rows


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
        key = plain_bytes(layout.inside(layout.key), LARGEST_KEY, "a desk's key")
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
    if not layout.lock.exists():
        raise FileError(
            f"{layout.lock} is missing",
            "it keeps two commands from writing at once",
            "See that no command is running on this desk, then create it: an empty file with mode 0600.",
        )
    own = FileLock(layout.lock, timeout=timeout, mode=PRIVATE)
    with _disk_errors(layout.folder):
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


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Errors of the disk as Expunge's own."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error
