"""Figures drawn without a screen, as the bytes of a PNG file; no global state is touched."""

from __future__ import annotations

import io
from typing import Any

WIDTH, DOTS = 9.0, 120
STYLES = ("-", "--", "-.", ":")
# dark enough for 3:1 against white, and told apart without colour by line styles, labels and order
COLOURS = ("#1b5e8c", "#b4480f", "#3d7a2a", "#7a3e9d", "#6b5b00", "#a3195b", "#4a4a4a")


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
