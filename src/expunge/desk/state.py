"""Row digests: keyed, so that without the desk's key nobody can test whether a row was asked to be forgotten."""

from __future__ import annotations

import hashlib
import hmac
import io
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge.data.files import ENCODER, NAMES
from expunge.data.row_hashes import KEY_BYTES, PRECISIONS, row_hashes
from expunge.desk.desk import Desk
from expunge.desk.layout import MODEL
from expunge.desk.ledger import Ledger
from expunge.errors import FileError
from expunge.heads import Rows
from expunge.model import LinearModel
from expunge.record import TrainingRecord
from expunge.request.past import Past, left_over, read_anchored
from expunge.request.series import Series

if TYPE_CHECKING:
    from expunge.evidence.deposit.contents import Deposit
import json
import math
from collections import Counter
from collections.abc import Sequence

import torch

from expunge.bounds.calibration import Composition, Mus, closed_form, compose
from expunge.bounds.ellipsoid import drawing_delta
from expunge.bounds.scale import LOWEST_RUNG
from expunge.certificate.claim import ARITHMETIC_SHARE
from expunge.data import EncodedRows, as_labels, encoder_of, names_of
from expunge.data.row_hashes import occurring
from expunge.desk.policy import KEPT, Policy
from expunge.errors import RetrainNow, UselessModel
from expunge.evidence.deposit.asking import ask_deposit, require_its_model, require_linear
from expunge.evidence.deposit.contents import HARMLESS, Deposit
from expunge.evidence.deposit.leaving import look_up
from expunge.evidence.deposit.shape import share_of
from expunge.noise import RandomBytes
from expunge.request.door import Request
from expunge.request.guarantee import Guarantee, budget_notes
from expunge.runtime.keyed import KeyedBytes, derived_key


def new_key() -> bytes:
    """A fresh key from the operating system's generator."""
    return secrets.token_bytes(KEY_BYTES)


def mac(key: bytes, purpose: str, content: bytes) -> str:
    """HMAC-SHA-256 of content for one purpose; digests of different purposes never meet."""
    return hmac.new(key, purpose.encode() + b"\x00" + content, hashlib.sha256).hexdigest()


def row_digests(key: bytes, rows: Rows) -> list[str]:
    """One digest a row, over its values as they were trained on and its class."""
    features = rows.features.cpu().double().numpy() + 0.0  # -0.0 and 0.0 are one value
    labels = rows.labels.cpu().numpy().astype("<i8")
    return [
        mac(key, "row", np.ascontiguousarray(row, dtype="<f8").tobytes() + label.tobytes())
        for row, label in zip(features, labels, strict=True)
    ]


@dataclass(frozen=True, repr=False)
class Marks:
    """What rows are recognised by: lists of keyed digests, one digest a row in each.

    The first list is over rows as they were trained on, the others are the hashes of rows as given, at every precision
    (`data/row_hashes.py`): a copy in float32 or with six decimals has one of these in common with its original.
    """

    kinds: tuple[list[str], ...]

    @property
    def every(self) -> tuple[str, ...]:
        """All of them, as the ledger keeps them."""
        return tuple(digest for kind in self.kinds for digest in kind)

    @property
    def by_row(self) -> list[tuple[str, ...]]:
        """The digests of each row."""
        return list(zip(*self.kinds, strict=True))


def marks_of(key: bytes, rows: Rows, features: Any, labels: Any) -> Marks:
    """What `rows`, given as `features` and `labels`, are recognised by."""
    given = row_hashes(key, features, labels)
    return Marks((row_digests(key, rows), *(given.hex(precision) for precision in range(len(PRECISIONS)))))


def class_digests(key: bytes, indices: list[int]) -> list[str]:
    """One digest a row, of its class alone: rows that wait are counted by them."""
    named = {index: mac(key, "class", str(index).encode()) for index in set(indices)}
    return [named[index] for index in indices]


def fingerprint(key: bytes, reference: str, digests: list[str]) -> str:
    """One digest for a request: its reference and its rows, in any order."""
    return mac(key, "request", "\n".join([reference, *sorted(digests)]).encode())


def arrays_bytes(
    features: Any, labels: Any, encoder: str | None = None, feature_names: tuple[str, ...] | None = None
) -> bytes:
    """Rows as the bytes of an npz file, nothing pickled, with their encoder and their columns where these are known."""
    stream = io.BytesIO()
    named = {} if encoder is None else {ENCODER: np.array(encoder)}
    named |= {} if feature_names is None else {NAMES: np.array(feature_names, dtype=str)}
    np.savez(stream, allow_pickle=False, X=np.asarray(features), y=np.asarray(labels), **named)
    return stream.getvalue()


# The private state between two runs: the trained model, and what was forgotten of it since; or the deposit.


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


def checked_surrogate(desk: Desk, ledger: Ledger) -> tuple[Any, Any]:
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


# The secret random bits of a run: a pseudorandom function, under the desk's key, of what determines the model.


NOISE, START = "expunge/desk/noise/1", "expunge/desk/start/1"


@dataclass(frozen=True)
class Secret:
    """PRIVATE: the key of one deletion."""

    key: bytes = field(repr=False)

    def bits(self, centre: bytes) -> RandomBytes:
        """For the noise that is added to `centre`: the update as the grid sees it.

        It follows from what the key was made of, up to the last digits that another processor's arithmetic may give;
        where those matter after rounding, the noise is another one.
        """
        return KeyedBytes(derived_key(self.key, NOISE, centre))

    @property
    def start(self) -> int:
        """The seed of what a measurement draws: no part of the noise, but steps may be chosen by it."""
        return int.from_bytes(derived_key(self.key, START)[:7], "little")


def secret_of(key: bytes, policy: Policy, state: State, surrogate_mac: str, rows: EncodedRows) -> Secret:
    """The key of forgetting these rows, whatever their order, from this state, under this policy, at this place.

    The place is the model's number: not that of a ledger's entry, which somebody who puts a desk back could change by
    asking in vain.
    """
    determines = {
        "model": state.number + 1,
        "state": state.mac,
        "before": state.published_sha256,
        "surrogate": surrogate_mac,
        "policy": policy.to_json(),
        "store": state.store,
        "rows": sorted(_digests(key, rows)),
    }
    text = json.dumps(determines, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Secret(derived_key(key, NOISE, text.encode()))


def in_fixed_order(key: bytes, rows: EncodedRows) -> EncodedRows:
    """The same rows in an order that follows from them alone: sums then have the same last digits."""
    digests = _digests(key, rows)
    order = sorted(range(len(digests)), key=digests.__getitem__)
    features, labels = rows
    return EncodedRows(np.asarray(features)[order], np.asarray(labels)[order], encoder_of(rows), names_of(rows))


def _digests(key: bytes, rows: EncodedRows) -> Sequence[str]:
    """One a row, the same for every way to write it: 0 and -0 are one value, 1 and 1.0 one label."""
    features = np.asarray(rows[0]).astype("<f8") + 0.0
    labels = as_labels(rows[1], len(features), "the rows to forget")
    return [
        mac(key, "row of a run", row.tobytes() + repr(label.item()).encode())
        for row, label in zip(features, labels, strict=True)
    ]


# What the models of a desk have spent, as counts of equal ones: adding one takes as long after a thousand as at
# first.


def count_mus(ledger: Ledger) -> Counter[float]:
    """How often each mu was published, by the last model's entry: it takes as long after a thousand as at first.

    Every model counts with the mu that its policy allows, so there are very few different ones.
    """
    last = ledger.last_model()
    try:
        return Counter() if last is None else Counter({float(mu): count for mu, count in last.facts.spent.items()})
    except ValueError as error:
        raise FileError(
            f"{ledger.path}: what its last model says was spent cannot be read",
            "a ledger as it was written is needed",
            "Check it with expunge desk verify; restore a copy.",
        ) from error


# A desk whose private state is a deposit: what is checked when it is opened and asked, and what all models cost.


def default_noise(deposit: Deposit) -> float:
    """Noise that moves a typical output by at most a hundredth, from public numbers alone: it is in every statement.

    With `M_0 = c tau (G/tau)^t + reg` noise of scale 1 moves a typical output by the root of
    `tr(M_0^-1 G) <= sum_i (lambda_i/tau)^(1-t) / c <= d/c`, whatever the rows are (`tau` is the mean eigenvalue of
    their second moments G, and a power below 1 is concave). So `0.01 sqrt(c/d)` needs the loss, the number of classes
    and the number of features, and nobody's row. The deposit's own first level, made of all rows of the source, would
    tell whether somebody was there who has a column to themselves.
    """
    features = deposit.anchor.shape[1]
    return max(HARMLESS * math.sqrt(share_of(deposit.head) / features), 2.0**LOWEST_RUNG)


def opened_for(deposit: Deposit, model: LinearModel | None, policy: Policy) -> tuple[Policy, tuple[str, ...]]:
    """The policy of a desk with this deposit, and what every certificate will note; refuses what could not be used."""
    require_linear(deposit)
    if model is not None:
        require_its_model(model, deposit)
    noise = default_noise(deposit) if policy.noise is None else policy.noise
    policy = replace(policy, distance=KEPT, step="newton", noise=noise)
    numbers, loud = deposit.numbers, noise * deposit.output_noise
    if loud > deposit.output_spread and not policy.force:
        raise UselessModel(
            f"the noise would move a typical output by {loud:.3g}, and the outputs themselves are about "
            f"{deposit.output_spread:.3g}",
            "every run of this desk would be refused",
            "Set less noise (--noise), or insist with --force (force=True).",
        )
    notes = budget_notes(policy.delta, deposit.record.n_source)
    if numbers.generation:
        notes += (
            f"{numbers.forgotten:,} rows had left the deposit before; what was published of that is not counted in "
            "what all models of this desk say together",
        )
    return policy, notes


def missing_rows(deposit: Deposit, pending: Sequence[tuple[Any, Any]], asked: tuple[Any, Any]) -> list[int]:
    """Rows, pending ones first, that are not left in the source, or not as often as they are asked for."""
    features = np.concatenate([np.asarray(rows[0]) for rows in (*pending, asked)])
    labels = np.concatenate([np.asarray(rows[1]) for rows in (*pending, asked)])
    return look_up(deposit, features, labels).missing


def absent_rows(deposit: Deposit, rows: tuple[Any, Any]) -> list[int]:
    """Rows of which what is left of the source has none, however often it is asked for them; looked up at once."""
    found = occurring(row_hashes(deposit.key, *rows), deposit.hashes)
    return [int(row) for row in np.flatnonzero(~found)]


def asked_of(
    deposit: Deposit, rows: Any, guarantee: Guarantee, store: str, published_sha256: str, device: str
) -> Request:
    """The request of a run; weights are published in the type of the first model."""
    from expunge.request.execution import Execution

    return ask_deposit(
        deposit,
        rows,
        guarantee,
        execution=Execution(device=device),
        store=getattr(torch, store),
        model_sha256=published_sha256,
    )


def output_share(request: Request, sigma: float) -> float:
    """The noise's deviation on a typical output over the outputs' own size."""
    deposit = request.deposit
    return sigma * float(deposit.output_noise) / max(float(deposit.output_spread), 1e-300)


def composed(n_parameters: int, delta: float, mus: Mus) -> Composition:
    """All models together. Draws that are worse than counted are charged to delta, `1 + e^epsilon` times."""
    spent, models = ARITHMETIC_SHARE * delta, Counter(mus).total()
    lost = drawing_delta(n_parameters, closed_form(mus, delta - spent), models)
    if lost <= spent:
        return compose(mus, delta, spent)
    raise RetrainNow(
        f"retrain now: with {models} models float64 may make {lost:.3g} of delta {delta:g}",
        f"at most {spent:.3g} is set aside for what is lost when noise with a shape is drawn",
        "Retrain without the rows of all requests, and open a new desk with a larger delta or a smaller epsilon.",
    )
