"""Iterations of conjugate gradients to a relative residual of 1e-8, with and without preconditioners, on real features.

    python benchmarks/preconditioner.py --data FOLDER [--only mnist] [--l2 1e-4]

FOLDER holds .npz files with X and y: MNIST's pixels, embeddings of images. Rows are scaled to unit norm. Half of them
train the head; the other half is the surrogate; one in a hundred of the first half is forgotten. What is solved is
`H_S u = a(0)`, the first Newton iteration of the step without the forget set's own Hessian, which with small l2 makes
the matrix indefinite. The solve is timed with what forming the preconditioner costs. Every case is kept as soon as it
is done.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from environment import RESULTS, environment, markdown, write

from expunge.heads import Rows, head_for
from expunge.solve.linear import ClassBlocks, KroneckerPreconditioner, blocks_pay, solve_conjugate
from expunge.solve.newton import Hessian, SurrogateEquation
from expunge.train import minimise

FILES = {
    "MNIST pixels": "mnist.npz",
    "CIFAR-10 embeddings": "cifar10-resnet50-pca512.npz",
    "Caltech-101 embeddings": "caltech101-resnet50-pca512.npz",
    "Stanford Dogs embeddings": "stanford-dogs-resnet50-pca512.npz",
}
MOST_ROWS = 30_000
STRENGTHS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
TRAINED = 1e-6  # gradient norm
KINDS = ("plain", "Kronecker", "blocks")


class Plain:
    """No preconditioner."""

    def solve(self, residual: torch.Tensor) -> torch.Tensor:
        return residual.clone()


def load(path: Path) -> tuple[torch.Tensor, torch.Tensor, int]:
    with np.load(path) as file:
        X, y = file["X"].reshape(len(file["X"]), -1).astype(np.float64), file["y"]
    chosen = np.random.default_rng(0).permutation(len(X))[:MOST_ROWS]
    classes, labels = np.unique(y, return_inverse=True)
    X = X[chosen]
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-300) * (1 + 1e-12)
    return torch.from_numpy(X), torch.from_numpy(labels[chosen]), len(classes)


def measured(X: torch.Tensor, y: torch.Tensor, classes: int, l2: float) -> dict[str, Any]:
    half = len(X) // 2
    head = head_for("softmax", l2=l2, n_classes=classes, n_features=X.shape[1], row_bound=1.0)
    weights = minimise(head, Rows(X[:half], y[:half]), tolerance=TRAINED)
    forgotten = half // 100
    problem = SurrogateEquation(head, weights, Rows(X[:forgotten], y[:forgotten]), Rows(X[half:], y[half:]), half)
    right = -problem.residual(torch.zeros_like(weights))
    result: dict[str, Any] = {"l2": l2, "chosen": "blocks" if blocks_pay(head, problem.surrogate) else "Kronecker"}
    kinds: dict[str, Callable[[Hessian], Any]] = {
        "plain": lambda _: Plain(),
        "Kronecker": lambda operator: KroneckerPreconditioner(operator.curvature, 1.0),
        "blocks": lambda operator: ClassBlocks(operator.curvature, 1.0),
    }
    for name, make in kinds.items():
        operator = Hessian(head.curvature(weights, problem.surrogate), 1.0, 0.0)
        operator.product(right)  # predictions, which every way needs
        began = time.perf_counter()
        operator.preconditioner = make(operator)
        formed = time.perf_counter()
        solved = solve_conjugate(operator, right, 1e-8, torch.float64)
        result[name] = {
            "iterations": solved.iterations,
            "relative_residual": solved.relative_residual,
            "seconds_forming": formed - began,
            "seconds_solving": time.perf_counter() - formed,
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--l2", type=float, nargs="+", default=STRENGTHS)
    given = parser.parse_args()
    target = RESULTS / "preconditioner.json"
    result = (
        json.loads(target.read_text()) if (given.only or given.l2 != STRENGTHS) and target.exists() else {"sets": {}}
    )
    result["environment"] = environment()
    for name, file in FILES.items():
        if given.only not in file or not (given.data / file).exists():
            continue
        X, y, classes = load(given.data / file)
        before = result["sets"].get(name, {"cases": []})["cases"]
        cases = {case["l2"]: case for case in before}
        for l2 in given.l2:
            cases[l2] = measured(X, y, classes, l2)
            print(name, json.dumps(cases[l2]), flush=True)
            ordered = sorted(cases.values(), key=lambda case: -case["l2"])
            result["sets"][name] = {"rows": len(X) // 2, "features": X.shape[1], "classes": classes, "cases": ordered}
            write("preconditioner", result)
    rows = [
        (
            name,
            f"{case['l2']:g}",
            *(case[kind]["iterations"] for kind in KINDS),
            f"{case['blocks']['iterations'] / case['plain']['iterations']:.2f}",
            *(f"{case[kind]['seconds_forming'] + case[kind]['seconds_solving']:.2f}" for kind in KINDS),
            case["chosen"],
        )
        for name, one in result["sets"].items()
        for case in one["cases"]
    ]
    columns = (
        "features",
        "l2",
        "iterations, plain",
        "Kronecker",
        "blocks",
        "blocks / plain",
        "s, plain",
        "s, Kronecker",
        "s, blocks",
        "chosen",
    )
    page = markdown("Conjugate gradients to a relative residual of 1e-8", columns, rows, result["environment"])
    write("preconditioner", result, page)


if __name__ == "__main__":
    main()
