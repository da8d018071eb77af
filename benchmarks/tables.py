"""A table of a million rows: train, predict and score as processes, beside pandas and a scikit-learn Pipeline.

    python benchmarks/tables.py [--rows 1000000] [--repeats 5] [--out results/]

17 columns of numbers, 3 of words (14 values) and a label, as CSV and as Parquet. Theirs: pandas reads the file, a
Pipeline of OneHotEncoder, StandardScaler and LogisticRegression, all with their defaults, is fitted and pickled; later
it is loaded and predicts. Ours does what the commands do: its model is at its optimum, its preparation coarse, it
scores itself on the source, and writes label and probabilities of every row. Each command runs in turn with theirs on
one thread, and what is held to the bounds is the ratio of medians. Processes make all files: a child's peak memory
begins with what its parent held.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from starting import measured

MAKE = """
import sys
import numpy as np, pandas as pd

rows, rng = int(sys.argv[1]), np.random.default_rng(0)
columns, score = {}, np.zeros(rows)
for place in range(17):
    drawn = rng.standard_normal(rows)
    score += drawn * rng.normal(scale=0.4)
    kinds = (np.rint(40 + 12 * drawn).astype(int), np.round(np.exp(drawn + 8), 2), np.round(drawn, 6), drawn)
    columns[f"n{place}"] = kinds[place % 4]
for place, words in enumerate(("north south east west", "rent own mortgage other none_of", "a1 b2 c3 d4 e5")):
    codes = rng.integers(len(words.split()), size=rows)
    score += 0.5 * rng.normal(size=len(words.split()))[codes]
    columns[f"c{place}"] = np.array(words.split())[codes]
columns["default"] = np.where(score + rng.logistic(size=rows) > 1, "yes", "no")
table = pd.DataFrame(columns)
table.to_csv("table.csv", index=False)
table.to_parquet("table.parquet", index=False)
"""
READ = """
import pickle, sys
import pandas as pd

table = pd.read_csv(sys.argv[1]) if sys.argv[1].endswith("csv") else pd.read_parquet(sys.argv[1])
X, y = table.drop(columns="default"), table["default"]
"""
FIT = f"""{READ}
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

words = [name for name in X if not pd.api.types.is_numeric_dtype(X[name])]
numbers = [name for name in X if name not in words]
made = ColumnTransformer([("words", OneHotEncoder(), words), ("numbers", StandardScaler(), numbers)])
pickle.dump(Pipeline([("made", made), ("fit", LogisticRegression())]).fit(X, y), open("pipeline", "wb"))
"""
PREDICT = f"""{READ}
pickle.load(open("pipeline", "rb")).predict(X)
"""
OURS = {  # `NEW` is a name that no file has, `FILE` the table
    "train": "train --data FILE --label default --out NEW.safetensors",
    "predict": "predict --model model.safetensors --data FILE --out NEW.csv",
    "score": "score --model model.safetensors --data FILE",
}
THEIRS = {"train": FIT, "predict": PREDICT, "score": PREDICT}
BOUNDS = {"train": 1.5, "predict": 2.0, "score": 2.0}  # of processor and wall time; of memory 1
MEASURED = ("processor_seconds_median", "seconds_median", "peak_megabytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        measured(["-c", MAKE, str(options.rows)], folder)
        results = [
            {"command": command, "file": kind} | compare(command, f"table.{kind}", Path(folder), options.repeats)
            for kind in ("csv", "parquet")
            for command in OURS
        ]
    write(results, options)


def compare(command: str, table: str, folder: Path, repeats: int) -> dict[str, Any]:
    """Medians of ours and of theirs, which take turns, and the ratios of these; the first turn is left out."""
    if command == "train":
        (folder / "model.safetensors").unlink(missing_ok=True)
        measured(["-m", "expunge", *OURS["train"].replace("NEW", "model").replace("FILE", table).split()], folder, 0)
    ours, theirs = [], []
    for _ in range(repeats + 1):
        ours.append(measured(["-m", "expunge", *OURS[command].replace("FILE", table).split()], folder, 0))
        theirs.append(measured(["-c", THEIRS[command], table], folder, 0))
    medians = [{what: statistics.median(run[what] for run in runs[1:]) for what in MEASURED} for runs in (ours, theirs)]
    ratios = {what: round(medians[0][what] / medians[1][what], 2) for what in MEASURED}
    print(command, table, ratios, file=sys.stderr, flush=True)
    return {"ours": medians[0], "theirs": medians[1], "ratios": ratios, "bound": BOUNDS[command]}


def write(results: list[dict[str, Any]], options: argparse.Namespace) -> None:
    from environment import environment, markdown
    from environment import write as write_result

    given = environment() | {"threads": 1}
    cells = []
    for each in results:
        pairs = (
            f"{each['ours'][what]:.1f}, {each['theirs'][what]:.1f}: **{each['ratios'][what]}**" for what in MEASURED
        )
        cells.append((f"`{each['command']}`, {each['file']}", *pairs, each["bound"]))
    columns = ("command", "processor s, ours and theirs", "wall s", "peak MB", "bound of times (of memory 1)")
    title = f"A table of {options.rows:,} rows and 20 columns, medians of {options.repeats} runs in turn"
    page = markdown(title, columns, cells, given)
    content = {"rows": options.rows, "repeats": options.repeats, "runs": results, "environment": given}
    write_result("tables", content, page, options.out)


if __name__ == "__main__":
    main()
