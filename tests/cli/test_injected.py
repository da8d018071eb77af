"""Every command that writes, with an error of the operating system at every place of the code that touches a file.

And, as a process of its own, stopped or killed after every call that changes one. Never a traceback, exit status 2, nothing half-written, nothing private outside the desk; and afterwards the desk
verifies and the same command goes through.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import matplotlib.backends.backend_agg  # noqa: F401  it makes folders of its own when it is loaded, once a process
import numpy as np
import pytest
from click.testing import CliRunner, Result

import expunge
from expunge.cli import main
from injecting import ERRORS, Place, failing, places
from stopping import stopped

pytestmark = pytest.mark.usefixtures("one_thread")
Snapshot = Callable[[Path], dict[str, str]]

INIT = "desk init new --epsilon 0.5 --delta 1e-3 --planned 3 --force"
COMMANDS = {
    "keygen": "keygen --out out.key",
    "sign": "sign result --sign-key key --out out.json",
    "report": "report result --out out.html",
    "card": "card result --out out.md",
    "verify": "verify result/statement.json --model result/model.safetensors --svr out.json --sign-key key",
    "train": "train --data source.npz --l2 0.1 --max-norm 1.0 --out out.safetensors --deposit out.deposit",
    "deposit": "deposit --model model.safetensors --data source.npz --out out.deposit --figure out.png",
    "unlearn": "unlearn --model model.safetensors --forget forget.npz --surrogate surrogate.npz --epsilon 0.5 "
    "--delta 1e-3 --distance same --force --sign-key key --out out",
    "init": f"{INIT} --model model.safetensors --surrogate surrogate.npz --distance same",
    "init with a deposit": f"{INIT} --deposit kept.deposit",
    "request": "desk request desk --forget third.npz --reference third",
    "withdraw": "desk withdraw desk 2",
    "resume": "desk resume desk 3 --another-person",
    "run": "desk run desk --quiet --sign-key key",
    "run with a deposit": "desk run kept --quiet",
    "head": "desk head desk --out out.json",
    "desk report": "desk report desk --out out",
}
ONCE = (COMMANDS["withdraw"], COMMANDS["resume"])  # what is done is not done again
QUICK = ("keygen", "init", "request", "run")  # of which some are tried each time; the rest is long


@pytest.fixture(scope="module")
def place(workshop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result, a deposit, and two desks with one published model and a request that waits."""
    folder = tmp_path_factory.mktemp("injected") / "place"
    shutil.copytree(workshop, folder)
    rows = np.load(folder / "source.npz")
    for name, at in (("other", 4), ("third", 7)):
        np.savez(folder / f"{name}.npz", X=rows["X"][at : at + 1], y=rows["y"][at : at + 1])
    model = expunge.train(rows["X"], rows["y"], l2=0.1, max_norm=1.0)
    (folder / "kept.deposit").write_bytes(expunge.deposit(model, rows["X"], rows["y"], seed=1).to_bytes())
    (folder / "kept.safetensors").write_bytes(model.to_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in (
            "keygen --out key",
            f"{COMMANDS['init'].replace('new', 'desk')}",
            f"{COMMANDS['init with a deposit'].replace('new', 'kept')}",
            *(
                line.replace("DESK", desk)
                for desk in ("desk", "kept")
                for line in (
                    "desk request DESK --forget forget.npz --reference first",
                    "desk run DESK --quiet",
                    "desk request DESK --forget other.npz --reference second",
                )
            ),
            "desk request desk --forget forget.npz --reference again",  # which is set aside
        ):
            done = CliRunner().invoke(main, line.split())
            assert done.exit_code == 0, (line, done.stderr)
    return folder


def fresh(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new copy to work in."""
    box = tmp_path / "box"
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(box, ignore_errors=True)
    shutil.copytree(place, box)
    monkeypatch.chdir(box)
    return box


def called(line: str) -> Result:
    return CliRunner().invoke(main, line.split())


def outside(files: dict[str, str]) -> dict[str, str]:
    """What lies outside the desks."""
    return {name: digest for name, digest in files.items() if name.split("/")[0] not in ("desk", "kept")}


def trial(line: str, where: Place, number: int, box: Path, complete: set[str], snapshot: Snapshot) -> None:
    """One fault, and what must be true after it."""
    before = snapshot(box)
    with failing(where, number) as done:
        result = called(line)
    about = f"{line}: {where} failing with {number}: {result.output} {result.stderr}"
    assert done, about
    assert result.exception is None or isinstance(result.exception, SystemExit), f"{about} {result.exception!r}"
    assert result.exit_code in (0, 2), about
    assert result.exit_code == 0 or "error: " in result.stderr, about
    after = snapshot(box)
    assert {name: after.get(name) for name in outside(before)} == outside(before), about
    new = set(outside(after)) - set(outside(before))
    assert new in (set(), complete), f"{about}: half of it, or more: {new}"
    assert result.exit_code == 2 or new == complete, about
    for desk in ("desk", "kept"):
        verified = called(f"desk verify {desk}")
        assert verified.exit_code == 0, f"{about}: {verified.stderr}"
    again = called(line)
    if new or line in ONCE:
        assert again.exit_code in (0, 2), about
    else:
        assert again.exit_code == 0, f"{about}: then {again.stderr}"
    settled = snapshot(box)
    assert set(outside(settled)) - set(outside(before)) == complete, about
    assert not [name for name in settled if ".expunge-" in name], about
    for desk in ("desk", "kept"):
        assert called(f"desk verify {desk}").exit_code == 0, about


def faults(
    name: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot, step: int
) -> int:
    """Every `step`-th of all pairs of a place and an error; how many."""
    line, box = COMMANDS[name], fresh(place, tmp_path, monkeypatch)
    before, results = snapshot(box), []
    found = places(lambda: results.append(called(line)))
    assert results[0].exit_code == 0, results[0].stderr
    complete = set(outside(snapshot(box))) - set(outside(before))
    pairs = [(where, number) for where in found for number in ERRORS]
    for where, number in pairs[::step]:
        trial(line, where, number, fresh(place, tmp_path, monkeypatch), complete, snapshot)
    return len(pairs[::step])


@pytest.mark.parametrize("name", QUICK)
def test_some_faults(
    name: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    assert faults(name, place, tmp_path, monkeypatch, snapshot, step=31) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_fault(
    name: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    assert faults(name, place, tmp_path, monkeypatch, snapshot, step=1) > 20


# Signals --------------------------------------------------------------------------------------------------------------

STATUSES = {"SIGINT": 130, "SIGTERM": 143, "SIGKILL": -9}
MOST_CALLS = 400


def names(files: dict[str, str]) -> set[str]:
    """What is there, but for SQLite's own files beside a ledger."""
    return {name for name in files if not name.endswith(("-wal", "-shm"))}


def stopping(line: str, number: str, at: int, box: Path, clean: set[str], snapshot: Snapshot) -> bool:
    """One signal, and what must be true after it; whether the command came so far."""
    before = snapshot(box)
    told = box.parent / "told"
    status, reached = stopped(main, line, at, getattr(signal, number), told)
    about = f"{line}: {number} after call {at}: {status}: {told.read_text()}"
    assert "Traceback" not in about, about
    if not reached:
        assert status == 0, about
        return False
    assert status in (0, STATUSES[number]), about
    after = snapshot(box)
    new, complete = set(outside(after)) - set(outside(before)), set(outside(dict.fromkeys(clean, "")))
    complete -= set(outside(before))
    assert {name: after.get(name) for name in outside(before)} == outside(before), about
    if number == "SIGKILL":  # nobody could tidy up; the same command will
        new = {name for name in new if not name.startswith(".expunge-")}
        assert new <= complete, about
    else:
        assert new in (set(), complete), f"{about}: half of it, or more: {new}"
        assert status == 0 or told.read_text().splitlines()[-1].startswith("stopped; "), about
    for desk in ("desk", "kept"):
        verified = called(f"desk verify {desk}")
        assert verified.exit_code == 0, f"{about}: {verified.stderr}"
    again = called(line)
    assert again.exit_code == 0 or new or (line in ONCE and again.exit_code == 2), f"{about}: then {again.stderr}"
    if again.exit_code == 0 or line in ONCE:
        assert names(snapshot(box)) == clean, f"{about}: as if nothing had happened"
    for desk in ("desk", "kept"):
        assert called(f"desk verify {desk}").exit_code == 0, about
    return True


def signals(
    name: str, number: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot, step: int
) -> int:
    """The signal after every `step`-th call that changes a file; how many."""
    line, box = COMMANDS[name], fresh(place, tmp_path, monkeypatch)
    done = called(line)
    assert done.exit_code == 0, done.stderr
    clean = names(snapshot(box))
    for count, at in enumerate(range(1, MOST_CALLS, step)):
        if not stopping(line, number, at, fresh(place, tmp_path, monkeypatch), clean, snapshot):
            return count
    raise AssertionError("it never ended by itself")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("number", STATUSES)
def test_every_signal(
    number: str, name: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    assert signals(name, number, place, tmp_path, monkeypatch, snapshot, step=1) > 2


@pytest.mark.parametrize("number", STATUSES)
def test_a_signal_while_a_request_is_accepted(
    number: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    assert signals("request", number, place, tmp_path, monkeypatch, snapshot, step=5) >= 1
