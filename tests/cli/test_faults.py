"""Faults, most of them in processes of their own: output that is lost, disks that are full, signals, damaged files.

Never a traceback, a documented exit status, nothing half-written.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from expunge.certificate.sign import keyid_of, read_private_key, read_public_key
from expunge.cli import main

pytestmark = pytest.mark.usefixtures("one_thread")

BEYOND = 2**64
LOST = "standard output could not be written (No space left on device)"


@pytest.fixture(scope="module")
def place(workshop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result, and a desk with one published model and one request that waits."""
    folder = tmp_path_factory.mktemp("faults")
    shutil.copytree(workshop, folder, dirs_exist_ok=True)
    rows = np.load(folder / "source.npz")
    np.savez(folder / "other.npz", X=rows["X"][4:5], y=rows["y"][4:5])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in (
            "desk init desk --model model.safetensors --surrogate surrogate.npz --epsilon 0.5 --delta 1e-3 "
            "--distance same --planned 3 --force",
            "desk request desk --forget forget.npz --reference first",
            "desk run desk --quiet",
            "desk request desk --forget other.npz --reference second",
            "keygen --out key",
        ):
            done = CliRunner().invoke(main, line.split())
            assert done.exit_code == 0, done.stderr
    return folder


@pytest.fixture
def box(place: Path, tmp_path: Path) -> Path:
    shutil.copytree(place, tmp_path / "box")
    return tmp_path / "box"


def process(line: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "expunge", *line.split()],
        cwd=folder, text=True, timeout=120, check=False, **{"capture_output": "stdout" not in options, **options},
    )  # fmt: skip
    assert "Traceback" not in (done.stderr or "")
    assert "Exception ignored" not in (done.stderr or "")
    return done


# Standard output ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "--version",
        "verify --help",
        "verify result/statement.json",
        "verify result/statement.json --json",
        "desk status desk",
        "desk history desk --json",
        "card result",
        "report result --out page.html",
    ],
)
def test_a_full_device(line: str, place: Path, tmp_path: Path) -> None:
    shutil.copytree(place, tmp_path / "box")
    with Path("/dev/full").open("w") as full:
        done = process(line, tmp_path / "box", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2, "not 1: nothing failed verification"
    (told,) = done.stderr.splitlines()
    assert LOST in told


def test_what_failed_is_said_to_have_failed_on_a_full_device_too(place: Path) -> None:
    for more in ("", " --json"):
        with Path("/dev/full").open("w") as full:
            line = f"verify result/statement.json --model model.safetensors{more}"
            done = process(line, place, stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 1
        assert "the model has its noise" in done.stderr


def test_what_was_written_is_whole_though_nobody_is_told(box: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = process("keygen --out new.key", box, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert "may be there already" in done.stderr
    assert keyid_of(read_private_key(box / "new.key").public_key()) == keyid_of(read_public_key(box / "new.key.pub"))


@pytest.mark.parametrize(
    ("line", "status"), [("verify result/statement.json", 0), ("verify gone.json", 2), ("--no", 2)]
)
def test_a_full_device_for_errors(line: str, status: int, place: Path) -> None:
    with Path("/dev/full").open("w") as full:
        assert process(line, place, stdout=subprocess.PIPE, stderr=full).returncode == status


@pytest.mark.parametrize("line", ["desk history desk", "verify result/statement.json --json", "--help"])
def test_a_reader_that_has_gone(line: str, place: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = process(line, place, stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (2, "")


# Full disks ---------------------------------------------------------------------------------------------------------


def limited() -> None:
    """No file of more than 512 bytes: the disk is full for whatever is longer."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))


@pytest.mark.parametrize(
    "line",
    [
        "report result --out out/page.html",
        "report result --full --out out/page.html",
        "desk report desk --out out/pages",
        "card result --out out/README.md",
        "sign result --sign-key key --out out/signed.json",
        "verify result/statement.json --model result/model.safetensors --svr out/verdict.json",
    ],
)
def test_a_full_disk(line: str, box: Path, snapshot: Callable[[Path], dict[str, str]]) -> None:
    before = snapshot(box)
    done = process(line, box, preexec_fn=limited)
    assert done.returncode == 2, done.stderr
    assert "could not be " in done.stderr, "written; or used, where SQLite needs room to read"
    after = snapshot(box)
    assert {name: after[name] for name in before if not name.startswith("desk/ledger")} == {
        name: digest for name, digest in before.items() if not name.startswith("desk/ledger")
    }
    assert not [name for name in after if name.startswith("out") or ".expunge-" in name]
    assert process(line, box).returncode == 0, "with room it goes through"


def test_a_disk_that_fills_up_under_a_report(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever sync finds it full: SQLite has its own, so that the ledger is read and the pages are what fails."""
    monkeypatch.chdir(box)
    real, line = os.fsync, ["desk", "report", "desk", "--out", "pages"]
    for call in range(1, 20):
        left = call

        def full(handle: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(handle)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            done = CliRunner().invoke(main, line)
        assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
        if done.exit_code == 0:
            break
        assert done.exit_code == 2
        assert "could not be written (No space left on device)" in done.stderr
        assert not list(box.glob("pages*"))
        assert not list(box.glob(".expunge-*"))
    assert call > 4
    assert (box / "pages" / "index.html").is_file()


# Signals ------------------------------------------------------------------------------------------------------------

# the modules are loaded once; then each child gets its signal just after the at-th call of a function of `os`
STOPPING = """
import json, os, shutil, signal, sys
from pathlib import Path
from expunge.cli import main
import expunge.desk.handover, expunge.certificate.sign, expunge.rows.output

call, most, number, line = sys.argv[1], int(sys.argv[2]), getattr(signal, sys.argv[3]), sys.argv[4:]

def child(at):
    calls, real = 0, getattr(os, call)
    def stopping(*given, **options):
        nonlocal calls
        done = real(*given, **options)
        calls += 1
        if calls == at:
            os.kill(os.getpid(), number)
        return done
    setattr(os, call, stopping)
    os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    main(line)

for at in range(1, most + 1):
    pid = os.fork()
    if pid == 0:
        try:
            child(at)
        finally:
            sys.stdout.flush()
    _, ended = os.waitpid(pid, 0)
    there = sorted(str(path) for path in Path().rglob("*") if path.is_file() and str(path).startswith("out"))
    left = [str(path) for path in Path().rglob(".expunge-*")]
    told = Path("stderr").read_text()
    found = {"at": at, "status": os.waitstatus_to_exitcode(ended), "there": there, "left": left, "told": told}
    print("STOPPED", json.dumps(found), flush=True)
    if found["status"] == 0:
        break
    shutil.rmtree("out", ignore_errors=True)
    for path in Path().glob("out*"):
        path.unlink()
"""


def stopped(call: str, most: int, number: str, line: str, folder: Path) -> list[dict[str, Any]]:
    """What came of a command that got a signal after its first, second, ... call of a function, until it ended."""
    done = subprocess.run(
        [sys.executable, "-c", STOPPING, call, str(most), number, *line.split()],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    told = [line.removeprefix("STOPPED ") for line in done.stdout.splitlines() if line.startswith("STOPPED ")]
    assert told, done.stderr
    return [json.loads(line) for line in told]


COMMANDS = {
    "keygen --out out.key": {"out.key", "out.key.pub"},
    "desk report desk --out out": {
        f"out/{name}" for name in ("index.html", "model-0001.html", "models.csv", "requests.csv")
    },
    "report result --out out.html": {"out.html"},
    "sign result --sign-key key --out out.json": {"out.json"},
}


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize(("number", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
@pytest.mark.parametrize("call", ["fsync", "link", "rename"])
def test_stopped_anywhere_everything_is_there_or_nothing(
    call: str, number: str, status: int, line: str, box: Path
) -> None:
    """After each sync and each new name, until the command ends by itself."""
    trials = stopped(call, 20, number, line, box)
    for trial in trials:
        assert trial["left"] == []
        assert trial["there"] in ([], sorted(COMMANDS[line])), trial
        assert "Traceback" not in trial["told"]
        assert trial["status"] in (0, status), trial
        assert trial["status"] == 0 or trial["told"].startswith("stopped; ")
    assert trials[-1]["status"] == 0
    assert trials[-1]["there"] == sorted(COMMANDS[line])
    assert call != "fsync" or len(trials) > 2, "it was stopped on the way"


def test_a_key_that_was_left_alone_gets_its_public_one(box: Path) -> None:
    """SIGKILL between the two names is the one way to part them; the same command then finishes."""
    driver = STOPPING.replace("shutil.rmtree(", "break; shutil.rmtree(")
    subprocess.run(
        [sys.executable, "-c", driver, "link", "1", "SIGKILL", "keygen", "--out", "out.key"],
        cwd=box, capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    assert not (box / "out.key.pub").exists()
    private = (box / "out.key").read_bytes()
    again = process("keygen --out out.key --json", box)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["new"] is False
    assert (box / "out.key").read_bytes() == private
    assert not list(box.glob(".expunge-*")), "nor does the private key stay there under another name"
    assert keyid_of(read_private_key(box / "out.key").public_key()) == keyid_of(read_public_key(box / "out.key.pub"))
    third = process("keygen --out out.key", box)
    assert third.returncode == 2
    assert "exists already" in third.stderr
    (box / "notes").write_text("not a key")
    assert "exists already" in process("keygen --out notes", box).stderr


# Numbers beyond 64 bits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (f"desk history desk --after {BEYOND}", 0),
        (f"desk history desk --limit {BEYOND}", 0),
        (f"desk history desk --after -{BEYOND}", 0),
        (f"desk withdraw desk {BEYOND}", 2),
        (f"desk withdraw desk {2**63}", 2),
        (f"desk history desk --limit {10**30} --json", 0),
    ],
)
def test_numbers_that_sqlite_cannot_hold(line: str, status: int, box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(box)
    done = CliRunner().invoke(main, line.split())
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == status
    if "--after" in line:
        assert bool(done.stdout) == (f"-{BEYOND}" in line)


# Damaged ledgers ------------------------------------------------------------------------------------------------------


def of_model(**changes: object) -> Callable[[str], str]:
    return lambda body: json.dumps(json.loads(body) | changes)


@pytest.mark.parametrize("command", ["status", "history", "head", "report"])
@pytest.mark.parametrize(
    ("table", "damage"),
    [
        ("head", lambda _: ""),
        ("head", lambda _: "["),
        ("head", lambda _: "5"),
        ("head", lambda _: '["zz"]'),
        ("head", lambda _: "[" * 100_000),
        ("entries", lambda _: "["),
        ("entries", lambda body: body.replace('"model"', '"modell"')),
        ("models", lambda _: "{}"),
        ("models", of_model(mu=1e200)),
        ("models", of_model(mu=10**400)),
        ("models", of_model(total=0)),
        ("models", of_model(terms={})),
        ("models", of_model(model="9" * 400)),
        ("models", of_model(model=10**300)),
        ("models", lambda body: body.replace('"sigma": ', '"sigma": 1e400, "x": ')),
    ],
)
def test_a_damaged_ledger_is_an_error_in_words(
    table: str, damage: Callable[[str], str], command: str, box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or is no matter to the command; `desk verify` finds it in any case."""
    monkeypatch.chdir(box)
    column, where = ("hash", "1") if table == "head" else ("body", "number = (SELECT max(number) FROM models)")
    where = "kind = 'prepared'" if table == "entries" else where
    with sqlite3.connect("desk/ledger.sqlite") as connection:
        (before,) = connection.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchone()
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (damage(before),))
    connection.close()
    line = ["desk", command, "desk", *(["--out", "pages"] if command == "report" else [])]
    for more in ([], ["--json"]):
        shutil.rmtree("pages", ignore_errors=True)
        done = CliRunner().invoke(main, [*line, *more])
        assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
        assert done.exit_code in (0, 1, 2)
        assert done.exit_code == 0 or done.stderr.startswith("error: ")
        assert done.exit_code == 0 or not Path("pages").exists()
    assert CliRunner().invoke(main, ["desk", "verify", "desk"]).exit_code == 1


@pytest.mark.parametrize("command", ["status", "history", "head", "report"])
def test_a_head_that_is_not_the_seals_is_a_damaged_ledger(
    command: str, box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(box)
    with sqlite3.connect("desk/ledger.sqlite") as connection:
        connection.execute("UPDATE head SET hash = ?", ("[",))
    connection.close()
    done = CliRunner().invoke(main, ["desk", command, "desk", *(["--out", "pages"] if command == "report" else [])])
    assert done.exit_code == 1
    assert "entries are not those of the seal" in done.stderr
