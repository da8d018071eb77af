"""A desk as a whole: one writer at a time, and nothing of a row in anything that may leave."""

from __future__ import annotations

import datetime
import errno
import importlib
import io
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from desk_use import Rows, ask
from expunge.cli import main
from expunge.desk import Desk, Policy, accept, create_desk, history, open_desk, run, status, verify_desk
from expunge.desk.desk import lock
from expunge.desk.ledger import Ledger, RunRefused, write_seal
from expunge.errors import FileError
from expunge.model import LinearModel
from expunge.request.past import read_anchored
from ledger_forgery import rejected


def test_one_writer_at_a_time(desk: Desk, source: Rows) -> None:
    with lock(desk.layout), pytest.raises(FileError, match="in use"):
        ask(desk, source, 0, 1)
    ask(desk, source, 0, 1)


# Waiting, locks and permissions --------------------------------------------------------------------------------------


def test_a_request_waits_for_another_command(desk: Desk, source: Rows) -> None:
    """As long as it is told to: the one that writes ends meanwhile, or does not."""
    patient = open_desk(desk.layout.folder, timeout=20.0)
    taken, done = threading.Event(), threading.Event()

    def writing() -> None:
        with lock(desk.layout):
            taken.set()
            done.wait(20.0)

    other = threading.Thread(target=writing)
    other.start()
    assert taken.wait(20.0)
    with pytest.raises(FileError, match=r"in use by another command, and was for 0\.2 seconds"):
        ask(open_desk(desk.layout.folder, timeout=0.2), source, 0, 1)
    threading.Timer(0.3, done.set).start()
    started = time.monotonic()
    assert ask(patient, source, 0, 1) == 1
    assert time.monotonic() - started > 0.2
    other.join()


def test_a_missing_lock_is_said_and_put_right(desk: Desk, source: Rows) -> None:
    desk.layout.lock.unlink()
    with pytest.raises(FileError, match=r"lock is missing.*an empty file with mode 0600"):
        ask(desk, source, 0, 1)
    desk.layout.lock.touch(0o600)
    ask(desk, source, 0, 1)


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701, 0o704])
def test_a_private_folder_that_others_can_enter_is_refused(mode: int, desk: Desk) -> None:
    desk.layout.private.chmod(mode)
    with pytest.raises(FileError, match=rf"private has mode {mode:04o}.*chmod 700"):
        open_desk(desk.layout.folder)
    desk.layout.private.chmod(0o700)
    open_desk(desk.layout.folder)


def failing(call: str, number: int, where: Path, patch: pytest.MonkeyPatch) -> None:
    """Whatever is below a folder is another user's, or on a disk mounted for reading."""
    real = getattr(os, call) if call != "io.open" else io.open

    def refused(path: Any, *given: Any, **options: Any) -> Any:
        reading = call == "io.open" and number == errno.EROFS and not set("wax+") & set(given[0] if given else "r")
        if isinstance(path, (str, Path)) and Path(path).is_relative_to(where) and not reading:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *given, **options)

    patch.setattr(io if call == "io.open" else os, call.removeprefix("io."), refused)


@pytest.mark.parametrize("command", ["status", "history", "head", "run", "request", "withdraw", "report"])
@pytest.mark.parametrize("call", ["stat", "open"])
def test_another_users_desk_is_an_error_in_words(
    call: str, command: str, ledger: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions do not bind everybody who runs tests, so the system's answer is put in its place."""
    rows = tmp_path / "rows.npz"
    np.savez(rows, X=np.eye(1, 4), y=[0])
    more = {
        "request": ["--forget", str(rows), "--reference", "x"],
        "withdraw": ["4"],
        "report": ["--out", str(tmp_path / "pages")],
    }
    with monkeypatch.context() as patch:
        failing(call, errno.EACCES, ledger.layout.private, patch)
        done = CliRunner().invoke(main, ["desk", command, str(ledger.layout.folder), *more.get(command, [])])
    assert done.exit_code == 2, done.output
    assert "cannot be read (Permission denied)" in done.stderr
    assert "run this as that user" in done.stderr
    assert not (tmp_path / "pages").exists()


def test_a_desk_on_a_disk_that_is_mounted_for_reading(
    ledger: Desk, source: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be looked at; writing is refused in words, from the library too."""
    with monkeypatch.context() as patch:
        for call in ("io.open", "mkdir", "rename", "unlink"):
            failing(call, errno.EROFS, ledger.layout.folder, patch)
        opened = open_desk(ledger.layout.folder)
        assert status(opened).pending == 1
        with pytest.raises(FileError, match=r"Read-only file system.*mounted for writing"):
            ask(opened, source, 40, 41)
        with pytest.raises(FileError, match="Read-only file system"):
            run(opened)


# Clocks -----------------------------------------------------------------------------------------------------------------


def test_a_clock_that_was_set_back_is_noticed_and_said(
    desk: Desk, source: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(desk, source, 0, 1)
    assert status(desk).clock is None
    last = history(desk)[-1].time
    early = (datetime.datetime.fromisoformat(last) - datetime.timedelta(days=400)).isoformat(timespec="seconds")
    for module in ("ledger", "status", "accept"):
        monkeypatch.setattr(importlib.import_module(f"expunge.desk.{module}"), "now", lambda: early)
    ask(desk, source, 1, 2)
    times = [entry.time for entry in history(desk)]
    assert times == sorted(times), "no entry is dated before the one before it"
    assert "set back" in str(status(desk).clock)
    verify_desk(desk)
    folder = str(desk.layout.folder)
    assert "set back" in CliRunner().invoke(main, ["desk", "status", folder]).stdout
    for line in (["withdraw", folder, "2"], ["run", folder, "--quiet"]):
        done = CliRunner().invoke(main, ["desk", *line])
        assert done.exit_code == 0, done.stderr
        assert f"clock says {early}" in done.stderr


def test_an_entry_that_is_dated_before_the_one_before_it_fails(desk: Desk) -> None:
    with Ledger.open(desk.layout.ledger) as ledger:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ledger, "latest", lambda _: "")
            ledger.append(RunRefused((1,), "RetrainNow", "by another clock"), "2020-01-01T00:00:00+00:00")
        write_seal(desk.layout, ledger)
    assert "entry 2 is dated before" in rejected(desk)


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
