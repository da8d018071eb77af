"""How long `expunge verify` and a desk's status take as processes of their own, and how much memory.

    python benchmarks/startup.py [--repeats 9] [--out results/]

Whoever checks a file should not wait for torch, which none of this needs. The files are made in another process: a
child's peak memory begins with what its parent held, so this one imports nothing large before all is measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CLASSES, FEATURES, ROWS = 10, 64, 2000
STATUS = ("desk status", "status")  # the command's name, and the one it had


def prepare(folder: Path) -> None:
    """A model, its certificate, and a desk that published one model."""
    import numpy as np

    import expunge
    from expunge.desk import Policy, accept, create_desk, run

    generator = np.random.default_rng(0)
    labels = np.arange(ROWS) % CLASSES
    features = np.eye(CLASSES, FEATURES)[labels] + 0.1 * generator.normal(size=(ROWS, FEATURES))
    model = expunge.train(features, labels, l2=0.1, max_norm=1.0)
    surrogate = (features[ROWS // 2 :], labels[ROWS // 2 :])
    budget: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-3, "distance": "same", "force": True}
    result = expunge.unlearn(model, (features[:1], labels[:1]), surrogate, **budget)
    (folder / "model.safetensors").write_bytes(result.model.to_bytes())
    (folder / "statement.json").write_text(result.statement.to_json())
    desk = create_desk(folder / "desk", model, surrogate, Policy(**budget))
    accept(desk, features[:1], labels[:1], "case 1")
    assert len(run(desk).published) == 1


def measured(command: list[str], repeats: int) -> dict[str, Any]:
    """Wall time, processor time and peak memory of a process; the first of several may read the disk: left out."""
    seconds, processor, peaks = [], [], []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "expunge", *command], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds.append(time.perf_counter() - began)
        process.returncode = os.waitstatus_to_exitcode(status)
        processor.append(usage.ru_utime + usage.ru_stime)
        peaks.append(usage.ru_maxrss * 1024 / 1e6)
        if process.returncode != 0:
            raise SystemExit(f"expunge {' '.join(command)} ended with status {process.returncode}")
    counted, worked = seconds[1:] or seconds, processor[1:] or processor
    return {
        "seconds_median": round(statistics.median(counted), 3),
        "seconds_largest": round(max(counted), 3),
        "processor_seconds_median": round(statistics.median(worked), 3),
        "peak_megabytes": round(max(peaks), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare is not None:
        prepare(options.prepare)
        return
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([sys.executable, __file__, "--prepare", made], check=True)
        certificate = ["verify", f"{made}/statement.json", "--model", f"{made}/model.safetensors"]
        grouped = subprocess.run([sys.executable, "-m", "expunge", "desk", "--help"], capture_output=True, check=False)
        name = STATUS[0] if grouped.returncode == 0 else STATUS[1]
        commands = {"verify --model": certificate, name: [*name.split(), f"{made}/desk"]}
        results = {called: measured(command, options.repeats) for called, command in commands.items()}
    write(results, options.repeats, options.out)


def write(results: dict[str, dict[str, Any]], repeats: int, out: Path) -> None:
    from environment import environment, markdown
    from environment import write as write_result

    given = environment()
    columns = ("command", "median s", "largest s", "processor s", "peak MB")
    rows = [(f"`expunge {command}`", *numbers.values()) for command, numbers in results.items()]
    page = markdown(f"Start of a process, {repeats} runs each", columns, rows, given)
    write_result("startup", {"commands": results, "repeats": repeats, "environment": given}, page, out)


if __name__ == "__main__":
    main()
