"""Sparse rows: training, a deposit and a deletion beside scikit-learn's fit, in processor seconds and memory.

    python benchmarks/sparse.py --data sst2-train.tsv.gz [--sizes 67349x2000 15000x5000]

The data are a table of texts, `sentence` and `label`, separated by tabs; rows are `TfidfVectorizer(max_features=...)`
of the first so many. Each size is measured in a process of its own, on one thread; memory is the most that this process
held until then, scikit-learn, the texts and the vectoriser included.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORGET, EPSILON, DELTA = 1, 1.0, 1e-6


def measured(path: Path, rows: int, width: int) -> dict[str, Any]:
    """Processor seconds and peak memory of each step."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    import expunge.sklearn
    from expunge.errors import BeyondPolicy, VacuousClaim

    with gzip.open(path, "rt", encoding="utf-8") as file:
        read = [(one["sentence"], int(one["label"])) for one in csv.DictReader(file, delimiter="\t", quoting=3)][:rows]
    y = [label for _, label in read]
    X = TfidfVectorizer(max_features=width).fit_transform([text for text, _ in read])
    made: dict[str, Any] = {"rows": X.shape[0], "features": X.shape[1], "stored_per_row": X.nnz / X.shape[0]}
    made |= {"written_out_megabytes": 8e-6 * X.shape[0] * X.shape[1], "steps": {}}

    def step(name: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        done = work()
        taken, peak = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        made["steps"][name] = {"processor_seconds": taken, "peak_megabytes": peak}
        return done

    fitted = step("scikit-learn, default tolerance", lambda: LogisticRegression().fit(X, y))
    step("scikit-learn, tolerance 1e-10", lambda: LogisticRegression(tol=1e-10, max_iter=10_000).fit(X, y))
    step("second moments by scipy's product", lambda: (X.T @ X).toarray().sum())
    options = {"l2": 1.0 / X.shape[0], "max_norm": 1.0, "loss": "logistic", "bias": True}
    step("train", lambda: expunge.train(X, y, **options))
    warnings.simplefilter("ignore")
    kept = step("deposit", lambda: expunge.sklearn.deposit(fitted, X, y, seed=0))
    asked: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "force": True}
    try:
        gone = step("deletion", lambda: expunge.sklearn.unlearn(fitted, (X[:FORGET], y[:FORGET]), kept, **asked))
        made |= {"status": gone.certificate.status, "accuracy_after": gone.estimator.score(X, y)}
    except (BeyondPolicy, VacuousClaim) as refusal:  # known once it is worked out
        made["refused"] = str(refusal)
    return made | {"accuracy": fitted.score(X, y)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sizes", nargs="*", default=["67349x2000", "15000x5000"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        rows, width = map(int, given.one.split("x"))
        print(json.dumps(measured(given.data, rows, width)))
        return
    cases = []
    for size in given.sizes:
        line = [sys.executable, __file__, "--data", str(given.data), "--one", size]
        told = subprocess.run(line, check=True, stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"})
        cases.append(json.loads(told.stdout))
    from environment import RESULTS, environment, markdown, write  # after: it loads torch

    result = {"environment": environment() | {"threads": 1}, "cases": cases}
    table = [
        (
            f"{one['rows']:,} x {one['features']:,}, {one['stored_per_row']:.1f} stored a row: {name}",
            f"{step['processor_seconds']:.2f}",
            f"{step['peak_megabytes']:,.0f}",
        )
        for one in cases
        for name, step in one["steps"].items()
    ]
    page = markdown("Sparse rows", ("what", "processor s", "peak MB until then"), table, result["environment"])
    write("sparse", result, page, given.out or RESULTS)


if __name__ == "__main__":
    main()
