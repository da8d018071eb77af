"""The private state between two runs: the trained model, and what was forgotten of it since; or the deposit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from expunge.desk.desk import Desk, Rows
from expunge.desk.digests import mac
from expunge.desk.layout import MODEL
from expunge.desk.ledger import Ledger
from expunge.errors import FileError
from expunge.model import LinearModel
from expunge.record import TrainingRecord
from expunge.request.past import Past, left_over, read_anchored
from expunge.request.series import Series

if TYPE_CHECKING:
    from expunge.evidence.deposit.contents import Deposit


@dataclass(frozen=True)
class State:
    """PRIVATE. `number` models are published; `published_sha256` is the last one's, at first the trained one's.

    `mac` is the keyed digest of the state's file. With a `deposit` there is no past: what was forgotten has left it.
    """

    number: int
    model: LinearModel = field(repr=False)
    past: Past | None = field(repr=False)
    published_sha256: str
    store: str
    failures: float
    mac: str
    deposit: Deposit | None = field(repr=False, default=None)

    @property
    def record(self) -> TrainingRecord:
        """Of what is left of the source."""
        assert self.model.record is not None
        if self.deposit is not None:
            numbers = self.deposit.numbers
            return replace(self.model.record, n_source=numbers.n_rows, class_counts=numbers.class_counts)
        assert self.past is not None
        return left_over(self.model.record, self.past)

    def series(self, planned: int, head: dict[str, int | str]) -> Series:
        """The next place in the series."""
        return Series(planned, self.number + 1, self.past, self.store, head)


def current_state(desk: Desk, ledger: Ledger) -> State:
    """The state the ledger says is the last one; refuses a file that is not it."""
    created, newest = ledger.created(), ledger.last_model()
    last = None if newest is None else newest.facts
    number = 0 if last is None else last.model
    path = desk.layout.state_of(number)
    expected = created.state_mac if last is None else last.state_mac
    _require_mac(desk, path, "state", expected)
    model, past, deposit = _read(desk, path)
    return State(
        number=number,
        model=model,
        past=past,
        deposit=deposit,
        published_sha256=created.model_sha256 if last is None else last.files[MODEL],
        store=created.store,
        failures=0.0 if last is None else last.failures,
        mac=expected,
    )


def is_current(ledger: Ledger, state: State) -> bool:
    """Whether this is still the last state, by what the ledger says of it."""
    newest = ledger.last_model()
    expected = ledger.created().state_mac if newest is None else newest.facts.state_mac
    return expected == state.mac


def served_model(desk: Desk) -> LinearModel:
    """The model that a desk's requests are about, to know what rows it takes."""
    return served_state(desk).model


def served_state(desk: Desk) -> State:
    """The last state, without the writer's lock.

    While a run gives a state its name, or where one was killed at that, the ledger speaks of a state that is not there
    yet: then this waits for the run, or finishes what it left.
    """
    try:
        with desk.reading() as ledger:
            return current_state(desk, ledger)
    except FileError:
        with desk.writing() as ledger:
            return current_state(desk, ledger)


def _read(desk: Desk, path: Path) -> tuple[LinearModel, Past | None, Deposit | None]:
    if not desk.policy.kept:
        return (*read_anchored(path), None)
    from expunge.evidence.deposit.contents import read_deposit

    deposit = read_deposit(path)
    return deposit.model, None, deposit


def checked_surrogate(desk: Desk, ledger: Ledger) -> Rows:
    """The surrogate the desk was opened with; refuses another one, since the distance was declared for it."""
    _require_mac(desk, desk.layout.surrogate, "surrogate", ledger.created().surrogate_mac)
    return desk.surrogate()


def _require_mac(desk: Desk, path: Path, purpose: str, expected: str) -> None:
    if not path.exists() or mac(desk.key, purpose, path.read_bytes()) != expected:
        raise FileError(
            f"{path} is not the {purpose} the ledger speaks of",
            "private files must be whole",
            "Restore it from a copy.",
        )
