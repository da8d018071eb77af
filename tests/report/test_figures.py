"""What pages draw, and the figures of the experiments: every part seen, the same data the same bytes."""

from __future__ import annotations

import itertools
import struct

import pytest

from experiments.shared.figures import DOTS, WIDTH, new_figure, png
from expunge.report.page import stack_terms

# The geometry of the page's bar.


def test_the_bar_adds_up_and_every_part_is_seen() -> None:
    parts = stack_terms({"training": 0.0, "solver": 1e-12, "surrogate": 3.0, "sampling": 1.0})
    assert [round(part["share"], 6) for part in parts] == [0.0, 0.0, 75.0, 25.0]
    assert parts[0]["width"] == 0.0
    assert parts[1]["width"] > 0.3
    assert sum(part["width"] for part in parts) == pytest.approx(100.0)
    for part, following in itertools.pairwise(parts):
        assert following["start"] == pytest.approx(part["start"] + part["width"])
    assert stack_terms({"training": 0.0})[0]["width"] == 0.0


# Figures without a screen: the same data give the same bytes, of the size asked for.


def drawn(columns: int, height: float) -> bytes:
    figure, axes = new_figure(columns, height)
    assert len(axes) == columns
    for axis in axes:
        axis.plot([0, 1], [1, 0])
    return png(figure)


def test_the_same_data_give_the_same_bytes_of_the_size_asked_for() -> None:
    for columns in (1, 3):
        content = drawn(columns, 2.0)
        assert content == drawn(columns, 2.0)
        assert content.startswith(b"\x89PNG")
        assert struct.unpack(">II", content[16:24]) == (WIDTH * DOTS, 2 * DOTS)
