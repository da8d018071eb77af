"""What coarse preparation costs: accuracy beside exact preparation, on three tables.

    python examples/preparation.py --data FOLDER [--out examples/preparation.md]

Each is trained by `expunge.train` with its defaults, preparation apart, and as a scikit-learn Pipeline, fitted as it is
and by `expunge.sklearn.coarsen`. Rows are parted six times. Beside it: how often whoever has all other rows can tell
from what was learnt that somebody was there.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
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
from expunge.rows.preparation import learn
from expunge.rows.tables import frame_table
from expunge.sklearn import coarsen

PARTINGS, AGAIN, HELD_OUT, LABEL = 6, 3, 0.25, "class"
SIZES, EXTREME = (300, 600, 2000, 6000, 20_000, 60_000), 7_654_321.0
TABLES_DRAWN, DRAWS = 20, 200


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


def wealth(n_rows: int, seed: int, extreme: bool) -> pd.DataFrame:
    """A column with a heavy tail; the last person is extreme, or one of many."""
    rng = np.random.default_rng(seed)
    values, classes = rng.lognormal(10.0, 1.0, n_rows).round(2), rng.integers(0, 2, n_rows)
    values[-1] = EXTREME if extreme else values[-1]
    return pd.DataFrame({"wealth": values, LABEL: classes})


def alone(n_rows: int, seed: int) -> pd.DataFrame:
    """A column of words in which the last person is the tenth, or a later one, of a rare job."""
    rng = np.random.default_rng(seed)
    jobs = rng.choice(["clerk", "cook", "none"], n_rows).astype(object)
    jobs[: 9 + seed % 10], jobs[-1] = "pilot", "pilot"
    return pd.DataFrame({"job": jobs, LABEL: rng.integers(0, 2, n_rows)})


def outcomes(frame: pd.DataFrame, draws: int) -> list[Any]:
    """What is learnt of a table, so many times anew."""
    raw = frame_table(frame, "t")
    return [learn(raw, LABEL)[0].columns for _ in range(draws)]


def wins(frames: list[pd.DataFrame]) -> float:
    """How often whoever has all other rows says rightly whether the last person was there, with the best rule there is.

    Half of all games have the person in them. The rule knows how often each outcome comes with and without the person:
    it is made from some draws and played on others.
    """
    right, played = 0.0, 0
    for frame in frames:
        with_, without = (outcomes(each, 2 * DRAWS) for each in (frame, frame[:-1]))
        known, others = Counter(with_[:DRAWS]), Counter(without[:DRAWS])
        for each, sign in [(one, 1) for one in with_[DRAWS:]] + [(one, -1) for one in without[DRAWS:]]:
            lead = sign * (known[each] - others[each])
            right, played = right + (1.0 if lead > 0 else 0.5 if lead == 0 else 0.0), played + 1
    return right / played


def lines_on_people() -> list[str]:
    """The table of how often somebody shows, extreme, ordinary or of a rare job."""
    allowed = math.e / (1.0 + math.e)
    lines = [
        "",
        "## Whether somebody was there",
        "",
        "The game of certified unlearning: whoever has every other row, and is given what was learnt of one column, "
        "says whether the last person was among the rows. Half the time she was; the rule is the best there is (it "
        f"knows how often each outcome comes either way). {TABLES_DRAWN} tables, {2 * DRAWS} games each: percent won, "
        f"where 50 is guessing and epsilon 1 would allow {100 * allowed:.0f}. *Extreme*: a column with a heavy tail "
        f"(lognormal), in which her value is {EXTREME:,.0f}, several times everybody else's. *Ordinary*: a value like "
        "the others'. *Rare job*: she is the 10th to 19th with a value of a category. *Before*: an earlier way of "
        "being coarse (mean and deviation of all but ten values at either end, to the nearest of two digits; every "
        "value of ten rows), in which nothing was left to chance: won whenever anything moved, and so for certain by "
        "the 10th of a rare job and never by the others.",
        "",
        "| rows | extreme | before | ordinary | before | rare job | before |",
        "|---|---|---|---|---|---|---|",
    ]
    for n_rows in SIZES:
        seeds = range(TABLES_DRAWN)
        cells = []
        for extreme in (True, False):
            frames = [wealth(n_rows, seed, extreme) for seed in seeds]
            before = np.mean([before_of(each["wealth"]) != before_of(each["wealth"][:-1]) for each in frames])
            cells += [wins(frames), 0.5 + before / 2.0]
        cells += [wins([alone(n_rows, seed) for seed in seeds]), 0.5 + 0.5 / 10]
        lines.append(f"| {n_rows:,} | {' | '.join(f'{100 * each:.0f}' for each in cells)} |")
    return lines


def before_of(values: pd.Series) -> tuple[float, ...]:
    """Median, centre and scale as they were rounded before."""
    few, ordered = min(10, len(values) // 20), np.sort(values)
    within = np.clip(values, ordered[few], ordered[-1 - few])
    scale = float(f"{within.std(ddof=0):.1e}")
    digit = 1 - math.floor(math.log10(scale))
    return round(float(np.median(values)), digit), round(float(within.mean()), digit), scale


def measured(frame: pd.DataFrame) -> dict[str, float]:
    """Mean accuracy in percent of each way."""
    found: dict[str, list[float]] = {"exact": [], "coarse": [], "pipeline": [], "coarse pipeline": []}
    for parting in range(PARTINGS):
        order = np.random.default_rng(parting).permutation(len(frame))
        held = int(HELD_OUT * len(frame))
        test, source = frame.iloc[order[:held]], frame.iloc[order[held:]]
        for way in ("exact", *["coarse"] * AGAIN):
            found[way].append(expunge.train(source, label=LABEL, preparation=way).score(test))
        X, y = source.drop(columns=LABEL), source[LABEL]
        found["pipeline"].append(pipeline().fit(X, y).score(test.drop(columns=LABEL), test[LABEL]))
        found["coarse pipeline"] += [
            coarsen(pipeline(), X, y).score(test.drop(columns=LABEL), test[LABEL]) for _ in range(AGAIN)
        ]
    return {way: 100.0 * float(np.mean(scores)) for way, scores in found.items()}


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
        "`OneHotEncoder`, `LogisticRegression`), fitted as it is and by `coarsen`. What is coarse was learnt "
        f"{AGAIN} times from each, since it depends on chance.",
        "",
        "| table | rows | exact | coarse | Pipeline | coarse Pipeline |",
        "|---|---|---|---|---|---|",
    ]
    for name, read in TABLES.items():
        frame = read(options.data)
        own = measured(frame)
        shown = " | ".join(f"{own[way]:.2f}" for way in ("exact", "coarse", "pipeline", "coarse pipeline"))
        lines.append(f"| {name} | {len(frame):,} | {shown} |")
        options.out.write_text("\n".join(lines) + "\n")
    options.out.write_text("\n".join(lines + lines_on_people()) + "\n")


if __name__ == "__main__":
    main()
