"""An encoder, examples for it, and the features it should give."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from expunge.networks.encoders import EncoderInputs

RANDOM = np.random.default_rng(3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.drop = nn.Dropout()
        self.fc = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(torch.relu(self.conv(x)).flatten(1)))


class Trunk(nn.Module):
    def __init__(self, net: Net) -> None:
        super().__init__()
        self.conv = net.conv

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x)).flatten(1)


def net() -> Net:
    torch.manual_seed(5)
    return Net()


def examples(count: int = 90) -> EncoderInputs:
    labels = np.arange(count) % 2
    images = RANDOM.integers(0, 100, (count, 1, 4, 4), dtype=np.uint8)
    images[labels == 1, :, :2] += 120
    return EncoderInputs(images, labels, "it")


def wanted(given: EncoderInputs) -> Tensor:
    return Trunk(net())(torch.from_numpy(given.inputs).float() / 255).detach()
