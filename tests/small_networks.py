"""A small network that was trained, and examples for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def trained(seed: int = 0) -> nn.Module:
    """One convolutional layer and a linear layer, trained together."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Dropout(), nn.Linear(8, 3)).double().eval()
    inputs, labels = examples(60)
    optimiser = torch.optim.LBFGS(module.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs), labels)
        loss = loss + 0.05 * sum(value.square().sum() for value in module.parameters())
        loss.backward()
        return loss

    optimiser.step(closure)
    return module


def examples(count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    images = torch.randn(count, 1, 3, 3, generator=generator, dtype=torch.float64)
    return images + labels[:, None, None, None], labels


class Small(nn.Module):
    """A torchvision-like classifier: convolution, batch normalisation, dropout, a linear head."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(torch.relu(self.norm(self.conv(x)))).flatten(1))


def images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
