"""Figures drawn without a screen, as the bytes of a PNG file. matplotlib is loaded when one is drawn.

No global state is touched.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from expunge.estimate.comparison import Comparison
    from expunge.evaluate.audit import Audit
    from expunge.evaluate.evaluation import ScoreTable
    from expunge.heads import Rows

WIDTH, DOTS = 9.0, 120


def new_figure(columns: int, height: float, width: float = WIDTH) -> tuple[Any, list[Any]]:
    """A figure with this many panels side by side; sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, columns, squeeze=False).reshape(-1))


def png(figure: Any) -> bytes:
    """The figure's file, without a time stamp, so that the same data give the same bytes."""
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


# Figures of a plan, and of what a deposit's rehearsal foresees.


STYLES = ("-", "--", "-.", ":")
# dark enough for 3:1 against white, and told apart without colour by line styles, labels and order
COLOURS = ("#1b5e8c", "#b4480f", "#3d7a2a", "#7a3e9d", "#6b5b00", "#a3195b", "#4a4a4a")


def frontier(outlooks: Sequence[Mapping[str, Any]], accuracy_before: float | None) -> bytes:
    """Noise and predicted accuracy against epsilon, one line a distance; hollow marks are what `unlearn` refuses."""
    accurate = any(outlook["accuracy"] is not None for outlook in outlooks)
    figure, axes = new_figure(2 if accurate else 1, 4.2, width=10.0 if accurate else 5.5)
    for index, distance in enumerate(dict.fromkeys(outlook["distance"] for outlook in outlooks)):
        mine = sorted((o for o in outlooks if o["distance"] == distance), key=lambda o: float(o["epsilon"]))
        colour = COLOURS[index % len(COLOURS)]
        for axis, name in zip(axes, ("sigma", "accuracy"), strict=False):
            points = [o for o in mine if o[name] is not None and math.isfinite(o[name])]
            x, y = [o["epsilon"] for o in points], [o[name] for o in points]
            faces = ["white" if o["refused"] else colour for o in points]
            axis.plot(x, y, STYLES[index % len(STYLES)], color=colour, label=distance)
            axis.scatter(x, y, edgecolors=colour, facecolors=faces, zorder=3)
    across: dict[str, Any] = {"xscale": "log", "xlabel": "epsilon (smaller protects more)"}
    axes[0].set(yscale="log", ylabel="noise: sigma of each weight", **across)
    if any(outlook["refused"] for outlook in outlooks):
        label = "hollow: unlearn would refuse, the noise swamps the weights"
        axes[0].scatter([], [], color="#4a4a4a", facecolors="white", label=label)
    axes[0].legend(title="declared distance", frameon=False, fontsize="small")
    if accurate:
        axes[1].set(ylabel="predicted accuracy (on the surrogate)", **across)
        if accuracy_before is not None:
            axes[1].axhline(accuracy_before, color="#4a4a4a", linewidth=1)
            start = (axes[1].get_xlim()[0], accuracy_before)
            axes[1].annotate("before", start, xytext=(4, 4), textcoords="offset points")
    for axis in axes:
        axis.grid(alpha=0.3)
    return png(figure)


def forgettable(losses: Sequence[Mapping[str, Any]], accuracy_before: float) -> bytes:
    """Accuracy against random rows forgotten, one colour an epsilon: at once, and dashed one at a time."""
    figure, axes = new_figure(1, 4.2, width=6.5)
    epsilons = list(dict.fromkeys(each["epsilon"] for each in losses))
    for index, epsilon in enumerate(epsilons):
        mine = sorted((each for each in losses if each["epsilon"] == epsilon), key=lambda each: int(each["rows"]))
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


# Methods side by side, and claimed against observed mu.


HEIGHT = 3.2
UNITS = {"rt": "iterations", "fs1": "forget score", "fs2": "forget score"}
PANELS = (("train", "test", "retain", "forget"), ("mia", "lira"), ("rt",), ("fs1", "fs2"))


def methods_figure(table: ScoreTable) -> bytes:
    """One panel a kind of metric: accuracies, attacks, relearn time, forget scores.

    Bars are means, whiskers spreads.
    """
    from expunge.evaluate.evaluation import PERCENT, TITLES

    panels = [[name for name in names if name in table.metrics] for names in PANELS]
    panels = [names for names in panels if names]
    figure, axes = new_figure(len(panels), HEIGHT + 0.18 * len(table.cells))
    methods = list(table.cells)
    for axis, names in zip(axes, panels, strict=True):
        thickness = 0.8 / len(names)
        for number, metric in enumerate(names):
            factor = 100.0 if metric in PERCENT else 1.0
            cells = [table.cells[method].get(metric) for method in methods]
            known = [place for place, cell in enumerate(cells) if cell is not None and cell.mean is not None]
            filled = [cell for cell in cells if cell is not None and cell.mean is not None]
            axis.barh(
                [place + (number - (len(names) - 1) / 2) * thickness for place in known],
                [factor * (cell.mean or 0.0) for cell in filled],
                thickness,
                xerr=[factor * (cell.spread or 0.0) for cell in filled],
                label=TITLES[metric],
            )
        axis.set_yticks(range(len(methods)), methods if axis is axes[0] else [""] * len(methods))
        axis.invert_yaxis()
        axis.set_xlabel("%" if names[0] in PERCENT else UNITS[names[0]])
        axis.legend(fontsize=6, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return png(figure)


def audit_figure(audits: Mapping[str, Audit]) -> bytes:
    """Claimed, true and observed mu of each audit."""
    figure, (axis,) = new_figure(1, 1.4 + 0.5 * len(audits))
    for place, one in enumerate(audits.values()):
        axis.plot([0.0, one.mu_claimed], [place, place], color="0.8", linewidth=6, solid_capstyle="butt")
        axis.plot(one.mu_claimed, place, "k|", markersize=16, label="claimed" if place == 0 else None)
        axis.plot(one.true_distance / one.sigma, place, "bx", label="true" if place == 0 else None)
        axis.plot(one.lower.mu, place, "r>", label="observed, lower bound" if place == 0 else None)
    axis.set_yticks(range(len(audits)), list(audits))
    axis.set_ylim(-0.6, len(audits) - 0.4)
    axis.set_xlabel("mu")
    axis.legend(fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return png(figure)


# Sampled features against the surrogate's.


SHOWN = 2000  # points of a set that a scatter plot shows


def places_along(surrogate: Rows, width: int) -> Callable[[Rows], Any]:
    """Where rows lie along the surrogate's first two principal components; of many rows some, evenly."""
    import torch

    features = surrogate.features[:, :width].double()
    centre = features.mean(dim=0)
    _, vectors = torch.linalg.eigh((features - centre).T @ (features - centre))
    axes = vectors[:, [-1, max(-2, -width)]]
    axes = axes * torch.sign(axes.sum(dim=0, keepdim=True) + 1e-300)

    def places(rows: Rows) -> Any:
        shown = torch.linspace(0, len(rows) - 1, min(len(rows), SHOWN)).long()
        return ((rows.features[shown][:, :width].double() - centre) @ axes).cpu().numpy()

    return places


def principal_components(comparison: Comparison) -> bytes:
    """Sampled features against the surrogate's, along the surrogate's first two principal components."""
    places = places_along(comparison.surrogate, comparison.sampled.n_features)
    sets = {
        "surrogate": (comparison.surrogate, "#888888"),
        "sampled from the model": (comparison.sampled.rows, "#c03028"),
        "reference (real source rows)": (comparison.reference, "#2060b0"),
    }
    figure, (panel,) = new_figure(1, 5.0, width=6.5)
    for name, (rows, colour) in sets.items():
        if rows is not None:
            x, y = places(rows).T
            panel.scatter(x, y, s=6, alpha=0.5, linewidths=0, color=colour, label=f"{name} ({len(rows):,})")
    panel.set(xlabel="first principal component of the surrogate", ylabel="second")
    panel.set_title("Features the model implies, against the surrogate's", fontsize=11)
    panel.legend(frameon=False, fontsize=9)
    return png(figure)
