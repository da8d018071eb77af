"""Figures drawn without a screen, as the bytes of a PNG file. matplotlib is loaded when one is drawn.

No global state is touched.
"""

from __future__ import annotations

import io
from typing import Any

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
