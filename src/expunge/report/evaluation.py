"""Methods side by side, and claimed against observed mu."""

from __future__ import annotations

from collections.abc import Mapping

from expunge.evaluate.audit import Audit
from expunge.evaluate.table import PERCENT, TITLES, Table
from expunge.report.canvas import new_figure, png

HEIGHT = 3.2
UNITS = {"rt": "iterations", "fs1": "forget score", "fs2": "forget score"}
PANELS = (("train", "test", "retain", "forget"), ("mia", "lira"), ("rt",), ("fs1", "fs2"))


def methods_figure(table: Table) -> bytes:
    """One panel a kind of metric: accuracies, attacks, relearn time, forget scores.

    Bars are means, whiskers spreads.
    """
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
