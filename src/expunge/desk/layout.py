"""Where things are in a desk's folder.

desk/
  ledger.sqlite, ledger.seal      private (0600): what was asked and done, without rows
  private/                        private (0700): nothing in it may leave
    key                             HMAC key of row digests; destroy it and they say nothing
    lock                            one writer at a time
    surrogate.npz                   what stands in for the source
    rows/000001.npz                 rows of a pending request; removed once forgotten
    states/0001.safetensors         weights before noise; the last one only
    dossiers/0001.json              every number behind a published model, for the auditor: it tells who left
    staging/                        a run that is not finished
  published/0001/                 may be handed out: model, statement, signed statement, report, head
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from expunge.errors import FileError
from expunge.runtime.paths import opened_plain

MODEL, STATEMENT, SIGNED, REPORT = "model.safetensors", "statement.json", "statement.signed.json", "report.html"
HEAD = "head.json"  # commits to the ledger as it was once the model in this folder was published


@dataclass(frozen=True)
class Layout:
    """The paths of one desk."""

    folder: Path

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.sqlite"

    @property
    def seal(self) -> Path:
        return self.folder / "ledger.seal"

    @property
    def private(self) -> Path:
        return self.folder / "private"

    @property
    def key(self) -> Path:
        return self.private / "key"

    @property
    def lock(self) -> Path:
        return self.private / "lock"

    @property
    def surrogate(self) -> Path:
        return self.private / "surrogate.npz"

    @property
    def rows(self) -> Path:
        return self.private / "rows"

    @property
    def states(self) -> Path:
        return self.private / "states"

    @property
    def dossiers(self) -> Path:
        return self.private / "dossiers"

    @property
    def staging(self) -> Path:
        return self.private / "staging"

    @property
    def published(self) -> Path:
        return self.folder / "published"

    @contextlib.contextmanager
    def opened(self, path: Path, limit: int, what: str) -> Iterator[BufferedReader]:
        """A file of this desk, which somebody else may have made: nothing on the way to it leads out of the folder."""
        for folder in path.parents:
            if folder == self.folder:
                break
            if folder.is_symlink():
                raise FileError(f"{folder} is a link", "a desk's folders are its own", "Do not rely on it.")
        with opened_plain(path, limit, what) as stream:
            yield stream

    def bytes_of(self, path: Path, limit: int, what: str) -> bytes:
        """All of such a file."""
        with self.opened(path, limit, what) as stream:
            return stream.read(limit)

    def rows_of(self, request: int) -> Path:
        return self.rows / f"{request:06d}.npz"

    def state_of(self, number: int) -> Path:
        return self.states / f"{number:04d}.safetensors"

    def dossier_of(self, number: int) -> Path:
        return self.dossiers / f"{number:04d}.json"

    def published_model(self, number: int) -> Path:
        return self.published / f"{number:04d}"
