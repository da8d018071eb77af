"""Figures are whole PNG files of the size asked for, and the same for the same results."""

from __future__ import annotations

import struct

from expunge.evaluate.audit import Audit, LowerBounds
from expunge.evaluate.evaluation import MethodScores, summarise
from expunge.evaluate.metrics import Score
from expunge.report.figures import DOTS, WIDTH, audit_figure, methods_figure


def size(content: bytes) -> tuple[int, int]:
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-8:-4] == b"IEND"
    return struct.unpack(">II", content[16:24])


def test_methods_side_by_side() -> None:
    rows = [
        [MethodScores("a", {"test": Score(0.5), "mia": Score(None), "rt": Score(3.0), "fs1": Score(0.1)})]
        for _ in range(2)
    ]
    picture = methods_figure(summarise(rows))
    assert size(picture)[0] == WIDTH * DOTS
    assert methods_figure(summarise(rows)) == picture


def test_claimed_against_observed() -> None:
    lower = LowerBounds(0.3, 0.5, "projection", 0.0, True, 0.1, 0.1, 100, 0.999)
    assert size(audit_figure({"tight": Audit(1.0, 1e-3, 0.4, 1.0, 0.4, 0.4, lower)}))[0] == WIDTH * DOTS
