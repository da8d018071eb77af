"""How far the parts of a set are from one another, as a figure."""

from __future__ import annotations

from expunge.estimate.parts import CONFIDENCE, Parts
from expunge.report.canvas import new_figure, png


def parts_figure(parts: Parts, by: str) -> bytes:
    """Chi-square with its interval, a line a comparison; parts that tell nothing are named and have no point."""
    lines = [*parts.against_rest, *parts.pairs]
    figure, (panel,) = new_figure(1, 1.4 + 0.32 * len(lines), width=7.5)
    names = []
    for place, line in enumerate(lines):
        colour = "#1b5e8c" if place < len(parts.against_rest) else "#8a8a8a"
        names.append(f"{line.part} against {line.other}")
        if line.chi2 is None or line.lower is None or line.upper is None:
            panel.annotate(
                "tells nothing", (0.0, place), fontsize=9, va="center", xytext=(4, 0), textcoords="offset points"
            )
            continue
        panel.plot([line.lower, line.upper], [place, place], color=colour, linewidth=2)
        panel.scatter([line.chi2], [place], color=colour, zorder=3)
    if parts.plausible is not None:
        panel.axvline(parts.plausible[0], color="#b4480f", linestyle="--", linewidth=1)
        panel.annotate(
            "declare no less",
            (parts.plausible[0], -0.7),
            fontsize=9,
            color="#b4480f",
            xytext=(3, 0),
            textcoords="offset points",
        )
    panel.set_yticks(range(len(lines)), names)
    panel.set_ylim(len(lines) - 0.4, -1.0)
    panel.set_xlim(left=0.0)
    panel.set(xlabel=f"chi-square as a classifier sees it, {100 * CONFIDENCE:g} % intervals", title=f"Parts by {by}")
    panel.grid(alpha=0.3, axis="x")
    return png(figure)
