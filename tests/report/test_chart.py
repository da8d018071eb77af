"""The geometry of the page's figures."""

from __future__ import annotations

import itertools

import pytest

from expunge.report.page import noise_curve, stacked


def test_the_bar_adds_up_and_every_part_is_seen() -> None:
    parts = stacked({"training": 0.0, "solver": 1e-12, "surrogate": 3.0, "sampling": 1.0})
    assert [round(part.share, 6) for part in parts] == [0.0, 0.0, 75.0, 25.0]
    assert parts[0].width == 0.0
    assert parts[1].width > 0.3
    assert sum(part.width for part in parts) == pytest.approx(100.0)
    for part, following in itertools.pairwise(parts):
        assert following.start == pytest.approx(part.start + part.width)
    assert stacked({"training": 0.0})[0].width == 0.0


def test_the_curve_falls_and_the_mark_is_on_it() -> None:
    curve = noise_curve(0.01, 1.0, 1e-5)
    points = [tuple(map(float, pair.split(","))) for pair in curve.path[1:].replace("L", "").split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted(y for _, y in points), "down the page is less noise"
    nearest = min(points, key=lambda point: abs(point[0] - curve.x))
    assert abs(nearest[1] - curve.y) < 5
