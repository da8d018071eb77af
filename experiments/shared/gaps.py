"""The gaps between methods: an Unlearn row less Retrain of the same seed, in points, beside the paper's own gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from experiments.protocol.experiment import Table, spread
from experiments.shared.comparison import ACCURACIES, Scores

METHODS = ("Retrain", "Unlearn (+)", "Unlearn (-)")
Group = tuple[str, ...]


def gap_table(
    title: str,
    lead: tuple[str, ...],
    ours: Mapping[Group, Mapping[str, Sequence[Scores]]],
    paper: Mapping[Group, Mapping[str, Sequence[float]]],
) -> Table:
    """A row a group and Unlearn method; accuracies of the two are compared within each seed.

    The note says how far both are from Retrain at most, in the mean over seeds, ours and the paper's.
    """
    columns = [*lead, "method"]
    for metric in ACCURACIES:
        columns += [metric.capitalize(), "paper"]
    rows, largest = [], {"ours": 0.0, "paper": 0.0}
    for group, methods in ours.items():
        for method in METHODS[1:]:
            cells = [*group, method]
            for number, metric in enumerate(ACCURACIES):
                own = _points(methods[method], methods["Retrain"], metric)
                theirs = _paper_gap(paper.get(group, {}), method, number)
                largest["ours"] = max(largest["ours"], abs(float(np.mean(own))))
                largest["paper"] = max(largest["paper"], abs(theirs or 0.0))
                cells += [spread(own, "+.2f").replace("± +", "± "), "--" if theirs is None else f"{theirs:+.1f}"]
            rows.append(tuple(cells))
    notes = (
        "Points of accuracy above Retrain's, seed by seed.",
        f"The largest mean gap is {largest['ours']:.1f} points; in the paper's table it is {largest['paper']:.1f}.",
    )
    return Table(title, tuple(columns), tuple(rows), notes)


def _points(unlearned: Sequence[Scores], retrained: Sequence[Scores], metric: str) -> list[float]:
    pairs = zip(unlearned, retrained, strict=True)
    return [100.0 * ((one[metric] or 0.0) - (other[metric] or 0.0)) for one, other in pairs]


def _paper_gap(rows: Mapping[str, Sequence[float]], method: str, number: int) -> float | None:
    if method not in rows or "Retrain" not in rows:
        return None
    return rows[method][number] - rows["Retrain"][number]


def by_group(paper: Mapping[str, Sequence[float]], lead: Group = ()) -> dict[Group, dict[str, list[float]]]:
    """Rows named `13 Unlearn (+)` as groups of methods.

    >>> by_group({"13 Retrain": [1.0]}, ("CIFAR-10",))
    {('CIFAR-10', '13'): {'Retrain': [1.0]}}
    """
    groups: dict[Group, dict[str, list[float]]] = {}
    for name, values in paper.items():
        value, method = name.split(" ", 1)
        groups.setdefault((*lead, value), {})[method] = list(values)
    return groups
