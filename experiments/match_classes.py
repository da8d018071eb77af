"""What `--match-classes` does under a pure shift of class proportions: Dirichlet splits of handwritten digits.

    python -m experiments.match_classes [--data FOLDER --seeds 5 --out experiments/results]

One data set is split into source and surrogate whose class proportions are two Dirichlet(xi) draws. 1 % of the source
is forgotten. Reported with and without class-matched weights: the true `||E_R phi_u - E_S phi_u||`, the true distance
to the retrained weights, and Delta. Without weights Delta is for the exact chi-square of the class proportions (which
bounds that of the features), with them for `same`. Data: mnist.npz (X, y) from `--data`, else scikit-learn's small
digits. Writes match_classes.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from experiments.datasets.splits import dirichlet_split
from expunge import Distance, __version__, train
from expunge.certificate.derive import held_region
from expunge.door import ask
from expunge.errors import DataError
from expunge.evidence import build_claim
from expunge.mechanism import measure
from expunge.request.promise import Promise
from expunge.request.sets import rows_of
from expunge.runtime.arrays import engine_dtype, norm

CONCENTRATIONS = (1.0, 13.0, 100.0)
L2 = 0.01


def features_of(images: np.ndarray, width: int = 50) -> np.ndarray:
    """Principal components, each row scaled to length 1."""
    centred = images.reshape(len(images), -1).astype(np.float64)
    centred -= centred.mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    rows = centred @ vectors[:, ::-1][:, :width]
    scaled: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True) * (1 - 1e-9)
    return scaled


def split(y: np.ndarray, xi: float, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """Source and surrogate with every class in both, and how many draws that took."""
    attempts = 0
    while attempts < 50:
        attempts += 1
        source, surrogate, _ = dirichlet_split(y, xi, generator)
        if all(len(np.unique(y[part])) == 10 for part in (source, surrogate)):
            return source, surrogate, attempts
    raise DataError("no split with every class in both parts", "matching needs that", "Use a larger concentration.")


def one(X: np.ndarray, y: np.ndarray, xi: float, seed: int) -> dict[str, Any]:
    generator = np.random.default_rng([seed, round(10 * xi)])
    source, surrogate, attempts = split(y, xi, generator)
    counts = [np.bincount(y[part], minlength=10) for part in (source, surrogate)]
    m = max(1, len(source) // 100)
    order = generator.permutation(source)
    forget, retain = order[:m], order[m:]
    model = train(X[source], y[source], l2=L2, max_norm=1.0)
    assert model.record is not None
    retrained = train(X[retain], y[retain], l2=L2, max_norm=1.0).matrix()
    rho, nu = (part / part.sum() for part in counts)
    chi2 = float(((rho - nu) ** 2 / nu).sum())
    kept = rows_of(
        (X[retain], y[retain]), model, model.record, engine_dtype("float64", "cpu"), "cpu", "what is retained"
    )
    outcome: dict[str, Any] = {
        "xi": xi,
        "seed": seed,
        "n_source": len(source),
        "n_surrogate": len(surrogate),
        "n_forget": m,
        "chi2": chi2,
        "attempts": attempts,
    }
    for name, distance in (("plain", Distance("chi2", chi2)), ("matched", Distance("same", 0.0, matched=True))):
        request = ask(
            model,
            (X[forget], y[forget]),
            (X[surrogate], y[surrogate]),
            Promise(epsilon=1.0, delta=1.0 / len(source), distance=distance, force=True, noise="exact"),
        )
        measured = measure(request, seed=seed)
        region = held_region(build_claim(request, measured))
        update = measured.step.update
        means = [request.head.change_mean(request.weights, update, rows) for rows in (kept, request.surrogate)]
        outcome[name] = {
            "means": norm(means[0] - means[1]),
            "delta": region.radius,
            "surrogate_term": region.terms["surrogate"],
            "sampling_term": region.terms["sampling"],
            "true_distance": norm(request.weights + update - retrained),
            "effective_rows": request.surrogate.effective,
        }
    return outcome


def table(results: list[dict[str, Any]]) -> str:
    def mean(rows: list[dict[str, Any]], name: str, key: str) -> str:
        values = [row[name][key] for row in rows]
        return f"{np.mean(values):.2e} ± {np.std(values, ddof=1) if len(values) > 1 else 0.0:.1e}"

    lines = [
        "| xi | surrogate | rows counted as | true difference of means | true distance to retraining | Delta |",
        "|---|---|---|---|---|---|",
    ]
    for xi in CONCENTRATIONS:
        rows = [row for row in results if row["xi"] == xi]
        size = f"{np.mean([row['n_surrogate'] for row in rows]):,.0f}"
        effective = f"{np.mean([row['matched']['effective_rows'] for row in rows]):,.0f} of {size}"
        for name, words, counted in (
            ("plain", "as it is, chi2 of the classes declared", size),
            ("matched", "`--match-classes`, `same`", effective),
        ):
            columns = [mean(rows, name, key) for key in ("means", "true_distance", "delta")]
            lines.append(f"| {xi:g} | {words} | {counted} | " + " | ".join(columns) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    if given.data is None:
        images, y = load_digits(return_X_y=True)
        name = "scikit-learn's digits"
    else:
        with np.load(given.data / "mnist.npz") as archive:
            images, y = archive["X"], archive["y"]
        name = "MNIST"
    X, y = features_of(images), y.astype(np.int64)
    began = time.perf_counter()
    results = [one(X, y, xi, seed) for xi in CONCENTRATIONS for seed in range(given.seeds)]
    violated = sum(row[name]["true_distance"] > row[name]["delta"] for row in results for name in ("plain", "matched"))
    record = {
        "data": name,
        "l2": L2,
        "features": "first 50 principal components, unit norm",
        "results": results,
        "bounds_exceeded": violated,
        "seconds": round(time.perf_counter() - began),
        "versions": {
            "expunge": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "cores": os.cpu_count(),
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "match_classes.json").write_text(json.dumps(record, indent=1) + "\n")
    (given.out / "match_classes.md").write_text(
        f"{name}, {given.seeds} seeds, 1 % forgotten, splits that left a class out drawn again:\n\n{table(results)}"
    )
    print(table(results), "bounds exceeded:", violated)


if __name__ == "__main__":
    main()
