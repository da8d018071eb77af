"""Encoders: one in memory, one as a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from encoders import Trunk, net
from small_networks import Small, images


@pytest.fixture
def small() -> Small:
    torch.manual_seed(0)
    model = Small()
    model(images(50))  # running statistics that are not the first ones
    return model


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "encoder.pt"
    torch.jit.save(torch.jit.trace(Trunk(net()).eval(), torch.zeros(2, 1, 4, 4)), str(path))
    return path
