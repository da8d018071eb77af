"""The secret random bits of a run: a pseudorandom function, under the desk's key, of what determines the model.

A copy of a desk, or one that was put back to an earlier state, publishes the very same model for the same deletion, so
that running it again and again tells nothing more: nobody can average the noise away. Two updates that differ in any
of what goes in have noise that is as good as independent. Theory, section 10.5.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from expunge.data import EncodedRows, as_labels, encoder_of, names_of
from expunge.desk.digests import mac
from expunge.desk.policy import Policy
from expunge.desk.state import State
from expunge.noise import RandomBytes
from expunge.runtime.keyed import KeyedBytes, derived_key

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
