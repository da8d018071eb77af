"""The paper's tables with ours beside them: a row a method, two columns a metric."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.protocol.experiment import Table, percent, spread
from expunge.evaluate.evaluation import PERCENT, TITLES, MethodScores

ACCURACIES = ("train", "test", "retain", "forget")
PAPER_METRICS = (*ACCURACIES, "mia", "rt")

Scores = Mapping[str, float | None]


def scores_of(rows: Sequence[MethodScores]) -> dict[str, dict[str, float | None]]:
    """Values alone, method by method, as a result keeps them."""
    return {row.method: {name: score.value for name, score in row.scores.items()} for row in rows}


def shown(metric: str, values: Sequence[float | None]) -> str:
    """Percent, counts or plain numbers, as the metric wants it."""
    if metric in PERCENT:
        return percent(values)
    if metric == "rt":
        return spread(values, ".1f")
    return spread(values, ".3f" if metric.startswith("fs") else ".3g")


def comparison(
    title: str,
    lead: tuple[str, ...],
    ours: Mapping[Any, Sequence[Scores]],
    paper: Mapping[Any, Sequence[float | str]],
    *,
    metrics: Sequence[str] = PAPER_METRICS,
    within: float | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """Rows by name (as many names as `lead`): mean and spread over seeds, and the paper's value, or `--`.

    `ours` holds one set of scores a seed. With `within`, a note says how many of the accuracies lie within so many
    points of the paper's.
    """
    columns = [*lead]
    for metric in metrics:
        unit = " %" if metric in PERCENT else ""
        columns += [f"{TITLES[metric]}{unit}", "paper"]
    rows = []
    for name, seeds in ours.items():
        theirs = dict(zip(metrics, paper.get(name, ()), strict=False))
        cells = [*name]
        for metric in metrics:
            cells += [shown(metric, [one.get(metric) for one in seeds]), _paper(theirs.get(metric))]
        rows.append(tuple(cells))
    verdict = [] if within is None else [_verdict(ours, paper, metrics, within)]
    return Table(title, tuple(columns), tuple(rows), (*verdict, *notes))


def differences(
    ours: Mapping[Any, Sequence[Scores]],
    paper: Mapping[Any, Sequence[float | str]],
    metrics: Sequence[str] = PAPER_METRICS,
) -> dict[tuple[tuple[str, ...], str], float]:
    """Ours less the paper's, in points, for every accuracy that both have."""
    points = {}
    for name, seeds in ours.items():
        for metric, value in zip(metrics, paper.get(name, ()), strict=False):
            values = [one[metric] for one in seeds if one.get(metric) is not None]
            if metric in ACCURACIES and isinstance(value, int | float) and values:
                points[name, metric] = 100.0 * math.fsum(v for v in values if v is not None) / len(values) - value
    return points


def near_each_other(scores: Mapping[Any, Sequence[Scores]], one: Any, other: Any, within: float) -> str:
    """How many of one row's mean accuracies lie within so many points of another's; `--` where a row is missing.

    >>> rows = {"a": [{"train": 0.9, "test": 0.8}], "b": [{"train": 0.92, "test": 0.7}]}
    >>> near_each_other(rows, "a", "b", 3.0), near_each_other(rows, "a", "c", 3.0)
    ('1 of 2', '--')
    """
    if one not in scores or other not in scores:
        return "--"
    apart = []
    for part in ACCURACIES:
        values = [[v for seed in scores[row] if (v := seed.get(part)) is not None] for row in (one, other)]
        if all(values):
            apart.append(100.0 * abs(statistics.fmean(values[0]) - statistics.fmean(values[1])))
    return f"{sum(points <= within for points in apart)} of {len(apart)}"


def _verdict(
    ours: Mapping[Any, Sequence[Scores]],
    paper: Mapping[Any, Sequence[float | str]],
    metrics: Sequence[str],
    within: float,
) -> str:
    points = differences(ours, paper, metrics)
    if not points:
        return "The paper has no values to compare with."
    near = sum(abs(value) <= within for value in points.values())
    (name, metric), largest = max(points.items(), key=lambda item: abs(item[1]))
    return (
        f"{near} of {len(points)} accuracies lie within {within:g} points of the paper's; "
        f"the farthest is {TITLES[metric]} of {' '.join(name)}, by {largest:+.1f} points."
    )


def _paper(value: float | str | None) -> str:
    return "--" if value is None else value if isinstance(value, str) else f"{value:g}"
