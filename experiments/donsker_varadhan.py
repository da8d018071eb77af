"""Donsker and Varadhan's estimate on the paper's synthetic family, against the closed form.

    python -m experiments.donsker_varadhan [--seeds 5 --jobs 2]

nu = N(0, (1 - zeta) I + zeta 1 1^T), rho = N(0, I), 15,000 rows each, default options. Prints a table, and writes
donsker_varadhan.json and .md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import expunge
from experiments.shared.closed_forms import gaussian_kl
from expunge.estimate import donsker_varadhan

ROWS = 15_000
ZETAS = (0.02, 0.04, 0.06, 0.08, 0.1)
TOLERANCE = {50: (0.2, 0.05), 2: (0.05, 0.01)}  # relative, or absolute


def sample(d: int, zeta: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of nu and of rho."""
    generator = torch.Generator().manual_seed(1000 + seed)

    def normal(columns: int) -> Tensor:
        return torch.randn(ROWS, columns, generator=generator, dtype=torch.float64)

    return math.sqrt(1 - zeta) * normal(d) + math.sqrt(zeta) * normal(1), normal(d)


def measure(d: int, zeta: float, seed: int) -> dict[str, Any]:
    """One estimate beside what is true."""
    nu, rho = sample(d, zeta, seed)
    start = time.perf_counter()
    estimate = donsker_varadhan(nu, rho, seed=seed)
    seconds = time.perf_counter() - start
    known = gaussian_kl(np.zeros(d), (1 - zeta) * np.eye(d) + zeta, np.zeros(d), np.eye(d))
    return {
        "d": d,
        "zeta": zeta,
        "seed": seed,
        "kl": known,
        "raw": estimate.raw,
        "standard_error": estimate.standard_error,
        "ceiling": estimate.ceiling,
        "epochs": estimate.epochs,
        "best_epoch": estimate.best_epoch,
        "saturated": estimate.saturated,
        "seconds": round(seconds, 1),
    }


def table(runs: list[dict[str, Any]]) -> str:
    """Mean over seeds, its spread, and whether it is within the tolerance, one line a distance."""
    lines = ["| d | zeta | KL | mean estimate | sd over seeds | standard error | error | within | seconds |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for d, zeta in sorted({(run["d"], run["zeta"]) for run in runs}):
        chosen = [run for run in runs if (run["d"], run["zeta"]) == (d, zeta)]
        known, values = chosen[0]["kl"], [max(0.0, run["raw"]) for run in chosen]
        mean, error = float(np.mean(values)), float(np.mean([run["standard_error"] for run in chosen]))
        relative, absolute = TOLERANCE[d]
        within = "yes" if abs(mean - known) <= max(relative * known, absolute) else "no"
        seconds = float(np.mean([run["seconds"] for run in chosen]))
        lines.append(
            f"| {d} | {zeta} | {known:.4f} | {mean:.4f} | {float(np.std(values)):.4f} | {error:.4f} | "
            f"{mean / known - 1:+.1%} | {within} | {seconds:.0f} |"
        )
    return "\n".join(lines)


def one(case: tuple[int, int, float]) -> dict[str, Any]:
    torch.set_num_threads(1)
    seed, d, zeta = case
    return measure(d, zeta, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    cases = [(seed, d, zeta) for seed in range(given.seeds) for d in (50, 2) for zeta in ZETAS]
    runs: list[dict[str, Any]] = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for run in pool.map(one, cases):
            runs.append(run)
            print(f"{len(runs)} of {len(cases)}: d {run['d']}, zeta {run['zeta']}, {run['seconds']} s", flush=True)
    versions = {"expunge": expunge.__version__, "torch": torch.__version__, "python": platform.python_version()}
    record = {"rows": ROWS, "seeds": given.seeds, "versions": versions, "cores": os.cpu_count(), "runs": runs}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "donsker_varadhan.json").write_text(json.dumps(record, indent=1) + "\n")
    (given.out / "donsker_varadhan.md").write_text(table(runs) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
