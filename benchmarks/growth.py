"""How the time of unlearning grows with rows, features, classes, forgotten rows and weights; and of Hessian products.

    python benchmarks/growth.py [--small]

One size varies at a time about 20,000 x 128 rows, 10 classes, 100 forgotten, l2 = 1e-3; rows over two decades, 5,000 to
500,000. Each case is a process of its own: its peak resident size is that of the case. Reported for each:
`expunge.unlearn` and its stages, peak memory, Newton and conjugate-gradient iterations, the rate of Hessian products
beside that of the plain matrix products they consist of (interleaved), and the exponent of the time, by least squares
on logarithms. Work that does not depend on the rows (start, certificate, noise) is in the times. Processor time (all
threads) stands beside wall time, since what else runs on the machine does not add to it. With fixed iteration counts
time is linear in the rows; the counts stand beside it, since they vary.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from environment import RESULTS, environment, markdown, write

BASE = {"rows": 20_000, "features": 128, "classes": 10, "forget": 100}
CASES = {
    "rows": [{"rows": rows} for rows in (5_000, 15_811, 50_000, 158_114, 500_000)],
    "features": [{"features": features} for features in (64, 128, 256, 512, 1024)],
    "classes": [{"classes": classes} for classes in (2, 10, 32, 100)],
    "forget": [{"forget": forget} for forget in (1, 10, 100, 1000, 5000)],
    "weights": [{"features": width, "classes": classes} for width, classes in ((64, 10), (128, 40), (256, 160))],
}
SMALL = {"rows": [{"rows": rows, "features": 16} for rows in (1000, 10_000)]}
L2 = 1e-3


def made_up(rows: int, features: int, classes: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Unit-norm rows with a decaying spectrum and labels from noisy linear scores."""
    generator, shared = np.random.default_rng(seed), np.random.default_rng(0)
    teacher = shared.standard_normal((classes, features))
    x = generator.standard_normal((rows, features)) * (1.0 + np.arange(features)) ** -0.5
    x /= np.linalg.norm(x, axis=1, keepdims=True) * (1 + 1e-12)
    return x, (x @ teacher.T * 4 + generator.gumbel(size=(rows, classes))).argmax(axis=1)


def rates(x: np.ndarray, classes: int) -> dict[str, float]:
    """GFLOP/s of Hessian products and of the plain matrix products, classes first (as ours) and rows first."""
    from expunge.heads import Curvature, Rows, head_for

    head = head_for("softmax", l2=L2, n_classes=classes, n_features=x.shape[1], row_bound=1.0)
    generator = np.random.default_rng(0)
    direction = generator.standard_normal((classes, x.shape[1]))
    curvature = Curvature(head, direction, Rows(x, np.zeros(len(x), dtype=np.int64)))
    by_rows, by_classes = (generator.standard_normal(shape) for shape in ((len(x), classes), (classes, len(x))))
    seconds: dict[str, list[float]] = {"ours": [], "rows_first": [], "classes_first": []}
    for _ in range(4):
        for name, work in (
            ("ours", lambda: curvature.product(direction)),
            ("rows_first", lambda: (x @ direction.T, by_rows.T @ x)),
            ("classes_first", lambda: (direction @ x.T, by_classes @ x)),
        ):
            began = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - began)
    flops = 4.0 * x.size * classes
    speed = {name: flops / min(times[1:]) / 1e9 for name, times in seconds.items()}
    return {
        "product_gflops": speed["ours"],
        "plain_rows_first_gflops": speed["rows_first"],
        "plain_classes_first_gflops": speed["classes_first"],
        "ratio": speed["ours"] / max(speed["rows_first"], speed["classes_first"]),
    }


def one(case: dict[str, int]) -> dict[str, Any]:
    """One case, in this process."""
    from expunge.distance import Distance
    from expunge.door import ask
    from expunge.mechanism import carry_out, certify, measure
    from expunge.request.promise import Promise
    from expunge.train import train

    forget, classes = case["forget"], case["classes"]
    x, y = made_up(max(20_000, 2 * forget), case["features"], classes, 1)
    model = train(x, y, l2=L2, max_norm=1.0, tolerance=1e-8)
    forget_rows = x[:forget], y[:forget]
    del x
    surrogate = made_up(case["rows"], case["features"], classes, 2)
    promise = Promise(epsilon=1.0, delta=1e-5, distance=Distance("same", 0.0), force=True)
    carry_out(ask(model, forget_rows, (surrogate[0][:1000], surrogate[1][:1000]), promise))  # warm
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    resident = memory("VmRSS")
    processor = time.process_time()
    began = time.perf_counter()
    request = ask(model, forget_rows, surrogate, promise)
    checked = time.perf_counter()
    stages: dict[str, float] = {}
    last = ["step", checked]

    def watch(stage: str, *_: int | None) -> None:
        name = "moments" if stage.startswith("Lanczos") else "step"
        now = time.perf_counter()
        stages[str(last[0])] = stages.get(str(last[0]), 0.0) + now - float(last[1])
        last[0], last[1] = name, now

    measured = measure(request, progress=watch)
    middle = time.perf_counter()
    stages[str(last[0])] = stages.get(str(last[0]), 0.0) + middle - float(last[1])
    content = certify(request, measured).certificate.content
    ended = time.perf_counter()
    processor = time.process_time() - processor
    peak = memory("VmHWM")
    return case | {
        "seconds": ended - began,
        "processor_seconds": processor,
        "stages": {"checking": checked - began, **stages, "certificate and noise": ended - middle},
        "surrogate_bytes": surrogate[0].nbytes,
        "peak_beyond_what_was_there_bytes": peak - resident,
        "newton_iterations": content["step"]["iterations"],
        "inner_iterations": content["step"]["inner_iterations"],
        "method": content["step"]["method"],
        "rates": rates(surrogate[0], classes),
    }


def memory(name: str) -> int:
    """A line of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def exponent(sizes: list[float], times: list[float]) -> float:
    """Slope of log time over log size."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def grown(varied: str, cases: list[dict[str, int]]) -> dict[str, Any]:
    """Every case in a process of its own, and the exponent."""
    measured = []
    for case in cases:
        command = [sys.executable, __file__, "--case", json.dumps(BASE | case)]
        ran = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
        assert ran.returncode == 0, ran.stderr
        measured.append(json.loads(ran.stdout.splitlines()[-1]))
        print(varied, json.dumps(measured[-1]), flush=True)
    sizes = [size(varied, one) for one in measured]
    return {
        "cases": measured,
        "exponent": exponent(sizes, [one["seconds"] for one in measured]),
        "processor_exponent": exponent(sizes, [one["processor_seconds"] for one in measured]),
    }


def size(varied: str, one: dict[str, Any]) -> float:
    """What is varied, as a number."""
    return float(one["features"] * one["classes"] if varied == "weights" else one[varied])


def lines(varied: str, growth: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The table's lines for what is varied."""
    for one in growth["cases"]:
        rate = one["rates"]
        yield (
            f"{varied} = {size(varied, one):,.0f}",
            f"{one['seconds']:.2f}",
            f"{one['processor_seconds']:.2f}",
            *(
                f"{one['stages'].get(name, 0.0):.2f}"
                for name in ("checking", "step", "moments", "certificate and noise")
            ),
            f"{one['newton_iterations']} / {one['inner_iterations']}",
            f"{one['peak_beyond_what_was_there_bytes'] / 1e6:.0f} / {one['surrogate_bytes'] / 1e6:.0f}",
            f"{rate['product_gflops']:.1f}",
            f"{max(rate['plain_rows_first_gflops'], rate['plain_classes_first_gflops']):.1f}",
            f"{rate['ratio']:.2f}",
        )
    yield (f"exponent in {varied}", f"{growth['exponent']:.2f}", f"{growth['processor_exponent']:.2f}", *[""] * 9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="two small cases, to try it out; nothing is written")
    parser.add_argument("--only", choices=list(CASES), help="vary this alone; what is known of the others is kept")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(one(json.loads(given.case))))
        return
    known = RESULTS / "growth.json"
    result: dict[str, Any] = {"base": BASE, "l2": L2, "environment": environment(), "growth": {}}
    if given.only and known.exists():
        result["growth"] = json.loads(known.read_text())["growth"]
    for varied, cases in (SMALL if given.small else CASES).items():
        if given.only in (None, varied):
            result["growth"][varied] = grown(varied, cases)
    table = [line for varied in result["growth"] for line in lines(varied, result["growth"][varied])]
    columns = (
        "varied",
        "s",
        "processor s",
        "checking",
        "step",
        "moments",
        "certificate, noise",
        "Newton / CG",
        "MB beyond / surrogate",
        "GFLOP/s",
        "attainable",
        "ratio",
    )
    page = markdown("Growth of `expunge.unlearn`", columns, table, result["environment"])
    if given.small:
        print(page)
    else:
        write("growth", result, page)


if __name__ == "__main__":
    main()
