"""What a timing depends on, and how results are written: JSON, and a Markdown table beside it."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from expunge import __version__
from expunge.runtime.arrays import Array, on_cpu, to_numpy

RESULTS = Path(__file__).parent / "results"


def environment(device: str = "cpu") -> dict[str, Any]:
    """Machine and versions."""
    machine: dict[str, Any] = {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "expunge": __version__,
    }
    return machine | ({"device": torch.cuda.get_device_name()} if device.startswith("cuda") else {})


def as_computed(drawn: torch.Tensor) -> Array:
    """What was drawn, as the engine that computes there has it: on the processor an array of numpy."""
    return to_numpy(drawn) if on_cpu(drawn.device) else drawn


def synchronise(device: str = "cpu") -> None:
    """Wait for the device; its work is started, not done, when a call returns."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def seconds(work: Callable[[], Any], repeats: int = 1, warm: int = 0, device: str = "cpu") -> float:
    """Shortest wall time of a call: what else runs on the machine can only add to it."""
    times = []
    for _ in range(repeats + warm):
        synchronise(device)
        began = time.perf_counter()
        work()
        synchronise(device)
        times.append(time.perf_counter() - began)
    return min(times[warm:])


def markdown(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], given: dict[str, Any]) -> str:
    """A page with one table and the environment below it."""
    lines = [f"# {title}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join([*lines, "", ", ".join(f"{name} {value}" for name, value in given.items()), ""])


def write(name: str, result: dict[str, Any], page: str | None = None, out: Path = RESULTS) -> None:
    """`name.json` and, where there is a page, `name.md`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    if page is not None:
        (out / f"{name}.md").write_text(page)
        print(page, flush=True)
