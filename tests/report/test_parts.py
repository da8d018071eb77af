"""The figure of parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from expunge.estimate.groups import REST, GroupDistance, GroupDistances
from expunge.report import figures as module
from expunge.report.figures import parts_figure

LINES = (
    GroupDistance("2016", REST, 100, 200, 0.02, 0.01, 0.03),
    GroupDistance("2017", REST, 100, 200, 0.05, 0.04, 0.06),
)
PAIR = GroupDistance("2016", "2017", 100, 100, 0.08, 0.05, 0.11)


def test_every_comparison_has_its_line_and_the_least_declaration_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(module, "png", lambda figure: drawn.append(figure) or b"")
    parts_figure(GroupDistances(LINES, (PAIR,), ()), "year")
    (panel,) = drawn[0].axes
    assert [label.get_text() for label in panel.get_yticklabels()] == [
        "2016 against the rest",
        "2017 against the rest",
        "2016 against 2017",
    ]
    spans = [list(line.get_xdata()) for line in panel.lines]
    assert spans == [[0.01, 0.03], [0.04, 0.06], [0.05, 0.11], [0.06, 0.06]], "intervals, then the least declaration"


def test_what_tells_nothing_has_no_point(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(module, "png", lambda figure: drawn.append(figure) or b"")
    silent = replace(LINES[0], chi2=None, lower=None, upper=None, reason="too far")
    parts_figure(GroupDistances((silent, LINES[1]), (), ()), "year")
    (panel,) = drawn[0].axes
    assert len(panel.lines) == 1
    assert "tells nothing" in [text.get_text() for text in panel.texts]


def test_it_is_a_png() -> None:
    assert parts_figure(GroupDistances(LINES, (), ()), "year").startswith(b"\x89PNG")
