"""Figures of peers beside Expunge, from the records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.protocol.experiment import Config, Record
from experiments.shared.figures import COLOURS, new_figure, png
from experiments.shared.ours import DEPOSIT, RIDGE
from experiments.shared.peer_tables import ALL_OURS, PEERS, Cells, by_task, cells_of, lines_of, mean, said
from experiments.shared.rivals import CHOSEN, RETRAIN, RETRAIN_RIDGE, USUAL

BLACK = "#000000"
LIMIT = 100.5  # percent: where the axis would have no end
TICKS = (0, 20, 40, 50, 60, 70, 80, 85, 90, 93, 95, 96, 97, 98, 99)


def figures(config: Config, records: Sequence[Record]) -> dict[str, bytes]:
    """Accuracy against epsilon, a panel a number of removals, a line a method; peers with their largest budget."""
    drawn = {}
    groups = by_task(config, records)
    for name in dict.fromkeys(task for task, *_ in groups):
        keys = [key for key in groups if key[0] == name]
        figure, axes = new_figure(len(keys), 4.4, width=max(7.4, 3.7 * len(keys)))
        for axis, key in zip(axes, keys, strict=True):
            _panel(axis, config["run"]["tasks"][name], cells_of(groups[key]))
            axis.set_title(f"{config['paper']['titles'][name]}, {said(*key[1:])} forgotten", fontsize=9)
        axes[0].set_ylabel("test accuracy, %")
        lines = {line.get_label(): line for axis in axes for line in axis.get_lines()}
        figure.legend(lines.values(), lines.keys(), fontsize=8, loc="outside lower center", ncols=3 + (len(keys) > 2))
        drawn[f"peers-{name}.png"] = png(figure)
    return drawn


def _panel(axis: Any, wanted: Mapping[str, Any], cells: Cells) -> None:
    most, epsilons = max(wanted["budgets"]), wanted["epsilons"]
    hidden = {(RETRAIN, USUAL), (RETRAIN, CHOSEN), (RETRAIN_RIDGE, USUAL), (RETRAIN_RIDGE, CHOSEN), (RIDGE, USUAL)}
    lines = [line for line in lines_of(wanted, cells) if line[1] in (None, most)]
    shown = [line for line in lines if (line[0], line[2]) not in hidden]
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate((*PEERS, *ALL_OURS))}
    colours[RIDGE] = BLACK
    for method, budget, chosen in shown:
        points = [(epsilon, mean(cells[method, budget, chosen, epsilon])) for epsilon in epsilons]
        known = [(epsilon, 100.0 * value) for epsilon, value in points if value is not None]
        label = method if budget is None else f"{method}, {budget} passes"
        style = "--s" if method in PEERS else "-o" if chosen == USUAL else ":^"
        label = f"{label}, {chosen}" if method in ALL_OURS else label
        axis.plot(
            [one for one, _ in known],
            [one for _, one in known],
            style,
            color=colours[method],
            markersize=3,
            linewidth=3.0 if method == DEPOSIT else 1.4,  # with a surrogate beside it the line is often the same
            label=label,
        )
    before = mean(cells[RETRAIN, None, USUAL, None])
    assert before is not None
    axis.axhline(100.0 * before, color="#4a4a4a", linewidth=0.8, linestyle=":", label=f"{RETRAIN}, {USUAL}")
    axis.set(xscale="log", xlabel="epsilon")
    # a point counts for more the fewer are left to be right about, else all lines but the worst would be one
    axis.set_yscale("function", functions=(_apart, _together))
    axis.set_yticks([tick for tick in TICKS if axis.get_ylim()[0] <= tick <= axis.get_ylim()[1]])
    axis.grid(alpha=0.3)


def _apart(shares: Any) -> Any:
    """Where on the axis an accuracy in percent is."""
    return -np.log(LIMIT - np.minimum(shares, 100.0))


def _together(places: Any) -> Any:
    return LIMIT - np.exp(-np.asarray(places))
