"""A desk: its folder, its policy and its key, and the ledger for one writer or for readers."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from expunge.desk.layout import Layout
from expunge.desk.ledger import Ledger
from expunge.desk.policy import Policy
from expunge.desk.recover import recover
from expunge.desk.seal import write_seal
from expunge.errors import FileError
from expunge.runtime.durable import cannot_write

Rows = tuple[Any, Any]


@dataclass(frozen=True)
class Desk:
    """An existing desk."""

    layout: Layout
    policy: Policy
    key: bytes = field(repr=False)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Ledger]:
        """The ledger, for one writer: what an earlier crash left is put right first, and the seal comes last."""
        with _locked(self.layout), storing(self.layout.folder), Ledger.open(self.layout.ledger) as ledger:
            recover(self.layout, ledger)
            yield ledger
            write_seal(self.layout, ledger)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Ledger]:
        """The ledger, to look at; what a damaged one makes of arithmetic and tables is an error of its own."""
        with Ledger.open(self.layout.ledger) as ledger:
            try:
                yield ledger
            except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
                raise FileError(
                    f"{self.layout.ledger} says what cannot be ({type(error).__name__}: {error})",
                    "a ledger as it was written is needed",
                    "Check it with expunge desk verify; restore a copy.",
                ) from error

    def pending_rows(self, request: int) -> Rows:
        """The rows of a pending request."""
        return _read(self.layout.rows_of(request))

    def surrogate(self) -> Rows:
        return _read(self.layout.surrogate)


def _read(path: Path) -> Rows:
    from expunge.data import read_data  # with all it needs, which looking at a ledger does not

    return read_data(path).rows


def open_desk(folder: str | Path) -> Desk:
    """The desk in this folder."""
    layout = Layout(Path(folder))
    if not layout.ledger.is_file() or not layout.key.is_file():
        raise FileError(
            f"{layout.folder} is not a desk", "a folder made by expunge desk init is needed", "Check the path."
        )
    with Ledger.open(layout.ledger) as ledger:
        policy = ledger.created().policy
    return Desk(layout, policy, layout.key.read_bytes())


@contextlib.contextmanager
def _locked(layout: Layout) -> Iterator[None]:
    with layout.lock.open("rb+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FileError(
                f"{layout.folder} is in use by another command", "one writer at a time", "Wait until it is done."
            ) from error
        yield


@contextlib.contextmanager
def storing(path: Path) -> Iterator[None]:
    """Errors of the disk as Expunge's own."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error
