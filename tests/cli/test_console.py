"""What every command does with an error: one message, its exit status, no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from expunge.cli import main
from expunge.cli.console import as_json, reporting


@click.command()
@as_json
@reporting
def greedy(json_output: bool) -> None:
    torch.zeros(10**14)


@click.command()
@as_json
@reporting
def broken(json_output: bool) -> None:
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
