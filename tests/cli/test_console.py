"""What every command does with an error, and progress: bars with rates on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import expunge
from expunge.cli import console
from expunge.cli.console import out
from expunge.cli.options import command
from expunge.cli.unlearn import _print_plan


@command()
def greedy() -> None:
    torch.zeros(10**14)


@command()
def greedy_without_torch() -> None:
    np.zeros(10**14)


@command()
def broken() -> None:
    raise RuntimeError("a fault of Expunge's own")


@pytest.mark.parametrize(("greedy", "error"), [(greedy, "RuntimeError"), (greedy_without_torch, "MemoryError")])
def test_memory_that_runs_out_is_a_message(greedy: Any, error: str) -> None:
    ran = CliRunner().invoke(greedy)
    assert isinstance(ran.exception, SystemExit)
    assert ran.exit_code == 2
    assert ran.stderr.startswith(f"error: out of memory ({error}: ")
    assert ran.stderr.count("\n") == 1
    assert json.loads(CliRunner().invoke(greedy, ["--json"]).stdout)["error"]["kind"] == "OutOfMemory"


def test_any_other_fault_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="own"):
        CliRunner().invoke(broken, catch_exceptions=False)


@pytest.mark.parametrize("width", [80, 60])
def test_no_cell_of_a_plan_is_cut_off(width: int, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Cut off, chi2:0.01 and chi2:0.1 read the same, and so do sizes of noise that people copy."""
    outlook = {"epsilon": 0.1, "delta": 1e-4, "total": 0.0006123, "sigma": 0.0009766, "noise_share": 0.07}
    more = {"accuracy": 0.887, "refused": None, "deletions": 15, "noise": 0.0078125}
    outlooks = [SimpleNamespace(distance=name, **outlook, **more) for name in ("chi2:0.01", "chi2:0.1")]
    monkeypatch.setattr(out, "_width", width)
    planned = {"n_forget": 2, "n_source": 6000, "accuracy_before": None, "notes": ()}
    _print_plan(SimpleNamespace(outlooks=outlooks, **planned))
    shown = capsys.readouterr().out
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    if width == 80:
        assert all(text in shown for text in ("chi2:0.01", "0.0009766", "0.0078125", "accuracy", "--noise"))


# Progress -------------------------------------------------------------------------------------------------------------

STAGES = ("Looking over the surrogate", "Hessian products", "Moments", "Lanczos, covariance")


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A request on so many weights that conjugate gradients are used."""
    folder = tmp_path_factory.mktemp("progress")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 3000)
    X = (rng.normal(size=(3000, 450)) + 3 * np.eye(10, 450)[y]) / 30
    model = expunge.train(X[:600], y[:600], l2=1e-2, max_norm=1.0)
    (folder / "model.safetensors").write_bytes(model.to_bytes())
    np.savez(folder / "forget.npz", X=X[:9], y=y[:9])
    np.save(folder / "X.npy", X[600:])
    np.save(folder / "y.npy", y[600:])
    files = f"--model {folder}/model.safetensors --forget {folder}/forget.npz --surrogate {folder}/X.npy"
    return f"unlearn {files} --force --epsilon 1 --delta 1e-5 --distance chi2:0.01 --out"


def on_terminal(line: str) -> str:
    """What a command shows on a terminal of its own."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "expunge", *line.split()]
    process = subprocess.Popen(command, stdin=follower, stdout=subprocess.DEVNULL, stderr=follower, env=environment)
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the terminal's last user is gone
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert process.wait() == 0, shown
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())


def test_a_terminal_shows_rate_and_remaining_time(line: str, tmp_path: Path) -> None:
    shown = on_terminal(f"{line} {tmp_path}/out")
    for stage in STAGES:
        assert stage in shown
    assert re.search(r"Lanczos, covariance.*[0-9,]+ of [0-9,]+ rows, [0-9,]+ rows/s, .*left", shown)
    assert re.search(r"Hessian products.*[0-9,]+ rows/s", shown)


def test_lines_are_few_and_say_how_fast_a_stage_goes(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A line at once and every ten seconds; a stage that begins anew is timed anew; what is unknown is not said."""
    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    with console.progress() as advance:
        for done in range(101):
            now = 0.5 * done
            advance("Lanczos (rows)", 1000 * done, 100_000)
        for at, done, total in ((100, 0, None), (110, 50, None), (120, 0, 50), (121, 5, 50), (131, 25, 50)):
            now = at
            advance("Reading (rows)", done, total)
        for at, done in ((200, 0), (202, 1), (212, 6)):
            now = at
            advance("Newton iterations", done, None)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        "Lanczos: 0 of 100,000 rows",
        "Lanczos: 20,000 of 100,000 rows, 2,000 rows/s, 0:00:40 left",
    ]
    assert [line.partition(",")[0] for line in lines].count("Lanczos: 100") == 1
    assert len([line for line in lines if line.startswith("Lanczos")]) == 6
    assert [line for line in lines if line.startswith("Reading")][
        -1
    ] == "Reading: 25 of 50 rows, 2 rows/s, 0:00:13 left"
    assert lines[-2:] == ["Newton iterations ...", "Newton iterations: 6, 0.5/s"]
