"""A mixed-linear network with 11 million tangent weights: time and memory of Hessian products, training and unlearning.

    python benchmarks/tangent_on_gpu.py [--rows 1000 --forget 10 --width 64 --device cuda]

The network has the shape of a ResNet-18 (7 x 7 stem, four stages of two blocks, 64 to 512 channels), random weights and
normalisation statistics of one batch; images are random, 3 x 32 x 32. Time and memory of a product do not depend on
either. Products are measured at `rows` and at half as many, so that one sees what grows with the rows. Everything is
float64. Writes JSON beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from expunge.heads.tangent import Tangent
from expunge.networks.tangent import train_tangent, unlearn_tangent


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        alike = before == after and stride == 1
        self.around: nn.Module = (
            nn.Identity()
            if alike
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.inner(inputs) + self.around(inputs))


def residual_network(width: int, classes: int) -> nn.Module:
    """A ResNet-18's shape where `width` is 64."""
    torch.manual_seed(0)
    stages: list[nn.Module] = []
    before = width
    for number in range(4):
        after = width * 2**number
        stages += [Block(before, after, 1 if number == 0 else 2), Block(after, after, 1)]
        before = after
    made = nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(before, classes),
    )
    with torch.no_grad():
        made.train()(torch.randn(256, 3, 32, 32))
    return made.eval()


class Meter:
    """Seconds and peak memory of what is called."""

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")

    def __call__(self, work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        result = work()
        if self.cuda:
            torch.cuda.synchronize()
        cost = {"seconds": round(time.perf_counter() - began, 3)}
        if self.cuda:
            cost["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 3)
        return result, cost


def products(
    network: nn.Module, images: Tensor, labels: Any, l2: float, meter: Meter, options: dict[str, Any]
) -> dict[str, Any]:
    """The pass that measures Jacobians, and one Hessian product."""
    objective = Tangent(network, l2=l2, max_norm=1.0, **options)
    rows, norms = meter(lambda: objective.rows(images, torch.from_numpy(labels)))
    direction = torch.randn(objective.n_parameters, dtype=torch.float64, device=objective.device)
    objective.product(direction, rows[: objective.block])  # warm
    product = meter(lambda: objective.product(direction, rows))[1]
    return {
        "tangent_weights": objective.n_parameters,
        f"jacobian_norms_{len(rows)}": norms,
        f"product_{len(rows)}": product,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("rows", 1000), ("forget", 10), ("width", 64), ("block", 64), ("classes", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--l2", type=float, default=1e-3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    network = residual_network(given.width, given.classes)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2 * given.rows, 3, 32, 32, generator=generator)
    labels = np.arange(2 * given.rows) % given.classes
    source, surrogate = (slice(0, given.rows), slice(given.rows, 2 * given.rows))
    meter, options = Meter(given.device), {"block": given.block, "device": given.device}
    result: dict[str, Any] = {
        "rows": given.rows,
        "forget": given.forget,
        "block": given.block,
        "l2": given.l2,
        "device": torch.cuda.get_device_name() if meter.cuda else f"{os.cpu_count()} cores",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }

    def keep() -> None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "tangent_on_gpu.json").write_text(json.dumps(result, indent=2) + "\n")
        print(json.dumps(result), flush=True)

    for count in (given.rows // 2, given.rows):
        result |= products(network, images[:count], labels[:count], given.l2, meter, options)
        keep()
    model, result["train"] = meter(
        lambda: train_tangent(network, images[source], labels[source], l2=given.l2, max_norm=1.0, **options)
    )
    keep()
    forget = (images[: given.forget], labels[: given.forget])
    unlearned, result["unlearn"] = meter(
        lambda: unlearn_tangent(
            network,
            model,
            forget,
            (images[surrogate], labels[surrogate]),
            epsilon=1.0,
            delta=1.0 / given.rows,
            distance="same",
            force=True,
            **options,
        )
    )
    content = unlearned.certificate.content
    result["certificate"] = {
        "status": content["status"],
        "bound": unlearned.certificate.total,
        "sigma": unlearned.certificate.sigma,
        "conjugate_gradients": content["step"]["inner_iterations"],
    }
    keep()


if __name__ == "__main__":
    main()
