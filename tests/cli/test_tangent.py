"""Tangent weights from the command line: trained, unlearned, verified, and refused with another network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from sklearn.datasets import load_digits

from expunge.cli import main

NETWORKS = """
import torch
from torch import nn

def made(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))

def pretrained():
    return made(0)

def other():
    return made(1)
"""


def run(line: str) -> Result:
    return CliRunner().invoke(main, line.split())


def done(line: str) -> Any:
    result = run(f"{line} --json --quiet")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tangent_test_networks.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tangent_test_networks", raising=False)
    pixels, labels = load_digits(return_X_y=True)
    kept = labels < 3
    images, labels = (pixels[kept] * 15).astype(np.uint8).reshape(-1, 1, 8, 8), labels[kept]
    for name, part in (("source", slice(0, 200)), ("forget", slice(0, 3)), ("surrogate", slice(200, 400))):
        np.savez(f"{name}.npz", X=images[part], y=labels[part])
    return tmp_path


def test_the_whole_way(folder: Path) -> None:
    network = "--network tangent_test_networks:pretrained"
    trained = done(f"tangent train --data source.npz {network} --last 2 --l2 1e-2 --max-norm 1 --out model.safetensors")
    assert trained["parameters"] == ["3.weight", "3.bias"]
    assert trained["record"]["n_source"] == 200
    asked = "tangent unlearn --model model.safetensors --forget forget.npz --surrogate surrogate.npz --epsilon 50 --delta 1e-3"
    found = done(f"{asked} {network} --distance same --force --out result")
    assert found["statement"]["status"] == "conditional"
    assert found["statement"]["sizes"]["parameters"] == 27
    verified = run("verify result/statement.json --model result/model.safetensors --json")
    assert verified.exit_code == 0, verified.output
    wrong = run("verify result/statement.json --model model.safetensors --json")
    assert wrong.exit_code == 1
    assert "model.sha256" in wrong.output
    refused = run(f"{asked} --network tangent_test_networks:other --distance same --force --out elsewhere")
    assert refused.exit_code == 2
    assert "not the one the tangent weights were trained on" in refused.output
    assert not (folder / "elsewhere").exists()


def test_with_a_deposit(folder: Path) -> None:
    network = "--network tangent_test_networks:pretrained"
    done(f"tangent train --data source.npz {network} --last 2 --l2 1e-2 --max-norm 1 --out model.safetensors")
    keep = f"tangent deposit --model model.safetensors --data source.npz {network}"
    made = done(f"{keep} --out model.deposit")
    assert (made["n_rows"], (folder / "model.deposit").stat().st_mode & 0o777) == (200, 0o600)
    text = " ".join(run(f"{keep} --out other.deposit --quiet").stdout.split())
    assert "200 rows, 27 tangent weights, 3 classes" in text
    assert "before a point of accuracy" in text
    member = run("member --deposit model.deposit --rows forget.npz --json")
    assert json.loads(member.stdout)["members"] == 3
    assert run("member --deposit model.deposit --rows surrogate.npz --json").exit_code == 1
    asked = f"tangent unlearn --model model.safetensors --forget forget.npz --epsilon 0.01 --delta 1e-6 {network}"
    found = done(f"{asked} --deposit model.deposit --out result")
    assert found["statement"]["status"] == "conditional"
    assert found["destroy"] == "model.deposit"
    files = "result/statement.json --model result/model.safetensors --dossier result/private/dossier.json"
    verified = run(f"verify {files} --deposit model.deposit --deposit-after result/private/model.deposit --json")
    assert verified.exit_code == 0, verified.output
    assert json.loads(verified.stdout)["deposits_checked"]
    for line, said in (
        (f"{asked} --deposit model.deposit --distance same --out x", "with a deposit"),
        (f"{asked} --out x", "without a deposit both are needed"),
        (
            "unlearn --model model.safetensors --deposit model.deposit --forget forget.npz --epsilon 1 --delta 1e-3 "
            "--out x",
            "weight",
        ),
    ):
        refused = run(line)
        assert refused.exit_code == 2
        assert said in refused.output
        assert not (folder / "x").exists()


@pytest.mark.parametrize(
    ("network", "said"),
    [("nowhere:net", "cannot be used"), ("nothing", "module:function"), ("json:loads", "cannot be used")],
)
def test_a_network_that_is_none(folder: Path, network: str, said: str) -> None:
    found = run(f"tangent train --data source.npz --network {network} --l2 1 --max-norm 1 --out model.safetensors")
    assert found.exit_code == 2
    assert said in " ".join(found.output.split())
    assert not (folder / "model.safetensors").exists()
