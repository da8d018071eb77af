"""Figures of the experiments, without a screen."""

from __future__ import annotations

import struct

from experiments.shared.figures import DOTS, WIDTH, new_figure, png


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
