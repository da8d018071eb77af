"""Figures without a screen: the same data give the same bytes, of the size asked for."""

import struct
import subprocess
import sys

from expunge.report.figures import DOTS, WIDTH, new_figure, png


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


def test_no_global_state_is_touched() -> None:
    program = (
        "import sys; from expunge.report.figures import new_figure, png; "
        "assert 'matplotlib' not in sys.modules; png(new_figure(1, 1.0)[0]); "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
