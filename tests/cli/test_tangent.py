"""Tangent weights from the command line: trained, unlearned, verified, and refused with another network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from command_line import done, refused, run

NETWORK = "--network tangent_test_networks:pretrained"
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


@pytest.fixture
def trained(folder: Path) -> Any:
    line = f"tangent train --data source.npz {NETWORK} --last 2 --l2 1e-2 --max-norm 1 --out model.safetensors"
    return done(f"{line} --json --quiet")


def test_the_whole_way(trained: Any) -> None:
    assert trained["parameters"] == ["3.weight", "3.bias"]
    assert trained["record"]["n_source"] == 200
    asked = "tangent unlearn --model model.safetensors --forget forget.npz --surrogate surrogate.npz --epsilon 50 --delta 1e-3"
    found = done(f"{asked} {NETWORK} --distance same --force --out result --json --quiet")
    assert found["statement"]["status"] == "conditional"
    assert found["statement"]["sizes"]["parameters"] == 27
    done("verify result/statement.json --model result/model.safetensors --json")
    assert "model.sha256" in run("verify result/statement.json --model model.safetensors --json").stdout
    other = f"{asked} --network tangent_test_networks:other --distance same --force --out elsewhere"
    refused(other, "not the one the tangent weights were trained on")
    assert not Path("elsewhere").exists()


def test_with_a_deposit(trained: Any) -> None:
    keep = f"tangent deposit --model model.safetensors --data source.npz {NETWORK} --quiet"
    made = done(f"{keep} --out model.deposit --json")
    assert (made["n_rows"], Path("model.deposit").stat().st_mode & 0o777) == (200, 0o600)
    text = " ".join(done(f"{keep} --out other.deposit").split())
    assert "200 rows, 27 tangent weights, 3 classes" in text
    assert "before a point of accuracy" in text
    assert done("member --deposit model.deposit --rows forget.npz --json")["members"] == 3
    assert run("member --deposit model.deposit --rows surrogate.npz --json").exit_code == 1
    asked = f"tangent unlearn --model model.safetensors --forget forget.npz --epsilon 0.01 --delta 1e-6 {NETWORK}"
    found = done(f"{asked} --deposit model.deposit --out result --json --quiet")
    assert found["statement"]["status"] == "conditional"
    assert found["destroy"] == "model.deposit"
    files = "result/statement.json --model result/model.safetensors --dossier result/private/dossier.json"
    assert done(f"verify {files} --deposit model.deposit --deposit-after result/private/model.deposit --json")[
        "deposits_checked"
    ]
    plain = "unlearn --model model.safetensors --deposit model.deposit --forget forget.npz --epsilon 1 --delta 1e-3"
    refused(f"{asked} --deposit model.deposit --distance same --out x", "with a deposit")
    refused(f"{asked} --out x", "without a deposit both are needed")
    refused(f"{plain} --out x", "weight")
    assert not Path("x").exists()


def test_a_network_that_is_none(folder: Path) -> None:
    networks = {"nowhere:net": "cannot be used", "nothing": "module:function", "json:loads": "cannot be used"}
    for network, said in networks.items():
        line = f"tangent train --data source.npz --network {network} --l2 1 --max-norm 1 --out model.safetensors"
        refused(line, said)
    assert not (folder / "model.safetensors").exists()
