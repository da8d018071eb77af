"""Accuracy, bound and true distance on real data: MNIST 3 v 8, CIFAR-10 and Stanford Dogs embeddings.

    python examples/real_data.py --data FOLDER [--out examples/real_data.md] [--beside examples/real_data_seen.json]

One half of each training set is the source, the other half the surrogate, so `same` is true by construction; `chi2`
shows what declaring a distance costs. The retrained weights, which only an experiment has, give the true distance.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from expunge import LinearModel, __version__, parse_distance, train
from expunge.door import ask
from expunge.evidence import foresee
from expunge.heads import Rows, head_for
from expunge.mechanism import certify, measure
from expunge.request.promise import Promise
from expunge.runtime.arrays import norm
from expunge.train import minimise

Array = np.ndarray[Any, Any]
EPSILONS = (0.1, 0.5, 1.0, 5.0)


@dataclass(frozen=True)
class Task:
    """Source, surrogate and test rows, unit norm."""

    name: str
    l2: float
    source: tuple[Array, Array]
    surrogate: tuple[Array, Array]
    test: tuple[Array, Array]
    removals: tuple[int, ...]
    chi2: float


def unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def halves(
    name: str, l2: float, features: Array, labels: Array, test: tuple[Array, Array], removals: Any, chi2: float
) -> Task:
    order = np.random.default_rng(0).permutation(len(features))
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    removals = tuple(sorted({max(1, round(r * len(first)) if r < 1 else int(r)) for r in removals}))
    return Task(name, l2, (features[first], labels[first]), (features[second], labels[second]), test, removals, chi2)


def mnist(folder: Path, digits: tuple[int, ...], l2: float, removals: Any, chi2: float, name: str) -> Task:
    """Chosen digits, 50 principal components of the training rows, unit norm."""
    with np.load(folder / "mnist.npz") as file:
        parts = [(file["X"], file["y"]), (file["X_test"], file["y_test"])]
    (x, y), (x_test, y_test) = [
        (images[np.isin(labels, digits)].reshape(-1, 784) / 255.0, labels[np.isin(labels, digits)].astype(int))
        for images, labels in parts
    ]
    centre = x.mean(axis=0)
    _, vectors = np.linalg.eigh((x - centre).T @ (x - centre))
    project = vectors[:, ::-1][:, :50]
    return halves(
        name, l2, unit((x - centre) @ project), y, (unit((x_test - centre) @ project), y_test), removals, chi2
    )


def embedded(folder: Path, file: str, l2: float, removals: Any, name: str) -> Task:
    with np.load(folder / file) as data:
        x, y = unit(data["X"].astype(np.float64)), data["y"].astype(int)
        test = unit(data["X_test"].astype(np.float64)), data["y_test"].astype(int)
    return halves(name, l2, x, y, test, removals, 0.1)


def tasks(folder: Path) -> Iterator[Task]:
    yield mnist(folder, (3, 8), 1e-3, (1, 10, 100), 1.0, "MNIST 3 v 8, 50 PCA features")
    yield mnist(folder, tuple(range(10)), 1e-2, (0.01,), 1.0, "MNIST, 50 PCA features")
    shares = (1, 0.001, 0.01, 0.1)
    yield embedded(folder, "cifar10-resnet50-pca512.npz", 1e-3, shares, "CIFAR-10 embeddings")
    yield embedded(folder, "cifar10-resnet50-pca512.npz", 1e-2, (0.1,), "CIFAR-10 embeddings")
    yield embedded(folder, "stanford-dogs-resnet50-pca512.npz", 1e-3, shares, "Stanford Dogs embeddings")


def accuracy(model: LinearModel, rows: tuple[Array, Array]) -> float:
    return float(np.mean(model.predict(rows[0]) == rows[1]))


def retrain(task: Task, model: LinearModel, kept: Array, start: Array) -> Array:
    """The weights retraining would give: what the certificate speaks of, and only an experiment can know."""
    features, labels = task.source
    table = {value: index for index, value in enumerate(model.classes)}
    rows = Rows(features[kept], np.array([table[value] for value in labels[kept].tolist()]))
    head = head_for("softmax", l2=task.l2, n_classes=model.n_classes, n_features=model.n_features, row_bound=1.0)
    return minimise(head, rows, start=start)


def run(task: Task, sets: int, draws: int) -> Iterator[dict[str, Any]]:
    features, labels = task.source
    model = train(features, labels, l2=task.l2, max_norm=1.0 + 1e-12)
    before, n = accuracy(model, task.test), len(features)
    size = norm(model.matrix())
    for m, chosen in itertools.product(task.removals, range(sets)):
        order = np.random.default_rng(chosen).permutation(n)
        forget, kept = order[:m], order[m:]
        retrained = None
        for distance, step in itertools.product(("same", f"chi2:{task.chi2:g}"), ("converged", "balanced")):
            began = time.perf_counter()
            rows = (features[forget], labels[forget])
            promise = Promise(1.0, 1 / n, parse_distance(distance), step=step, force=True, noise="exact")
            request = ask(model, rows, task.surrogate, promise)
            measured = measure(request)
            seconds = time.perf_counter() - began
            updated = request.weights + measured.step.update
            if retrained is None:
                retrained = retrain(task, model, kept, updated)
            for epsilon in EPSILONS:
                wanted = replace(request, promise=replace(promise, epsilon=epsilon))
                results = [certify(wanted, measured) for _ in range(draws)]
                certificate, noise = results[0].certificate, foresee(wanted, measured)[1].noise
                assert noise is not None  # there is a certificate
                yield {
                    "task": task.name,
                    "l2": task.l2,
                    "n": n,
                    "forget": m,
                    "distance": distance,
                    "step": step,
                    "set": chosen,
                    "epsilon": epsilon,
                    "delta": 1 / n,
                    "accuracy_before": before,
                    "accuracy_after": float(np.mean([accuracy(r.model, task.test) for r in results])),
                    "bound": certificate.total,
                    "true_distance": norm(retrained - updated),
                    "sigma": certificate.sigma,
                    "useless": noise.length > size,
                    "seconds": seconds,
                    "terms": certificate.terms,
                    "pull": certificate.content["step"]["pull"],
                    "status": certificate.status,
                }


COLUMNS = ["task", "l2", "n", "forget", "distance", "step"]
SIDE_BY_SIDE = 1.0  # the epsilon at which two bounds are compared


def side_by_side(results: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> list[str]:
    """A table of what an earlier bound needed, on the same forget sets, beside this one's."""
    headings = [*COLUMNS, "sigma, `seen`", "sigma, `strict`", "ratio", "accuracy, `seen`", "accuracy, `strict`"]
    lines = [
        "",
        f"## Beside the bound before, epsilon {SIDE_BY_SIDE:g}",
        "",
        "`seen` is the bound of certificates of schema 2, whose default took what was seen on the surrogate for all "
        "there is; `strict` is the default now. Same models, same forget sets, noise to the last digit.",
        "",
        "| " + " | ".join(headings) + " |",
        "|" + "---|" * len(headings),
    ]
    before, after = grouped(earlier), grouped(results)
    for key in [key for key in after if key in before]:
        old, new = before[key].get(SIDE_BY_SIDE, []), after[key].get(SIDE_BY_SIDE, [])
        if old and new:
            sigmas = [float(np.mean([row["sigma"] for row in rows])) for rows in (old, new)]
            head = [f"{value:g}" if isinstance(value, float) else str(value) for value in key]
            ratio = f"{sigmas[1] / sigmas[0]:.2f}"
            lines.append("| " + " | ".join([*head, *(f"{s:.3g}" for s in sigmas), ratio, cell(old), cell(new)]) + " |")
    return lines


def grouped(results: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[float, list[dict[str, Any]]]]:
    """Rows of one setting together, by epsilon."""
    groups: dict[tuple[Any, ...], dict[float, list[dict[str, Any]]]] = {}
    for row in results:
        groups.setdefault(tuple(row[name] for name in COLUMNS), {}).setdefault(row["epsilon"], []).append(row)
    return groups


def markdown(
    results: list[dict[str, Any]], environment: dict[str, Any], earlier: list[dict[str, Any]] | None = None
) -> str:
    headings = [*COLUMNS, "before", *(f"after, eps {e:g}" for e in EPSILONS), "Delta", "true", "Delta/true"]
    exceeded = sum(row["true_distance"] > row["bound"] for row in results)
    lines = [
        "# Real data: accuracy, bound and true distance",
        "",
        "Written by `examples/real_data.py`. One half of each training set is the source, the other the surrogate, so "
        "`same` is true; `chi2`",
        "shows what declaring a distance costs. delta = 1/n, unit-norm rows, residual bound with its sampling term. "
        "`Delta` bounds the",
        "distance from the update to the retrained weights, `true` is that distance. Every figure is the mean over",
        f"{environment['sets']} random forget sets; accuracies also over {environment['draws']} draws of the noise, "
        "with the smallest and largest",
        "set's mean in brackets where they differ by a point or more. * marks cells in which `unlearn` would refuse at "
        "least one model as",
        "useless without `--force`, because the noise outweighs the weights.",
        "",
        f"The true distance exceeded Delta in {exceeded} of {len(results)} cases.",
        "",
        f"Expunge {environment['expunge']}, torch {environment['torch']}, Python {environment['python']}.",
        "",
        *([environment["remark"], ""] if "remark" in environment else []),
        "| " + " | ".join(headings) + " |",
        "|" + "---|" * len(headings),
    ]
    for key, by_epsilon in grouped(results).items():
        rows = next(iter(by_epsilon.values()))
        bound, true = (float(np.mean([row[name] for row in rows])) for name in ("bound", "true_distance"))
        head = [f"{value:g}" if isinstance(value, float) else str(value) for value in key]
        cells = [*head, f"{100 * rows[0]['accuracy_before']:.1f} %", *(cell(by_epsilon[e]) for e in EPSILONS)]
        lines.append("| " + " | ".join([*cells, f"{bound:.3g}", f"{true:.3g}", f"{bound / true:.1f}"]) + " |")
    lines += side_by_side(results, earlier or [])
    return "\n".join(lines) + "\n"


def cell(rows: list[dict[str, Any]]) -> str:
    values = [100 * row["accuracy_after"] for row in rows]
    spread = f" ({min(values):.1f} to {max(values):.1f})" if max(values) - min(values) >= 1 else ""
    return f"{np.mean(values):.1f} %{spread}{' *' if any(row['useless'] for row in rows) else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="folder with mnist.npz, cifar10-resnet50-pca512.npz, stanford-dogs-resnet50-pca512.npz",
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--sets", type=int, default=3, help="random forget sets a task and size")
    parser.add_argument("--draws", type=int, default=5, help="draws of the noise a set")
    parser.add_argument(
        "--beside",
        type=Path,
        default=Path(__file__).with_name("real_data_seen.json"),
        help="results of an earlier bound",
    )
    parser.add_argument("--table", action="store_true", help="only write the page anew, from the results there are")
    options = parser.parse_args()
    earlier = json.loads(options.beside.read_text())["results"] if options.beside.exists() else []
    if options.table:
        kept = json.loads(options.out.with_suffix(".json").read_text())
        options.out.write_text(markdown(kept["results"], kept["environment"], earlier))
        return
    results = []
    for task in tasks(options.data):
        for row in run(task, options.sets, options.draws):
            results.append(row)
            shown = {
                k: v
                for k, v in row.items()
                if k in ("task", "forget", "epsilon", "distance", "accuracy_after", "bound", "true_distance", "seconds")
            }
            print(json.dumps(shown), flush=True)
    environment = {
        "expunge": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "draws": options.draws,
        "sets": options.sets,
    }
    options.out.write_text(markdown(results, environment, earlier))
    options.out.with_suffix(".json").write_text(
        json.dumps({"environment": environment, "results": results}, indent=1) + "\n"
    )
    print(f"written: {options.out}, {options.out.with_suffix('.json')}")


if __name__ == "__main__":
    main()
