"""What coarse preparation costs: accuracy beside exact preparation, on three tables.

    python examples/preparation.py --data FOLDER [--out examples/preparation.md]

Each is trained by `expunge.train` with its defaults, preparation apart, and as a scikit-learn Pipeline, fitted as it is
and by `expunge.sklearn.coarsen`. Rows are parted three times. Beside it: how many of 100 people, taken out one at a
time, change any number or decision of what is learnt of a table; and how often the one extreme value of a made-up
column with a heavy tail does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import expunge
from examples.tables import HEADER, credit_lines
from expunge.data.learning import learn
from expunge.data.raw_tables import raw_frame
from expunge.sklearn import coarsen

PARTINGS, PEOPLE, HELD_OUT, LABEL = 3, 100, 0.25, "class"
SIZES, DRAWS, EXTREME = (300, 600, 2000, 6000, 20_000, 60_000), 40, 7_654_321.0


def adult(folder: Path) -> pd.DataFrame:
    """Census income of 1994."""
    frame = pd.read_csv(folder / "adult.data.csv.gz", header=None, skipinitialspace=True)
    return frame.rename(columns={14: LABEL}).rename(columns=str)


def employment(folder: Path) -> pd.DataFrame:
    """Census employment of Massachusetts, 2015; codes are categories, ages numbers."""
    frame = pd.read_parquet(folder / "employment_MA_reference.pq")
    frame = frame.drop(columns=["year", "prediction", "predicted_probability"], errors="ignore")
    codes = [name for name in frame.columns if name not in ("AGEP", "employed")]
    frame = frame.astype(dict.fromkeys(codes, str)).astype({"AGEP": float, "employed": int})
    return frame.rename(columns={"employed": LABEL})


def credit(_: Path) -> pd.DataFrame:
    """A made-up table as lenders have it: gaps, a heavy tail, words."""
    text = "\n".join([HEADER, *credit_lines(6000)])
    frame = pd.read_csv(StringIO(text), sep=";", decimal=",", na_values=["?"])
    return frame.drop(columns=["customer", "since"]).rename(columns={"pays": LABEL})


TABLES: dict[str, Callable[[Path], pd.DataFrame]] = {"Adult": adult, "Census employment": employment, "Credit": credit}


def pipeline() -> Any:
    """As people write it."""
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    words = OneHotEncoder(handle_unknown="ignore")
    return make_pipeline(
        make_column_transformer(
            (numbers, make_column_selector(dtype_include=np.number)),
            (words, make_column_selector(dtype_exclude=np.number)),
        ),
        LogisticRegression(max_iter=2000),
    )


def changed(frame: pd.DataFrame, coarse: bool) -> int:
    """How many of some people, taken out one at a time, change what is learnt of the table."""
    whole = learn(raw_frame(frame, "t"), LABEL, coarse=coarse).preparation
    others = np.random.default_rng(1).choice(len(frame), PEOPLE, replace=False)
    return sum(
        learn(raw_frame(frame.drop(frame.index[place]), "t"), LABEL, coarse=coarse).preparation != whole
        for place in others
    )


def seen(n_rows: int, extreme: bool) -> tuple[int, float]:
    """In how many drawn tables the last person changes anything coarse, and by how much of a scale at most."""
    differing, most = 0, 0.0
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        wealth, classes = rng.lognormal(10.0, 1.0, n_rows).round(2), rng.integers(0, 2, n_rows)
        wealth[-1] = EXTREME if extreme else wealth[-1]
        frame = pd.DataFrame({"wealth": wealth, LABEL: classes})
        (one,), (other,) = (learn(raw_frame(each, "t"), LABEL).preparation.columns for each in (frame, frame[:-1]))
        moved = max(abs(getattr(one, name) - getattr(other, name)) for name in ("median", "mean", "scale"))
        differing, most = differing + (moved > 0.0), max(most, moved / one.scale)
    return differing, most


def lines_on_extremes() -> list[str]:
    """The table of what an extreme value does, beside an ordinary one."""
    lines = [
        "",
        "## Whether somebody extreme was there",
        "",
        f"A column with a heavy tail (lognormal), drawn {DRAWS} times, in which the last person's value is "
        f"{EXTREME:,.0f}, several times everybody else's, or an ordinary one. How often what is learnt coarsely "
        "differs from what the others alone give, and by how much of a scale at most: so often somebody who has "
        "all retained rows sees that somebody was there. The value itself is not to be read off.",
        "",
        "| rows | an extreme value shows | moves by at most | an ordinary value shows | moves by at most |",
        "|---|---|---|---|---|",
    ]
    for n_rows in SIZES:
        cells = [f"{count} of {DRAWS} | {most:.3f}" for count, most in (seen(n_rows, which) for which in (True, False))]
        lines.append(f"| {n_rows:,} | {' | '.join(cells)} |")
    return lines


def measured(frame: pd.DataFrame) -> dict[str, Any]:
    """Mean accuracy in percent of each way, and how many people change what is learnt."""
    found: dict[str, list[float]] = {"exact": [], "coarse": [], "pipeline": [], "coarse pipeline": []}
    for parting in range(PARTINGS):
        order = np.random.default_rng(parting).permutation(len(frame))
        held = int(HELD_OUT * len(frame))
        test, source = frame.iloc[order[:held]], frame.iloc[order[held:]]
        for way in ("exact", "coarse"):
            found[way].append(expunge.train(source, label=LABEL, preparation=way).score(test))
        X, y = source.drop(columns=LABEL), source[LABEL]
        found["pipeline"].append(pipeline().fit(X, y).score(test.drop(columns=LABEL), test[LABEL]))
        found["coarse pipeline"].append(coarsen(pipeline(), X, y).score(test.drop(columns=LABEL), test[LABEL]))
    means = {way: 100.0 * float(np.mean(scores)) for way, scores in found.items()}
    return means | {"moved by": changed(frame, coarse=False), "coarse moved by": changed(frame, coarse=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the files that the functions above name")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    options = parser.parse_args()
    lines = [
        "# Coarse preparation beside exact preparation",
        "",
        f"Written by `examples/preparation.py`. Accuracy in percent on held-out rows, a mean of {PARTINGS} partings: "
        "`expunge.train` on a table as it is, and a scikit-learn Pipeline (`SimpleImputer`, `StandardScaler`, "
        "`OneHotEncoder`, `LogisticRegression`), fitted as it is and by `coarsen`. The last two columns: of "
        f"{PEOPLE} random people, taken out one at a time, how many change anything that was learnt of the table. "
        "Coarse preparation is a practice: it is not 0 by proof, and for unusual people it is not 0 (below).",
        "",
        "| table | rows | exact | coarse | Pipeline | coarse Pipeline | people who change exact | who change coarse |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, read in TABLES.items():
        frame = read(options.data)
        own = measured(frame)
        shown = " | ".join(f"{own[way]:.2f}" for way in ("exact", "coarse", "pipeline", "coarse pipeline"))
        lines.append(f"| {name} | {len(frame):,} | {shown} | {own['moved by']} | {own['coarse moved by']} |")
        options.out.write_text("\n".join(lines) + "\n")
    options.out.write_text("\n".join(lines + lines_on_extremes()) + "\n")


if __name__ == "__main__":
    main()
