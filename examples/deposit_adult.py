"""scikit-learn's defaults on Adult: a deposit, people forgotten, and the refit without them beside it.

    python examples/deposit_adult.py --data FOLDER [--out examples/deposit_adult.md]

StandardScaler and OneHotEncoder are fitted once and kept; then `LogisticRegression()`, a deposit, and random people
forgotten. The refit has the same C and preparation and a tolerance of 1e-10; it must lie inside every region.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from expunge.errors import ExpungeError
from expunge.evidence.deposit.contents import Deposit
from expunge.sklearn import deposit, unlearn

DELTA = 1e-6
SETTINGS = ((1, 0.1), (1, 1.0), (10, 0.1), (10, 1.0), (100, 0.1), (100, 1.0))
HELD_OUT = 8000


def table(folder: Path) -> tuple[Any, Any]:
    """Prepared rows and labels."""
    frame = pd.read_csv(folder / "adult.data.csv.gz", header=None, skipinitialspace=True)
    labels = (frame[14].to_numpy() == ">50K").astype(int)
    prepare = make_column_transformer(
        (StandardScaler(), make_column_selector(dtype_include=np.number)),
        (OneHotEncoder(sparse_output=False), make_column_selector(dtype_exclude=np.number)),
    )
    return prepare.fit_transform(frame.drop(columns=14).rename(columns=str)), labels


def distance(kept: Deposit, update: Any, refit: Any) -> float:
    """How far the refit is from the update, in the norm of the deposit's shape."""
    difference = (np.column_stack([refit.coef_, refit.intercept_]) - update).reshape(-1)
    return float(np.linalg.norm(kept.shape[0].numpy().T @ difference))


def forgotten(
    model: Any, kept: Deposit, rows: tuple[Any, Any], test: tuple[Any, Any], m: int, epsilon: float, seed: int
) -> dict[str, Any]:
    """One group of random people."""
    from expunge.evidence.deposit.asking import ask_deposit, deposit_guarantee
    from expunge.mechanism import measure

    chosen = np.random.default_rng(seed).permutation(len(rows[0]))
    gone, left = chosen[:m], chosen[m:]
    found: dict[str, Any] = {"m": m, "epsilon": epsilon, "seed": seed}
    began = time.perf_counter()
    try:
        made = unlearn(model, (rows[0][gone], rows[1][gone]), kept, epsilon=epsilon, delta=DELTA)
    except ExpungeError as error:
        return found | {"refused": type(error).__name__}
    found["seconds"] = time.perf_counter() - began
    refit = LogisticRegression(solver="newton-cholesky", tol=1e-10, max_iter=1000).fit(rows[0][left], rows[1][left])
    request = ask_deposit(kept, (rows[0][gone], rows[1][gone]), deposit_guarantee(epsilon, DELTA))
    update = (request.weights + measure(request).step.update).numpy()
    return found | {
        "status": made.certificate.status,
        "radius": made.certificate.total,
        "true": distance(kept, update, refit),
        "accuracy": made.estimator.score(*test),
        "refit": refit.score(*test),
    }


def markdown(results: list[dict[str, Any]], about: dict[str, Any]) -> str:
    """The table."""
    lines = [
        "# scikit-learn's defaults on Adult, with a deposit",
        "",
        f"Written by `examples/deposit_adult.py`. {about['rows']:,} rows of {about['features']} prepared features, "
        f"{HELD_OUT:,} rows held out, `LogisticRegression()` ({100 * about['accuracy']:.2f} % of them right), delta "
        f"{DELTA:g}. The deposit took {about['seconds']:.1f} s and has {about['bytes'] / 1e6:.1f} MB. `gap` is the "
        "accuracy less that of scikit-learn refitted without the people, in points: mean and largest size.",
        "",
        "| forgotten | epsilon | issued, all `proven` | refused | gap, mean | gap, largest | refit outside the region "
        "| smallest radius/true | median | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for m, epsilon in SETTINGS:
        mine = [row for row in results if (row["m"], row["epsilon"]) == (m, epsilon)]
        made = [row for row in mine if "status" in row]
        proven = sum(row["status"] == "proven" for row in made)
        assert proven == len(made)
        gaps = [100 * (row["accuracy"] - row["refit"]) for row in made] or [math.nan]
        ratios = [row["radius"] / row["true"] for row in made] or [math.nan]
        cells = [
            str(m), f"{epsilon:g}", f"{proven} of {len(mine)}", str(len(mine) - len(made)), f"{np.mean(gaps):+.3f}",
            f"{max(map(abs, gaps)):.3f}", str(sum(ratio < 1.0 for ratio in ratios)), f"{min(ratios):.1f}",
            f"{np.median(ratios):.1f}", f"{np.median([row['seconds'] for row in made] or [math.nan]):.2f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with adult.data.csv.gz")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--draws", type=int, default=10, help="groups of people a setting")
    options = parser.parse_args()
    features, labels = table(options.data)
    order = np.random.default_rng(0).permutation(len(features))
    test, source = order[:HELD_OUT], order[HELD_OUT:]
    rows, held_out = (features[source], labels[source]), (features[test], labels[test])
    model = LogisticRegression(max_iter=1000).fit(*rows)
    began = time.perf_counter()
    kept = deposit(model, *rows)
    about = {"rows": len(source), "features": features.shape[1], "accuracy": model.score(*held_out)}
    about |= {"seconds": time.perf_counter() - began, "bytes": len(kept.to_bytes())}
    results = []
    for m, epsilon in SETTINGS:
        for seed in range(options.draws):
            results.append(forgotten(model, kept, rows, held_out, m, epsilon, seed))
            print(json.dumps(results[-1]), flush=True)
    options.out.write_text(markdown(results, about))
    options.out.with_suffix(".json").write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
