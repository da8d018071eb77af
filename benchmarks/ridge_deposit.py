"""A ridge head of ImageNet's size: its deposit, and deletions from it, on one device.

    python benchmarks/ridge_deposit.py --device cuda
    python benchmarks/ridge_deposit.py --rows 20000 --features 64 --classes 10 --forget 20 200  # small

1,281,167 x 2,048 rows, 1,000 classes, two million weights; the Gram matrix is of 2,048 x 2,048. Rows are those of
`imagenet_head.py`, made on the device. Timed: the deposit and its stages, then for each number of rows a deletion
(rows looked up, step, region, noise, certificate, files) and its stages, beside least squares on the retained rows,
solved anew, which must lie in the region. Results are written after each of them.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from environment import RESULTS, environment, markdown, synchronise, write
from imagenet_head import CHUNK, basis, made_up

from deposit import Clock
from expunge.deposit.file import Deposit
from expunge.deposit.make import make_deposit
from expunge.door import ask
from expunge.mechanism import certify, measure
from expunge.model import from_matrix
from expunge.request.promise import Declared, Execution, Promise
from expunge.runtime.arrays import put

EPSILON = 0.01
STAGES = {"Newton": "anchor", "Hessian": "anchor", "Sums": "sums and shape", "Rehearsals": "rehearsal", "Row": "hashes"}
Labelled = tuple[torch.Tensor, torch.Tensor]


def least_squares(rows: Labelled, classes: int, l2: float) -> torch.Tensor:
    """Weights of a ridge head, K x d, from the rows themselves."""
    (features, labels), width = rows, rows[0].shape[1]
    gram = torch.zeros((width, width), dtype=torch.float64, device=features.device)
    right = torch.zeros((width, classes), dtype=torch.float64, device=features.device)
    for start in range(0, len(features), CHUNK):
        part = features[start : start + CHUNK].double()
        targets = torch.nn.functional.one_hot(labels[start : start + CHUNK], classes).double() * 2.0 - 1.0
        gram.addmm_(part.T, part)
        right.addmm_(part.T, targets)
    gram.diagonal().add_(l2 * len(features))
    return torch.linalg.solve(gram, right).T


def kept(rows: Labelled, given: argparse.Namespace) -> tuple[Deposit, Clock]:
    """The deposit, from weights that are zero: the anchor is reached in one step."""
    zero = np.zeros((given.classes, given.features))
    clock = Clock(given.device)

    def told(stage: str, *_: Any) -> None:
        clock.now(STAGES.get(stage.split(maxsplit=1)[0], "rows checked"))

    told("rows checked")
    declared = Declared(l2=given.l2, loss="ridge", max_norm=1.0, classes=tuple(range(given.classes)))
    execution = Execution(device=given.device, progress=told)
    made = make_deposit(from_matrix(zero, bias=False, dtype="float64"), rows, declared=declared, execution=execution)
    clock.now("")
    return made.deposit.on(execution.place), clock


def deletion(before: Deposit, rows: Labelled, m: int, given: argparse.Namespace) -> dict[str, Any]:
    """Of the first m rows, to files that are then removed; and how far retraining is, over the radius."""
    clock, forget = Clock(given.device), (rows[0][:m], rows[1][:m])
    clock.now("rows looked up")
    asked = ask(
        None,
        forget,
        None,
        Promise(EPSILON, 1.0 / given.rows, force=True),
        deposit=before,
        execution=Execution(device=given.device),
    )
    clock.now("step and region")
    found = measure(asked)
    clock.now("noise and certificate")
    result = certify(asked, found)
    clock.now("result written")
    folder = Path(tempfile.mkdtemp())
    result.save(folder / "result")
    clock.now("")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    shutil.rmtree(folder)
    synchronise(given.device)
    began = time.perf_counter()
    goal = least_squares((rows[0][m:], rows[1][m:]), given.classes, given.l2)
    synchronise(given.device)
    retraining = time.perf_counter() - began
    updated = put(before.anchor + found.step.update, goal)
    left = found.retained.deposit
    away = left.length(put(goal - updated, found.step.update)) / result.certificate.total
    if not away <= 1.0:
        raise SystemExit(f"the retrained weights are {away:.3g} radii away: the bound is wrong")
    outputs = left.output_noise * result.certificate.content["sigma"] / left.output_spread
    return {
        "forget": m,
        "status": result.certificate.status,
        **clock.seconds,
        "stages": clock.wall,
        "retraining_seconds": retraining,
        "away_over_radius": away,
        "weights_apart": float((goal - updated).abs().max()),
        "radius": result.certificate.total,
        "noise_over_outputs": outputs,
        "bytes_written": size,
    }


def lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The table."""
    task, making = result["task"], result["making"]
    told = [
        ("rows x features, classes", f"{task['rows']:,} x {task['features']:,}, {task['classes']:,}"),
        ("deposit, from rows on the device", f"{making['seconds']:.1f} s, {making['bytes'] / 1e6:,.0f} MB"),
        *((f"deposit: {name}", f"{value:.2f} s") for name, value in making["stages"].items()),
    ]
    for one in result["deletions"]:
        told += [
            (f"deletion of {one['forget']:,}, request to files", f"{one['seconds']:.2f} s, {one['status']}"),
            *((f"deletion of {one['forget']:,}: {name}", f"{value:.2f} s") for name, value in one["stages"].items()),
            (f"least squares without these {one['forget']:,}, anew", f"{one['retraining_seconds']:.2f} s"),
            ("its weights from those of the deposit, at most", f"{one['weights_apart']:.2g}"),
            ("and over the region's radius", f"{one['away_over_radius']:.2g}"),
            (f"noise on an output at epsilon {EPSILON:g}, of its size", f"{one['noise_over_outputs']:.2g}"),
        ]
    if "peak_device_bytes" in result:
        told.append(("peak device memory", f"{result['peak_device_bytes'] / 1e9:.1f} GB"))
    return told


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_281_167)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--forget", type=int, nargs="*", default=[1281, 128_117])
    parser.add_argument("--l2", type=float, default=1e-4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    name = "ridge_deposit" if given.device.startswith("cuda") else "ridge_deposit-small"
    spectrum = torch.arange(1, given.features + 1, dtype=torch.float64, device=given.device) ** -1.0
    rows = made_up(given.rows, given.classes, spectrum, basis(given.features, given.device), 8.0, 1)
    rows = rows[0].mul_(1.0 - 1e-6).float(), rows[1]  # none is longer than 1 once it is rounded, and scaled
    print("rows made", flush=True)
    deposit, clock = kept(rows, given)
    result: dict[str, Any] = {
        "task": {key: value for key, value in vars(given).items() if key != "out"},
        "environment": environment(given.device),
        "making": clock.seconds | {"stages": clock.wall, "bytes": len(deposit.to_bytes())},
        "deletions": [],
    }
    print(result["making"], flush=True)
    for m in given.forget:
        result["deletions"].append(deletion(deposit, rows, m, given))
        if given.device.startswith("cuda"):
            result["peak_device_bytes"] = torch.cuda.max_memory_allocated()
        page = markdown("A ridge head with a deposit", ("", "measured"), lines(result), result["environment"])
        write(name, result, page, given.out)


if __name__ == "__main__":
    main()
