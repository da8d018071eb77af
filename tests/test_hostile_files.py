"""Two hundred hostile files, each through the command that reads it: little memory, little time, a message.

The quick ones run in this process; all of them, each as a process of its own, in the slow test, which prints what the
worst of them took (`pytest -m slow -s tests/test_hostile_files.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
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
    return good(tmp_path_factory.mktemp("hostile"), programs=False)


def allowed(case: Case) -> tuple[int, ...]:
    return (1, 2, 3) if case.args[0] in VERDICTS else (2, 3)


@contextlib.contextmanager
def placed(folder: Path, case: Case):  # type: ignore[no-untyped-def]
    place(folder, case)
    before = sorted(path.name for path in folder.iterdir())
    try:
        yield
        assert sorted(path.name for path in folder.iterdir()) == before, "something was written"
    finally:
        clear(folder, case)


def test_there_are_two_hundred_of_every_kind() -> None:
    assert len(CASES) >= 200
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
    assert ran.stderr.count("\n") == 1, "a message is one line"
    assert taken < max(OVER, LIMIT + OVER - before)


# A process's peak counts what started it: this small one starts the command and tells what that took.
STARTER = """
import json, os, signal, subprocess, sys
process = subprocess.Popen(sys.argv[2:], stdout=sys.stderr)
signal.signal(signal.SIGALRM, lambda *_: process.kill())
signal.alarm(int(sys.argv[1]))
_, status, used = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""


def as_process(folder: Path, case: Case) -> tuple[int, float, int, str]:
    """Exit status, seconds of the processor, most memory in bytes, and what was said, of a process of its own."""
    tests = Path(__file__).parent
    paths = f"{tests.parent / 'src'}:{tests}"
    env = os.environ | {"EXPUNGE_MAX_BYTES": str(LIMIT), "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-c", STARTER, str(PATIENCE), sys.executable, "-m", "expunge", *case.args]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    status, seconds, memory = json.loads(done.stdout)
    return status, seconds, memory, done.stderr


@pytest.mark.slow
def test_all_of_them_as_processes(tmp_path: Path) -> None:
    folder = good(tmp_path)
    wrong, longest, largest = [], (0.0, ""), (0, "")
    for case in CASES:
        with placed(folder, case):
            status, seconds, memory, text = as_process(folder, case)
        print(f"{status} {seconds:5.1f} s {memory / 1e6:6.0f} MB  {case.name}", flush=True)
        longest, largest = max(longest, (seconds, case.name)), max(largest, (memory, case.name))
        if status not in allowed(case) or "Traceback" in text or seconds > SECONDS or memory > LIMIT + OVER:
            wrong.append((case.name, status, seconds, memory / 1e6, text[-500:]))
    print(f"{len(CASES)} files: at most {longest[0]:.1f} s ({longest[1]}), {largest[0] / 1e6:.0f} MB ({largest[1]})")
    assert not wrong, wrong
