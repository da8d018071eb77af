"""Accuracy against epsilon at delta = 1/n where source and surrogate differ in their classes, by task and seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.datasets.folder import DataFolder
from experiments.protocol.experiment import Case, Config, Record, Table, grouped, percent, spread
from experiments.shared.certified import frontier, parted
from experiments.shared.figures import COLOURS, new_figure, png
from expunge.runtime.progress import Progress, silent

PANELS = 4
SHOWN = ("1", "0.1 %", "1 %", "10 %")  # of the figure
MARKED = " *"
REFUSED = "* marks what expunge unlearn would refuse without --force: noise that outweighs the weights."


def cases(config: Config, seeds: int) -> list[Case]:
    tasks = config["run"]["tasks"]
    return [
        Case(name, seed, {"task": name})
        for seed in range(seeds)
        for name, wanted in tasks.items()
        if seed < wanted["seeds"]
    ]


def run(
    case: Case, config: Config, data: DataFolder, *, device: str = "cpu", progress: Progress = silent
) -> dict[str, Any]:
    wanted = config["run"]["tasks"][case.options["task"]]
    parts = parted(data.load(wanted["data"]), wanted, np.random.default_rng([case.seed, 8]))
    epsilons = wanted.get("epsilons", config["run"]["epsilons"])
    lines, checks = frontier(parts, wanted, epsilons, case.seed, progress)
    return {"lines": lines, "checks": checks}


def tables(config: Config, records: Sequence[Record]) -> list[Table]:
    return [_task(config, name, group) for name, group in _by_task(config, records).items()]


def _by_task(config: Config, records: Sequence[Record]) -> dict[str, list[Record]]:
    by_task = {key[0]: group for key, group in grouped(records, "task").items()}
    return {name: by_task[name] for name in config["run"]["tasks"] if name in by_task}


def _lines(group: Sequence[Record]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Lines of all seeds by number of forgotten rows and way."""
    by_way: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in group:
        for line in record["result"]["lines"]:
            by_way.setdefault((line["forget"], line["way"]), []).append(line)
    return by_way


def _accuracies(lines: Sequence[Mapping[str, Any]], epsilon: float) -> list[float]:
    return [one["accuracy"] for line in lines for one in line["outcomes"] if one["epsilon"] == epsilon]


def _cell(lines: Sequence[Mapping[str, Any]], epsilon: float) -> str:
    refused = any(one["refused"] for line in lines for one in line["outcomes"] if one["epsilon"] == epsilon)
    return percent(_accuracies(lines, epsilon)) + (MARKED if refused else "")


def _chosen(lines: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(f"{line['l2']:g}" for line in lines))


def _task(config: Config, name: str, group: Sequence[Record]) -> Table:
    wanted = config["run"]["tasks"][name]
    epsilons = wanted.get("epsilons", config["run"]["epsilons"])
    rows = []
    for (forget, way), lines in _lines(group).items():
        count = lines[0]["count"]
        rows.append(
            (
                forget if "%" not in forget else f"{forget} ({count:,})",
                way,
                _chosen(lines),
                percent([line["before"] for line in lines]),
                *(_cell(lines, epsilon) for epsilon in epsilons),
                *(spread([line[key] for line in lines], ".2g") for key in ("true", "residual", "paper")),
            )
        )
    sizes = sorted({line["n_source"] for lines in _lines(group).values() for line in lines})
    notes = [
        f"n = {' to '.join(f'{size:,}' for size in sizes)}, delta = 1/n; test accuracy in percent, mean over "
        f"{wanted['draws']} draws of the noise and {len(group)} seed(s)."
    ]
    if any(cell.endswith(MARKED) for row in rows for cell in row):
        notes.append(REFUSED)
    return Table(
        config["paper"]["titles"].get(name, name),
        (
            "forgotten",
            "surrogate",
            "l2",
            "before",
            *(f"eps {epsilon:g}" for epsilon in epsilons),
            "true distance",
            "residual Delta",
            "the paper's Delta",
        ),
        tuple(rows),
        tuple(notes),
    )


def figures(config: Config, records: Sequence[Record]) -> dict[str, bytes]:
    """Accuracy against epsilon, a panel a task, a line a number of forgotten rows."""
    groups = list(_by_task(config, records).items())
    drawn = {}
    for start in range(0, len(groups), PANELS):
        some = groups[start : start + PANELS]
        figure, axes = new_figure(len(some), 3.8, width=3.7 * len(some))
        for axis, (name, group) in zip(axes, some, strict=True):
            _panel(axis, config, name, group)
        axes[0].set_ylabel("test accuracy, %")
        drawn[f"frontier-{start // PANELS + 1}.png"] = png(figure)
    return drawn


def _panel(axis: Any, config: Config, name: str, group: Sequence[Record]) -> None:
    lines = _lines(group)
    ways = list(dict.fromkeys(way for _, way in lines))
    for (forget, way), repeats in lines.items():
        if forget not in SHOWN:
            continue
        epsilons = [one["epsilon"] for one in repeats[0]["outcomes"]]
        means = [100.0 * float(np.mean(_accuracies(repeats, epsilon))) for epsilon in epsilons]
        style = ("-o", "--s")[ways.index(way)]
        label = forget + (f", {way}" if len(ways) > 1 else "")
        axis.plot(epsilons, means, style, color=COLOURS[SHOWN.index(forget)], markersize=3.5, label=label)
    before = [line["before"] for repeats in lines.values() for line in repeats if line["forget"] == "1"]
    if before:
        axis.axhline(100.0 * float(np.mean(before)), color="#4a4a4a", linewidth=0.8, linestyle=":")
    title = config["paper"]["titles"].get(name, name)
    axis.set(xscale="log", xlabel="epsilon", title=title.replace(", Dirichlet split,", ",\nDirichlet split,"))
    axis.title.set_fontsize(10)
    axis.grid(alpha=0.3)
    low, high = axis.get_ylim()
    axis.set_ylim(low - 0.45 * (high - low), high)  # room for the legend
    axis.legend(title="forgotten", fontsize=6.5, title_fontsize=7, loc="lower right")
