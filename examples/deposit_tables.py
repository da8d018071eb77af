"""scikit-learn's defaults on three tables: a deposit, people forgotten, and the refit without them beside it.

    python examples/deposit_tables.py --data FOLDER [--only adult] [--draws 10] [--out examples/deposit_tables.md]

StandardScaler and OneHotEncoder are fitted once and kept (MNIST: 50 principal components); then `LogisticRegression()`,
a deposit, and random people forgotten. The refit has the same C and preparation and a tolerance of 1e-10; it must lie
inside every region.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from expunge.deposit.file import Deposit
from expunge.door import ask
from expunge.errors import ExpungeError
from expunge.mechanism import measure
from expunge.request.promise import Promise
from expunge.runtime.arrays import put, to_numpy
from expunge.sklearn import deposit, unlearn

DELTA = 1e-6
SETTINGS = ((1, 0.1), (1, 1.0), (10, 0.1), (10, 1.0), (100, 0.1), (100, 1.0))
HELD_OUT = 8000
Rows = tuple[Any, Any]


def prepared(frame: pd.DataFrame) -> Any:
    """Numbers standardised, everything else one column a value."""
    return make_column_transformer(
        (StandardScaler(), make_column_selector(dtype_include=np.number)),
        (OneHotEncoder(sparse_output=False), make_column_selector(dtype_exclude=np.number)),
    ).fit_transform(frame)


def adult_rows(folder: Path) -> Rows:
    """Census income of 1994: two classes."""
    frame = pd.read_csv(folder / "adult.data.csv.gz", header=None, skipinitialspace=True)
    labels = (frame[14].to_numpy() == ">50K").astype(int)
    return prepared(frame.drop(columns=14).rename(columns=str)), labels


def adult(folder: Path) -> tuple[Rows, Rows]:
    """The same with rows held out."""
    return parted(*adult_rows(folder))


def employment(folder: Path) -> tuple[Rows, Rows]:
    """Census employment of Massachusetts, 2015: two classes; codes are categories, ages numbers."""
    frame = pd.read_parquet(folder / "employment_MA_reference.pq")
    labels = frame["employed"].to_numpy().astype(int)
    frame = frame.drop(columns=["employed", "year", "prediction", "predicted_probability"], errors="ignore")
    codes = [name for name in frame.columns if name != "AGEP"]
    return parted(prepared(frame.astype(dict.fromkeys(codes, str)).astype({"AGEP": float})), labels)


def mnist(folder: Path) -> tuple[Rows, Rows]:
    """Ten classes, multinomial; the file's own test rows are held out."""
    with np.load(folder / "mnist.npz") as file:
        parts = [(file[x].reshape(-1, 784) / 255.0, file[y].astype(int)) for x, y in (("X", "y"), ("X_test", "y_test"))]
    (source, labels), (test, held) = parts
    project = PCA(50, random_state=0).fit(source)
    return (project.transform(source), labels), (project.transform(test), held)


TABLES: dict[str, Callable[[Path], tuple[Rows, Rows]]] = {
    "Adult": adult,
    "Census employment": employment,
    "MNIST, 50 components": mnist,
}


def parted(features: Any, labels: Any) -> tuple[Rows, Rows]:
    """The source, and rows that are held out."""
    order = np.random.default_rng(0).permutation(len(features))
    test, source = order[:HELD_OUT], order[HELD_OUT:]
    return (features[source], labels[source]), (features[test], labels[test])


def refitted(features: Any, labels: Any) -> Any:
    """What the user would do: the same model without the people, trained to the end."""
    return LogisticRegression(solver="newton-cholesky", tol=1e-10, max_iter=1000).fit(features, labels)


def away(kept: Deposit, update: Any, refit: Any) -> float:
    """How far the refit is from the update, in the norm of the noise's shape; classes sum to what the anchor's do.

    `kept` is the deposit of what is retained.
    """
    weights = np.column_stack([refit.coef_, refit.intercept_])
    if len(weights) > 1:
        weights = weights - weights.mean(axis=0) + to_numpy(kept.anchor.mean(axis=0))
    return kept.length(put(weights - to_numpy(update), kept.anchor))


def forgotten(kept: Deposit, rows: Rows, m: int, seed: int) -> tuple[Any, Any, Any]:
    """Who leaves, the update without noise, which is None where there is no finite region, and the refit."""
    chosen = np.random.default_rng(seed).permutation(len(rows[0]))
    gone, left = chosen[:m], chosen[m:]
    refit = refitted(rows[0][left], rows[1][left])
    try:
        request = ask(None, (rows[0][gone], rows[1][gone]), None, Promise(1.0, DELTA, force=True), deposit=kept)
        update = request.weights + measure(request).step.update
    except ExpungeError:
        update = None
    return gone, update, refit


def issued(
    model: Any, kept: Deposit, rows: Rows, test: Rows, epsilon: float, group: tuple[Any, Any, Any]
) -> dict[str, Any]:
    """One group of random people at one epsilon."""
    gone, update, refit = group
    forget = (rows[0][gone], rows[1][gone])
    began = time.perf_counter()
    try:
        made = unlearn(model, forget, kept, epsilon=epsilon, delta=DELTA)
    except ExpungeError as error:
        return {"refused": type(error).__name__, "refit": refit.score(*test)}
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "status": made.certificate.status,
        "radius": made.certificate.total,
        "true": away(made.deposit, update, refit),
        "accuracy": made.estimator.score(*test),
        "refit": refit.score(*test),
    }


def measured(name: str, folder: Path, draws: int) -> dict[str, Any]:
    """One table."""
    rows, held_out = TABLES[name](folder)
    model = LogisticRegression(max_iter=1000).fit(*rows)
    began = time.perf_counter()
    kept = deposit(model, *rows)
    about = {
        "rows": len(rows[0]),
        "features": rows[0].shape[1],
        "held out": len(held_out[0]),
        "accuracy": model.score(*held_out),
        "seconds": time.perf_counter() - began,
        "bytes": len(kept.to_bytes()),
        "levels": list(kept.levels),
    }
    results = []
    for m in sorted({m for m, _ in SETTINGS}):
        for seed in range(draws):
            group = forgotten(kept, rows, m, seed)
            for epsilon in [epsilon for size, epsilon in SETTINGS if size == m]:
                found = {
                    "m": m,
                    "epsilon": epsilon,
                    "seed": seed,
                    **issued(model, kept, rows, held_out, epsilon, group),
                }
                results.append(found)
                print(name, json.dumps(found), flush=True)
    return {"about": about, "results": results}


def lines_of(name: str, table: dict[str, Any]) -> list[str]:
    about, results = table["about"], table["results"]
    lines = [
        "",
        f"## {name}",
        "",
        f"{about['rows']:,} rows of {about['features']} prepared features, {about['held out']:,} held out, "
        f"`LogisticRegression()` ({100 * about['accuracy']:.2f} % of them right), delta {DELTA:g}. The deposit took "
        f"{about['seconds']:.1f} s and has {about['bytes'] / 1e6:.1f} MB.",
        "",
        "| forgotten | epsilon | issued, all `proven` | refused | gap, mean | gap, largest | refit outside the region "
        "| smallest radius/true | median | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for m, epsilon in SETTINGS:
        mine = [row for row in results if (row["m"], row["epsilon"]) == (m, epsilon)]
        made = [row for row in mine if "status" in row]
        assert all(row["status"] == "proven" for row in made)
        gaps = [100 * (row["accuracy"] - row["refit"]) for row in made] or [math.nan]
        ratios = [row["radius"] / row["true"] for row in made] or [math.nan]
        cells = [
            str(m), f"{epsilon:g}", f"{len(made)} of {len(mine)}", str(len(mine) - len(made)), f"{np.mean(gaps):+.3f}",
            f"{max(map(abs, gaps)):.3f}", str(sum(ratio < 1.0 for ratio in ratios)), f"{min(ratios):.1f}",
            f"{np.median(ratios):.1f}", f"{np.median([row['seconds'] for row in made] or [math.nan]):.2f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def markdown(tables: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# scikit-learn's defaults, with a deposit",
        "",
        "Written by `examples/deposit_tables.py`. `gap` is the accuracy less that of scikit-learn refitted without the "
        "people, in points: mean, and the largest either way. Distances are in the norm of the noise's shape.",
    ]
    for name in TABLES:
        if name in tables:
            lines += lines_of(name, tables[name])
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the files that the functions above name")
    parser.add_argument(
        "--only", help="tables whose name holds this, small letters or not; the others stay as they are"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--draws", type=int, default=10, help="groups of people a setting")
    options = parser.parse_args()
    stored = options.out.with_suffix(".json")
    tables = json.loads(stored.read_text()) if stored.exists() else {}
    for name in TABLES:
        if (options.only or "").lower() in name.lower():
            tables[name] = measured(name, options.data, options.draws)
            stored.write_text(json.dumps(tables, indent=1) + "\n")
            options.out.write_text(markdown(tables))


if __name__ == "__main__":
    main()
