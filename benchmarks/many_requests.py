"""A desk over 1,000 requests, a run after each: time of a request and of a run, and memory, as the desk grows.

    python benchmarks/many_requests.py [--requests 1000] [--minutes 60] [--out results/many_requests.json]

Medians over blocks of a tenth of the requests; `growth` is the last block's over the first's. Everything is in one
process, so that what is measured is the desk and not the start of Python. Seconds of the processor are told beside
those of the clock: on a shared machine these grow and shrink with what else runs. After so many minutes it stops, and
tells of the requests that were done.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from environment import RESULTS, environment

from expunge.desk import Policy, accept, create_desk, run, verify_desk
from expunge.train import train

N_SOURCE, N_SURROGATE = 3000, 3000


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    features = 2.0 * np.eye(3, 4)[labels] + 0.3 * np.random.default_rng(seed).normal(size=(count, 4))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


@dataclass
class Timed:
    """Seconds of the clock and of this process, one each for every time something was done."""

    clock: list[float] = field(default_factory=list)
    process: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def once(self) -> Iterator[None]:
        clock, process = time.perf_counter(), time.process_time()
        yield
        self.clock.append(time.perf_counter() - clock)
        self.process.append(time.process_time() - process)

    def told(self, name: str) -> dict[str, object]:
        """Medians by block, and how they grew."""
        found: dict[str, object] = {}
        for kind, seconds in (("seconds", self.clock), ("processor_seconds", self.process)):
            block = max(1, len(seconds) // 10)
            starts = range(0, len(seconds) - block + 1, block)
            medians = [statistics.median(seconds[start : start + block]) for start in starts]
            found |= {f"{name}_{kind}": medians, f"{name}_{kind}_growth": medians[-1] / medians[0]}
        return found


def measured(folder: Path, count: int, minutes: float) -> dict[str, object]:
    """Seconds of every request and of every run, in blocks."""
    X, y = rows(N_SOURCE, 1)
    policy = Policy(
        epsilon=0.5, delta=1e-3, distance="same", planned=count + 1, total_epsilon=1e6, noise=1e6, force=True
    )
    desk = create_desk(folder / "desk", train(X, y, l2=0.1, max_norm=1.0), rows(N_SURROGATE, 2), policy)
    requests, runs, memory = Timed(), Timed(), []
    until = time.monotonic() + 60.0 * minutes
    for number in range(count):
        with requests.once():
            accept(desk, X[number : number + 1], y[number : number + 1], f"case {number}")
        with runs.once():
            outcome = run(desk)
        assert len(outcome.published) == 1, outcome.refused
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        if time.monotonic() >= until:
            break
    checked = verify_desk(desk)
    done = len(memory)
    assert checked.models == done
    block = max(1, done // 10)
    return {
        "requests": done,
        **requests.told("request"),
        **runs.told("run"),
        "peak_mib": memory[block - 1 :: block],
        "ledger_mib": (folder / "desk" / "ledger.sqlite").stat().st_size / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=RESULTS / "many_requests.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), given.requests, given.minutes)
    found["environment"] = environment()
    text = json.dumps(found, indent=1)
    print(text)
    given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
