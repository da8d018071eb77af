"""The public network of the CIFAR-10 experiments: small, residual, trained on images that play the public data.

Only this recipe is shipped, never the weights. Of the 50,000 training images `public` are drawn at random for
pretraining; source, surrogate and forget set are made of the others, so the network was not trained on any image it is
later asked to forget.

    `trunk`  3 -> c -> 2c (16 x 16), residual 2c, -> 4c (8 x 8), residual 4c, -> 4c (4 x 4): frozen, passed through once
    `last`   -> 4c (4 x 4), mean over positions: the last convolution
    `head`   linear: for pretraining, thrown away afterwards
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.datasets.folder import DataFolder, DataSet
from experiments.datasets.splits import random_split
from expunge.runtime.progress import Progress

N_CLASSES = 10
PADDING = 4  # pixels around an image before it is cropped at random, as is usual for CIFAR-10
PASS = 2048  # images at a time where nothing is trained


@dataclass(frozen=True)
class Public:
    """The trained parts, in evaluation mode, and which images were not used for them."""

    trunk: nn.Sequential
    last: nn.Sequential
    head: nn.Linear
    mean: Tensor
    std: Tensor
    private: NDArray[np.int64]
    accuracy: float

    def maps(self, images: NDArray[Any]) -> Tensor:
        """What the trunk gives for bytes: rows x 4c x 4 x 4, float32, on the trunk's device."""
        with torch.no_grad():
            parts = [self.trunk(self._scaled(images[at : at + PASS])) for at in range(0, len(images), PASS)]
        return torch.cat(parts)

    def _scaled(self, images: NDArray[Any]) -> Tensor:
        return (torch.from_numpy(images).to(self.mean.device).float() / 255 - self.mean) / self.std


class Residual(nn.Module):
    """`x + inner(x)`."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = inputs + self.inner(inputs)
        return outputs


def layer(before: int, after: int, *, pool: bool = False) -> nn.Sequential:
    """Convolution of 3 x 3, batch normalisation, ReLU; with `pool` half as high and wide."""
    parts: list[nn.Module] = [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*parts, *([nn.MaxPool2d(2)] if pool else []))


def network(width: int) -> tuple[nn.Sequential, nn.Sequential, nn.Linear]:
    """Trunk, last convolution and head, with fresh weights."""
    trunk = nn.Sequential(
        layer(3, width),
        layer(width, 2 * width, pool=True),
        Residual(nn.Sequential(layer(2 * width, 2 * width), layer(2 * width, 2 * width))),
        layer(2 * width, 4 * width, pool=True),
        Residual(nn.Sequential(layer(4 * width, 4 * width), layer(4 * width, 4 * width))),
        layer(4 * width, 4 * width, pool=True),
    )
    last = nn.Sequential(*layer(4 * width, 4 * width), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return trunk, last, nn.Linear(4 * width, N_CLASSES)


def pretrained(
    recipe: Mapping[str, Any], seed: int, data: DataFolder, device: str, progress: Progress
) -> tuple[Public, DataSet]:
    """The network for one seed. Cases of one seed that follow each other train it once."""
    key = (tuple(sorted(recipe.items())), seed, data.folder, device)
    if key not in _LATEST:
        _LATEST.clear()
        _LATEST[key] = _pretrained(recipe, seed, data, device, progress)
    return _LATEST[key]


_LATEST: dict[Any, tuple[Public, DataSet]] = {}  # a pure function of its key, kept because it takes long


def _pretrained(
    recipe: Mapping[str, Any], seed: int, data: DataFolder, device: str, progress: Progress
) -> tuple[Public, DataSet]:
    images = data.load("cifar10-images")
    private, public = random_split(
        len(images.y), recipe["images"] / len(images.y), np.random.default_rng([seed, recipe["images"]])
    )
    inputs = torch.from_numpy(images.X[public]).to(device).float() / 255
    labels = torch.from_numpy(images.y[public]).to(device)
    mean, std = inputs.mean(dim=(0, 2, 3), keepdim=True), inputs.std(dim=(0, 2, 3), keepdim=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trunk, last, head = network(recipe["width"])
    whole = nn.Sequential(trunk, last, head).to(device)
    with the_same_every_time():
        train(whole, (inputs - mean) / std, labels, recipe, seed, progress)
    whole.eval().requires_grad_(False)
    made = Public(trunk, last, head, mean, std, np.sort(private), 0.0)
    outputs = head(torch.cat([last(part) for part in torch.split(made.maps(images.X_test), PASS)]))
    accuracy = float((outputs.argmax(dim=1).cpu().numpy() == images.y_test).mean())
    return Public(trunk, last, head, mean, std, np.sort(private), accuracy), images


@contextlib.contextmanager
def the_same_every_time() -> Iterator[None]:
    """On a GPU, sums in one order: processes that each train the network of a seed have the same one."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


def train(
    module: nn.Module, inputs: Tensor, labels: Tensor, recipe: Mapping[str, Any], seed: int, progress: Progress
) -> None:
    """Nesterov's momentum, one cycle of the learning rate, images cropped and mirrored at random."""
    generator = torch.Generator().manual_seed(seed)
    epochs, batch = recipe["epochs"], recipe["batch"]
    steps = max(1, len(inputs) // batch)
    optimiser = torch.optim.SGD(
        module.parameters(),
        lr=recipe["learning_rate"],
        momentum=0.9,
        nesterov=True,
        weight_decay=recipe["weight_decay"],
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, recipe["learning_rate"], total_steps=epochs * steps, pct_start=0.25
    )
    module.train()
    for epoch in range(epochs):
        progress("Pretraining", epoch, epochs)
        order = torch.randperm(len(inputs), generator=generator)
        for step in range(steps):
            chosen = order[step * batch : (step + 1) * batch].to(inputs.device)
            outputs = module(moved(inputs[chosen], generator))
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(nn.functional.cross_entropy(outputs, labels[chosen], label_smoothing=0.1))
            optimiser.step()
            schedule.step()


def moved(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image shifted by up to four pixels each way and mirrored by the toss of a coin."""
    rows, _, height, width = images.shape
    shifts = torch.randint(0, 2 * PADDING + 1, (2, rows), generator=generator).to(images.device)
    mirrored = (torch.rand(rows, generator=generator) < 0.5).to(images.device)
    padded = nn.functional.pad(images, [PADDING] * 4)
    down = shifts[0][:, None] + torch.arange(height, device=images.device)
    across = torch.arange(width, device=images.device).expand(rows, width)
    across = shifts[1][:, None] + torch.where(mirrored[:, None], width - 1 - across, across)
    place = torch.arange(rows, device=images.device)[:, None, None]
    return padded[place, :, down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2)
