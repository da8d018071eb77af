"""What it costs that nothing handed out knows the forgotten: noise and accuracy, before and after.

    python examples/what_hiding_costs.py --data FOLDER --out after.json [--only Adult] [--draws 5]
    python examples/what_hiding_costs.py --before before.json --after after.json --page examples/what_hiding_costs.md

Run once in a checkout from before the noise took its shape from the retained rows (8698f05) and once here; the page
puts both side by side. `noise` is the deviation that it has on an output (log-odds) of a typical row; `accuracy` is
that of the published model less that of the trained one, in points, on rows held out.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

sys.path.insert(0, str(Path(__file__).parent.parent))

from examples.deposit_tables import TABLES, Rows, parted
from expunge.errors import ExpungeError
from expunge.sklearn import deposit, unlearn

DELTA = 1e-6
SETTINGS = ((1, 0.1), (1, 1.0), (10, 0.1), (10, 1.0), (100, 1.0))


def credit(_: Path) -> tuple[Rows, Rows]:
    """Like a table of credit default: 23 correlated columns with heavy tails, standardised."""
    generator = np.random.default_rng(0)
    features = generator.standard_t(3, size=(20_000, 23)) @ (generator.normal(size=(23, 23)) / 5 + np.eye(23))
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    odds = features @ generator.normal(size=23) * 0.5 - 1.2
    return parted(features, (generator.random(len(features)) < 1 / (1 + np.exp(-odds))).astype(int))


def measured(name: str, folder: Path, draws: int) -> list[dict[str, Any]]:
    rows, held_out = {**TABLES, "Credit-like": credit}[name](folder)
    model = LogisticRegression(max_iter=1000).fit(*rows)
    kept, before, made = deposit(model, *rows), model.score(*held_out), []
    for m, epsilon in SETTINGS:
        for seed in range(draws):
            gone = np.random.default_rng([seed, m]).permutation(len(rows[0]))[:m]
            told: dict[str, Any] = {"table": name, "m": m, "epsilon": epsilon, "seed": seed, "accuracy_before": before}
            try:
                result = unlearn(model, (rows[0][gone], rows[1][gone]), kept, epsilon=epsilon, delta=DELTA)
            except ExpungeError as error:
                made.append(told | {"refused": type(error).__name__})
                continue
            facts = result.certificate.content["bound"]["inputs"]
            made.append(
                told
                | {
                    "noise": result.statement.sigma * facts["output_noise"]["value"],
                    "accuracy": 100 * (result.estimator.score(*held_out) - before),
                }
            )
            print(json.dumps(made[-1]), flush=True)
    return made


def page_of(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    lines = [
        "# What hiding costs",
        "",
        "Written by `examples/what_hiding_costs.py`. Before: noise with the shape of the source's Hessian, sizes set "
        "from rehearsals. After: noise with a shape and sizes from the retained rows alone, a noised anchor, coarse "
        "gauges. "
        f"`LogisticRegression()`, delta {DELTA:g}. `noise`: its deviation on an output (log-odds) of a typical row, "
        "median and largest. `accuracy`: points less than the trained model, mean and worst.",
        "",
        "| table | forgotten | epsilon | refused before | after | noise before | after | accuracy before | after |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["table"] for row in after):
        for m, epsilon in SETTINGS:
            cells = []
            for side in (before, after):
                mine = [r for r in side if (r["table"], r["m"], r["epsilon"]) == (name, m, epsilon)]
                done = [r for r in mine if "noise" in r]
                noise, lost = [r["noise"] for r in done], [r["accuracy"] for r in done]
                cells.append(
                    (
                        f"{len(mine) - len(done)} of {len(mine)}",
                        f"{np.median(noise):.2g}, {max(noise):.2g}" if done else "-",
                        f"{np.mean(lost):+.2f}, {min(lost):+.2f}" if done else "-",
                    )
                )
            pairs = [cell for both in zip(*cells, strict=True) for cell in both]
            lines.append(f"| {name} | {m} | {epsilon:g} | " + " | ".join(pairs) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--only", nargs="*", default=["Adult", "Census employment", "Credit-like", "MNIST, 50 components"]
    )
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--after", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    if given.page is None and given.out is None:
        parser.error("give --out, where the figures go, or --page with --before and --after")
    if given.page is not None:
        given.page.write_text(page_of(*(json.loads(path.read_text()) for path in (given.before, given.after))))
        return
    made = [row for name in given.only for row in measured(name, given.data, given.draws)]
    given.out.write_text(json.dumps(made))


if __name__ == "__main__":
    main()
