"""Langevin sampling of a linear head: all chains at once, against one chain after another with autograd, in one run.

    python benchmarks/langevin.py [--chains 1000 --steps 4000 --features 512 --classes 10 --device cpu]

The naive form is measured on a part (some chains, some steps) and scaled; the result says so. The bound to compare with
is the draw of the normal noise alone, which no sampler can do without. Writes JSON beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path

import torch

from expunge.estimate import LinearEnergy, langevin


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def at_once(energy: LinearEnergy, start: torch.Tensor, steps: int, step: float, device: str) -> float:
    began = time.perf_counter()
    langevin(energy, start, n_steps=steps, step=step, radius=1.0)
    synchronise(device)
    return time.perf_counter() - began


def one_by_one(weight: torch.Tensor, start: torch.Tensor, steps: int, step: float) -> float:
    """What a reader of the paper would write: a loop over chains, autograd for the gradient."""
    began = time.perf_counter()
    for row in start:
        point = row.clone()
        for _ in range(steps):
            point.requires_grad_(True)
            value = torch.logsumexp(weight @ point, dim=0)
            (force,) = torch.autograd.grad(value, point)
            with torch.no_grad():
                point = point + 0.5 * step * force + step**0.5 * torch.randn_like(point)
                norm = point.norm()
                if norm > 1.0:
                    point = point * ((2.0 - norm).clamp(min=0.0) / norm)
    return time.perf_counter() - began


def noise_alone(start: torch.Tensor, steps: int, device: str) -> float:
    noise = torch.empty_like(start)
    began = time.perf_counter()
    for _ in range(steps):
        noise.normal_()
    synchronise(device)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("chains", 1000), ("steps", 4000), ("features", 512), ("classes", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    torch.manual_seed(0)
    weight = torch.randn(given.classes, given.features, device=given.device)
    start = torch.randn(given.chains, given.features, device=given.device)
    start /= start.norm(dim=1, keepdim=True)
    step = 0.02 / (given.features + 2)
    at_once(LinearEnergy(weight), start, 40, step, given.device)  # warm
    ours = at_once(LinearEnergy(weight), start, given.steps, step, given.device)
    noise = noise_alone(start, given.steps, given.device)
    part_chains, part_steps = 2, 1000
    part = one_by_one(weight, start[:part_chains], part_steps, step)
    naive = part * given.chains / part_chains * given.steps / part_steps
    result = {
        "chains": given.chains,
        "steps": given.steps,
        "features": given.features,
        "classes": given.classes,
        "device": torch.cuda.get_device_name() if given.device.startswith("cuda") else f"{os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "seconds_all_chains_at_once": round(ours, 3),
        "seconds_noise_alone": round(noise, 3),
        "seconds_one_chain_after_another": round(naive, 1),
        "scaled_from": f"{part_chains} chains of {part_steps} steps, {part:.2f} s",
        "times_faster": round(naive / ours, 1),
    }
    print(json.dumps(result, indent=2))
    given.out.mkdir(parents=True, exist_ok=True)
    name = "langevin-cuda.json" if given.device.startswith("cuda") else "langevin.json"
    (given.out / name).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
