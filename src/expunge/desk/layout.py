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

from pathlib import Path

from expunge.errors import FileError

MODEL, STATEMENT, SIGNED, REPORT = "model.safetensors", "statement.json", "statement.signed.json", "report.html"
HEAD = "head.json"  # commits to the ledger as it was once the model in this folder was published


class Layout:
    """The paths of one desk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.published = folder, folder / "published"
        self.ledger, self.seal = folder / "ledger.sqlite", folder / "ledger.seal"
        self.private = private = folder / "private"
        self.key, self.lock, self.surrogate = private / "key", private / "lock", private / "surrogate.npz"
        self.rows, self.states = private / "rows", private / "states"
        self.dossiers, self.staging = private / "dossiers", private / "staging"

    def rows_of(self, request: int) -> Path:
        return self.rows / f"{request:06d}.npz"

    def state_of(self, number: int) -> Path:
        return self.states / f"{number:04d}.safetensors"

    def dossier_of(self, number: int) -> Path:
        return self.dossiers / f"{number:04d}.json"

    def published_model(self, number: int) -> Path:
        return self.published / f"{number:04d}"

    def inside(self, path: Path) -> Path:
        """A path of this desk, which somebody else may have made: nothing on the way to it leads out of the folder."""
        for folder in path.parents:
            if folder == self.folder:
                break
            if folder.is_symlink():
                raise FileError(f"{folder} is a link", "a desk's folders are its own", "Do not rely on it.")
        return path
