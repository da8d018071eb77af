"""Making a deposit beside scikit-learn's fit of its model, stage by stage: processor seconds, memory, rates.

    python benchmarks/making_deposits.py [CASE ...]     # such as 20000x47 or 50000x512x10; a page of all that is stored

Each case is a process of its own, on one thread; fit (default solver and tolerance) and deposit take turns, and the
fastest of each counts. `attained` is the rate of a stage over that of the work it is made of, measured in the same
process: of the sums, what their matrix products are over one plain product of numpy with as long an inner side; of the
hashes, bytes hashed (each row three times) over BLAKE2b of one long piece.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ONE_HOT = "-one-hot"
CASES = [f"{rows}x{width}" for width in (47, 108) for rows in (5_000, 20_000, 80_000, 320_000)]
CASES += ["20000x365", "20000x368", "50000x512x10", "50000x108-one-hot"]
STAGES = {"Newton": "anchor", "Hessian": "anchor", "Sums": "sums", "Rehearsals": "rehearsals", "Row": "hashes"}
NAME, LONG = "making_deposits", 100_000  # rows from which a case is measured once


def shape_of(case: str) -> tuple[int, int, int]:
    """Rows, features and classes."""
    rows, features, classes = (*map(int, case.removesuffix(ONE_HOT).split("x")), 2)[:3]
    return rows, features, classes


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    made = work()
    return time.process_time() - began, made


def measured(case: str) -> dict[str, Any]:
    """One case, in this process."""
    import numpy as np
    from against_scikit_learn import drawn, one_hot
    from sklearn.linear_model import LogisticRegression

    import expunge.sklearn
    from expunge.deposit.sums import folded_size, means_of, n_lines
    from expunge.heads import Rows

    warnings.simplefilter("ignore")
    rows, features, classes = shape_of(case)
    data = one_hot(rows) if case.endswith(ONE_HOT) else drawn(rows, features, classes)
    began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fits, runs, stages = [], [], {}
    for _ in range(1 if rows >= LONG or features > 300 else 3):
        fit, estimator = seconds(lambda: LogisticRegression().fit(*data))
        fits.append(fit)
        spent: dict[str, float] = {}
        last = ["rows checked", time.process_time()]

        def progress(stage: str, *_: Any, spent: dict[str, float] = spent, last: list[Any] = last) -> None:
            now = time.process_time()
            spent[last[0]] = spent.get(last[0], 0.0) + now - last[1]
            last[:] = [STAGES[stage.split(maxsplit=1)[0]], now]

        taken, deposit = seconds(partial(expunge.sklearn.deposit, estimator, *data, seed=0, progress=progress))
        progress("Row")
        runs.append(taken)
        stages = spent if taken == min(runs) else stages
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made: dict[str, Any] = {"case": case, "fit": min(fits), "deposit": min(runs), "ratio": min(runs) / min(fits)}
    made |= {"stages": stages, "peak_mb": peak * 1.024e-3, "peak_before_mb": began * 1.024e-3}
    made["rows_mb"] = data[0].nbytes / 1e6
    # the rate of the sums, on as many rows as a second or two take
    few = min(rows, max(1_000, int(2e6 / features**1.5)))
    some = Rows(np.column_stack([data[0][:few], np.ones(few)]), data[1][:few])
    width, third, head = features + 1, deposit.sums.third is not None, deposit.head
    pairs = classes * (classes - 1) // 2 if classes > 2 else 1
    entries = (1 + len(deposit.gauges)) * pairs
    together = third or (entries > 16 and width < 128)  # products of two features, made for all: each once
    flops = few * (entries * width * (width + 1) + (2 * n_lines(head, 1) * folded_size(width) if third else 0))
    flops += few * len(deposit.gauges) * width**2  # triangular solves
    took = min(seconds(lambda: means_of(head, deposit.anchor, some, deposit.gauges, third=third))[0] for _ in range(2))
    inner = min(few, 512 if together else 1_000)
    left, right = np.ones((width, inner)), np.ones((inner, width))
    plain = min(seconds(lambda: [left @ right for _ in range(40)])[0] for _ in range(3)) / 40
    rate, best = flops / took / 1e9, 2 * width**2 * inner / plain / 1e9
    made["sums_gflops"], made["plain_gflops"], made["sums_attained"] = rate, best, rate / best
    piece = bytes(1 << 24)
    fastest = len(piece) / min(seconds(lambda: hashlib.blake2b(piece).digest())[0] for _ in range(3))
    hashed = 24.0 * rows * features / stages["hashes"]
    return made | {"hashed_gb": hashed / 1e9, "blake2b_gb": fastest / 1e9, "hashes_attained": hashed / fastest}


def page_of(result: dict[str, Any]) -> str:
    from environment import markdown

    columns = ("rows x features (x classes)", "fit, s", "deposit, s", "ratio", "anchor", "sums", "rehearsals", "hashes")
    columns += ("sums, GFLOP/s (of plain product)", "hashes, GB/s (of BLAKE2b)", "peak MB (before; rows)")
    lines = []
    for one in result["cases"].values():
        stages = (f"{one['stages'].get(name, 0.0):.2f}" for name in ("anchor", "sums", "rehearsals", "hashes"))
        rates = f"{one['sums_gflops']:.0f} ({one['sums_attained']:.2f})"
        hashes = f"{one['hashed_gb']:.2f} ({one['hashes_attained']:.2f})"
        memory = f"{one['peak_mb']:,.0f} ({one['peak_before_mb']:,.0f}; {one['rows_mb']:,.0f})"
        times = (f"{one['fit']:.3f}", f"{one['deposit']:.3f}", f"{one['ratio']:.1f}")
        lines.append((one["case"], *times, *stages, rates, hashes, memory))
    grown = ", ".join(f"{name} {value:.2f}" for name, value in result.get("exponents", {}).items())
    page = markdown("Making deposits, processor seconds", columns, lines, result["environment"])
    return f"{page}\nExponents in rows: {grown}\n" if grown else page


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measured(sys.argv[2])))
        return
    from environment import RESULTS, environment, write
    from growth import exponent

    known = RESULTS / f"{NAME}.json"
    result: dict[str, Any] = json.loads(known.read_text()) if known.exists() else {"cases": {}}
    result["environment"] = environment() | {"threads": 1}
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    for case in sys.argv[1:] or CASES:
        asked = [sys.executable, str(Path(__file__)), "--one", case]
        done = subprocess.run(asked, env=alone, check=True, capture_output=True, text=True)
        result["cases"][case] = json.loads(done.stdout.splitlines()[-1])
        result["cases"] = {each: result["cases"][each] for each in CASES if each in result["cases"]}
        result["exponents"] = {}
        for width in (47, 108):
            grown = [one for each, one in result["cases"].items() if shape_of(each)[1:] == (width, 2)]
            for what in ("fit", "deposit"):
                sizes = [float(shape_of(one["case"])[0]) for one in grown]
                if len(sizes) > 1:
                    result["exponents"][f"{what}, {width + 1} weights"] = exponent(sizes, [one[what] for one in grown])
        write(NAME, result, page_of(result))


if __name__ == "__main__":
    main()
