"""A ledger of 100,000 entries: how long status, verification and recovery after a crash take.

    python benchmarks/ledger_at_scale.py [--entries 100000] [--out results/ledger_at_scale.json]

Entries are written without waiting for the disk, as no desk would, because only reading them is measured; they are real
ones otherwise (accepted, started, prepared, published), and the published models of the last requests exist.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from expunge.desk import Desk, Policy, accept, create_desk, open_desk, requests, run, status, verify_desk
from expunge.desk.ledger import Ledger, RequestAccepted, RequestWithdrawn, write_seal
from expunge.train import train

PENDING = 1000


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    features = 2.0 * np.eye(3, 4)[labels] + 0.3 * np.random.default_rng(seed).normal(size=(count, 4))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


def fill(desk: Desk, entries: int) -> None:
    """Requests until there are so many entries; the last ones pending, the others withdrawn."""
    with Ledger.open(desk.layout.ledger) as ledger:
        ledger.connection.execute("PRAGMA synchronous = OFF")  # only reading them is measured
        size, number = ledger.head().size, ledger.next_request()
        while size < entries:
            digest, file_mac = os.urandom(32).hex(), os.urandom(32).hex()
            ledger.append(RequestAccepted(number, f"case {number}", "2030-01-01", 1, (digest,), file_mac, {}, 0, None))
            size += 1
            if size < entries - PENDING:
                ledger.append(RequestWithdrawn(number, "filling"))
                size += 1
            number += 1
        write_seal(desk.layout, ledger)


def seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def recovery(folder: Path) -> float:
    """A run killed between staging and publishing its files; how long the next command takes to put that right.

    In a process of its own, started anew: one that is forked would wait for threads it does not have.
    """
    process = multiprocessing.get_context("spawn").Process(target=_killed, args=(folder,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    return seconds(lambda: _enter(open_desk(folder)))


def _killed(folder: Path) -> None:
    from expunge.desk import desk

    desk.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    run(open_desk(folder))


def _enter(desk: Desk) -> None:
    with desk.writing():
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "ledger_at_scale.json")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        source = rows(300_000, 1)
        policy = Policy(epsilon=0.5, delta=1e-6, distance="same", force=True)
        desk = create_desk(folder / "desk", train(*source, l2=0.1, max_norm=1.0), rows(400, 2), policy)
        accept(desk, source[0][:1], source[1][:1], "first")
        run(desk)
        accept(desk, source[0][1:2], source[1][1:2], "second")
        fill(desk, options.entries)
        killed = recovery(folder / "desk")
        opened = open_desk(folder / "desk")
        command = [sys.executable, "-m", "expunge", "desk", "status", str(folder / "desk"), "--json"]
        result = {
            "entries": verify_desk(opened).head.size,
            "file_bytes": opened.layout.ledger.stat().st_size,
            "recovery_after_a_kill_s": killed,
            "status_s": seconds(lambda: status(opened)),
            "status_with_pending_list_s": seconds(lambda: (status(opened), requests(opened, "pending", limit=20))),
            "status_command_s": seconds(lambda: subprocess.run(command, check=True, capture_output=True)),
            "verify_s": seconds(lambda: verify_desk(opened)),
            "request_s": seconds(lambda: accept(opened, source[0][2:3], source[1][2:3], "one more")),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
        }
    finally:
        shutil.rmtree(folder)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
