"""Scores of several seeds as one table: methods as rows, metrics as columns, mean and spread over seeds."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from expunge.evaluate.evaluation import METRICS, MethodScores
from expunge.evaluate.score import Score
from expunge.runtime.cells import safe_cell

PERCENT = ("train", "test", "retain", "forget", "mia", "lira", "lira_worst")
TITLES = {
    "train": "Train",
    "test": "Test",
    "retain": "Retain",
    "forget": "Forget",
    "mia": "MIA",
    "rt": "RT",
    "fs1": "FS1",
    "fs2": "FS2",
    "lira": "U-LiRA",
    "lira_worst": "U-LiRA, worst row",
    "sigma": "sigma",
    "distance": "distance",
}

MEANINGS = {
    "train": "accuracy on all source rows",
    "test": "accuracy on rows that were never trained on",
    "retain": "accuracy on the source rows that stay",
    "forget": "accuracy on the forgotten rows; after forgetting about that of Test",
    "mia": "membership inference: how often an attacker tells forgotten rows from test rows; 50 % is guessing",
    "rt": "relearn time: iterations until the forgotten rows are fitted as well as before; as many as Retrain is good",
    "fs1": "forget score under the method's own noise: 1 where its models cannot be told from retrained ones, 0 where "
    "they can",
    "fs2": "the same under the noise of Unlearn (+)",
    "lira": "U-LiRA, a likelihood-ratio attack on each forgotten row, mean: 50 % is guessing",
    "lira_worst": "the same for the row it does best on",
    "sigma": "standard deviation of the noise on each weight",
    "distance": "of the weights before noise from the retrained ones",
}


@dataclass(frozen=True)
class Cell:
    """Mean over seeds, sample standard deviation (None for one seed), how many had a value, and what is flagged."""

    mean: float | None
    spread: float | None
    seeds: int
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """`cells[method][metric]`."""

    seeds: int
    cells: dict[str, dict[str, Cell]]
    notes: dict[str, tuple[str, ...]]

    @property
    def metrics(self) -> list[str]:
        """Metrics that any method has, in order."""
        return [name for name in METRICS if any(name in row for row in self.cells.values())]


def summarise(results: Sequence[Sequence[MethodScores]]) -> Table:
    """One list of method scores a seed, to means and spreads; a method without a value in some seed is flagged."""
    cells: dict[str, dict[str, Cell]] = {}
    notes: dict[str, tuple[str, ...]] = {}
    for name in dict.fromkeys(row.method for seed in results for row in seed):
        rows = [row for seed in results for row in seed if row.method == name]
        metrics = [metric for metric in METRICS if any(metric in row.scores for row in rows)]
        cells[name] = {
            metric: _cell([row.scores[metric] for row in rows if metric in row.scores]) for metric in metrics
        }
        notes[name] = tuple(dict.fromkeys(note for row in rows for note in row.notes))
    return Table(len(results), cells, notes)


def _cell(scores: Sequence[Score]) -> Cell:
    values = [score.value for score in scores if score.value is not None]
    flags = tuple(dict.fromkeys(flag for score in scores for flag in score.flags))
    if not values:
        return Cell(None, None, 0, flags)
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Cell(math.fsum(values) / len(values), spread, len(values), flags)


def shown(metric: str, cell: Cell | None) -> str:
    """A cell as text: percent with one decimal, counts with one, scores with three; `--` where there is no value.

    >>> shown("test", Cell(0.7234, 0.0051, 5, ())), shown("rt", Cell(10.2, None, 1, ())), shown("mia", None)
    ('72.3 ± 0.5', '10.2', '--')
    """
    if cell is None or cell.mean is None:
        return "--"
    if metric in PERCENT:
        form, factor = "{:.1f}", 100.0
    elif metric == "rt":
        form, factor = "{:.1f}", 1.0
    else:
        form, factor = ("{:.3f}" if metric.startswith("fs") else "{:.3g}"), 1.0
    text = form.format(factor * cell.mean)
    return text if cell.spread is None else f"{text} ± {form.format(factor * cell.spread)}"


def to_markdown(table: Table) -> str:
    """The table with its flags and notes below it."""
    metrics = table.metrics
    lines = [
        "| Method | " + " | ".join(TITLES[metric] + (" %" if metric in PERCENT else "") for metric in metrics) + " |"
    ]
    lines.append("|---|" + "---:|" * len(metrics))
    for name, row in table.cells.items():
        lines.append(f"| {name} | " + " | ".join(shown(metric, row.get(metric)) for metric in metrics) + " |")
    lines += ["", f"Mean ± standard deviation over {table.seeds} seed{'s' if table.seeds != 1 else ''}.", ""]
    lines += [f"- {line}" for line in legend(table)]
    said = remarks(table)
    return "\n".join([*lines, *(["", *(f"- {remark}" for remark in said)] if said else [])]) + "\n"


def legend(table: Table) -> list[str]:
    """What each column means, in the order of the columns."""
    return [f"{TITLES[metric]}: {MEANINGS[metric]}" for metric in table.metrics]


def remarks(table: Table) -> list[str]:
    """What is flagged or noted, each sentence once, with the methods and metrics it is said of."""
    of: dict[str, dict[str, list[str]]] = {}
    for name, row in table.cells.items():
        for metric, cell in row.items():
            for flag in cell.flags:
                of.setdefault(flag, {}).setdefault(name, []).append(TITLES[metric])
    for name, notes in table.notes.items():
        for note in notes:
            of.setdefault(note, {}).setdefault(name, [])
    said = []
    for sentence, methods in of.items():
        metrics = list(dict.fromkeys(title for titles in methods.values() for title in titles))
        where = f" ({', '.join(metrics)})" if metrics else ""
        said.append(f"{', '.join(methods)}{where}: {sentence}")
    return said


def to_csv(table: Table) -> str:
    """One line a method and metric: method, metric, mean, spread, seeds, flags."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "metric", "mean", "spread", "seeds", "flags"])
    for name, row in table.cells.items():
        for metric, cell in row.items():
            line = (name, metric, cell.mean, cell.spread, cell.seeds, "; ".join(cell.flags))
            writer.writerow([safe_cell(value) for value in line])
    return text.getvalue()


def to_json(table: Table) -> dict[str, Any]:
    """Everything, as JSON takes it."""
    return {
        "seeds": table.seeds,
        "methods": {
            name: {"metrics": {metric: asdict(cell) for metric, cell in row.items()}, "notes": list(table.notes[name])}
            for name, row in table.cells.items()
        },
    }


def scores_to_json(rows: Sequence[MethodScores]) -> list[dict[str, Any]]:
    """One seed's scores, to be kept until all seeds are done."""
    return [asdict(row) for row in rows]


def scores_from_json(content: Sequence[dict[str, Any]]) -> list[MethodScores]:
    """The same back."""
    return [
        MethodScores(
            row["method"],
            {
                name: Score(score["value"], score["error"], tuple(score["flags"]))
                for name, score in row["scores"].items()
            },
            tuple(row["notes"]),
        )
        for row in content
    ]
