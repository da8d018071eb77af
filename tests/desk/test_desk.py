"""A desk as a whole: one writer at a time, and nothing of a row in anything that may leave."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from desk_use import Rows, ask
from expunge.desk import (
    Desk,
    Policy,
    accept,
    create_desk,
    history,
    run,
    status,
)
from expunge.desk.desk import _locked
from expunge.errors import FileError
from expunge.model import LinearModel
from expunge.request.past import read_anchored


def test_one_writer_at_a_time(desk: Desk, source: Rows) -> None:
    with _locked(desk.layout), pytest.raises(FileError, match="in use"):
        ask(desk, source, 0, 1)
    ask(desk, source, 0, 1)


# Privacy --------------------------------------------------------------------------------------------------------

CANARY = 0.123456789012345678


def test_nothing_of_a_row_is_in_anything_that_may_leave(
    source: Rows, surrogate: Rows, trained: LinearModel, policy: Policy, tmp_path: Path
) -> None:
    """Row values in any spelling, their gradients, private weights, the key and the file's name are in no public artefact."""
    from expunge.desk import desk_report

    desk = create_desk(tmp_path / "d", trained, surrogate, policy)
    row, labels = source[0][:1].copy(), source[1][:1]
    row[0, 1] = CANARY * 0.3
    states = [desk.layout.state_of(0).read_bytes()]
    accept(desk, row, labels, "case 1")
    run(desk)
    states.append(desk.layout.state_of(1).read_bytes())
    ask(desk, source, 1, 2, "case 2")
    run(desk)
    states.append(desk.layout.state_of(2).read_bytes())
    secrets: list[bytes] = [desk.key, desk.key.hex().encode()]
    for value in row[0]:
        secrets += spellings(float(value))
    for content in states[1:]:
        (tmp_path / "state").write_bytes(content)
        model, past = read_anchored(tmp_path / "state")
        for value in [*past.gradients.numpy().reshape(-1), *model.matrix().numpy().reshape(-1)]:
            secrets += spellings(float(value))
    public = [path for path in desk.layout.published.rglob("*") if path.is_file()]
    artefacts = {str(path): path.read_bytes() for path in public}
    artefacts |= {"ledger": desk.layout.ledger.read_bytes(), "seal": desk.layout.seal.read_bytes()}
    artefacts |= {f"report {name}": content for name, content in desk_report(desk).items()}
    artefacts["status"] = json.dumps(status(desk).to_json()).encode()
    artefacts["history"] = json.dumps([entry.to_json() for entry in history(desk)]).encode()
    assert len(artefacts) >= 12
    for name, content in artefacts.items():
        found = [secret for secret in secrets if secret in content]
        assert not found, (name, found)
    # what is found where it may be shows that the search works
    assert any(secret in states[1] for secret in spellings(float(model.matrix()[0, 0])))
    assert not any(b"case 1" in artefacts[str(path)] for path in public), "references stay at the desk"
    assert not list(desk.layout.rows.iterdir()), "forgotten rows are gone"
    assert [path.name for path in desk.layout.states.iterdir()] == ["0002.safetensors"], "so are earlier weights"


def spellings(value: float) -> list[bytes]:
    """A number as bytes and as text; short texts would be found by chance."""
    texts = {repr(value), f"{value:.12g}", f"{value:.17g}", f"{value:.12e}", value.hex()}
    found = [np.float64(value).tobytes(), *(text.encode() for text in texts if len(text) >= 10)]
    return found if value not in (0.0, 1.0) else []
