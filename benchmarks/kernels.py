"""Hessian products in memory, beside the plain matrix products they consist of, interleaved in one run.

    python benchmarks/kernels.py [--device cpu]

"Attainable" is the faster of the two layouts of the same two products over all rows at once, without anything between
them. A covariance product is one Lanczos step without its orthogonalisation. The forget set's product is one Hessian
product of the step less the surrogate's.
"""

from __future__ import annotations

import argparse
import time

import torch
from environment import as_computed, environment, markdown, synchronise, write

from expunge.heads import Rows, head_for
from expunge.heads.linear import Spread
from expunge.runtime.arrays import double, zeros
from expunge.solve.newton import SurrogateEquation

CASES = [
    (2_000_000, 512, 10, torch.float32),
    (400_000, 512, 10, torch.float64),
    (400_000, 512, 10, torch.float32),
    (100_000, 512, 10, torch.float64),
    (100_000, 512, 10, torch.float32),
    (200_000, 784, 10, torch.float64),
    (50_000, 512, 120, torch.float64),
    (100_000, 64, 10, torch.float64),
    (13_500, 50, 10, torch.float64),
]
REPEATS = 5


def measured(n: int, width: int, classes: int, dtype: torch.dtype, device: str) -> dict[str, float]:
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn((n, width), dtype=dtype, generator=generator, device=device)
    x /= x.norm(dim=1, keepdim=True)
    y = torch.zeros(n, dtype=torch.int64, device=device)
    head = head_for("softmax", l2=1e-3, n_classes=classes, n_features=width, row_bound=1.0)
    weights = torch.randn((classes, width), dtype=torch.float64, generator=generator, device=device)
    direction = torch.randn((classes, width), dtype=dtype, generator=generator, device=device)
    drawn = x, y, weights, direction, torch.randn((n, classes)).to(x), torch.randn((classes, n)).to(x)
    x, y, weights, direction, by_rows, by_classes = (as_computed(each) for each in drawn)
    forget = n // 100
    problem = SurrogateEquation(head, weights, Rows(double(x[:forget]), y[:forget]), Rows(x, y), n)
    operator = problem.jacobian(zeros(weights), 0.0, None)
    spread = Spread(head, weights, 0.01 * weights, Rows(x, y))
    wide = double(direction)
    works = {
        "product": lambda: operator.curvature.product(direction),
        "with_forget": lambda: operator.product(direction),
        "covariance": lambda: spread.covariance_product(wide, 1, False),
        "rows_first": lambda: (x @ direction.T, by_rows.T @ x),
        "classes_first": lambda: (direction @ x.T, by_classes @ x),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    processor: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(REPEATS):
        for name, work in works.items():
            synchronise(device)
            began, used = time.perf_counter(), time.process_time()
            work()
            synchronise(device)
            times[name].append(time.perf_counter() - began)
            processor[name].append(time.process_time() - used)
    taken = {name: min(values[1:]) for name, values in times.items()}
    least = {name: min(values[1:]) for name, values in processor.items()}
    flops = 4.0 * n * width * classes / 1e9
    attainable = flops / min(taken["rows_first"], taken["classes_first"])
    return {
        "product_gflops": flops / taken["product"],
        "rows_first_gflops": flops / taken["rows_first"],
        "classes_first_gflops": flops / taken["classes_first"],
        "ratio": flops / taken["product"] / attainable,
        "processor_ratio": min(least["rows_first"], least["classes_first"]) / least["product"],
        "covariance_gflops": flops / taken["covariance"],
        "forget_share": taken["with_forget"] / taken["product"] - 1.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--most-rows", type=int, default=10_000_000, help="leave larger cases out")
    given = parser.parse_args()
    cases = []
    for n, width, classes, dtype in CASES:
        if n > given.most_rows:
            continue
        case = {"rows": n, "features": width, "classes": classes, "dtype": str(dtype).removeprefix("torch.")}
        cases.append(case | measured(n, width, classes, dtype, given.device))
        print(cases[-1], flush=True)
    rows = [
        (
            f"{one['rows']:,} x {one['features']}, {one['classes']} classes, {one['dtype']}",
            *(f"{one[name]:.1f}" for name in ("product_gflops", "rows_first_gflops", "classes_first_gflops")),
            f"{one['ratio']:.2f}",
            f"{one['processor_ratio']:.2f}",
            f"{one['covariance_gflops']:.1f}",
            f"{100 * one['forget_share']:.0f} %",
        )
        for one in cases
    ]
    columns = (
        "rows",
        "Hessian products, GFLOP/s",
        "plain, rows first",
        "plain, classes first",
        "ratio to the faster",
        "the same by processor time",
        "covariance products",
        "forget set (1 %) adds",
    )
    where = environment(given.device)
    name = "kernels-cuda" if given.device.startswith("cuda") else "kernels"
    write(name, {"environment": where, "cases": cases}, markdown("Kernels, rows in memory", columns, rows, where))


if __name__ == "__main__":
    main()
