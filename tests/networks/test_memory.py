"""Peak memory of a mixed-linear run, from training to certificate, does not grow with the number of rows."""

from __future__ import annotations

import subprocess
import sys

import pytest

RUN = """
import sys
import numpy as np
import torch
from torch import nn
from expunge.distance import Distance
from expunge.networks.tangent import train_tangent, unlearn_tangent

rows = int(sys.argv[1])
torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(16, 4),
)
inputs, labels = torch.randn(2 * rows, 3, 16, 16), np.arange(2 * rows) % 4
model = train_tangent(network, inputs[:rows], labels[:rows], l2=1.0, max_norm=1.0, block=64)
forget, near = (inputs[:5], labels[:5]), Distance("tv", 0.01, between="samples")  # which needs no Lanczos: that takes long
unlearn_tangent(network, model, forget, (inputs[rows:], labels[rows:]), epsilon=1.0, delta=1e-3, distance=near, force=True)
with open("/proc/self/status") as file:
    print(next(line.split()[1] for line in file if line.startswith("VmHWM")))
"""
FEW, MANY = 500, 4000
FACTOR = 1.15


def peak(rows: int) -> float:
    """Kilobytes, less the inputs themselves, which the caller holds."""
    done = subprocess.run([sys.executable, "-c", RUN, str(rows)], capture_output=True, text=True, check=True)
    return int(done.stdout) - 2 * rows * 3 * 16 * 16 * 4 / 1024


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_peak_memory_does_not_grow_with_the_rows() -> None:
    few, many = peak(FEW), peak(MANY)
    assert many <= FACTOR * few, f"{few / 1024:.0f} MB with {FEW} rows, {many / 1024:.0f} MB with {MANY}"
