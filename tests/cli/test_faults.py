"""Faults: output that is lost, disks that are full, errors and signals at any place that touches a file, damaged files.

Never a traceback, a documented exit status, nothing half-written, nothing private outside the desk; and afterwards the
desk verifies and the same command goes through.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expunge
from command_line import done, refused, run
from expunge.certificate.sign import keyid_of, read_private_key, read_public_key
from expunge.cli import main
from injecting import ERRORS, Place, failing, places, stopped

pytestmark = pytest.mark.usefixtures("one_thread")

BEYOND = 2**64
LOST = "standard output could not be written (No space left on device)"
INIT = "desk init new --epsilon 0.5 --delta 1e-3 --planned 3 --force"
COMMANDS = {
    "keygen": "keygen --out out.key",
    "sign": "sign result --sign-key key --out out.json",
    "report": "report result --out out.html",
    "train": "train --data source.npz --l2 0.1 --max-norm 1.0 --out out.safetensors --deposit out.deposit",
    "deposit": "deposit --model model.safetensors --data source.npz --out out.deposit",
    "unlearn": "unlearn --model model.safetensors --forget forget.npz --surrogate surrogate.npz --epsilon 0.5 "
    "--delta 1e-3 --distance same --force --sign-key key --out out",
    "init": f"{INIT} --model model.safetensors --surrogate surrogate.npz --distance same",
    # of 120 rows a desk takes none by itself: the deposit's anchor has more noise than what is chosen for them
    "init with a deposit": f"{INIT} --deposit kept.deposit --noise 2",
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
            done(line)
    return folder


@pytest.fixture
def box(place: Path, tmp_path: Path) -> Path:
    shutil.copytree(place, tmp_path / "box")
    return tmp_path / "box"


def process(line: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-m", "expunge", *line.split()],
        cwd=folder, text=True, timeout=120, check=False, **{"capture_output": "stdout" not in options, **options},
    )  # fmt: skip
    assert "Traceback" not in (ran.stderr or "")
    assert "Exception ignored" not in (ran.stderr or "")
    return ran


# Standard output ----------------------------------------------------------------------------------------------------


def process_onto_full(line: str, folder: Path, *, errors: bool = False) -> subprocess.CompletedProcess[str]:
    """A command whose standard output, or error, is a device without room."""
    with Path("/dev/full").open("w") as full:
        streams = (subprocess.PIPE, full) if errors else (full, subprocess.PIPE)
        return process(line, folder, stdout=streams[0], stderr=streams[1])


@pytest.mark.parametrize(
    "line",
    ["--help", "verify result/statement.json", "verify result/statement.json --json", "desk status desk"],
)
def test_a_full_device(line: str, box: Path) -> None:
    ran = process_onto_full(line, box)
    assert ran.returncode == 2, "not 1: nothing failed verification"
    (told,) = ran.stderr.splitlines()
    assert LOST in told


def test_what_failed_is_said_to_have_failed_on_a_full_device_too(place: Path) -> None:
    ran = process_onto_full("verify result/statement.json --model model.safetensors --json", place)
    assert ran.returncode == 1
    assert "the model has its noise" in ran.stderr


def same_key(box: Path, name: str) -> bool:
    private, public = read_private_key(box / name).public_key(), read_public_key(box / f"{name}.pub")
    return keyid_of(private) == keyid_of(public)


def test_what_was_written_is_whole_though_nobody_is_told(box: Path) -> None:
    ran = process_onto_full("keygen --out new.key", box)
    assert (ran.returncode, "may be there already" in ran.stderr) == (2, True)
    assert same_key(box, "new.key")


@pytest.mark.parametrize(("line", "status"), [("verify result/statement.json", 0), ("--no", 2)])
def test_a_full_device_for_errors(line: str, status: int, place: Path) -> None:
    assert process_onto_full(line, place, errors=True).returncode == status


@pytest.mark.parametrize("line", ["verify result/statement.json --json", "--help"])
def test_a_reader_that_has_gone(line: str, place: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = process(line, place, stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (2, "")


# Full disks ---------------------------------------------------------------------------------------------------------


def limited() -> None:
    """No file of more than 512 bytes: the disk is full for whatever is longer."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))


@pytest.mark.parametrize(
    "line",
    [
        "report result --out out/page.html",
        "desk report desk --out out/pages",
    ],
)
def test_a_full_disk(line: str, box: Path, snapshot: Callable[[Path], dict[str, str]]) -> None:
    before = snapshot(box)
    ran = process(line, box, preexec_fn=limited)
    assert ran.returncode == 2, ran.stderr
    assert "could not be " in ran.stderr, "written; or used, where SQLite needs room to read"
    after = snapshot(box)
    assert {name: after[name] for name in before if not name.startswith("desk/ledger")} == {
        name: digest for name, digest in before.items() if not name.startswith("desk/ledger")
    }
    assert not [name for name in after if name.startswith("out") or ".expunge-" in name]
    assert process(line, box).returncode == 0, "with room it goes through"


# Errors at every place -----------------------------------------------------------------------------------------------

STATUSES = {"SIGINT": 130, "SIGTERM": 143, "SIGKILL": -9}
MOST_CALLS = 400


def outside(files: Iterable[str]) -> set[str]:
    """What lies outside the desks."""
    return {name for name in files if name.split("/")[0] not in ("desk", "kept")}


def names(files: dict[str, str]) -> set[str]:
    """What is there, but for SQLite's own files beside a ledger."""
    return {name for name in files if not name.endswith(("-wal", "-shm"))}


@dataclass
class Trials:
    """One command, run again and again in a new copy of the place, each time with another fault."""

    place: Path
    folder: Path
    snapshot: Callable[[Path], dict[str, str]]
    monkeypatch: pytest.MonkeyPatch

    def begin(self) -> dict[str, str]:
        """A new copy to work in, and what is there."""
        self.monkeypatch.chdir(self.folder)
        shutil.rmtree("box", ignore_errors=True)
        shutil.copytree(self.place, "box")
        self.monkeypatch.chdir(self.folder / "box")
        return self.snapshot(Path.cwd())

    def look(self, before: dict[str, str], about: str) -> dict[str, str]:
        """What is there now: nothing else was changed outside the desks, and the desks verify."""
        after = self.snapshot(Path.cwd())
        for desk in ("desk", "kept"):
            verified = run(f"desk verify {desk}")
            assert verified.exit_code == 0, f"{about}: {verified.stderr}"
        assert {name: after.get(name) for name in outside(before)} == {
            name: before[name] for name in outside(before)
        }, about
        return after

    def faults(self, name: str, step: int) -> int:
        """Every `step`-th of all pairs of a place and an error; how many."""
        line, before, results = COMMANDS[name], self.begin(), []
        found = places(lambda: results.append(run(line)))
        assert results[0].exit_code == 0, results[0].stderr
        complete = outside(self.snapshot(Path.cwd())) - outside(before)
        pairs = [(where, number) for where in found for number in ERRORS][::step]
        for where, number in pairs:
            self.fault(line, where, number, complete)
        return len(pairs)

    def fault(self, line: str, where: Place, number: int, complete: set[str]) -> None:
        """One fault, and what must be true after it."""
        before = self.begin()
        with failing(where, number) as ran:
            result = run(line)
        about = f"{line}: {where} failing with {number}: {result.output} {result.stderr}"
        assert ran, about
        assert result.exit_code in (0, 2), about
        assert result.exit_code == 0 or "error: " in result.stderr, about
        new = outside(self.look(before, about)) - outside(before)
        assert new in (set(), complete), f"{about}: half of it, or more: {new}"
        assert result.exit_code == 2 or new == complete, about
        again = run(line)
        allowed = (0, 2) if new or line in ONCE else (0,)
        assert again.exit_code in allowed, f"{about}: then {again.stderr}"
        settled = self.look(before, about)
        assert outside(settled) - outside(before) == complete, about
        assert not [name for name in settled if ".expunge-" in name], about

    def signals(self, name: str, number: str, step: int) -> int:
        """The signal after every `step`-th call that changes a file; how many."""
        self.begin()
        done(COMMANDS[name])
        clean = names(self.snapshot(Path.cwd()))
        for count, at in enumerate(range(1, MOST_CALLS, step)):
            if not self.signal(COMMANDS[name], number, at, clean):
                return count
        raise AssertionError("it never ended by itself")

    def signal(self, line: str, number: str, at: int, clean: set[str]) -> bool:
        """One signal, and what must be true after it; whether the command came so far."""
        before, told = self.begin(), self.folder / "told"
        status, reached = stopped(main, line, at, getattr(signal, number), told)
        about = f"{line}: {number} after call {at}: {status}: {told.read_text()}"
        assert "Traceback" not in about, about
        if not reached:
            assert status == 0, about
            return False
        assert status in (0, STATUSES[number]), about
        new, complete = outside(self.look(before, about)) - outside(before), outside(clean) - outside(before)
        if number == "SIGKILL":  # nobody could tidy up; the same command will
            new = {name for name in new if not name.startswith(".expunge-")}
            assert new <= complete, about
        else:
            assert new in (set(), complete), f"{about}: half of it, or more: {new}"
            assert status == 0 or told.read_text().splitlines()[-1].startswith("stopped; "), about
        again = run(line)
        assert again.exit_code == 0 or new or (line in ONCE and again.exit_code == 2), f"{about}: then {again.stderr}"
        if again.exit_code == 0 or line in ONCE:
            assert names(self.snapshot(Path.cwd())) == clean, f"{about}: as if nothing had happened"
        self.look(before, about)
        return True


@pytest.fixture
def trials(
    place: Path,
    tmp_path: Path,
    snapshot: Callable[[Path], dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> Trials:
    return Trials(place, tmp_path, snapshot, monkeypatch)


@pytest.mark.parametrize("name", QUICK)
def test_some_faults(name: str, trials: Trials) -> None:
    assert trials.faults(name, step=31) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_fault(name: str, trials: Trials) -> None:
    assert trials.faults(name, step=1) > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("number", STATUSES)
def test_every_signal(number: str, name: str, trials: Trials) -> None:
    assert trials.signals(name, number, step=1) > 2


@pytest.mark.parametrize(
    ("name", "step"), [("keygen", 1), ("sign", 1), ("report", 1), ("desk report", 3), ("request", 5)]
)
@pytest.mark.parametrize("number", STATUSES)
def test_some_signals(number: str, name: str, step: int, trials: Trials) -> None:
    assert trials.signals(name, number, step=step) >= 1


def test_a_key_that_was_left_alone_gets_its_public_one(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL between the two names is the one way to part them; the same command then finishes."""
    monkeypatch.chdir(box)
    for at in range(1, 40):
        stopped(main, "keygen --out out.key", at, signal.SIGKILL, box.parent / "told")
        if Path("out.key").exists():
            break
    assert not Path("out.key.pub").exists()
    private = Path("out.key").read_bytes()
    assert done("keygen --out out.key --json")["new"] is False
    assert Path("out.key").read_bytes() == private
    assert not list(box.glob(".expunge-*")), "nor does the private key stay there under another name"
    assert same_key(box, "out.key")
    (box / "notes").write_text("not a key")
    for line in ("keygen --out out.key", "keygen --out notes"):
        refused(line, "exists already")


# Numbers beyond 64 bits ------------------------------------------------------------------------------------------------


def test_numbers_that_sqlite_cannot_hold(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    for line, status, says in (
        (f"desk history desk --after {BEYOND}", 0, False),
        (f"desk history desk --after -{BEYOND}", 0, True),
        (f"desk history desk --limit {10**30} --json", 0, True),
        (f"desk withdraw desk {2**63}", 2, False),
    ):
        ran = run(line)
        assert (ran.exit_code, bool(ran.stdout)) == (status, says), line


# Damaged ledgers ------------------------------------------------------------------------------------------------------


def of_model(**changes: object) -> Callable[[str], str]:
    return lambda body: json.dumps(json.loads(body) | changes)


@pytest.mark.parametrize(
    ("table", "damage"),
    [
        ("head", lambda _: ""),
        ("head", lambda _: "5"),
        ("head", lambda _: '["zz"]'),
        ("head", lambda _: "[" * 100_000),
        ("entries", lambda _: "["),
        ("entries", lambda body: body.replace('"model"', '"modell"')),
        ("entries", of_model(mu=1e200)),
        ("entries", of_model(mu=10**400)),
        ("entries", of_model(terms={})),
        ("entries", of_model(model=10**300)),
        ("entries", lambda body: body.replace("{", '{"x": 1e400, ', 1)),
    ],
)
def test_a_damaged_ledger_is_an_error_in_words(
    table: str, damage: Callable[[str], str], box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or is no matter to the command; `desk verify` finds it in any case."""
    monkeypatch.chdir(box)
    column, where = ("hash", "1") if table == "head" else ("body", "kind = 'prepared'")
    with sqlite3.connect("desk/ledger.sqlite") as connection:
        (before,) = connection.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchone()
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (damage(before),))
    connection.close()
    for line in ("desk status desk", "desk history desk --json", "desk head desk", "desk report desk --out pages"):
        ran = run(line)
        assert ran.exit_code in (0, 1, 2)
        assert ran.exit_code == 0 or ran.stderr.startswith("error: ")
        assert ran.exit_code == 0 or not Path("pages").exists()
    assert run("desk verify desk").exit_code == 1
