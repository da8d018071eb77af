"""A desk over 1,000 requests, a run after each: time of a request and of a run, and memory, as the desk grows.

    python benchmarks/many_requests.py [--requests 1000] [--out results/many_requests.json]

Medians over blocks of a tenth of the requests; `growth` is the last block's over the first's. Everything is in one
process, so that what is measured is the desk and not the start of Python.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from expunge.desk import Policy, accept, create_desk, run, verify_desk
from expunge.train import train

N_SOURCE, N_SURROGATE = 3000, 3000


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    features = 2.0 * np.eye(3, 4)[labels] + 0.3 * np.random.default_rng(seed).normal(size=(count, 4))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


def measured(folder: Path, count: int) -> dict[str, object]:
    """Seconds of every request and of every run, in blocks."""
    X, y = rows(N_SOURCE, 1)
    policy = Policy(
        epsilon=0.5, delta=1e-3, distance="same", planned=count + 1, total_epsilon=1e6, noise=1e6, force=True
    )
    desk = create_desk(folder / "desk", train(X, y, l2=0.1, max_norm=1.0), rows(N_SURROGATE, 2), policy)
    requests, runs, memory = [], [], []
    for number in range(count):
        started = time.perf_counter()
        accept(desk, X[number : number + 1], y[number : number + 1], f"case {number}")
        asked = time.perf_counter()
        outcome = run(desk)
        assert len(outcome.published) == 1, outcome.refused
        runs.append(time.perf_counter() - asked)
        requests.append(asked - started)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    verify_desk(desk)
    block = max(1, count // 10)

    def medians(seconds: list[float]) -> list[float]:
        return [statistics.median(seconds[start : start + block]) for start in range(0, count - block + 1, block)]

    return {
        "requests": count,
        "request_seconds": medians(requests),
        "run_seconds": medians(runs),
        "request_growth": medians(requests)[-1] / medians(requests)[0],
        "run_growth": medians(runs)[-1] / medians(runs)[0],
        "peak_mib": memory[block - 1 :: block],
        "ledger_mib": (folder / "desk" / "ledger.sqlite").stat().st_size / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), given.requests)
    found["environment"] = {"python": platform.python_version(), "machine": platform.machine()}
    text = json.dumps(found, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
