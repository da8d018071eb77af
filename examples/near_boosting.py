"""How near to boosting a pipeline comes that ends in a linear head, and what ten people leaving costs it.

    python examples/near_boosting.py --data FOLDER [--only Adult] [--draws 5] [--out FILE.json] [--page FILE.md]
    python examples/near_boosting.py --page docs/tutorial-boosting.md

Every table is parted at random: public rows, from which all steps before the head are learnt, test rows, and the
source, which the head alone is fitted on and which a deposit is made of. Without --data the page is written again from
the stored figures: what is between its two marks is replaced. Seconds are the processor's; set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomTreesEmbedding
from sklearn.feature_selection import SelectKBest, VarianceThreshold
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    SplineTransformer,
    StandardScaler,
)

from expunge.errors import ExpungeError
from expunge.sklearn import deposit, unlearn

PUBLIC, HELD_OUT, PEOPLE = 8000, 12_000, 10
EPSILONS, DELTA = (1.0, 0.1), 1e-6
FEWER, BEST = (500, 2000, PUBLIC), "lines, boosted trees"
MARKS = ("<!-- figures of examples/near_boosting.py -->", "<!-- end of figures -->")
ROOT = Path(__file__).parents[1]
Rows = tuple[pd.DataFrame, Any]

# Tables: rows as they lie about, and round numbers that somebody who knows the columns would put knots at ------


def adult(folder: Path) -> Rows:
    """Census income of 1994."""
    files = [folder / "adult.data.csv.gz", folder / "adult.test.csv.gz"]
    frame = pd.concat([pd.read_csv(file, header=None, skipinitialspace=True, comment="|") for file in files])
    return frame.drop(columns=14).rename(columns=str), frame[14].str.startswith(">50K").to_numpy().astype(int)


def employment(folder: Path) -> Rows:
    """Census employment of Massachusetts, 2015; codes are categories, ages numbers."""
    frame = pd.read_parquet(folder / "employment_MA_reference.pq")
    labels = frame["employed"].to_numpy().astype(int)
    frame = frame.drop(columns=["employed", "year", "prediction", "predicted_probability"], errors="ignore")
    codes = [name for name in frame.columns if name != "AGEP"]
    return frame.astype(dict.fromkeys(codes, str)).astype({"AGEP": float}), labels


def credit(_: Path | None = None, n_rows: int = 40_000) -> Rows:
    """Like a table of credit default, made up: correlated columns with heavy tails, thresholds, curves, products."""
    rng = np.random.default_rng(0)
    values = rng.standard_t(3, size=(n_rows, 12)) @ (rng.normal(size=(12, 12)) / 5 + np.eye(12))
    values /= np.quantile(np.abs(values), 0.68, axis=0)
    a, b, c, d, e, f, g, h, i, j, *_ = values.T
    odds = 0.8 * np.tanh(a) + 0.5 * b.clip(-2, 2) + 1.2 * (c > 1) + 1.2 * np.abs(np.tanh(d)) - 0.5 * np.tanh(j) - 1.6
    odds += 1.5 * np.tanh(e) * np.tanh(f) + 1.2 * ((g > 0.5) & (a > 0)) + 0.8 * np.tanh(h) * (i < 0)
    labels = (rng.random(n_rows) < 1 / (1 + np.exp(-odds))).astype(int)
    return pd.DataFrame(values, columns=[f"column {place}" for place in range(12)]), labels


TABLES: dict[str, Callable[[Path], Rows]] = {"Adult": adult, "Census employment": employment, "Credit-like": credit}
AROUND_0 = (-3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3)
ROUND_KNOTS: dict[str, dict[str, tuple[float, ...]]] = {
    "Adult": {
        "0": (18, 21, 25, 30, 35, 40, 45, 50, 55, 60, 65, 75),
        "4": (4, 7, 9, 10, 11, 13, 14, 16),
        "10": (0, 3000, 5000, 7000, 8000, 10_000, 15_000),
        "11": (0, 1500, 1800, 2000, 2500, 3500),
        "12": (10, 20, 35, 40, 45, 50, 60, 80),
    },
    "Census employment": {"AGEP": (15, 16, 18, 20, 22, 25, 30, 40, 50, 55, 60, 62, 65, 67, 70, 75, 80, 90)},
    "Credit-like": {f"column {place}": AROUND_0 for place in range(12)},
}

# What stands before the head, learnt from public rows -----------------------------------------------------------

NUMBERS, WORDS = make_column_selector(dtype_include=np.number), make_column_selector(dtype_exclude=np.number)


def frequent() -> OneHotEncoder:
    """One column for every value that fifty public rows have, and one for all others."""
    return OneHotEncoder(min_frequency=50, handle_unknown="infrequent_if_exist", sparse_output=False)


def splines() -> Any:
    """Curves of every number, with knots at quantiles of public rows."""
    curves = SplineTransformer(7, degree=2, knots="quantile", include_bias=False, extrapolation="constant")
    return make_column_transformer((curves, NUMBERS), (frequent(), WORDS))


def lines_at(knots: dict[str, tuple[float, ...]]) -> Any:
    """Lines that bend at fixed numbers; other numbers are left out."""
    bent = [
        (SplineTransformer(knots=np.array(places)[:, None], degree=1, extrapolation="constant"), [name])
        for name, places in knots.items()
    ]
    return make_column_transformer(*bent, (frequent(), WORDS))


def bins(count: int) -> Any:
    """Every number cut at quantiles of public rows."""
    cut = KBinsDiscretizer(count, encode="onehot-dense", quantile_method="averaged_inverted_cdf")
    return make_column_transformer((cut, NUMBERS), (frequent(), WORDS))


def pairs(count: int) -> Any:
    """Bins and categories that one public row in twenty has, two at a time: those that tell most of public labels."""
    products = PolynomialFeatures(2, interaction_only=True, include_bias=False)
    return make_pipeline(bins(4), VarianceThreshold(0.05), products, SelectKBest(k=count))


def random_trees() -> Any:
    """Leaves of trees that split at random, where public rows are."""
    scaled = make_column_transformer((StandardScaler(), NUMBERS), (frequent(), WORDS))
    trees = RandomTreesEmbedding(30, max_depth=4, min_samples_leaf=200, sparse_output=False, random_state=0)
    return make_pipeline(scaled, trees)


def outputs_of_trees(rows: Any, trees: GradientBoostingClassifier) -> Any:
    """What each tree of an ensemble says of each row."""
    return np.column_stack([tree.predict(rows) for tree in trees.estimators_[:, 0]])


def leaves_of_trees(rows: Any, trees: GradientBoostingClassifier) -> Any:
    """The number of the leaf that each row falls into, for each tree."""
    return trees.apply(rows)[:, :, 0]


def boosted(public: Rows, read: Callable[..., Any], n_trees: int, rate: float, least: int) -> list[Any]:
    """Steps that read something off trees boosted on public rows, of which each leaf has this many at least."""
    plain = make_column_transformer(("passthrough", NUMBERS), (frequent(), WORDS)).fit(public[0])
    trees = GradientBoostingClassifier(
        n_estimators=n_trees, learning_rate=rate, max_leaf_nodes=6, max_depth=None, min_samples_leaf=least,
        subsample=0.5, random_state=0,
    )  # fmt: skip
    trees.fit(plain.transform(public[0]), public[1])
    return [FrozenEstimator(plain), FunctionTransformer(read, kw_args={"trees": trees})]


def leaves(public: Rows, n_trees: int, rate: float, least: int) -> Any:
    """A column for each leaf of boosted trees."""
    steps = boosted(public, leaves_of_trees, n_trees, rate, least)
    return make_pipeline(*steps, OneHotEncoder(sparse_output=False, handle_unknown="ignore"))


def preparations(name: str, public: Rows) -> dict[str, tuple[Any, float]]:
    """What is compared: steps, and the head's C."""

    def lines() -> Any:
        return lines_at(ROUND_KNOTS[name])

    return {
        "as it is": (make_column_transformer((StandardScaler(), NUMBERS), (frequent(), WORDS)), 1.0),
        "bins": (bins(10), 1.0),
        "splines": (splines(), 1.0),
        "lines": (lines(), 1.0),
        "lines, random trees": (make_union(lines(), random_trees()), 1.0),
        "lines, pairs": (make_union(lines(), pairs(120)), 1.0),
        "lines, boosted leaves": (make_union(lines(), leaves(public, 30, 0.3, 100)), 0.1),
        "lines, boosted trees": (
            make_union(lines(), make_pipeline(*boosted(public, outputs_of_trees, 60, 0.2, 50))),
            0.3,
        ),
        "lines, rarer leaves": (make_union(lines(), leaves(public, 30, 0.3, 20)), 0.1),
        "lines, twice as many leaves": (make_union(lines(), leaves(public, 60, 0.2, 100)), 0.1),
    }


# Measuring ------------------------------------------------------------------------------------------------------


def scores(model: Any, test: Rows) -> dict[str, float]:
    """Accuracy and area under the curve, in percent."""
    chances = model.predict_proba(test[0])[:, 1]
    return {"accuracy": 100 * float(np.mean((chances > 0.5) == test[1])), "auc": 100 * roc_auc_score(test[1], chances)}


def boosting(rows: Rows) -> Any:
    """HistGradientBoostingClassifier as it is, told which columns are categories."""
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, min_frequency=50)
    coded = make_column_transformer((codes, WORDS), ("passthrough", NUMBERS))
    categories = list(range(len(WORDS(rows[0]))))
    trees = HistGradientBoostingClassifier(categorical_features=categories, random_state=0)
    return make_pipeline(coded, trees).fit(*rows)


def leaving(model: Any, source: Rows, kept: Any, test: Rows, epsilon: float, draw: int, people: int) -> dict[str, Any]:
    """Random people, and the scores of what is published without them."""
    gone = np.random.default_rng(draw).permutation(len(source[1]))[:people]
    told: dict[str, Any] = {"epsilon": epsilon, "draw": draw}
    began = time.process_time()
    try:
        made = unlearn(model, (source[0].iloc[gone], source[1][gone]), kept, epsilon=epsilon, delta=DELTA)
    except ExpungeError as error:
        return told | {"refused": type(error).__name__}
    seconds = time.process_time() - began
    return told | {"headline": made.headline, "seconds": seconds} | scores(made.estimator, test)


def fitted(prepare: Any, strength: float, public: Rows, source: Rows) -> Any:
    """Steps fitted on public rows, and the head on the source."""
    steps = FrozenEstimator(prepare.fit(*public))  # which fitting the pipeline leaves as they are
    head = LogisticRegression(C=strength, solver="newton-cholesky", tol=1e-8, max_iter=200)
    return make_pipeline(steps, head).fit(*source)


def with_fewer(name: str, parts: dict[str, Rows]) -> dict[str, Any]:
    """The best head, and boosting on public rows alone, by how many rows are public."""
    told = {}
    for count in FEWER:
        public = parts["public"][0].iloc[:count], parts["public"][1][:count]
        model = fitted(*preparations(name, public)[BEST], public, parts["source"])
        told[str(count)] = {"head": scores(model, parts["test"]), "boosting": scores(boosting(public), parts["test"])}
    return told


def measured(prepare: Any, strength: float, parts: dict[str, Rows], draws: int, people: int = PEOPLE) -> dict[str, Any]:
    """One pipeline: a deposit, and people leaving."""
    source, test = parts["source"], parts["test"]
    model = fitted(prepare, strength, parts["public"], source)
    began = time.process_time()
    kept = deposit(model, *source, preparation="learnt elsewhere")
    seconds = time.process_time() - began
    return {
        "weights": model[-1].coef_.size + 1,
        "C": strength,
        **scores(model, test),
        "deposit_seconds": seconds,
        "deletions": [
            leaving(model, source, kept, test, epsilon, draw, people) for epsilon in EPSILONS for draw in range(draws)
        ],
    }


def parted(rows: Rows, n_public: int = PUBLIC, n_test: int = HELD_OUT) -> dict[str, Rows]:
    """Public rows, test rows and the source, at random."""
    frame, labels = rows
    places = np.split(np.random.default_rng(0).permutation(len(labels)), [n_public, n_public + n_test])
    return {
        part: (frame.iloc[chosen], labels[chosen])
        for part, chosen in zip(("public", "test", "source"), places, strict=True)
    }


def table(name: str, folder: Path, draws: int) -> dict[str, Any]:
    """One table: boosting, and the pipelines."""
    parts = parted(TABLES[name](folder))
    (public, public_labels), (source, labels) = parts["public"], parts["source"]
    together = pd.concat([public, source]), np.concatenate([public_labels, labels])
    told: dict[str, Any] = {"rows": {part: len(rows[1]) for part, rows in parts.items()}}
    told["boosting"] = {
        "source and public rows": scores(boosting(together), parts["test"]),
        "public rows alone": scores(boosting(parts["public"]), parts["test"]),
    }
    told["fewer public rows"] = with_fewer(name, parts)
    told["pipelines"] = {}
    for kind, (prepare, strength) in preparations(name, parts["public"]).items():
        told["pipelines"][kind] = measured(prepare, strength, parts, draws)
        print(name, kind, json.dumps(told["pipelines"][kind]), flush=True)
    return told


# The page ---------------------------------------------------------------------------------------------------------


def after(pipeline: dict[str, Any], epsilon: float) -> str:
    """Accuracy and area after a deletion, of those that were made, and how many were refused."""
    mine = [row for row in pipeline["deletions"] if row["epsilon"] == epsilon]
    made = [row for row in mine if "headline" in row]
    assert all(row["headline"] == "proven" for row in made), made
    means = [f"{np.mean([row[what] for row in made]):.2f}" if made else "-" for what in ("accuracy", "auc")]
    refused = f" ({len(mine) - len(made)} of {len(mine)} refused)" if len(made) < len(mine) else ""
    return f"{means[0]}, {means[1]}{refused}"


def both(score: dict[str, float]) -> str:
    return f"{score['accuracy']:.2f}, {score['auc']:.2f}"


def figures(tables: dict[str, Any]) -> str:
    """The tables of the page."""
    lines = []
    for name, told in tables.items():
        rows = told["rows"]
        lines += [
            f"### {name}",
            "",
            f"{rows['source']:,} rows in the source, {rows['public']:,} public, {rows['test']:,} held out.",
            "",
            "| | weights | C | accuracy, AUC | ten left, epsilon 1 | epsilon 0.1 | deposit, deletion |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [f"| *boosting*, {kind} | | | {both(each)} | | | |" for kind, each in told["boosting"].items()]
        for kind, each in told["pipelines"].items():
            seconds = [row["seconds"] for row in each["deletions"] if "seconds" in row]
            deletion = f"{np.median(seconds):.2f} s" if seconds else "-"
            lines.append(
                f"| {kind} | {each['weights']} | {each['C']:g} | {both(each)} | "
                f"{' | '.join(after(each, epsilon) for epsilon in EPSILONS)} | "
                f"{each['deposit_seconds']:.1f} s, {deletion} |"
            )
        lines.append("")
    lines += [
        "### How many public rows it takes",
        "",
        f"*{BEST}*, and boosting on the public rows alone (accuracy, AUC).",
        "",
        "| | " + " | ".join(f"{count:,} public rows: head | boosting" for count in FEWER) + " |",
        "|---|" + "---|---|" * len(FEWER),
    ]
    for name, told in tables.items():
        cells = [both(told["fewer public rows"][str(n)][kind]) for n in FEWER for kind in ("head", "boosting")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def written(page: str, tables: dict[str, Any]) -> str:
    """The page with new figures between its marks."""
    before, _, rest = page.partition(MARKS[0])
    return f"{before}{MARKS[0]}\n\n{figures(tables)}\n{MARKS[1]}{rest.partition(MARKS[1])[2] or chr(10)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the files that the functions above name")
    parser.add_argument("--only", default="", help="tables whose name holds this; the others stay as they are")
    parser.add_argument("--draws", type=int, default=5, help="groups of people for each epsilon")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "tutorial-boosting.md")
    given = parser.parse_args()
    tables = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name in TABLES:
        if given.data is not None and given.only in name:
            tables[name] = table(name, given.data, given.draws)
            given.out.write_text(json.dumps(tables, indent=1) + "\n")
    given.page.write_text(written(given.page.read_text() if given.page.exists() else "", tables))


if __name__ == "__main__":
    main()
