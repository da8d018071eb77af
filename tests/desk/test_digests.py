"""Row digests are keyed, and nothing else of a row is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from desk_use import Rows, ask
from expunge.desk import (
    Desk,
    history,
)
from expunge.rows.hashes import hash_rows


def test_the_ledger_holds_keyed_digests_only(desk: Desk, source: Rows, copy: Callable[[Path], Desk]) -> None:
    import hashlib
    import hmac

    X, y = source
    ask(desk, source, 0, 1)
    (entry,) = [entry for entry in history(desk) if entry.kind == "accepted"]
    raw = np.ascontiguousarray(X[0], dtype="<f8").tobytes()
    label = np.int64(y[0]).tobytes()
    expected = hmac.new(desk.key, b"row\x00" + raw + label, hashlib.sha256).hexdigest()
    marks = hash_rows(desk.key, X[:1], y[:1]).digests
    assert entry.body.to_json()["rows"] == [expected, *(mark[0].tobytes().hex() for mark in marks)]
    text = json.dumps([entry.to_json() for entry in history(desk)])
    for bare in (raw, raw + label, desk.layout.rows_of(1).read_bytes()):
        assert hashlib.sha256(bare).hexdigest() not in text
