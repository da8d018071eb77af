"""What every command does with an error: one message, its exit status, no traceback."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from expunge.cli import main
from expunge.cli.console import out
from expunge.cli.options import command
from expunge.cli.unlearn import _print_plan


@command("")
def greedy() -> None:
    torch.zeros(10**14)


@command("")
def broken() -> None:
    raise RuntimeError("a fault of Expunge's own")


def test_memory_that_runs_out_in_torch_is_a_message() -> None:
    ran = CliRunner().invoke(greedy)
    assert isinstance(ran.exception, SystemExit)
    assert ran.exit_code == 2
    assert ran.stderr.startswith("error: out of memory (RuntimeError: ")
    assert ran.stderr.count("\n") == 1


def test_the_same_as_json() -> None:
    ran = CliRunner().invoke(greedy, ["--json"])
    assert json.loads(ran.stdout)["error"]["kind"] == "OutOfMemory"
    assert ran.exit_code == 2


def test_any_other_fault_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="own"):
        CliRunner().invoke(broken, catch_exceptions=False)


class Greedy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) + torch.zeros(10**14)


def test_an_encoder_that_takes_all_memory_is_not_called_a_wrong_shape(tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", X=np.zeros((5, 3, 3), np.float32), y=np.zeros(5))
    files = [
        "--data",
        str(tmp_path / "images.npz"),
        "--encoder",
        f"{__name__}:Greedy",
        "--out",
        str(tmp_path / "f.npz"),
    ]
    ran = CliRunner().invoke(main, ["embed", *files, "--quiet"])
    assert isinstance(ran.exception, SystemExit)
    assert (ran.exit_code, "out of memory" in ran.stderr, "does not take" in ran.stderr) == (2, True, False)


@pytest.mark.parametrize("width", [80, 60])
def test_no_cell_of_a_plan_is_cut_off(width: int, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Cut off, chi2:0.01 and chi2:0.1 read the same, and so do sizes of noise that people copy."""
    outlook = {"epsilon": 0.1, "delta": 1e-4, "total": 0.0006123, "sigma": 0.0009766, "noise_share": 0.07}
    more = {"accuracy": 0.887, "refused": None, "deletions": 15, "noise": 0.0078125}
    outlooks = [SimpleNamespace(distance=name, **outlook, **more) for name in ("chi2:0.01", "chi2:0.1")]
    monkeypatch.setattr(out, "_width", width)
    planned = {"n_forget": 2, "n_source": 6000, "accuracy_before": None, "notes": (), "advice": ()}
    _print_plan(SimpleNamespace(outlooks=outlooks, **planned))
    shown = capsys.readouterr().out
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    if width == 80:
        assert all(text in shown for text in ("chi2:0.01", "0.0009766", "0.0078125", "accuracy", "--noise"))
