"""Stanford Dogs with several forget ratios (Table 4), at the paper's constants, epsilon 5 e^3 and delta 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.datasets.folder import DataFolder
from experiments.protocol.experiment import Case, Config, Record, Table, grouped, spread
from experiments.shared.comparison import ACCURACIES, Scores, comparison
from experiments.shared.figures import COLOURS, new_figure, png
from experiments.shared.gaps import METHODS, Group, by_group, gap_table
from experiments.shared.mixture import distance_checks, mixture, paper_scores, sizes, trained
from expunge.runtime.progress import Progress, silent


def cases(config: Config, seeds: int) -> list[Case]:
    ratios = config["run"]["ratios"]
    return [Case(f"ratio={ratio:g}", seed, {"ratio": ratio}) for seed in range(seeds) for ratio in ratios]


def run(
    case: Case, config: Config, data: DataFolder, *, device: str = "cpu", progress: Progress = silent
) -> dict[str, Any]:
    wanted = config["run"]
    generator = np.random.default_rng([case.seed, 4])  # source and surrogate are the same for every ratio
    data_set = data.load(wanted["data"])
    parts = mixture(data_set, wanted["concentration"], case.options["ratio"], wanted["length"], generator)
    task = trained(parts, wanted["l2"], wanted["length"], progress)
    return sizes(task, parts) | {
        "scores": paper_scores(task, parts.kl, case.seed, wanted["models"], progress),
        "checks": distance_checks(task, parts),
    }


def tables(config: Config, records: Sequence[Record]) -> list[Table]:
    groups = _by_ratio(records)
    ours: dict[Group, dict[str, list[Scores]]] = {
        (f"{ratio:g}",): {name: [one["result"]["scores"][name] for one in group] for name in METHODS}
        for ratio, group in groups.items()
    }
    theirs = by_group(config["paper"].get("table4", {}))
    rows = {(*group, name): scores for group, methods in ours.items() for name, scores in methods.items()}
    values = {(*group, name): row for group, methods in theirs.items() for name, row in methods.items()}
    return [
        comparison("Table 4", ("forget ratio", "method"), rows, values),
        gap_table("Table 4: the gaps between the methods", ("forget ratio",), ours, theirs),
        _deltas(groups),
    ]


def _by_ratio(records: Sequence[Record]) -> dict[float, list[Record]]:
    return {key[0]: group for key, group in sorted(grouped(records, "ratio").items())}


def _deltas(groups: dict[float, list[Record]]) -> Table:
    rows = []
    for ratio, group in groups.items():
        checks = {
            one["what"]: [r["result"]["checks"][k] for r in group] for k, one in enumerate(group[0]["result"]["checks"])
        }
        for what, entries in checks.items():
            values = [spread([one[key] for one in entries]) for key in ("true", "residual", "paper")]
            rows.append((f"{ratio:g}", what, *values))
    return Table(
        "The true distance to retraining, and two Deltas",
        ("forget ratio", "step", "true distance", "residual Delta", "Delta of the paper's theorem"),
        tuple(rows),
        (
            "Residual Deltas are at delta = 1/n, with the exact chi-square of the class proportions or with classes "
            "matched.",
        ),
    )


def figures(config: Config, records: Sequence[Record]) -> dict[str, bytes]:
    """Accuracies of the three methods against the forget ratio: not a figure of the paper, its Table 4 at a glance."""
    groups = _by_ratio(records)
    figure, axes = new_figure(len(ACCURACIES), 3.2, width=12.0)
    for axis, metric in zip(axes, ACCURACIES, strict=True):
        for number, method in enumerate(METHODS):
            values = [[100.0 * r["result"]["scores"][method][metric] for r in group] for group in groups.values()]
            spreads = [float(np.std(one)) for one in values]
            places = [ratio * (1.0 + 0.06 * (number - 1)) for ratio in groups]
            axis.errorbar(
                places,
                [float(np.mean(one)) for one in values],
                yerr=spreads,
                fmt="o",
                color=COLOURS[number],
                capsize=3,
                label=method,
            )
        axis.set(xlabel="forget ratio", title=f"{metric} accuracy, %", xscale="log")
        axis.set_xticks(list(groups), [f"{ratio:g}" for ratio in groups])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False, fontsize=8)
    return {"forget-ratio.png": png(figure)}
