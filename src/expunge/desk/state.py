"""What a desk keeps in private between two runs, what rows are known by, and the secret of a run.

The state is the trained model with what was forgotten of it since, or the deposit of what is left. Digests are keyed,
so that without the desk's key nobody can test whether a row was asked to be forgotten."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge.desk.desk import Desk
from expunge.desk.ledger import Ledger
from expunge.desk.policy import MODEL, Policy
from expunge.errors import FileError
from expunge.heads import Rows
from expunge.model import LinearModel
from expunge.noise import RandomBytes
from expunge.record import TrainingRecord
from expunge.request.promise import Series
from expunge.request.request import Past, read_anchored, record_without
from expunge.rows import EncodedRows, as_labels, encoder_of, names_of
from expunge.rows.arrays import ENCODER, NAMES
from expunge.rows.hashes import PRECISIONS, hash_rows
from expunge.runtime.arrays import double, to_numpy

if TYPE_CHECKING:
    from expunge.deposit.file import Deposit

# Pseudorandom bytes under a secret key: a key for each purpose by HMAC-SHA-256, and ChaCha20's stream of it ---------
# Whoever does not have the key cannot tell them from fresh random bytes (that HMAC-SHA-256 and ChaCha20 are
# pseudorandom functions is what every TLS connection relies on); with the key, the same input gives the same bytes.

MOST_BYTES = 64 * 2**32  # of one ChaCha20 stream: its counter of 64-byte blocks has 32 bits


def prf(key: bytes, content: bytes) -> bytes:
    """HMAC-SHA-256 (RFC 2104, RFC 4231)."""
    return hmac.digest(key, content, hashlib.sha256)


def derived_key(key: bytes, purpose: str, *parts: bytes) -> bytes:
    """A key of its own for each purpose and list of parts; every part goes in with its length, so that none run on.

    >>> derived_key(bytes(32), "a", b"bc") == derived_key(bytes(32), "a", b"b", b"c")
    False
    """
    return prf(key, b"".join(len(part).to_bytes(8, "little") + part for part in (purpose.encode(), *parts)))


class KeyedBytes:
    """ChaCha20's stream (RFC 8439, nonce 0) under a key that is used for nothing else: each call goes on in it."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        self._stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
        self._given = 0

    def __call__(self, count: int) -> bytes:
        """The next `count` bytes of the stream."""
        self._given += count
        if self._given > MOST_BYTES:
            raise ValueError(f"{self._given:,} bytes of one stream; there are {MOST_BYTES:,}")
        return self._stream.update(bytes(count))


# Digests --------------------------------------------------------------------------------------------------------------


def mac(key: bytes, purpose: str, content: bytes) -> str:
    """HMAC-SHA-256 of content for one purpose; digests of different purposes never meet."""
    return prf(key, purpose.encode() + b"\x00" + content).hex()


def digest_rows(key: bytes, rows: Rows, features: Any, labels: Any) -> tuple[list[str], ...]:
    """What `rows`, given as `features` and `labels`, are recognised by: lists of keyed digests, one a row in each.

    The first list is over rows as they were trained on, the others are the hashes of rows as given, at every precision
    (`rows/hashes.py`): a copy in float32 or with six decimals has one of these in common with its original.
    """
    values = to_numpy(double(rows.features)) + 0.0  # -0.0 and 0.0 are one value
    classes = to_numpy(rows.labels).astype("<i8")
    trained = [
        mac(key, "row", np.ascontiguousarray(row, dtype="<f8").tobytes() + label.tobytes())
        for row, label in zip(values, classes, strict=True)
    ]
    given = hash_rows(key, features, labels)
    return trained, *(given.hex(precision) for precision in range(len(PRECISIONS)))


def npz_bytes(features: Any, labels: Any, encoder: str | None, feature_names: tuple[str, ...] | None) -> bytes:
    """Rows as the bytes of an npz file, nothing pickled, with their encoder and their columns where these are known."""
    stream = io.BytesIO()
    named = {} if encoder is None else {ENCODER: np.array(encoder)}
    named |= {} if feature_names is None else {NAMES: np.array(feature_names, dtype=str)}
    np.savez(stream, allow_pickle=False, X=np.asarray(features), y=np.asarray(labels), **named)
    return stream.getvalue()


# State ----------------------------------------------------------------------------------------------------------------


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
    mac: str
    deposit: Deposit | None = field(repr=False, default=None)

    @property
    def record(self) -> TrainingRecord:
        """The training record of what is left of the source."""
        assert self.model.record is not None
        if self.deposit is not None:
            numbers = self.deposit.numbers
            return replace(self.model.record, n_source=numbers.n_rows, class_counts=numbers.class_counts)
        assert self.past is not None
        return record_without(self.model.record, self.past.counts)

    def series(self, planned: int, head: dict[str, int | str], others: int = 0) -> Series:
        """The next place in the series; `others` of its rows were declared another person's."""
        return Series(planned, self.number + 1, self.past, self.store, head, others)


def load_state(desk: Desk, ledger: Ledger) -> State:
    """The state the ledger says is the last one; refuses a file that is not it."""
    created, newest = ledger.created(), ledger.last_model()
    number, expected, published = 0, created.state_mac, created.model_sha256
    if newest is not None:
        number, expected, published = newest.number, newest.facts.state_mac, newest.facts.files[MODEL]
    path = desk.layout.state_of(number)
    require_mac(desk, path, "state", expected)
    if not desk.policy.with_deposit:
        model, past = read_anchored(path)
        return State(number, model, past, published, created.store, expected)
    from expunge.deposit.file import read_deposit

    deposit = read_deposit(path)
    return State(number, deposit.model, None, published, created.store, expected, deposit)


def require_mac(desk: Desk, path: Path, purpose: str, expected: str) -> None:
    """Refuse a private file that is not the one the ledger speaks of: the state, or the surrogate."""
    if not path.exists() or mac(desk.key, purpose, path.read_bytes()) != expected:
        raise FileError(
            f"{path} is not the {purpose} the ledger speaks of",
            "private files must be whole",
            "Restore it from a copy.",
        )


# Secret ---------------------------------------------------------------------------------------------------------------

NOISE, START = "expunge/desk/noise/1", "expunge/desk/start/1"


@dataclass(frozen=True)
class Secret:
    """PRIVATE: the key of one deletion, a pseudorandom function, under the desk's key, of what determines the model.

    A copy of a desk, or one that was put back to an earlier state, publishes the very same model for the same deletion,
    so that running it again and again tells nothing more: nobody can average the noise away. Two updates that differ in
    any of what goes in have noise that is as good as independent. Theory, section 10.5.
    """

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


def derive_secret(key: bytes, policy: Policy, state: State, surrogate_mac: str, rows: EncodedRows) -> Secret:
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


def sort_rows(key: bytes, rows: EncodedRows) -> EncodedRows:
    """These rows in an order that follows from them alone: sums then have the same last digits."""
    digests = _digests(key, rows)
    order = sorted(range(len(digests)), key=digests.__getitem__)
    features, labels = rows
    return EncodedRows(np.asarray(features)[order], np.asarray(labels)[order], encoder_of(rows), names_of(rows))


def _digests(key: bytes, rows: EncodedRows) -> list[str]:
    """One digest a row, equal for every way to write it: 0 and -0 are one value, 1 and 1.0 one label."""
    features = np.asarray(rows[0]).astype("<f8") + 0.0
    labels = as_labels(rows[1], len(features), "the rows to forget")
    return [
        mac(key, "row of a run", row.tobytes() + repr(label.item()).encode())
        for row, label in zip(features, labels, strict=True)
    ]
