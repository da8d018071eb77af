"""The private state shows nothing of itself."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from desk_use import Rows, ask
from expunge.cli import main
from expunge.desk import Desk, requests, run
from expunge.desk.state import load_state


def test_nothing_private_is_in_what_a_log_might_hold(desk: Desk) -> None:
    with desk.reading() as ledger:
        state = load_state(desk, ledger)
    for text in (repr(desk), repr(state)):
        assert repr(desk.key) not in text
        assert "tensor" not in text


def test_a_request_finishes_what_was_prepared_as_any_command_does(
    desk: Desk, source: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed once its files are digested, the ledger speaks of a state that has no name yet."""
    ask(desk, source, 0, 1)
    with monkeypatch.context() as patched:
        patched.setattr(
            sys.modules["expunge.desk.publish"], "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            run(desk)
    X, y = source
    np.savez(tmp_path / "rows.npz", X=X[5:6], y=y[5:6])
    line = ["desk", "request", str(desk.layout.folder), "--forget", str(tmp_path / "rows.npz"), "--reference", "next"]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 0, done.stderr
    assert [request.state for request in requests(desk)] == ["done", "pending"]
