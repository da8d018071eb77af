"""What is left is what then happens."""

from __future__ import annotations

from pathlib import Path

from desk_use import Rows, ask, exhausted, opened
from expunge.desk import run, status
from expunge.model import LinearModel


def test_capacity_is_what_then_happens(source: Rows, surrogate: Rows, trained: LinearModel, tmp_path: Path) -> None:
    desk = opened(source, surrogate, trained, tmp_path, total_epsilon=1.0)
    ask(desk, source, 0, 1)
    run(desk)
    left = status(desk).models_left
    assert 0 < left < 9
    exhausted(desk, source, left + 1, start=1)
    assert status(desk).models == left + 1
