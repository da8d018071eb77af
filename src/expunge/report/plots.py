"""Figures of a plan, and of what a deposit's rehearsal foresees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from expunge.report.canvas import new_figure, png

STYLES = ("-", "--", "-.", ":")
COLOURS = ("#1b5e8c", "#b4480f", "#3d7a2a", "#7a3e9d", "#6b5b00", "#a3195b", "#4a4a4a")


def frontier(outlooks: Sequence[Mapping[str, Any]], accuracy_before: float | None) -> bytes:
    """Noise and predicted accuracy against epsilon, one line a distance.

    Hollow marks are what `unlearn` would refuse.
    """
    accurate = any(outlook["accuracy"] is not None for outlook in outlooks)
    figure, axes = new_figure(2 if accurate else 1, 4.2, width=10.0 if accurate else 5.5)
    distances = list(dict.fromkeys(outlook["distance"] for outlook in outlooks))
    for index, distance in enumerate(distances):
        mine = sorted((o for o in outlooks if o["distance"] == distance), key=lambda o: float(o["epsilon"]))
        for axis, name in zip(axes, ("sigma", "accuracy"), strict=False):
            points = [o for o in mine if o[name] is not None and math.isfinite(o[name])]
            x, y = [o["epsilon"] for o in points], [o[name] for o in points]
            colour = COLOURS[index % len(COLOURS)]
            axis.plot(x, y, STYLES[index % len(STYLES)], color=colour, label=distance)
            for hollow in (False, True):
                chosen = [(o["epsilon"], o[name]) for o in points if bool(o["refused"]) == hollow]
                axis.scatter(
                    [a for a, _ in chosen],
                    [b for _, b in chosen],
                    color=colour,
                    facecolors="white" if hollow else colour,
                    zorder=3,
                )
    axes[0].set(
        xscale="log", yscale="log", xlabel="epsilon (smaller protects more)", ylabel="noise: sigma of each weight"
    )
    if any(outlook["refused"] for outlook in outlooks):
        label = "hollow: unlearn would refuse, the noise swamps the weights"
        axes[0].scatter([], [], color="#4a4a4a", facecolors="white", label=label)
    axes[0].legend(title="declared distance", frameon=False, fontsize="small")
    if accurate:
        axes[1].set(
            xscale="log", xlabel="epsilon (smaller protects more)", ylabel="predicted accuracy (on the surrogate)"
        )
        if accuracy_before is not None:
            axes[1].axhline(accuracy_before, color="#4a4a4a", linewidth=1)
            axes[1].annotate(
                "before", (axes[1].get_xlim()[0], accuracy_before), xytext=(4, 4), textcoords="offset points"
            )
    for axis in axes:
        axis.grid(alpha=0.3)
    return png(figure)


def forgettable(forecasts: Sequence[Mapping[str, Any]], accuracy_before: float) -> bytes:
    """Accuracy against random rows forgotten, one colour an epsilon: at once, and dashed one at a time."""
    figure, axes = new_figure(1, 4.2, width=6.5)
    epsilons = list(dict.fromkeys(each["epsilon"] for each in forecasts))
    for index, epsilon in enumerate(epsilons):
        mine = sorted((each for each in forecasts if each["epsilon"] == epsilon), key=lambda each: int(each["rows"]))
        for manner, style, words in (("at_once", "-", "at once"), ("one_at_a_time", "--", "one at a time")):
            points = [(each["rows"], accuracy_before - each[manner]) for each in mine if each[manner] is not None]
            x, y = [rows for rows, _ in points], [left for _, left in points]
            colour = COLOURS[index % len(COLOURS)]
            axes[0].plot(x, y, style, marker="o", markersize=4, color=colour, label=f"epsilon {epsilon:g}, {words}")
    axes[0].axhline(accuracy_before - 0.01, color="#4a4a4a", linewidth=1, linestyle=":", label="a point less")
    axes[0].set(xscale="log", xlabel="random rows forgotten", ylabel="accuracy (on the source)")
    axes[0].legend(frameon=False, fontsize="small")
    axes[0].grid(alpha=0.3)
    return png(figure)
