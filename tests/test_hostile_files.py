"""Hostile files, each through the command that reads it: little memory, little time, a message.

The quick ones run in this process; all of them, each as a process of its own, in the slow test, which prints what the
worst of them took (`pytest -m slow -s tests/test_hostile_files.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from expunge.cli import main
from hostile_files import CASES
from hostile_making import LIMIT, MILLION, Case, clear, good, place

OVER = 300 * MILLION  # bytes that a process may take beyond the limit
SECONDS = 30  # of the processor: a machine that does other work as well takes longer by the clock
PATIENCE = 600  # seconds by the clock
VERDICTS = ("verify", "desk")  # commands whose exit status 1 says that a certificate or a ledger is false
SAMPLE = [case for case in CASES if case.quick][::2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return good(tmp_path_factory.mktemp("hostile"))


def allowed(case: Case) -> tuple[int, ...]:
    return (1, 2, 3) if case.args[0] in VERDICTS else (2, 3)


@contextlib.contextmanager
def placed(folder: Path, case: Case) -> Iterator[None]:
    place(folder, case)
    before = sorted(path.name for path in folder.iterdir())
    try:
        yield
        assert sorted(path.name for path in folder.iterdir()) == before, "something was written"
    finally:
        clear(folder, case)


def test_there_are_many_of_every_kind() -> None:
    assert len(CASES) >= 130
    assert len({case.name for case in CASES}) == len(CASES)
    kinds = {case.name.split(",")[0] for case in CASES}
    assert {"csv", "parquet", "npz", "npy", "safetensors", "json", "bad-desk", "pt", "pt2", "onnx", "deposit"} <= kinds


def high_water(reset: bool = False) -> int:
    """The most memory this process had since it was last reset; 0 where the system does not say."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_a_message_and_little_memory(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPUNGE_MAX_BYTES", str(LIMIT))
    monkeypatch.chdir(folder)
    with placed(folder, case):
        before = high_water(reset=True)
        ran = CliRunner().invoke(main, list(case.args))
        taken = high_water() - before
    assert isinstance(ran.exception, SystemExit), repr(ran.exception)
    assert ran.exit_code in allowed(case), ran.output
    verdict = ran.stderr.startswith("verdict: failed\n")  # which names what is wrong, line by line
    assert verdict or ran.stderr.count("\n") == 1, "a message is one line"
    assert taken < max(OVER, LIMIT + OVER - before)


# Starts a process a command, each from one that has loaded what commands load and done nothing yet: a process's own
# peak of memory would count what started it, and so many times the seconds that loading takes help nobody.
STARTER = """
import json, os, signal, sys, traceback
import pyarrow.csv, pyarrow.parquet, scipy.optimize, sklearn, torch
import expunge.cli, expunge.rows, expunge.train, expunge.unlearn, expunge.networks.encoders
for line in sys.stdin:
    args, said = json.loads(line)
    child = os.fork()
    if child == 0:
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1), os.dup2(file, 2)
        try:
            expunge.cli.main(args, prog_name="expunge")
        except SystemExit as ended:
            status = ended.code
        except BaseException:
            status = 99
            traceback.print_exc()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status or 0)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(PATIENCE)
    _, status, used = os.wait4(child, 0)
    signal.alarm(0)
    took = [os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]
    print(json.dumps(took), flush=True)
"""


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Callable[[Case], tuple[int, float, int, str]]]:
    """Runs a case as a process: exit status, seconds of the processor, most memory in bytes, and what was said."""
    tests = Path(__file__).parent
    paths = f"{tests.parent / 'src'}:{tests}"
    env = os.environ | {"EXPUNGE_MAX_BYTES": str(LIMIT), "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-c", STARTER.replace("PATIENCE", str(PATIENCE))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    said = folder.parent / "said.txt"
    with subprocess.Popen(command, cwd=folder, env=env, **pipes) as starter:  # type: ignore[call-overload]

        def run(case: Case) -> tuple[int, float, int, str]:
            starter.stdin.write(json.dumps([case.args, str(said)]) + "\n")
            starter.stdin.flush()
            status, seconds, memory = json.loads(starter.stdout.readline())
            return status, seconds, memory, said.read_text(errors="replace")

        yield run
        starter.stdin.close()


@pytest.mark.slow
def test_all_of_them_as_processes(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    good(folder)
    wrong, longest, largest = [], (0.0, ""), (0, "")
    with started(folder) as run:
        for case in CASES:
            with placed(folder, case):
                status, seconds, memory, text = run(case)
            print(f"{status} {seconds:5.1f} s {memory / 1e6:6.0f} MB  {case.name}: {text.strip()[:150]}", flush=True)
            longest, largest = max(longest, (seconds, case.name)), max(largest, (memory, case.name))
            if status not in allowed(case) or "Traceback" in text or seconds > SECONDS or memory > LIMIT + OVER:
                wrong.append((case.name, status, seconds, memory / 1e6, text[-500:]))
    print(f"{len(CASES)} files: at most {longest[0]:.1f} s ({longest[1]}), {largest[0] / 1e6:.0f} MB ({largest[1]})")
    assert not wrong, wrong
