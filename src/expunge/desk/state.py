"""The private state between two runs: weights before noise, and the bound carried with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from expunge.desk.desk import Desk, Rows
from expunge.desk.digests import mac
from expunge.desk.ledger import Json, Ledger
from expunge.errors import FileError
from expunge.model import LinearModel, read_model
from expunge.request.series import Series


@dataclass(frozen=True)
class State:
    """PRIVATE. `number` models are published; `published_sha256` is the last one's digest (the trained model's at first)."""

    number: int
    model: LinearModel = field(repr=False)
    carried: str | None
    published_sha256: str
    store: str
    failures: float

    def series(self, planned: int, head: dict[str, int | str]) -> Series:
        """The next place in the series."""
        return Series(planned, self.number + 1, self.carried, self.store, head)


def current_state(desk: Desk, ledger: Ledger) -> State:
    """The state the ledger says is the last one; refuses a file that is not it."""
    created, models = ledger.created(), ledger.models()
    number, _, facts = models[-1] if models else (0, "", created)
    path = desk.layout.state_of(number)
    _require_mac(desk, path, "state", facts["state_mac"])
    model, _ = read_model(path)
    return State(
        number=number,
        model=model,
        carried=_carried(facts),
        published_sha256=facts["files"]["model.safetensors"] if models else created["model_sha256"],
        store=created["store"],
        failures=float(facts.get("failures", 0.0)),
    )


def checked_surrogate(desk: Desk, ledger: Ledger) -> Rows:
    """The surrogate the desk was opened with; refuses another one, since the distance was declared for it."""
    _require_mac(desk, desk.layout.surrogate, "surrogate", ledger.created()["surrogate_mac"])
    return desk.surrogate()


def _require_mac(desk: Desk, path: Path, purpose: str, expected: str) -> None:
    if not path.exists() or mac(desk.key, purpose, path.read_bytes()) != expected:
        raise FileError(
            f"{path} is not the {purpose} the ledger speaks of",
            "private files must be whole",
            "Restore it from a copy.",
        )


def _carried(facts: Json) -> str | None:
    return facts.get("carried")
