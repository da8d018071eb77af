"""Kill it anywhere and run again: nothing lost, nothing done twice, no half file, no certificate without its model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs a C compiler and Linux")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What makes the n-th call that changes a file fail."""
    target = tmp_path_factory.mktemp("faults") / "faults.so"
    assert COMPILER is not None
    command = [COMPILER, "-shared", "-fPIC", "-O1", "-o", str(target), str(HERE / "faults.c"), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return target


def drive(folder: Path, *arguments: str, preload: Path | None = None) -> dict[str, Any]:
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    if preload is not None:
        environment["LD_PRELOAD"] = str(preload)
    command = [sys.executable, str(HERE / "crash_driver.py"), str(folder), *arguments]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000, check=False)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@needs_compiler
def test_killed_at_changes_of_a_file_while_a_request_is_accepted(library: Path, tmp_path: Path) -> None:
    """At each seventh; all of them are among the slow tests."""
    (result,) = drive(tmp_path, "enumerate", "request:7", "kill", preload=library).values()
    assert result["problems"] == []
    assert result["calls"] > 20, "writes, syncs and renames were seen"
    assert result["exits"]["-9"] == result["calls"] // 7


@needs_compiler
def test_killed_at_changes_of_a_file_while_rows_leave_a_deposit(library: Path, tmp_path: Path) -> None:
    """At each eleventh; and a result comes with its new deposit or not at all. All are among the slow tests."""
    batch, alone = drive(tmp_path, "enumerate", "batch:11,unlearn", "kill", "deposit", preload=library).values()
    assert batch["problems"] == alone["problems"] == []
    assert batch["calls"] > 40
    assert batch["exits"]["-9"] == batch["calls"] // 11
    assert alone["calls"] > 12
    assert alone["exits"]["-9"] > 6


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("action", ["init", "request", "withdraw", "run", "both"])
@pytest.mark.parametrize("mode", ["kill", "torn", "full", "broken"])
def test_killed_or_failing_at_every_change_of_a_file(action: str, mode: str, library: Path, tmp_path: Path) -> None:
    (result,) = drive(tmp_path, "enumerate", action, mode, preload=library).values()
    assert result["problems"] == []
    assert result["calls"] > 20


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("action", ["init", "request", "withdraw", "run", "batch", "both", "unlearn"])
@pytest.mark.parametrize("mode", ["kill", "torn", "full", "broken"])
def test_with_a_deposit_too(action: str, mode: str, library: Path, tmp_path: Path) -> None:
    (result,) = drive(tmp_path, "enumerate", action, mode, "deposit", preload=library).values()
    assert result["problems"] == []
    assert result["calls"] > 12


def test_killed_at_random_instants(tmp_path: Path) -> None:
    result = drive(tmp_path, "random", "5", "2025")
    assert result["problems"] == []


@pytest.mark.slow
def test_killed_at_200_random_instants(tmp_path: Path) -> None:
    result = drive(tmp_path, "random", "200", "7")
    assert result["problems"] == []
    assert result["killed"] > 150
