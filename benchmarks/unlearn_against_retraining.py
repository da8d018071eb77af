"""Unlearning end to end against scikit-learn's retraining to the same gradient norm, in one run.

    python benchmarks/unlearn_against_retraining.py [--rows 50000 --features 512 --classes 10 --forget 500]

Reports, with the environment: wall time of `expunge.unlearn` from arrays to certificate, of the whole `expunge unlearn`
process (start of Python and reading files included), and of scikit-learn's `fit`; the rate of Hessian products beside
that of the plain matrix products they consist of; peak resident memory beside the size of the surrogate. Writes JSON
and a Markdown table beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.linear_model import LogisticRegression

import expunge
from expunge.heads import Curvature, Rows, head_for
from expunge.runtime.arrays import norm

L2 = 2e-5  # 1/(C n) for scikit-learn's default C = 1 and 50,000 rows


# getrusage would report this process's own peak, which a child inherits until it starts its program
MEASURED = """
import atexit, sys
from pathlib import Path
atexit.register(lambda: print(Path("/proc/self/status").read_text(), file=sys.stderr))
from expunge.cli import main
main()
"""


def made_up(rows: int, features: int, classes: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Unit-norm rows with a decaying spectrum, like centred embeddings, and labels from noisy linear scores."""
    generator = np.random.default_rng(seed)
    shared = np.random.default_rng(0)
    spectrum = (1.0 + np.arange(features)) ** -0.5
    teacher = shared.standard_normal((classes, features))
    x = generator.standard_normal((rows, features)) * spectrum
    x /= np.linalg.norm(x, axis=1, keepdims=True) * (1 + 1e-12)
    scores = x @ teacher.T * 4 + generator.gumbel(size=(rows, classes))
    return x, scores.argmax(axis=1)


def gradient_norm(weights: np.ndarray[Any, Any], x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    head = head_for("softmax", l2=L2, n_classes=len(weights), n_features=x.shape[1], row_bound=1.0)
    return norm(head.gradient(weights, Rows(x, y)))


def unlearn_process(folder: Path) -> tuple[float, float, dict[str, Any]]:
    """Seconds, peak resident bytes and certificate of one `expunge unlearn`."""
    command = [
        sys.executable, "-c", MEASURED, "unlearn", "--model", folder / "model.safetensors",
        "--forget", folder / "forget.npz", "--surrogate", folder / "surrogate.npz", "--epsilon", "1", "--delta", "1e-5",
        "--distance", "same", "--out", folder / "result", "--quiet", "--json", "--force",
    ]  # fmt: skip
    began = time.perf_counter()
    done = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    peak = 1024 * int(done.stderr.split("VmHWM:")[1].split()[0])
    return seconds, peak, json.loads(Path(json.loads(done.stdout)["dossier_file"]).read_text())


def retrain(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], goal: float, solver: str) -> dict[str, Any]:
    """scikit-learn's fit, its tolerance tightened until the goal is reached; only the fit that reaches it is timed."""
    tolerance = goal
    while True:
        estimator = LogisticRegression(
            C=1 / (L2 * len(x)), fit_intercept=False, solver=solver, tol=tolerance, max_iter=100_000
        )
        began = time.perf_counter()
        estimator.fit(x, y)
        seconds = time.perf_counter() - began
        reached = gradient_norm(estimator.coef_, x, y)
        fit = {"solver": solver, "tolerance": tolerance, "seconds": seconds, "gradient_norm": reached}
        if reached <= goal or tolerance < 1e-3 * goal:
            return fit | {"missed": reached > goal}
        tolerance /= 5


def hessian_rates(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], classes: int, repeats: int) -> dict[str, float]:
    """GFLOP/s of Hessian products and of the two matrix products they consist of, interleaved in one run."""
    generator = np.random.default_rng(0)
    head = head_for("softmax", l2=L2, n_classes=classes, n_features=x.shape[1], row_bound=1.0)
    curvature = Curvature(head, generator.standard_normal((classes, x.shape[1])), Rows(x, y))
    direction = generator.standard_normal((classes, x.shape[1]))
    inner = generator.standard_normal((len(x), classes))
    times: dict[str, list[float]] = {"product": [], "plain": []}
    for _ in range(repeats + 2):
        began = time.perf_counter()
        curvature.product(direction)
        middle = time.perf_counter()
        x @ direction.T
        inner.T @ x
        times["plain"].append(time.perf_counter() - middle)
        times["product"].append(middle - began)
    flops = 4.0 * x.size * classes
    rates = {name: flops / median(values[2:]) / 1e9 for name, values in times.items()}
    return {
        "product_gflops": rates["product"],
        "plain_gflops": rates["plain"],
        "ratio": rates["product"] / rates["plain"],
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--forget", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    x, y = made_up(options.rows, options.features, options.classes, 1)
    xs, ys = made_up(options.rows, options.features, options.classes, 2)
    model = expunge.train(x, y, l2=L2, max_norm=1.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.safetensors").write_bytes(model.to_bytes())
        np.savez(folder / "forget.npz", X=x[: options.forget], y=y[: options.forget])
        np.savez(folder / "surrogate.npz", X=xs, y=ys)
        process_seconds, peak, _ = unlearn_process(folder)
    began = time.perf_counter()
    unlearned = expunge.unlearn(
        model,
        (x[: options.forget], y[: options.forget]),
        (xs, ys),
        epsilon=1.0,
        delta=1e-5,
        distance="same",
        force=True,
    )
    seconds = time.perf_counter() - began
    certificate = unlearned.certificate.content
    goal = certificate["step"]["residual"] / certificate["sizes"]["n_retain"]
    retained = x[options.forget :], y[options.forget :]
    fits = [retrain(*retained, goal, solver) for solver in ("lbfgs", "newton-cg")]
    best = min((fit for fit in fits if not fit["missed"]), key=lambda fit: fit["seconds"], default=None)
    result = {
        "task": vars(options) | {"out": None, "l2": L2},
        "unlearn_seconds": seconds,
        "unlearn_process_seconds": process_seconds,
        "gradient_norm_goal": goal,
        "retraining": fits,
        "speedup_over_lbfgs": fits[0]["seconds"] / seconds,
        "speedup_over_fastest": None if best is None else best["seconds"] / seconds,
        "peak_bytes": peak,
        "surrogate_bytes": xs.nbytes,
        "peak_over_surrogate": peak / xs.nbytes,
        "hessian": hessian_rates(xs, ys, options.classes, options.repeats),
        "step": certificate["step"],
        "bound": certificate["bound"]["total"],
        "environment": {
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "scikit-learn": sklearn.__version__,
            "expunge": expunge.__version__,
        },
    }
    options.out.mkdir(exist_ok=True, parents=True)
    (options.out / "unlearn_against_retraining.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
