"""Figures of a plan: one panel or two, and hollow marks for what would be refused."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest

from expunge.report import figures as plots
from expunge.report.figures import frontier


def outlook(epsilon: float, distance: str, **changed: Any) -> dict[str, Any]:
    plain = {"epsilon": epsilon, "distance": distance, "sigma": 1.0 / epsilon, "accuracy": 0.9, "refused": None}
    return plain | changed


def test_accuracy_has_a_panel_only_where_it_is_known() -> None:
    both = frontier([outlook(1.0, "same"), outlook(2.0, "same", accuracy=None)], 0.95)
    noise = frontier([outlook(1.0, "same", accuracy=None)], None)
    assert both.startswith(b"\x89PNG")
    width = [struct.unpack(">I", content[16:20])[0] for content in (both, noise)]
    assert width == [1200, 660]


def test_every_distance_has_a_line_and_what_is_refused_a_hollow_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(plots, "png", lambda figure: kept.append(figure) or b"")
    given = [
        outlook(2.0, "same"),
        outlook(1.0, "same", refused="noise"),
        outlook(1.0, "tv:0.1", sigma=math.inf),
        outlook(3.0, "tv:0.1"),
    ]
    frontier(given, 0.95)
    sigma, accuracy = kept[0].axes
    lines = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in sigma.lines}
    assert lines == {"same": [(1.0, 1.0), (2.0, 0.5)], "tv:0.1": [(3.0, 1.0 / 3.0)]}
    hollow = [mark for mark in sigma.collections if len(mark.get_offsets()) and (mark.get_facecolor()[0] == 1.0).all()]
    assert [tuple(mark.get_offsets()[0]) for mark in hollow] == [(1.0, 1.0)]
    assert any(list(line.get_ydata()) == [0.95, 0.95] for line in accuracy.lines), "accuracy before"
    said = [text.get_text() for text in sigma.get_legend().get_texts()]
    assert said[-1].startswith("hollow: unlearn would refuse")
    frontier(given[:1], 0.95)
    assert [text.get_text() for text in kept[1].axes[0].get_legend().get_texts()] == ["same"], "none is hollow"
