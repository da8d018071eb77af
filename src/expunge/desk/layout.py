"""Where things are in a desk's folder.

desk/
  ledger.sqlite, ledger.seal      private (0600): what was asked and done, without rows
  private/                        private (0700): nothing in it may leave
    key                             HMAC key of row digests; destroy it and they say nothing
    lock                            one writer at a time
    surrogate.npz                   what stands in for the source
    rows/000001.npz                 rows of a pending request; removed once forgotten
    states/0001.safetensors         weights before noise; the last one only
    staging/                        a run that is not finished
  published/0001/                 may be handed out: model, certificate, signed certificate, report
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODEL, CERTIFICATE, SIGNED, REPORT = "model.safetensors", "certificate.json", "certificate.signed.json", "report.html"


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
    def staging(self) -> Path:
        return self.private / "staging"

    @property
    def published(self) -> Path:
        return self.folder / "published"

    def rows_of(self, request: int) -> Path:
        return self.rows / f"{request:06d}.npz"

    def state_of(self, number: int) -> Path:
        return self.states / f"{number:04d}.safetensors"

    def published_model(self, number: int) -> Path:
        return self.published / f"{number:04d}"
