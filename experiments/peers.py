"""Expunge beside its peers, all of them run on the same rows, and the peers beside their own published figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.datasets.folder import DataFolder, DataSet
from experiments.protocol.experiment import Case, Config, Record, Table, grouped, percent, spread
from experiments.shared.certified import parted
from experiments.shared.mixture import ROUNDING, of_length
from experiments.shared.rivals import (
    BOTH,
    DEPOSIT,
    DESCENT,
    LANGEVIN,
    NEEDS,
    REMOVAL,
    RETRAIN,
    SURROGATE,
    TUNING,
    accuracies,
    compared,
    sklearn_l2,
    task_of,
)
from expunge.evaluate.case import Splits, make_case
from expunge.evaluate.peers import DescentToDelete, Langevin
from expunge.report.canvas import new_figure, png
from expunge.report.plots import COLOURS
from expunge.runtime.progress import Progress, silent

PUBLISHED = "published"
PEERS, OURS = (REMOVAL, DESCENT, LANGEVIN, TUNING), (SURROGATE, DEPOSIT, BOTH)
SMALL = 1.0  # epsilons up to this are counted below the tables
ByCell = dict[tuple[str, int | None, float | None], list[Mapping[str, Any]]]


def cases(config: Config, seeds: int) -> list[Case]:
    tasks = config["run"]["tasks"]
    made = [
        Case(f"{name}, {count}", seed, {"task": name, "forget": count})
        for name, wanted in tasks.items()
        for seed in range(min(seeds, wanted["seeds"]))
        for count in wanted["forget"]
    ]
    return [Case(PUBLISHED, 0, {"task": PUBLISHED, "forget": 1}), *made]


def run(
    case: Case, config: Config, data: DataFolder, *, device: str = "cpu", progress: Progress = silent
) -> dict[str, Any]:
    if case.options["task"] == PUBLISHED:
        wanted = config["run"][PUBLISHED]
        return published(data.load(wanted["data"]), wanted, progress)
    wanted = config["run"]["tasks"][case.options["task"]]
    parts = parted(data.load(wanted["data"]), wanted, np.random.default_rng([case.seed, 8]))
    return compared(task_of(parts, wanted), wanted, case.options["forget"], case.seed, progress)


def published(data: DataSet, wanted: Mapping[str, Any], progress: Progress = silent) -> dict[str, Any]:
    """Two peers in the setting of the published figures, with the noise of their papers' own formulas."""
    keep = [np.isin(labels, wanted["classes"]) for labels in (data.y, data.y_test)]
    rows, test = (
        (of_length(images[chosen].reshape(chosen.sum(), -1) / 255.0 - 0.5, 1.0), labels[chosen].astype(np.int64))
        for images, labels, chosen in zip((data.X, data.X_test), (data.y, data.y_test), keep, strict=True)
    )
    n_source = len(rows[1])
    splits = Splits((rows[0][1:], rows[1][1:]), (rows[0][:1], rows[1][:1]), test)
    task = make_case(splits, l2=wanted["l2_by_rows"] * n_source, max_norm=ROUNDING)
    delta, draws, cells = 1.0 / n_source, wanted["draws"], []
    for number, epsilon in enumerate(wanted["epsilons"]):
        progress("Epsilons", number, len(wanted["epsilons"]))
        methods: tuple[Langevin | DescentToDelete, ...] = (
            *(Langevin(epsilon, delta, steps, published=True, draws=draws) for steps in wanted["langevin_steps"]),
            *(DescentToDelete(epsilon, delta, steps, published=True) for steps in wanted["descent_steps"]),
        )
        for method in methods:
            models = method.run(task).ensemble(draws, np.random.default_rng(3))
            shares = [accuracies(model[None], task.rows["test"]) for model in models]
            cells.append({"method": method.name, "steps": method.steps, "epsilon": epsilon, "accuracies": shares})
    return {"n_source": n_source, "before": accuracies(task.weights[None], task.rows["test"]), "cells": cells}


def tables(config: Config, records: Sequence[Record]) -> list[Table]:
    groups = _by_task(config, records)
    first = [_published(config, one) for one in records if one["options"]["task"] == PUBLISHED]
    return first + [_task(config, name, count, group) for (name, count), group in groups.items()]


def _by_task(config: Config, records: Sequence[Record]) -> dict[tuple[str, int], list[Record]]:
    """Records by task and number of removals, in the order of the config."""
    found = grouped(records, "task", "forget")
    order = [(name, count) for name, wanted in config["run"]["tasks"].items() for count in wanted["forget"]]
    return {(name, count): found[name, count] for name, count in order if (name, count) in found}


def _published(config: Config, record: Record) -> Table:
    result = record["result"]
    theirs = {
        (method, steps, epsilon): value
        for method, lines in config["paper"][PUBLISHED].items()
        for steps, epsilon, value in lines
    }
    rows = [
        (
            cell["method"],
            str(cell["steps"]),
            f"{cell['epsilon']:g}",
            f"{theirs[cell['method'], cell['steps'], cell['epsilon']]:g}",
            percent(cell["accuracies"]),
        )
        for cell in sorted(result["cells"], key=lambda one: (one["method"], one["steps"], one["epsilon"]))
    ]
    return Table(
        "MNIST 3 v 8, one removal: our implementations in the setting of the published figures",
        ("method", "steps", "epsilon", "published, accuracy %", "ours, accuracy %"),
        tuple(rows),
        (
            f"All {result['n_source']:,} training rows of the two digits, delta = 1/n, the papers' own noise, l2 and "
            f"steps of the published runs; ± is over draws. Without noise the accuracy is "
            f"{percent([result['before']])} %.",
            "Of certified removal and noisy fine-tuning no figure at these epsilons is at hand for this task.",
        ),
    )


def _cells(group: Sequence[Record]) -> ByCell:
    found: ByCell = {}
    for record in group:
        for cell in record["result"]["cells"]:
            key = (cell["method"], cell["budget"], cell["epsilon"])
            found.setdefault(key, []).append(cell)
    return found


def _lines(wanted: Mapping[str, Any]) -> list[tuple[str, int | None]]:
    """Methods and budgets in the order of the tables."""
    several = [(name, budget) for name in PEERS[1:] for budget in wanted["budgets"]]
    return [(RETRAIN, None), (REMOVAL, None), *several, *((name, None) for name in OURS)]


def _mean(cells: Sequence[Mapping[str, Any]]) -> float:
    return float(np.mean([cell["accuracy"] for cell in cells]))


def _task(config: Config, name: str, count: int, group: Sequence[Record]) -> Table:
    wanted, cells = config["run"]["tasks"][name], _cells(group)
    rows = []
    for method, budget in _lines(wanted):
        keys = [None if method == RETRAIN else epsilon for epsilon in wanted["epsilons"]]
        own = [cells[method, budget, epsilon] for epsilon in keys]
        seconds = [cell["seconds"] for some in own for cell in some]
        rows.append(
            (
                method,
                NEEDS[method],
                "--" if budget is None else str(budget),
                *(percent([cell["accuracy"] for cell in some]) for some in own),
                spread([float(np.median(seconds))], ".2g"),
            )
        )
    sizes = sorted({record["result"]["n_source"] for record in group})
    redrawn = sum(cell.get("redrawn", 0) for some in cells.values() for cell in some)
    notes = [
        f"n = {', '.join(f'{size:,}' for size in sizes)}, delta = 1/n; test accuracy in percent, mean over "
        f"{wanted['draws']} draws and {len(group)} seed(s). Seconds are of one core, the median over all deletions.",
        *_fixed(wanted, sizes),
        *_ahead(wanted, cells),
    ]
    tuned = [cell for (method, *_), some in cells.items() if method == TUNING for cell in some]
    least = min(wanted["radii"])
    small = sum(cell["radius"] == least for cell in tuned)
    if small:
        notes.append(
            f"In {small} of {len(tuned)} of its cells the best for noisy fine-tuning was to clip to {least:g}: it then "
            "trains anew from almost nothing within its passes."
        )
    if redrawn:
        drawn = wanted["draws"] * len(wanted["epsilons"]) * len(group)
        notes.append(f"Certified removal had to train anew in {redrawn} of {drawn} draws.")
    columns = (*("method", "needs at deletion", "passes"), *(f"eps {epsilon:g}" for epsilon in wanted["epsilons"]))
    title = f"{config['paper']['titles'][name]}, {count} forgotten"
    return Table(title, (*columns, "seconds"), tuple(rows), tuple(notes))


def _fixed(wanted: Mapping[str, Any], sizes: Sequence[int]) -> list[str]:
    """Whose l2 was not chosen."""
    return [
        f"Retrain and Expunge have scikit-learn's C = {wanted['inverse_l2']:g} (l2 {l2:.3g} with n = {size:,}) and "
        "choose nothing; the peers choose among it and larger ones."
        for size in sizes
        for l2 in sklearn_l2(wanted, size)
    ]


def _ahead(wanted: Mapping[str, Any], cells: ByCell) -> list[str]:
    """Where Expunge with each kind of evidence is ahead of every peer, and the cells where it is not."""
    said = []
    epsilons = [epsilon for epsilon in wanted["epsilons"] if epsilon <= SMALL]
    peers = [line for line in _lines(wanted) if line[0] in PEERS]
    for name in OURS:
        behind, total = [], 0
        for epsilon in epsilons:
            own = _mean(cells[name, None, epsilon])
            for method, budget in peers:
                total += 1
                gap = 100.0 * (own - _mean(cells[method, budget, epsilon]))
                if gap < 0.0:
                    passes = "" if budget is None else f" with {budget} passes"
                    behind.append(f"{method}{passes} at epsilon {epsilon:g} by {-gap:.1f}")
        ahead = f"{name}: at or above the peer in {total - len(behind)} of {total} cells with epsilon up to {SMALL:g}"
        said.append(f"{ahead}; behind {'; '.join(behind)}." if behind else f"{ahead}.")
    return said


def figures(config: Config, records: Sequence[Record]) -> dict[str, bytes]:
    """Accuracy against epsilon, a panel a number of removals, a line a method; peers with their largest budget."""
    drawn = {}
    groups = _by_task(config, records)
    for name in dict.fromkeys(task for task, _ in groups):
        counts = [count for task, count in groups if task == name]
        figure, axes = new_figure(len(counts), 3.8, width=3.7 * len(counts))
        for axis, count in zip(axes, counts, strict=True):
            _panel(axis, config["run"]["tasks"][name], _cells(groups[name, count]))
            axis.set_title(f"{config['paper']['titles'][name]}, {count} forgotten", fontsize=10)
        axes[0].set_ylabel("test accuracy, %")
        axes[-1].legend(fontsize=6.5, loc="lower right")
        drawn[f"peers-{name}.png"] = png(figure)
    return drawn


def _panel(axis: Any, wanted: Mapping[str, Any], cells: ByCell) -> None:
    most, epsilons = max(wanted["budgets"]), wanted["epsilons"]
    shown = [line for line in _lines(wanted)[1:] if line[1] in (None, most)]
    for number, (method, budget) in enumerate(shown):
        means = [100.0 * _mean(cells[method, budget, epsilon]) for epsilon in epsilons]
        label = method if budget is None else f"{method}, {budget} passes"
        style = "-o" if method in OURS else "--s"
        axis.plot(epsilons, means, style, color=COLOURS[number % len(COLOURS)], markersize=3.5, label=label)
    axis.axhline(100.0 * _mean(cells[RETRAIN, None, None]), color="#4a4a4a", linewidth=0.8, linestyle=":")
    axis.set(xscale="log", xlabel="epsilon")
    axis.grid(alpha=0.3)
