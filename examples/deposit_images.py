"""Image heads with a deposit, with a surrogate, and retrained; and where the truth is.

    python examples/deposit_images.py --data FOLDER [--only mnist] [--l2 1/n] [--share 0.01] [--device cuda] [--seeds 3]

MNIST (50 principal components), CIFAR-10 (ResNet-50 embeddings; the first 36,000 rows, and 4,000 to score on) and
Stanford Dogs (the same, all rows). Half of the rows are the source and the rest stand in for it, so that `same` is
true. Random shares are forgotten; accuracies are means over noise. Of the smallest share several groups are drawn: who
is in it decides how large the region is.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from expunge.bounds.calibration import mu_for
from expunge.deposit.evidence import DepositEvidence
from expunge.deposit.file import Deposit
from expunge.deposit.make import make_deposit, optimum
from expunge.door import ask
from expunge.errors import ExpungeError
from expunge.evidence import foresee
from expunge.heads.rows import in_memory
from expunge.mechanism import measure, weigh
from expunge.request.promise import Execution, Promise
from expunge.request.sets import rows_of
from expunge.runtime.arrays import Array, double, norm, put, size, to_numpy
from expunge.train import train

EPSILONS = (0.1, 1.0)
DRAWS = 5
MOST_TESTED = 4_000  # rows to score on, of the embeddings
CASE = ("task", "l2", "seed", "share")
GROUPS = {0.001: 5}  # of a share; of others one
METHODS = {"same": False, "deposit": True}  # with a deposit; without one the distance is `same`
Labelled = tuple[Any, Any]


@dataclass(frozen=True)
class Task:
    """Rows to train on, rows that stand in for them, rows to score on."""

    name: str
    source: Labelled
    surrogate: Labelled
    test: Labelled
    l2: float
    shares: tuple[float, ...]
    loss: str = "softmax"


def unit(rows: Any) -> Any:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def parted(rows: Labelled, test: Labelled, n: int, seed: int) -> tuple[Labelled, Labelled, Labelled]:
    order = np.random.default_rng([seed, 4]).permutation(len(rows[0]))
    first, second = order[:n], order[n : 2 * n]
    return (rows[0][first], rows[1][first]), (rows[0][second], rows[1][second]), test


def tasks(folder: Path, seed: int, only: str) -> Iterator[Task]:
    if only in "mnist":
        with np.load(folder / "mnist.npz") as file:
            x, y, x_test, y_test = (file[key] for key in ("X", "y", "X_test", "y_test"))
        x, x_test = x.reshape(-1, 784) / 255.0, x_test.reshape(-1, 784) / 255.0
        centre = x.mean(axis=0)
        project = np.linalg.eigh((x - centre).T @ (x - centre))[1][:, ::-1][:, :50]
        parts = parted((unit((x - centre) @ project), y.astype(int)),
                       (unit((x_test - centre) @ project), y_test.astype(int)), 30_000, seed)  # fmt: skip
        for l2 in (1e-3, 1.0 / 30_000):
            yield Task("MNIST, 50 components", *parts, l2, (0.001, 0.01, 0.1))
    for name, file, n, losses, shares in (
        ("CIFAR-10", "cifar10-resnet50-pca512.npz", 18_000, "softmax", (0.001, 0.01, 0.1)),
        ("Stanford Dogs, one-vs-rest", "stanford-dogs-resnet50-pca512.npz", 7_865, "one-vs-rest", (0.001, 0.01)),
        ("Stanford Dogs, 256 components", "stanford-dogs-resnet50-pca512.npz", 7_865, "softmax", (0.001, 0.01)),
    ):
        if only not in name.lower():
            continue
        columns = slice(256 if "256" in name else None)
        with np.load(folder / file) as data:
            rows = unit(data["X"][: 2 * n, columns].astype(np.float64)), data["y"][: 2 * n].astype(int)
            test = (
                unit(data["X_test"][:MOST_TESTED, columns].astype(np.float64)),
                data["y_test"][:MOST_TESTED].astype(int),
            )
        size = min(n, len(rows[0]) // 2)
        parts = parted(rows, test, size, seed)
        for l2 in (1e-3, 1.0 / size):
            yield Task(name, *parts, l2, shares, losses)


def accuracy(weights: Array, test: Labelled) -> float:
    features = put(test[0], weights)
    chosen = to_numpy((features @ double(weights).T).argmax(axis=1))
    return float((chosen == test[1]).mean())


def noised(update: Array, sigma: float, kept: Kept | None, test: Labelled) -> float:
    """Mean accuracy over draws of noise that protects nobody: the same for every scale."""
    draws = (put(each.reshape(update.shape), update) for each in drawn(size(update), kept))
    return float(np.mean([accuracy(update + sigma * each, test) for each in draws]))


@functools.lru_cache(maxsize=2)
def drawn(count: int, kept: Kept | None) -> list[Any]:
    """Noise of scale 1, with the shape that what is retained gives it or without one."""
    generator = np.random.default_rng(1)
    if kept is None:
        return [generator.normal(size=count) for _ in range(DRAWS)]
    return [kept.deposit.ellipsoid.sample(1.0, generator) for _ in range(DRAWS)]


@dataclass(frozen=True, eq=False)
class Kept:
    """A deposit of what is retained, the same as itself alone."""

    deposit: Deposit


@dataclass(frozen=True)
class Group:
    """Rows to forget, and what they are to leave."""

    task: Task
    model: Any
    kept: Deposit
    forget: Labelled
    execution: Execution

    def measured(self, with_deposit: bool, budget: tuple[float, float], seed: int) -> tuple[Any, Any]:
        """A request with a deposit or with a surrogate, and what was measured for it."""
        model, forget, surrogate = self.model, self.forget, self.task.surrogate
        if not with_deposit:
            promise = Promise(*budget, "same", force=True)
            request = ask(model, forget, surrogate, promise, execution=self.execution)
            return request, measure(request, seed=seed)
        promise = Promise(*budget, force=True)
        request = ask(model, forget, None, promise, deposit=self.kept, execution=self.execution)
        return request, weigh(DepositEvidence.gather(request))


def one(
    task: Task, share: float, seed: int, group: int, model: Any, kept: Deposit, execution: Execution
) -> Iterator[dict[str, Any]]:
    n = len(task.source[0])
    m = max(1, round(share * n))
    chosen = np.random.default_rng([seed, 5, group] if group else [seed, 5]).permutation(n)
    forget = task.source[0][chosen[:m]], task.source[1][chosen[:m]]
    stay = task.source[0][chosen[m:]], task.source[1][chosen[m:]]
    record = kept.record
    rows = in_memory(rows_of(stay, kept.model, record, kept.anchor.dtype, execution.place, "the retain set"), "it")
    retrained = optimum(replace(kept.head, l2=0.0), rows, kept.setting, kept.penalty(len(rows)))
    common = {"task": task.name, "l2": task.l2, "share": share, "m": m, "seed": seed, "group": group, "n": n}
    common |= {"before": accuracy(model.matrix(), task.test), "retrained": accuracy(retrained, task.test)}
    group_of, shaped = Group(task, model, kept, forget, execution), None
    for method, with_deposit in METHODS.items():
        for epsilon in EPSILONS:
            began = time.perf_counter()
            row = {**common, "method": method, "epsilon": epsilon}
            try:
                request, measured = group_of.measured(with_deposit, (epsilon, 1.0 / n), seed)
                _, derived = foresee(request, measured)
                update = put(request.weights + measured.step.update, retrained)
                shaped = shaped or (Kept(measured.retained.deposit) if with_deposit else None)
                held, off = (shaped if with_deposit else None), update - retrained
                true = norm(off) if held is None else held.deposit.length(off)
                row |= {"sigma": derived.sigma, "radius": derived.region.radius, "true": true}
                row |= {"accuracy": noised(update, derived.sigma, held, task.test)}
                if held is not None:  # the noise that the region needs, not rounded up to a level
                    exact = derived.sigma * min(1.0, derived.region.radius / (derived.sigma * mu_for(epsilon, 1.0 / n)))
                    row |= {"exact": noised(update, exact, held, task.test)}
                row |= {"status": derived.status} if hasattr(derived, "status") else {}
            except ExpungeError as error:
                row |= {"refused": f"{type(error).__name__}: {error}"[:200]}
            row["seconds"] = time.perf_counter() - began
            yield row


def measured_rows(options: Any, store: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(store.read_text()) if store.exists() else []
    execution = Execution(device=options.device)
    for seed in options.seed or range(options.seeds):
        for task in tasks(options.data, seed, (options.only or "").lower()):
            if options.l2 and (options.l2 == "1e-3") != (task.l2 == 1e-3):
                continue
            rows = Counter((row["task"], row["l2"], row["seed"], row["share"], row.get("group", 0)) for row in found)
            known = {case for case, count in rows.items() if count == len(METHODS) * len(EPSILONS)}
            shares = options.share or task.shares
            wanted = [(share, group) for share in task.shares for group in range(GROUPS.get(share, 1))]
            wanted = sorted((one for one in wanted if one[0] in shares), key=lambda one: one[1])
            wanted = [one for one in wanted if (task.name, task.l2, seed, *one) not in known]
            if not wanted:
                continue
            drawn.cache_clear()  # a deposit may take all of a GPU's memory
            began, kept = time.perf_counter(), None
            model = train(*task.source, l2=task.l2, max_norm=1.0, bias=False, loss=task.loss, device=options.device)
            kept = make_deposit(model, task.source, execution=execution, seed=seed).deposit.on(execution.place)
            print(
                f"{task.name}, l2 {task.l2:.2g}, seed {seed}: deposit {time.perf_counter() - began:.0f} s", flush=True
            )
            for share, group in wanted:
                case = (task.name, task.l2, seed, share, group)
                found = [row for row in found if (*(row[name] for name in CASE), row.get("group", 0)) != case]
                for row in one(task, share, seed, group, model, kept, execution):
                    found.append(row)
                    print(json.dumps(row), flush=True)
                whole = store.with_suffix(".new")
                whole.write_text(json.dumps(found, indent=1) + "\n")
                whole.replace(store)
    return found


def cell(rows: list[dict[str, Any]]) -> str:
    made = [100 * row["accuracy"] for row in rows if "accuracy" in row]
    if not made:
        return "refused" if rows else "not run"
    less = f", {len(rows) - len(made)} refused" if len(made) < len(rows) else ""
    exact = [100 * row["exact"] for row in rows if "exact" in row]
    return f"{np.mean(made):.1f}" + (f" ({np.mean(exact):.1f})" if exact else "") + less


def markdown(found: list[dict[str, Any]]) -> str:
    ratios = [
        row["radius"] / max(row["true"], 1e-300) for row in found if "radius" in row and math.isfinite(row["radius"])
    ]
    lines = [
        "# Image heads with a deposit",
        "",
        "Written by `examples/deposit_images.py`. Test accuracy in percent, delta = 1/n, means over seeds and draws of "
        "noise. MNIST has 30,000 rows to train on, CIFAR-10 18,000 of the first 36,000 (4,000 to score on), Stanford "
        "Dogs 7,865; as many are the surrogate, of which `same` is true. With a deposit the noise is what is "
        "published, one of six levels; in brackets with noise for the region itself, which would tell who left. "
        "`refused`: no finite region, or beyond the last level.",
        "",
        f"{len(ratios)} regions; the retrained weights outside {sum(r < 1 for r in ratios)} of them; smallest radius "
        f"over true distance {min(ratios):.2f}, median {np.median(ratios):.0f}.",
        "",
        "| task | l2 | forgotten | epsilon | before | retrained | surrogate, `same` | deposit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key in dict.fromkeys((row["task"], row["l2"], row["m"], row["epsilon"]) for row in found):
        mine = [row for row in found if (row["task"], row["l2"], row["m"], row["epsilon"]) == key]
        task, l2, m, epsilon = key
        head = [task, f"{l2:.2g}", f"{m:,} ({100 * mine[0]['share']:g} %)", f"{epsilon:g}"]
        head += [f"{100 * np.mean([row[name] for row in mine]):.1f}" for name in ("before", "retrained")]
        cells = [cell([row for row in mine if row["method"] == method]) for method in METHODS]
        lines.append("| " + " | ".join([*head, *cells]) + " |")
    return "\n".join([*lines, *by_group(found)]) + "\n"


def by_group(found: list[dict[str, Any]]) -> list[str]:
    """How much depends on who leaves: lowest, median and highest over groups of the same size."""
    lines = [
        "",
        "Who leaves decides. With a deposit, groups of the same size drawn at random (several a seed): lowest, median, "
        "highest accuracy, and in brackets with noise for the region itself.",
        "",
        "| task | l2 | forgotten | epsilon | groups | lowest | median | highest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    alone = [row for row in found if row["method"] == "deposit" and row["share"] in GROUPS and "accuracy" in row]
    for key in dict.fromkeys((row["task"], row["l2"], row["m"], row["epsilon"]) for row in alone):
        mine = [row for row in alone if (row["task"], row["l2"], row["m"], row["epsilon"]) == key]
        cells = [
            f"{100 * of([row['accuracy'] for row in mine]):.1f} ({100 * of([row['exact'] for row in mine]):.1f})"
            for of in (np.min, np.median, np.max)
        ]
        lines.append(f"| {key[0]} | {key[1]:.2g} | {key[2]:,} | {key[3]:g} | {len(mine)} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the three files")
    parser.add_argument("--only", help="tasks whose name holds this")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, action="append", help="these alone")
    parser.add_argument("--l2", choices=("1e-3", "1/n"), help="this alone")
    parser.add_argument("--share", type=float, action="append", help="these alone")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    options = parser.parse_args()
    found = measured_rows(options, options.out.with_suffix(".json"))
    options.out.write_text(markdown(found))


if __name__ == "__main__":
    main()
